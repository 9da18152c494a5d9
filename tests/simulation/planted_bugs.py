"""Bugs planted on purpose, in the code that jobs run by: each is one that somebody might write, and a seed of faults has to find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from dlrover_lite.backends.sim import cluster
from dlrover_lite.brain.explain.reasons import Reasons
from dlrover_lite.checkpoint.manifest import Consumed
from dlrover_lite.master.checkpoints.checkpoints import Checkpoints
from dlrover_lite.master.job_state_store import FLEET, JobStateStore
from dlrover_lite.master.nodes import fleet
from dlrover_lite.master.slots.parameter_servers import consumed
from dlrover_lite.master.slots.slot_state import SlotState
from dlrover_lite.master.transaction import Transaction
from dlrover_lite.master.work.ledger import Ledger
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.ps.journal.applied_minibatches import AppliedMinibatches
from dlrover_lite.transport.answering import Answering

__all__ = ["PLANTED", "Planted"]


class Planted(NamedTuple):
    owner: Any
    """Class or module with the code."""
    name: str
    wrong: Callable[[Any], Callable[..., Any]]
    """Makes the wrong function of the right one."""
    seed: int
    """A seed that finds it; where other code has changed what follows from seeds, the next one that does isn't far."""

    @contextmanager
    def there(self) -> Iterator[None]:
        """Have the bug be there for a while."""
        with patch.object(self.owner, self.name, self.wrong(getattr(self.owner, self.name))):
            yield


def _lost_lease(release: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Ledger, held: Any) -> Any:
        changes = release(self, held)
        for start, stop in held.pieces:
            self._passes[held.number].todo.remove(start, stop)
        return changes

    return wrong


def _leased_twice(take: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Ledger, state: Any, worker: str, most: int, only_worker: bool) -> Any:
        run = take(self, state, worker, most, only_worker)
        if run is not None and run[1] - run[0] > 1:
            state.todo.add(run[1] - 1, run[1])
        return run

    return wrong


def _whole_move(commit: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: SlotState, move: Any, batch: Any, now: float) -> Any:
        return commit(self, move, batch._replace(members=move.members), now)

    return wrong


def _nothing_travels(unpack: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, parcel: None


def _never_counted(with_another: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(returns: Sequence[float], now: float) -> tuple[float, ...]:
        return ()

    return wrong


def _put_off_for_good(answer: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request, body: self.reply(request, body)


def _believed_to_be_held(report_and_lease: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: ShardService, worker: str, *told: Any, **options: Any) -> Any:
        return report_and_lease(self, worker, *told, **{**options, "holding": self.ledger.tokens(worker)})

    return wrong


def _always_fits(fits: Callable[..., Any]) -> Callable[..., Any]:
    return lambda wanted, room: True


def _noted_late(commit: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Checkpoints, instruction: Any) -> Any:
        assert self._noted is not None
        self._noted = msgspec.structs.replace(self._noted, consumed=Consumed(*consumed(self.shards)))
        return commit(self, instruction)

    return wrong


def _no_reason(plan: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, one, verdict: "it is better"


def _seldom_durable(settle: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Transaction) -> Any:
        self.steps = getattr(self, "steps", 0) + 1  # type: ignore[attr-defined]
        if self.steps % 20 == 0:  # type: ignore[attr-defined]
            return (yield from settle(self))
        for effect in self.facts.take_effects():
            yield from self._do(effect)
        return True

    return wrong


def _fleet_is_forgotten(keep: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: JobStateStore, fact: Any, value: Any) -> Any:
        if fact is not FLEET or self.get(FLEET) is None:
            keep(self, fact, value)

    return wrong


PLANTED = {
    "what a dead worker had leased is not to do again": Planted(Ledger, "_release", _lost_lease, 5),
    "the last minibatch of a lease is leased to the next worker too": Planted(Ledger, "_take", _leased_twice, 1),
    "the first batch of a move commits all of its slots": Planted(SlotState, "_commit", _whole_move, 1),
    "what was applied doesn't travel with the slots": Planted(AppliedMinibatches, "unpack", _nothing_travels, 11),
    "nodes that come back aren't counted": Planted(fleet, "with_another", _never_counted, 5),
    "an answer that puts off is remembered as the answer": Planted(Answering, "answer", _put_off_for_good, 36),
    "a lease is believed to be held by whom it was given to": Planted(
        ShardService, "report_and_lease", _believed_to_be_held, 9
    ),
    "a machine takes more than it has room for": Planted(cluster, "fits", _always_fits, 47),
    "a checkpoint notes what is consumed after its snapshots": Planted(Checkpoints, "_commit", _noted_late, 11),
    "a change of plan has no numbers in its reason": Planted(Reasons, "plan", _no_reason, 1),
    "answers are sent before what they follow from is durable": Planted(Transaction, "settle", _seldom_durable, 1),
    "the fleet isn't durable": Planted(JobStateStore, "keep", _fleet_is_forgotten, 7),
}
"""Bugs by what they do."""
