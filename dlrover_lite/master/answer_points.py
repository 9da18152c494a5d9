"""Failpoints of the master's answers: requests are decided on, the decisions committed, and only then answered."""

from __future__ import annotations

from typing import NamedTuple

from dlrover_lite.core.failpoints import failpoint

__all__ = ["AnswerPoints"]


class AnswerPoints(NamedTuple):
    """What there is among the answers of one turn."""

    leases: bool
    moved: bool
    """The map is another one: a move is to be committed."""

    def decided(self) -> None:
        if self.leases:
            failpoint("master.lease.decided")
        if self.moved:
            failpoint("master.map.decided")

    def committed(self) -> None:
        if self.leases:
            failpoint("master.lease.committed")
        if self.moved:
            failpoint("master.map.committed")

    def answered(self) -> None:
        if self.leases:
            failpoint("master.lease.answered")
        if self.moved:
            failpoint("master.map.answered")
