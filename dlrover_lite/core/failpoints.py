"""Named places in the code where a test can have a process killed, paused or slowed down; nothing happens there otherwise.

``DLROVER_LITE_FAILPOINTS`` names them, with what is to happen::

    ps.push.applied=kill            kill -9 of the process that comes there
    ps.push.applied=kill:3          when it comes there the third time
    ps.push.applied=pause:3         SIGSTOP instead
    ps.push.applied=slow:0.5        half a second, each time
    ps.push.applied=slow:0.5@/tmp/x each time until there is a file /tmp/x
    ps.push.applied=kill:3@/tmp/x   only the first process that makes the file /tmp/x: not the one that follows it
    job.ledger=full@/tmp/x          no room on the disk as long as there is a file /tmp/x

Several are divided by commas; one point may be there several times. A process reads the variable once, when it starts. Points inside
kernels know only ``kill``, one of them in a process, and look at the file when the process starts: one that runs already dies there too.

``POINTS`` names them all. ``tests/chaos`` kills a process at each. ``WRITES`` names those where there may be no room.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from dlrover_lite.core.errors import UsageError

__all__ = ["POINTS", "WRITES", "FailPoint", "Point", "active", "armed", "failpoint", "needs_room", "parse"]

VARIABLE = "DLROVER_LITE_FAILPOINTS"
_ACTIONS = ("kill", "pause", "slow", "raise", "full")

Process = Literal["master", "ps", "persister", "worker"]
Scenario = Literal["training", "moves", "cuts", "restoring"]


class Point(NamedTuple):
    """A failpoint. ``scenario``: in which of those that ``tests/chaos`` plays it is passed."""

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


WRITES = ("job.ledger", "job.file", "job.log", "export")
"""Names of what is written to a job's directory, and of a model's export."""


class Died(BaseException):
    """What ``raise`` raises, for tests in one process: nothing but the test catches it."""


class FailPoint(msgspec.Struct):
    action: str
    number: float = 1
    """Number of hits until it acts; of ``slow`` the seconds."""
    once: str = ""
    """The file that makes sure that the failpoint acts once; of ``slow``, that ends it."""

    also: list[FailPoint] = []
    """Other actions that are done there after this one."""

    def hit(self) -> None:
        self._hit()
        for other in self.also:
            other.hit()

    def _hit(self) -> None:
        if self.action == "slow":
            if not self.spent:
                time.sleep(self.number)  # what it is for
            return
        self.number -= 1
        if self.number == 0 and self._is_first():
            self.act()

    @property
    def spent(self) -> bool:
        """Whether another process has acted already: the file ``once`` is there."""
        return bool(self.once) and Path(self.once).exists()

    def stopped(self) -> None:
        """Act where a kernel has stopped and can't go on, whatever another process did meanwhile."""
        self._is_first()
        self.act()

    def act(self) -> None:
        if self.action == "raise":
            raise Died
        os.kill(os.getpid(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)

    def _is_first(self) -> bool:
        if not self.once:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True


def parse(text: str) -> dict[str, FailPoint]:
    """Parse failpoints. Raises UsageError for what isn't written as above."""
    points: dict[str, FailPoint] = {}
    for piece in filter(None, text.split(",")):
        name, _, what = piece.partition("=")
        what, _, once = what.partition("@")
        action, _, number = what.partition(":")
        try:
            value = float(number or 1)
        except ValueError:
            value = 0.0
        if not name or action not in _ACTIONS or value <= 0:
            raise UsageError(
                f"{VARIABLE}: {piece!r} is no failpoint", hint="Write NAME=kill:N, =pause:N, =slow:S or =full@FILE."
            )
        point = FailPoint(action, value, once)
        points.setdefault(name, point)
        if points[name] is not point:
            points[name].also.append(point)
    return points


_points = parse(os.environ.get(VARIABLE, ""))


def failpoint(name: str) -> None:
    """Act if a failpoint is set at the place that the process has come to."""
    if _points and (point := _points.get(name)) is not None:
        point.hit()


def needs_room(name: str) -> None:
    """Announce that something is about to be written. Raises OSError where a test says that the disk is full."""
    if _points and (point := _points.get(name)) is not None and point.action == "full" and point.spent:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def active(name: str) -> FailPoint | None:
    """Return the failpoint that is set, for code that can't call ``failpoint`` itself, as kernels."""
    return _points.get(name)


@contextmanager
def armed(text: str) -> Iterator[None]:
    """Set these failpoints instead, in this process, for a while."""
    saved = dict(_points)
    _points.clear()
    _points.update(parse(text))
    try:
        yield
    finally:
        _points.clear()
        _points.update(saved)
