"""Starts a brain in place of one that has died, so that a job needn't do without until the next one begins.

One that was stopped by a person, or has ended for want of jobs, has removed its record: it is not started again. One that dies soon
after its start is started again after ever longer pauses.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.core.errors import BrainError

__all__ = ["BrainRestart", "Starting", "start_process"]

FIRST_PAUSE_SECONDS = 2.0
"""Seconds from the moment a brain is seen to be dead until one is started: who has killed it by request removes its record first."""
LONGEST_PAUSE_SECONDS = 600.0
LIVED_SECONDS = 60.0
"""Seconds that a brain must have lived to count as a sound one."""


class Starting(Protocol):
    """A process that starts a brain, and then ends."""

    def ended(self) -> tuple[bool, str] | None:
        """Return whether there is a brain now, and what it has said; None: it still runs."""


@dataclass(eq=False)
class BrainRestart:
    """``find`` is what a ``BrainLink`` looks for a brain with. ``look`` gives the endpoint of one that lives, or raises BrainError;
    ``start`` begins to start one; ``say`` is told what a person should know."""

    files: BrainFiles
    look: Callable[[BrainFiles], str]
    start: Callable[[], Starting]
    say: Callable[[str], None]
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._starting: Starting | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._due_at: float | None = None
        """Time when a brain is started; None: there is no need."""
        self._found_at: float | None = None

    def find(self) -> str:
        """Return the endpoint of a brain that lives. Raises BrainError; one is started meanwhile, if the last one has died."""
        now = self.clock()
        try:
            endpoint = self.look(self.files)
        except BrainError:
            self._found_at = None
            self._see_to_one(now)
            raise
        self._take_end(now)
        self._due_at = None
        if self._found_at is None:
            self._found_at = now
        elif now - self._found_at >= LIVED_SECONDS:
            self._pause = FIRST_PAUSE_SECONDS
        return endpoint

    def _see_to_one(self, now: float) -> None:
        self._take_end(now)
        if self._starting is not None:
            return
        if self.files.record() is None or self.files.lives():  # it was told to end, or another one is just coming
            self._due_at = None
        elif self._due_at is None:
            self._due_at = now + self._pause
        elif now >= self._due_at:
            self._starting = self.start()
            self._due_at = None
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _take_end(self, now: float) -> None:
        """Say what has become of one that was started."""
        end = self._starting.ended() if self._starting is not None else None
        if end is None:
            return
        self._starting = None
        is_there, said = end
        if not is_there:
            self.say(f"no brain could be started in place of the one that died: {said or 'it said nothing'}")
        elif said:
            self.say(f"the brain had died: {said}")


class _Process:
    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "dlrover_lite.brain_server.start"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def ended(self) -> tuple[bool, str] | None:
        code = self._process.poll()
        if code is None:
            return None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            said = output.read().strip()
        return code == 0, said.rpartition("\n")[2]


class _Refused:
    """The operating system starts no process."""

    def __init__(self, error: OSError) -> None:
        self._why = str(error)

    def ended(self) -> tuple[bool, str]:
        return False, self._why


def start_process() -> Starting:
    """Start a brain as ``run`` does, by a process of its own."""
    try:
        return _Process()
    except OSError as error:
        return _Refused(error)
