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

``tests/chaos`` knows them all (``points.POINTS``), and kills a process at each. There may be no room for ``job.ledger``, ``job.file``,
``job.log`` and ``export``: what is written to a job's directory, and a model's export.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dlrover_lite.core.errors import UsageError

__all__ = ["FailPoint", "active", "armed", "failpoint", "needs_room", "parse"]

VARIABLE = "DLROVER_LITE_FAILPOINTS"
_ACTIONS = ("kill", "pause", "slow", "raise", "full")


class Died(BaseException):
    """What ``raise`` raises, for tests in one process: nothing but the test catches it."""


class FailPoint(msgspec.Struct):
    action: str
    number: float = 1
    """Number of hits until it acts; of ``slow`` the seconds."""
    once: str = ""
    """The file that makes sure that the failpoint acts once; of ``slow``, that ends it."""

    def hit(self) -> None:
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


def parse(text: str) -> dict[str, list[FailPoint]]:
    """Parse failpoints: what is done at each, one after the other. Raises UsageError for what isn't written as above."""
    points: dict[str, list[FailPoint]] = {}
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
        points.setdefault(name, []).append(FailPoint(action, value, once))
    return points


_points = parse(os.environ.get(VARIABLE, ""))


def failpoint(name: str) -> None:
    """Act if a failpoint is set at the place that the process has come to."""
    if _points:
        for point in _points.get(name, ()):
            point.hit()


def needs_room(name: str) -> None:
    """Announce that something is about to be written. Raises OSError where a test says that the disk is full."""
    if any(point.action == "full" and point.spent for point in _points.get(name, ())):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def active(name: str) -> FailPoint | None:
    """Return the first failpoint that is set, for code that can't call ``failpoint`` itself, as kernels."""
    return next(iter(_points.get(name, ())), None)


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
