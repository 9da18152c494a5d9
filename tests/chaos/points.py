"""All failpoints of the package, each with the process it is in and the scenario in which it is passed."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["POINTS", "Point"]

Process = Literal["master", "ps", "persister", "worker"]
Scenario = Literal["training", "moves", "cuts", "restoring"]


class Point(NamedTuple):
    """A failpoint. ``scenario``: in which of ``scenarios.SCENARIOS`` it is passed."""

    process: Process
    scenario: Scenario


def _points_of(process: Process, scenario: Scenario, *names: str) -> dict[str, Point]:
    return {f"{process}.{name}": Point(process, scenario) for name in names}


POINTS: dict[str, Point] = {
    # a lease, and the report of what has become of it
    **_points_of("master", "training", "lease.decided", "lease.committed", "lease.answered"),
    **_points_of("worker", "training", "lease.received", "report.begun", "report.sent", "report.answered"),
    # a push: the worker's side, the server's, and its kernels'
    **_points_of("worker", "training", "push.computed", "push.sent_to_one", "push.sent", "push.acknowledged_by_one"),
    **_points_of("worker", "training", "push.acknowledged"),
    **_points_of("ps", "training", "configure.written", "configure.opened"),
    **_points_of("ps", "training", "push.begun", "push.group", "push.applied", "push.marked", "push.done"),
    **_points_of("ps", "training", "chunk.journalled", "chunk.counted", "chunk.half", "chunk.changed", "chunk.done"),
    # nodes that are launched, and servers that take the place of others
    **_points_of("master", "training", "launch.noted", "launch.asked"),
    **_points_of("master", "training", "relaunch.noticed", "relaunch.noted", "relaunch.launched"),
    **_points_of("ps", "training", "attach.begun", "attach.undone", "attach.marked", "attach.attached"),
    **_points_of("ps", "training", "attach.told", "attach.owning"),
    # a move of slots
    **_points_of("master", "moves", "move.decided", "move.begun"),
    **_points_of("master", "moves", "map.decided", "map.committed", "map.answered"),
    **_points_of("ps", "moves", "source.begun", "source.placed", "source.round", "source.frozen"),
    **_points_of("ps", "moves", "source.complete", "source.ended"),
    **_points_of("ps", "moves", "target.begun", "target.written", "target.complete", "target.ended"),
    **_points_of("ps", "moves", "write.half", "drop.row", "compact.copied", "compact.twice"),
    # a cut
    **_points_of("master", "cuts", "cut.opened", "cut.ordered", "cut.written", "cut.manifest", "cut.complete"),
    **_points_of("ps", "cuts", "snapshot.begun", "chunk.spilled", "chunk.stamped"),
    **_points_of("persister", "cuts", "block", "spill", "finish"),
    # going back to one
    **_points_of("master", "restoring", "restore.noted", "restore.ended", "restore.ledger", "restore.over"),
    **_points_of("ps", "restoring", "restore.begun", "restore.rows", "restore.marked", "restore.done"),
}
"""All failpoints by name. Each is in the source once."""
