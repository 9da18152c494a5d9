"""What the programs of simulated nodes have in common: they live in a process, ask their master, and ask again until it answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from dlrover_lite.backends.sim.process import Process
from dlrover_lite.protocol.messages import MasterReplies
from dlrover_lite.protocol.nodes import UNANSWERED_EXIT_CODE, UNANSWERED_SECONDS, NodeSpec
from dlrover_lite.simulation.actors import Actor
from dlrover_lite.transport.frames import Failure, Later

if TYPE_CHECKING:
    from dlrover_lite.simulation.job import SimulatedJob

__all__ = ["NodeProgram"]

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 2.0
"""Seconds until something is asked again that hasn't been answered, and after twice as long each time the most."""
_TERMINATED = 128 + 15
"""Exit code of a node that was asked to end before it had done all."""


@dataclass
class _Asked:
    """A request that is still to be answered."""

    body: msgspec.Struct
    sequence: int
    then: Callable[[Any], None]
    first_at: float
    sent_at: float
    pause: float = RETRY_SECONDS
    """Seconds from then until it is sent again."""


class NodeProgram(Actor):
    def __init__(self, job: SimulatedJob, spec: NodeSpec) -> None:
        super().__init__(job.world, f"{job.id} {spec.id}")
        self.job, self.spec, self.id = job, spec, spec.id
        self.clock = job.world.clock
        self.is_told_to_end = False
        self._has_begun = False
        self._master = self.connector.client(job.endpoint, MasterReplies)
        self._asked: _Asked | None = None

    # --- its process ------------------------------------------------------------------------------------------------------

    def begin(self, process: Process) -> None:
        if not process.running:
            return  # it was killed before its first instruction
        self.process, self._has_begun = process, True
        self.job.programs[self.id] = self
        self.job.world.note(self.name, "starts")
        self.started()
        self.called()

    def asked_to_end(self) -> None:
        self.is_told_to_end = True
        self.called()

    def resized(self) -> None:
        """Take note that its process has other limits."""

    def ended(self) -> None:
        self.job.world.note(self.name, "has ended")
        self.job.programs.pop(self.id, None)
        self.wake_at(math.inf)
        self.close()

    def pause(self, paused: bool) -> None:
        """Stop its process, or let it go on."""
        self.process.pause(paused)
        self.called()

    # --- steps ------------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        if not self._has_begun or not self.process.running or self.process.paused:
            return
        self._hear_master()
        if self.is_told_to_end:
            self.leaves()
        if self.process.running:
            self._repeat()
        if self.process.running:
            self.work()
        if self.process.running:
            self.wait()

    def wait(self) -> None:
        """Be woken when there is something to do, as things are now."""
        waits_until = self._asked.sent_at + self._asked.pause if self._asked is not None else math.inf
        self.wake_at(min(waits_until, self.next_at()))

    def started(self) -> None:
        """Begin: the process runs."""
        raise NotImplementedError

    def work(self) -> None:
        """Do what is due."""
        raise NotImplementedError

    def next_at(self) -> float:
        """Return when there is something to do, though no message has come."""
        raise NotImplementedError

    def leaves(self) -> None:
        """Do what there is to do after SIGTERM."""
        self.process.end(_TERMINATED)

    def close(self) -> None:
        """Close what it talks by."""
        self._master.close()

    # --- what it asks -----------------------------------------------------------------------------------------------------

    @property
    def is_asking(self) -> bool:
        return self._asked is not None

    def ask(self, body: msgspec.Struct, then: Callable[[Any], None]) -> None:
        """Ask the master, one thing at a time, and again until it has answered."""
        now = self.clock()
        self._asked = _Asked(body, self._master.send(body), then, now, now)

    def _hear_master(self) -> None:
        while (reply := self._master.receive()) is not None and self.process.running:
            asked = self._asked
            if asked is None or reply.sequence != asked.sequence:
                continue
            if isinstance(reply.body, Later):
                asked.first_at = self.clock()
                continue
            self._asked = None
            if isinstance(reply.body, Failure):
                self.job.world.note(self.name, f"is refused: {reply.body.message}")
                self.process.end(1)
            else:
                asked.then(reply.body)

    def _repeat(self) -> None:
        asked, now = self._asked, self.clock()
        if asked is None:
            return
        if now - asked.first_at > UNANSWERED_SECONDS:
            self.process.end(UNANSWERED_EXIT_CODE)
        elif now >= asked.sent_at + asked.pause:
            self._master.send(asked.body, sequence=asked.sequence)
            asked.sent_at, asked.pause = now, min(2 * asked.pause, LONGEST_RETRY_SECONDS)
