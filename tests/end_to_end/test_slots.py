"""Parameter servers of a real job that come, go, are drained and killed while slots move."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core import slot_sets
from dlrover_lite.protocol.questions import Status
from tests.backends.support import until
from tests.end_to_end.support import SEED, kill, pid_of, succeeded, until_trained
from tests.end_to_end.test_faults import assert_exactly_once
from tests.end_to_end.test_nodes import SAMPLES, census, kill_master

EPOCHS = 2


def slots_by_ps(status: Status) -> dict[str, int]:
    """Of those that run."""
    return {
        node.id: node.slots or 0 for node in status.nodes if node.role == "ps" and not node.state.startswith("ended")
    }


def until_placed(handle: JobHandle, servers: int) -> dict[str, int]:
    """Until so many parameter servers share the slots, and nothing is left to do; slots by PS."""

    def placed() -> dict[str, int] | None:
        status = handle.status()
        assert handle.result() is None, f"the job ended early: {handle.result()}"
        by_ps = slots_by_ps(status)
        settled = status.slots_settled and not status.moves
        return by_ps if len(by_ps) == servers and all(by_ps.values()) and settled else None

    found: dict[str, int] = until(placed, f"the slots' distribution over {servers} parameter servers")
    return found


@contextmanager
def stopped(handle: JobHandle, node: str) -> Iterator[None]:
    """A move that it takes part in can't come to its end meanwhile. It may be killed."""
    process = psutil.Process(pid_of(handle, node))
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def exactly_once(handle: JobHandle, **job: int) -> dict[str, Any]:
    status = succeeded(handle)
    assert_exactly_once(handle, **{"samples": SAMPLES, "batch_size": 16, "epochs": EPOCHS, **job})
    return status


def test_parameter_servers_come_and_go_while_training(tmp_path: Path) -> None:
    """The first that comes dies before it owns anything."""
    handle = census(tmp_path)
    until_trained(handle, 500)
    with stopped(handle, "ps-0"):  # the source
        assert handle.scale(ps=2)[0].startswith("ps-1 is launched")
        until(lambda: pid_of(handle, "ps-1"), "ps-1")
        kill(handle, "ps-1")
        until(lambda: pid_of(handle, "ps-2"), "another server")
    assert sorted(until_placed(handle, 2)) == ["ps-0", "ps-2"]
    handle.scale(ps=3)
    assert sum(until_placed(handle, 3).values()) == slot_sets.SLOTS
    handle.scale(ps=1)
    until_placed(handle, 1)
    status = exactly_once(handle)
    assert sum(node["state"].startswith("ended (Succeeded") for node in status["nodes"] if node["role"] == "ps") == 3
    assert [node["id"] for node in status["nodes"]][:1] == ["ps-0"]


def test_operators_move_cancel_and_drain(tmp_path: Path) -> None:
    handle = census(tmp_path, ps=2)
    until_trained(handle, 500)
    with stopped(handle, "ps-1"):  # the target
        handle.move(slot_sets.parse("0-2047"), "ps-1")
        until(lambda: handle.status().moves, "the move")
        handle.cancel_moves()
    assert until_placed(handle, 2) == {"ps-0": 2048, "ps-1": 2048}
    handle.move(slot_sets.parse("0-99,4000"), "ps-1")
    until(lambda: slots_by_ps(handle.status()) == {"ps-0": 1948, "ps-1": 2148}, "the move")
    until_placed(handle, 2)
    handle.drain("ps-0", replace=True)
    until(lambda: "ps-2" in slots_by_ps(handle.status()), "the one that replaces it")
    assert list(until_placed(handle, 2)) == ["ps-1", "ps-2"]
    handle.drain("ps-1")
    assert until_placed(handle, 1) == {"ps-2": 4096}
    exactly_once(handle)


@pytest.mark.parametrize("seed", [SEED])
def test_the_master_is_killed_while_slots_move(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    handle = census(tmp_path)
    until_trained(handle, 500)
    handle.scale(ps=2)
    until(lambda: pid_of(handle, "ps-1"), "ps-1")
    until_trained(handle, handle.status().samples + rng.randrange(400))
    kill_master(handle)
    until_placed(handle, 2)
    handle.drain("ps-0")
    until_trained(handle, handle.status().samples + rng.randrange(300))
    kill_master(handle)
    assert until_placed(handle, 1) == {"ps-1": 4096}
    assert exactly_once(handle)["master_restarts"] == 2
