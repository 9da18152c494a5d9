"""A person who asks the master of a simulated job for something, and again until it has answered."""

from __future__ import annotations

import math

import msgspec

from dlrover_lite.protocol.messages import MasterReplies
from dlrover_lite.simulation.actors import Actor
from dlrover_lite.simulation.job import SimulatedJob
from dlrover_lite.transport.frames import Later

__all__ = ["Person"]

_RETRY_SECONDS = 1.0
_MOST_SECONDS = 60.0
"""Seconds after which nobody waits for an answer any more."""


class Person(Actor):
    """Asks once; the answer is noted."""

    def __init__(self, job: SimulatedJob, body: msgspec.Struct) -> None:
        super().__init__(job.world, f"{job.id} somebody")
        self._job, self._body = job, body
        self._client = self.connector.client(job.endpoint, MasterReplies)
        self._until = self.world.clock.now + _MOST_SECONDS
        self._sequence = self._client.send(body)
        self.wake_at(self.world.clock.now + _RETRY_SECONDS)

    def step(self) -> None:
        while (reply := self._client.receive()) is not None:
            if reply.sequence == self._sequence and not isinstance(reply.body, Later):
                what = f"{type(reply.body).__name__} {getattr(reply.body, 'message', '')}"
                self.world.note(self.name, f"{type(self._body).__name__} was answered: {what}")
                self._end()
                return
        now = self.world.clock.now
        if now >= self._until or self._job.is_over:
            self._end()
            return
        self._client.send(self._body, sequence=self._sequence)
        self.wake_at(now + _RETRY_SECONDS)

    def _end(self) -> None:
        self.wake_at(math.inf)
        self._client.close()
