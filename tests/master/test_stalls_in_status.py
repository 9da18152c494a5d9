"""A master tells, and keeps, how long its checkpoints have held training up."""

from __future__ import annotations

from typing import Any

from dlrover_lite.protocol.questions import StatusRequest
from tests.master.rig import done, report_of
from tests.master.scripted_ps import until
from tests.master.test_checkpoints import ask, begun, has


def test_status_tells_how_long_a_cut_held_training_up(make: Any) -> None:
    rig, servers = begun(make)
    lease = rig.lease("worker-0")

    def train(longest: float) -> None:
        nonlocal lease
        report = report_of(4 * (lease.stop - lease.start), longest_step_seconds=longest)
        lease = rig.lease("worker-0", **{**done(lease), "report": report})

    for _ in range(3):
        train(0.01)
    ask(rig)
    until(rig, servers, lambda _: all(server.taken for server in servers))
    train(500.0)
    until(rig, servers, has(1))
    train(0.01)
    status = until(rig, servers, lambda status: status.checkpoints.newest.stall_seconds is not None)
    assert status.checkpoints is not None and status.checkpoints.newest is not None
    newest = status.checkpoints.newest
    assert newest.stall_seconds is not None and 400 < newest.stall_seconds <= 500  # less than a minute is usual
    (stall,) = status.checkpoints.stalls
    assert (stall.number, stall.seconds, stall.stall_seconds) == (1, newest.seconds, newest.stall_seconds)
    rig.kill()
    rig.start()
    again = rig.ask("cli", StatusRequest()).checkpoints
    assert (again.newest, again.stalls) == (newest, [stall])
