"""What a step of the master changes becomes durable in one commit; what follows from it outside of the process is done after that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.master.full_disk import FullDisk
from dlrover_lite.master.job_state_store import JobStateStore
from dlrover_lite.master.phases import Phase
from dlrover_lite.transport.frames import Request

__all__ = ["Transaction"]


@dataclass(eq=False)
class Transaction:
    """``serve`` answers who asks while the disk is full, and says whether the job is to end; ``on_error`` is given what ends the job."""

    facts: JobStateStore
    disk: FullDisk
    serve: Callable[[list[Request]], bool]
    on_error: Callable[[DlroverLiteError], None]

    def settle(self) -> Phase[bool]:
        """Commit, and do what follows, until nothing does. Return whether all of it could be written: on a full disk that takes as long as
        there is no room, and comes to nothing if the job is to end."""
        is_written = True
        while True:
            try:
                is_written &= yield from self.insist(self.facts.commit)
            except DlroverLiteError as error:
                self.on_error(error)
                is_written = False
            if not (effects := self.facts.take_effects()):
                return is_written
            for effect in effects:
                yield from self._do(effect)

    def insist(self, action: Callable[[], object]) -> Phase[bool]:
        """Do something that needs room on the disk. Return whether it is done: it isn't if the job is to end."""
        return self.disk.insist(action, self.serve)

    def _do(self, effect: Callable[[], None]) -> Phase[None]:
        try:
            yield from self.insist(effect)
        except DlroverLiteError as error:
            self.on_error(error)
