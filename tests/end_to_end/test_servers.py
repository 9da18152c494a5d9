"""Parameter servers of a real job that die with all they hold, and come back with it."""

from __future__ import annotations

import random
import signal
from itertools import count
from pathlib import Path

import pytest

from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core import slot_sets
from tests.backends.support import until
from tests.end_to_end.support import SEED, end, kill, pid_of, start, succeeded, until_trained
from tests.end_to_end.test_nodes import census, kill_master
from tests.end_to_end.test_slots import exactly_once, slots_by_ps, stopped, until_placed

MUCH = {
    "format": "synthetic",
    "samples": 40_000,
    "eval_samples": 0,
    "ids_per_field": 100_000,
    "zipf_exponent": 0.5,
}


def newest_server(handle: JobHandle, servers: int) -> str | None:
    """Of so many that own slots and run, in the eyes of the master and in fact."""
    owning = [name for name, owned in slots_by_ps(handle.status()).items() if owned]
    return owning[-1] if len(owning) == servers and all(pid_of(handle, name) for name in owning) else None


def until_gone(handle: JobHandle, node: str) -> None:
    until(lambda: pid_of(handle, node) is None, f"the end of {node}")


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("seed", [SEED])
def test_job_is_exact_though_a_server_is_killed_again_and_again(tmp_path: Path, servers: int, seed: int) -> None:
    print(f"seed {seed}")
    moments = sorted(random.Random(seed).sample(range(200, 3_000, 50), 3))
    handle = census(tmp_path, ps=servers)
    for samples in moments:
        until_trained(handle, samples)
        victim = until(lambda: newest_server(handle, servers), f"{servers} parameter servers")
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


def test_job_is_exact_though_servers_are_killed_while_slots_move(tmp_path: Path) -> None:
    """The source, the target, and both; the other side is stopped, so that the move can't be over before."""
    handle = census(tmp_path, ps=2)
    until_trained(handle, 500)
    source, target, numbers = "ps-0", "ps-1", count(2)

    def die(node: str) -> str:
        follower = f"ps-{next(numbers)}"
        kill(handle, node)
        until(lambda: pid_of(handle, follower), follower)
        return follower

    with stopped(handle, target):
        handle.move(slot_sets.parse("0-999"), target)
        until(lambda: handle.status().moves, "the move")
        source = die(source)
    until_placed(handle, 2)
    with stopped(handle, source):
        handle.move(slot_sets.parse("1000-1499"), target)
        until(lambda: handle.status().moves, "the move")
        target = die(target)
    until_placed(handle, 2)
    with stopped(handle, source):
        handle.move(slot_sets.parse("1500-1999"), target)
        until(lambda: handle.status().moves, "the move")
        target, source = die(target), die(source)
    assert until_placed(handle, 2) == {source: 48, target: 4048}  # each move was begun anew
    exactly_once(handle)


def test_job_survives_killed_server_and_master_and_a_frozen_server(tmp_path: Path) -> None:
    handle = census(tmp_path, ps=2, health={"heartbeat_seconds": 5})
    until_trained(handle, 500)
    kill(handle, "ps-0")
    kill_master(handle)
    until(lambda: newest_server(handle, 2) == "ps-2", "ps-2")
    until_trained(handle, handle.status().samples + 500)
    kill(handle, "ps-1", signal.SIGSTOP)
    until(lambda: newest_server(handle, 2) == "ps-3", "ps-3")
    status = exactly_once(handle)
    assert status["master_restarts"] == 1
    states = {node["id"]: node["state"] for node in status["nodes"]}
    assert states["ps-1"] == "ended (Hung: no heartbeat for 5 s)"


def test_a_server_out_of_memory_comes_back_with_more() -> None:
    model = {"use": "wide_deep", "options": {"embedding_dim": 32, "hidden": [16]}}
    handle = start(model, MUCH, memory={"ps": "160MiB"}, batch_size=512, export="none")
    status = succeeded(handle)
    servers = [node for node in status["nodes"] if node["role"] == "ps"]
    assert "OOMKilled: over its memory limit of 160 MiB" in servers[0]["state"]
    assert servers[1]["memory"] == 240 << 20
    told = [entry.text for entry in handle.story("ps-0").entries]
    assert "ps-1 takes its place with its memory, of which it may have 240 MiB instead of 160 MiB" in told


def test_a_server_out_of_memory_without_room_for_more_fails_the_job() -> None:
    model = {"use": "wide_deep", "options": {"embedding_dim": 32, "hidden": [16]}}
    total = {"cores": 4, "memory": f"{160 + 1024 + 20}MiB"}
    result = end(start(model, MUCH, memory={"ps": "160MiB"}, batch_size=512, total=total))
    assert result.state == "failed"
    first, *story = result.message.splitlines()
    assert first == "ps-0 needs more memory than its 160 MiB, and 180 MiB are left for it beside the other nodes"
    assert any("ps-0: is up" in line for line in story)


def test_a_worker_leaves_for_a_server_out_of_memory_where_there_is_no_other_room() -> None:
    model = {"use": "wide_deep", "options": {"embedding_dim": 32, "hidden": [16]}}
    total = {"cores": 4, "memory": f"{160 + 2 * 512 + 20}MiB"}
    memory = {"ps": "160MiB", "worker": "512MiB"}
    handle = start(model, MUCH, workers=2, memory=memory, batch_size=512, total=total, export="none")
    status = succeeded(handle)
    nodes = {node["id"]: node for node in status["nodes"]}
    assert "OOMKilled: over its memory limit of 160 MiB" in nodes["ps-0"]["state"]
    assert nodes["ps-1"]["memory"] == 240 << 20
    assert sum(node["role"] == "worker" and node["memory"] == 512 << 20 for node in nodes.values()) == 2, (
        "none came back"
    )
    assert "gives its room to ps-0" in "\n".join(entry.text for entry in handle.story("worker-1").entries)
