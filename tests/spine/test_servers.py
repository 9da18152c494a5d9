"""Parameter servers of a real job that die with all they hold, and come back with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlrover_lite
from dlrover_lite import slots
from dlrover_lite.jobs.handle import JobHandle
from tests.backends.support import until
from tests.spine.support import end, kill, pid_of, start, succeeded, until_trained
from tests.spine.test_faults import SGD
from tests.spine.test_nodes import census, kill_master
from tests.spine.test_slots import exactly_once, slots_by_ps, until_placed

EPOCHS = 3
MUCH = {
    "format": "synthetic",
    "samples": 40_000,
    "eval_samples": 0,
    "ids_per_field": 100_000,
    "zipf_exponent": 0.5,
}


def newest_server(handle: JobHandle) -> str:
    """Of those that own slots and run."""
    return [name for name, owned in slots_by_ps(handle.status()).items() if owned][-1]


def until_gone(handle: JobHandle, node: str) -> None:
    until(lambda: pid_of(handle, node) is None, f"the end of {node}")


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("seed", [random.randrange(10_000)])
def test_a_server_that_is_killed_again_and_again(tmp_path: Path, servers: int, seed: int) -> None:
    print(f"seed {seed}")
    moments = sorted(random.Random(seed).sample(range(1_000, 40_000, 500), 3))
    handle = census(tmp_path, ps=servers, epochs=EPOCHS)
    for samples in moments:
        until_trained(handle, samples)
        victim = until_up(handle, servers)
        kill(handle, victim)
        until_gone(handle, victim)
    status = exactly_once(handle)
    nodes = {node["id"]: node for node in status["nodes"] if node["role"] == "ps"}
    assert len(nodes) == servers + 3
    assert sum("Killed" in node["state"] for node in nodes.values()) == 3
    assert len([node for node in status["nodes"] if node["role"] == "worker"]) == 2  # they have only waited
    first = next(name for name, node in nodes.items() if "Killed" in node["state"])
    told = [entry.text for entry in handle.story(first).entries]
    assert f"ps-{servers} takes its place with its memory" in told


def until_up(handle: JobHandle, servers: int) -> str:
    """The newest of so many that own slots, once they run."""
    until(lambda: len(slots_by_ps(handle.status())) == servers, f"{servers} parameter servers")
    newest = newest_server(handle)
    until(lambda: pid_of(handle, newest), newest)
    return newest


@pytest.mark.parametrize("victim", ["source", "target", "both"])
def test_servers_that_are_killed_while_slots_move(tmp_path: Path, victim: str) -> None:
    handle = census(tmp_path, ps=2, epochs=EPOCHS)
    until_trained(handle, 1_000)
    handle.move(slots.parse("0-1999"), "ps-1")
    until(lambda: handle.status().moves, "the move")
    for node in {"source": ["ps-0"], "target": ["ps-1"], "both": ["ps-1", "ps-0"]}[victim]:
        kill(handle, node)
    by_ps = until_placed(handle, 2)
    assert sorted(by_ps.values()) == [48, 4048]  # the move was begun anew
    exactly_once(handle)


def test_a_server_that_is_killed_while_there_is_no_master(tmp_path: Path) -> None:
    handle = census(tmp_path, ps=2, epochs=EPOCHS)
    until_trained(handle, 2_000)
    kill(handle, "ps-0")
    kill_master(handle)
    assert exactly_once(handle)["master_restarts"] == 1
    assert pid_of(handle, "ps-2") is None


def test_a_server_that_is_stopped_is_given_up_and_followed(tmp_path: Path) -> None:
    import signal

    handle = census(tmp_path, ps=2, epochs=EPOCHS, health={"heartbeat_seconds": 3})
    until_trained(handle, 2_000)
    kill(handle, "ps-1", signal.SIGSTOP)
    states = {node["id"]: node["state"] for node in exactly_once(handle)["nodes"]}
    assert states["ps-1"] == "ended (Hung: no heartbeat for 3 s)"


def much(tmp_path: Path, **settings: Any) -> JobHandle:
    """Rows of more than 128 MiB, each changed by as many samples as have its id."""
    model = {"use": "wide_deep", "options": {"embedding_dim": 32, "hidden": [16]}}
    return start(model, MUCH, **{"memory": {"ps": "160MiB"}, "batch_size": 512, **settings})


def test_a_server_out_of_memory_comes_back_with_more(tmp_path: Path) -> None:
    handle = much(tmp_path)
    status = succeeded(handle)
    servers = [node for node in status["nodes"] if node["role"] == "ps"]
    assert "OOMKilled: over its memory limit of 160 MiB" in servers[0]["state"]
    assert servers[1]["memory"] == 240 << 20
    told = [entry.text for entry in handle.story("ps-0").entries]
    assert "ps-1 takes its place with its memory, of which it may have 240 MiB instead of 160 MiB" in told
