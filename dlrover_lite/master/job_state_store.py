"""What a master keeps with the ledger beside it, so that a restarted one can go on: fleet, slots, export, outcome, counters of
progress, numbers of cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from dlrover_lite.checkpoint.lineage import Lineage
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import JobError
from dlrover_lite.master.autoscale.autoscaler import Autoscaler
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.master.slots.slot_state import SlotState
from dlrover_lite.master.state_rows import FactRows, whole
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.progress import Counters, Progress
from dlrover_lite.protocol.messages import Exported, RestoreOrder
from dlrover_lite.protocol.questions import CheckpointStall, CheckpointStatus

T = TypeVar("T")


class Generation(msgspec.Struct, frozen=True):
    """The generation of the job, and how it began: put into a ledger when it is made from a cut."""

    number: int = 0
    """Number of the generation; 0: the job began with nothing."""
    told: str = ""
    """How the generation began, for people: "went back to checkpoint 12: …"."""
    went_back: int = 0
    """How often the job has gone back by itself without a newer cut in between."""
    restarts: int = 0
    """How often the master was restarted before this generation."""
    url: str = ""
    cut: int = 0
    exactly: bool = False
    only_parameters: bool = False
    damaged: dict[str, dict[int, str]] = {}
    """Damaged cuts, as in ``Beginning``."""
    lineage: Lineage = Lineage()


class CutNumbers(msgspec.Struct, frozen=True):
    """What is kept of the numbers of cuts."""

    next: int = 1
    """The next number: no cut has had it or a higher one."""
    under_way: int = 0
    """Number of the cut under way; 0: none."""
    wanted: bool = False
    newest: CheckpointStatus | None = None
    stalls: tuple[CheckpointStall, ...] = ()
    """Last stalls, the oldest first."""


class Fact(NamedTuple, Generic[T]):
    """Something that is kept with the ledger, by its name there."""

    name: str
    kind: type[T]
    split: tuple[str, ...] = ()
    """Fields with rows of their own for each part (``state_rows``), as they are large, and change part by part."""

    def read(self, store: LedgerStore) -> T | None:
        """Return it as of the store's last commit; None where there is none."""
        own = store.fact(self.name)
        return self.decoded(whole(self.name, own, store.facts_under) if self.split else own)

    def decoded(self, text: str | None) -> T | None:
        """Return it as it was kept; None where there is none."""
        return None if text is None or text == "null" else from_json(text, self.kind)


BEGAN, FLEET = Fact("began_at", float), Fact("fleet", Fleet, ("by_id",))
SLOTS = Fact("slots", SlotState, ("owners", "moves", "came"))
PROGRESS, GENERATION, RESTORE = (
    Fact("progress", Counters),
    Fact("generation", Generation),
    Fact("restore", RestoreOrder),
)
"""The time when the job began; the cut that parameter servers still have to restore."""
RESTARTS, CUTS, AUTOSCALER = Fact("master_restarts", int), Fact("cuts", CutNumbers), Fact("autoscaler", Autoscaler)
EXPORTER, EXPORTED = Fact("exporter", str), Fact("exported", Exported)
OUTCOME, FAILING, STOPPING = Fact("outcome", Outcome), Fact("failing", Outcome), Fact("stopping", str)
"""How the job has ended, or is going to fail, and why it is to stop, once its last checkpoint is complete."""


class JobStateStore:
    """All that must outlive the master: the ledger, and the facts kept beside it. What changes is durable with the next ``commit``, all of
    it or nothing; what follows from it outside of this process is given to ``after_commit``, and done then."""

    def __init__(self, store: LedgerStore, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._kept: dict[str, str] = {}
        """Facts as they were written down last, or are with the next commit."""
        self._rows = {fact.name: FactRows(fact.name, fact.split) for fact in (FLEET, SLOTS)}
        self._changed: dict[str, object] = {}
        """Facts as they are now, of those that may have changed since: they are encoded once for each commit, however often they change."""
        self.is_behind = False
        """The last commit came to nothing: the disk is full."""
        self._unwritten: set[str] = set()
        """Names of facts that have changed since the last commit."""
        before = self.get(RESTARTS)
        self.generation = self.get(GENERATION) or Generation()
        self.taken_over = before is not None
        """The state was left by an earlier master."""
        self.restarts = self.generation.restarts if before is None else before + 1
        """How often the master of this job has been restarted."""
        if self.get(BEGAN) is None:
            self.keep(BEGAN, wall_clock())
        self.keep(RESTARTS, self.restarts)
        self._effects: list[Callable[[], None]] = []
        self.commit()

    def after_commit(self, effect: Callable[[], None]) -> None:
        """Have ``effect`` run once all that has changed by now is durable."""
        self._effects.append(effect)

    def commit(self) -> None:
        """Make all changes durable. Raises JobError, DiskFull among them, when they can't be: they are kept for another try."""
        self.is_behind = True
        self._put_changed()
        self._store.commit()
        self.is_behind = False
        self._unwritten.clear()

    def _put_changed(self) -> None:
        """Hand over what isn't as it was kept last."""
        for name, value in self._changed.items():
            if isinstance(value, msgspec.Struct) and (rows := self._rows.get(name)) is not None:
                for row, part in rows.changed(value):
                    self._store.put_fact(row, part)
            elif (text := msgspec.json.encode(value).decode()) != self._kept.get(name):
                self._kept[name] = text
                self._store.put_fact(name, text)
        self._changed.clear()

    def is_written(self, fact: Fact[Any]) -> bool:
        """Return whether the fact is durable as it is now: else nothing that follows from it may be told to anyone."""
        return fact.name not in self._unwritten

    def take_effects(self) -> list[Callable[[], None]]:
        """Return what was to be done after the commit, in its order, and keep nothing of it."""
        effects, self._effects = self._effects, []
        return effects

    def get(self, fact: Fact[T]) -> T | None:
        """Return what was kept, as of the last commit; None where nothing was."""
        return fact.read(self._store)

    def keep(self, fact: Fact[T], value: T | None) -> None:
        """Keep it, unless it is as it was kept last; the next commit makes it durable. What it is made of must stay as it is."""
        self._changed[fact.name] = value
        self._unwritten.add(fact.name)

    def slots(self) -> SlotState | None:
        """Return the slot map that was kept, or None. Raises JobError when it is damaged."""
        state = self.get(SLOTS)
        try:
            if state is not None:
                state.validate()
        except ValueError as error:
            raise JobError(
                f"The slot map in the job's ledger is damaged: {error}", hint="A checkpoint has a ledger of its own."
            ) from error
        return state

    def restore_progress(self, progress: Progress, *, now: float) -> None:
        """Restore the counters and the time since the job began. Metrics of the last samples begin anew."""
        began = self.get(BEGAN)
        if began is not None:
            progress.began = now - max(0.0, self._wall_clock() - began)
        counters = self.get(PROGRESS)
        if counters is not None:
            progress.restore(counters)
