"""Parameter servers of a real job that come, go, are drained and killed while slots move."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite import slots
from dlrover_lite.jobs.handle import JobHandle
from dlrover_lite.wire.messages import Status
from tests.backends.support import until
from tests.spine.support import SEED, kill, pid_of, succeeded, until_trained
from tests.spine.test_faults import assert_exactly_once
from tests.spine.test_nodes import census, kill_master

SAMPLES = 20_000
EPOCHS = 3


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
        return by_ps if len(by_ps) == servers and all(by_ps.values()) and not status.moves else None

    until(lambda: placed() is not None, f"the slots' distribution over {servers} parameter servers")
    found = placed()
    assert found is not None
    return found


def exactly_once(handle: JobHandle, **job: int) -> dict[str, Any]:
    status = succeeded(handle)
    assert_exactly_once(handle, **{"samples": SAMPLES, "batch_size": 16, "epochs": EPOCHS, **job})
    return status


def test_parameter_servers_come_and_go_while_training(tmp_path: Path) -> None:
    handle = census(tmp_path, epochs=EPOCHS)
    until_trained(handle, 1_000)
    assert handle.scale(ps=2)[0].startswith("ps-1 is launched")
    assert min(until_placed(handle, 2).values()) > 1_000
    handle.scale(ps=3)
    assert sum(until_placed(handle, 3).values()) == slots.SLOTS
    handle.scale(ps=1)
    until_placed(handle, 1)
    status = exactly_once(handle)
    assert sum(node["state"].startswith("ended (Succeeded") for node in status["nodes"] if node["role"] == "ps") == 3
    assert [node["id"] for node in status["nodes"]][:1] == ["ps-0"]


def test_operators_move_and_drain(tmp_path: Path) -> None:
    handle = census(tmp_path, ps=2, epochs=EPOCHS)
    until_trained(handle, 1_000)
    handle.move(slots.parse("0-99,4000"), "ps-1")
    until(lambda: slots_by_ps(handle.status()) == {"ps-0": 1948, "ps-1": 2148}, "the move")
    until_placed(handle, 2)
    handle.drain("ps-0", replace=True)
    assert list(until_placed(handle, 2)) == ["ps-1", "ps-2"]
    handle.drain("ps-1")
    assert until_placed(handle, 1) == {"ps-2": 4096}
    exactly_once(handle)


@pytest.mark.parametrize("seed", [SEED])
def test_the_master_is_killed_while_slots_move(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    handle = census(tmp_path, epochs=EPOCHS)
    until_trained(handle, 1_000)
    handle.scale(ps=2)
    until(lambda: pid_of(handle, "ps-1"), "ps-1")
    end_at = handle.status().samples + rng.randrange(400)
    until_trained(handle, end_at)
    kill_master(handle)
    until_placed(handle, 2)
    handle.drain("ps-0")
    until_trained(handle, handle.status().samples + rng.randrange(300))
    kill_master(handle)
    assert until_placed(handle, 1) == {"ps-1": 4096}
    assert exactly_once(handle)["master_restarts"] == 2


def test_a_parameter_server_that_dies_before_it_owns_anything_is_replaced(tmp_path: Path) -> None:
    handle = census(tmp_path, epochs=EPOCHS)
    until_trained(handle, 1_000)
    source = pid_of(handle, "ps-0")
    assert source is not None
    handle.scale(ps=2)
    until(lambda: pid_of(handle, "ps-1"), "ps-1")
    os.kill(source, signal.SIGSTOP)  # so that the move can't be over before its target dies
    try:
        kill(handle, "ps-1")
        until(lambda: pid_of(handle, "ps-2"), "another server")
    finally:
        os.kill(source, signal.SIGCONT)
    assert sorted(until_placed(handle, 2)) == ["ps-0", "ps-2"]
    exactly_once(handle)


def test_a_move_that_is_cancelled_leaves_everything_as_it_was(tmp_path: Path) -> None:
    handle = census(tmp_path, ps=2, epochs=EPOCHS)
    until_trained(handle, 1_000)
    target = pid_of(handle, "ps-1")
    assert target is not None
    os.kill(target, signal.SIGSTOP)  # the move can't get on
    try:
        handle.move(slots.parse("0-2047"), "ps-1")
        until(lambda: handle.status().moves, "the move")
        handle.cancel_moves()
    finally:
        os.kill(target, signal.SIGCONT)
    assert until_placed(handle, 2) == {"ps-0": 2048, "ps-1": 2048}
    exactly_once(handle)
