"""A move in many batches of real processes: relief comes batch by batch, and whoever is killed amid it costs one of them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dlrover_lite.protocol.questions import Status
from tests.backends.support import until
from tests.chaos.support import ChaosJob, processes, recipe, start
from tests.end_to_end.support import until_trained

HALF = 2048
SERVERS = "tests.chaos.small_batches:main"


def slots_of(status: Status) -> dict[str, int]:
    """Slots of each parameter server that runs."""
    return {
        node.id: node.slots or 0 for node in status.nodes if node.role == "ps" and not node.state.startswith("ended")
    }


def moved(job: ChaosJob) -> int:
    """Slots that aren't the first server's, or of whoever has taken its place."""
    return sum(sorted(slots_of(job.handle.status()).values())[:-1])


def until_moved(job: ChaosJob, least: int) -> int:
    """Until so many slots have come; how many, before it is over."""
    return int(until(lambda: (found := moved(job)) >= least and found, f"{least} slots of the move"))


def kill(name: str) -> Callable[[ChaosJob], None]:
    def harm(job: ChaosJob) -> None:
        processes(job.handle)[name].send_signal(signal.SIGKILL)

    return harm


@pytest.mark.parametrize("name", ["ps-0", "ps-1", "master"])
def test_committed_batches_of_a_move_survive_a_kill_of_any_process(tmp_path: Path, name: str) -> None:
    plain = recipe(ps=1, workers=1, epochs=4, health={"heartbeat_seconds": 5})
    job = start(tmp_path, plain, slow_seconds=0.05, servers=SERVERS, slowed={"ps.source.complete": 0.05})
    until_trained(job.handle, 500)
    job.handle.scale(ps=2)
    before = until_moved(job, 1)
    assert before < HALF, "it goes in batches"
    kill(name)(job)
    until(lambda: not job.handle.status().moves or moved(job) > before, "more batches, or the move's end")
    assert moved(job) >= before
    assert until_moved(job, HALF) == HALF
    job.finish()


def test_a_cancelled_move_keeps_the_batches_that_have_arrived(tmp_path: Path) -> None:
    plain = recipe(ps=2, workers=1, epochs=4)
    job = start(tmp_path, plain, slow_seconds=0.05, servers=SERVERS, slowed={"ps.source.complete": 0.05})
    until_trained(job.handle, 500)
    job.handle.move(range(HALF), "ps-1")
    until(lambda: slots_of(job.handle.status()).get("ps-1", 0) > HALF, "the first batch")
    job.handle.cancel_moves()
    until(lambda: not job.handle.status().moves, "the move's end")
    assert HALF < slots_of(job.handle.status())["ps-1"] < 2 * HALF
    job.finish()
