"""What a master keeps with the ledger beside it, so that a restarted one can go on: fleet, slots, export, outcome, counters of
progress, numbers of cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from dlrover_lite.checkpoint.lineage import Lineage
from dlrover_lite.core.errors import JobError
from dlrover_lite.master.autoscale.autoscaler import Autoscaler
from dlrover_lite.master.checkpoints.checkpoints import CutNumbers
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.slots.slot_state import SlotState
from dlrover_lite.master.work.progress import Counters, Progress
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.protocol.messages import Exported, RestoreOrder

__all__ = [
    "AUTOSCALER",
    "BEGAN",
    "CUTS",
    "FLEET",
    "GENERATION",
    "PROGRESS",
    "RESTARTS",
    "RESTORE",
    "SLOTS",
    "Generation",
    "JobStateStore",
    "decoded",
]

T = TypeVar("T")
BEGAN, FLEET, SLOTS, PROGRESS, GENERATION, RESTORE = "began_at", "fleet", "slots", "progress", "generation", "restore"
RESTARTS, CUTS, AUTOSCALER = "master_restarts", "cuts", "autoscaler"
_EXPORTER, _EXPORTED, _OUTCOME, _STOPPING, _FAILING = "exporter", "exported", "outcome", "stopping", "failing"


class Generation(msgspec.Struct, frozen=True):
    """The generation of the job, and how it began: put into a ledger when it is made from a cut."""

    number: int = 0
    """Number of the generation; 0: the job began with nothing."""
    told: str = ""
    """How the generation began, for people: "went back to checkpoint 12: …"."""
    went_back: int = 0
    """How often the job has gone back by itself."""
    restarts: int = 0
    """How often the master was restarted before this generation."""
    url: str = ""
    cut: int = 0
    exactly: bool = False
    only_parameters: bool = False
    damaged: dict[str, dict[int, str]] = {}
    """Damaged cuts, as in ``Beginning``."""
    lineage: Lineage = Lineage()


class JobStateStore:
    """All that must outlive the master: the ledger, and the facts kept beside it. What changes is durable with the next ``commit``, all of
    it or nothing; what follows from it outside of this process is given to ``after_commit``, and done then."""

    def __init__(self, shards: ShardService, wall_clock: Callable[[], float]) -> None:
        self._shards = shards
        self._wall_clock = wall_clock
        before = self._fact(RESTARTS, int)
        self.generation = self._fact(GENERATION, Generation) or Generation()
        self.taken_over = before is not None
        """The state was left by an earlier master."""
        self.restarts = self.generation.restarts if before is None else before + 1
        """How often the master of this job has been restarted."""
        if self._fact(BEGAN, float) is None:
            self._keep(BEGAN, wall_clock())
        self._keep(RESTARTS, self.restarts)
        self._effects: list[Callable[[], None]] = []
        shards.commit()

    def after_commit(self, effect: Callable[[], None]) -> None:
        """Have ``effect`` run once all that has changed by now is durable."""
        self._effects.append(effect)

    def commit(self) -> None:
        """Make all changes durable. Raises JobError, DiskFull among them, when they can't be: they are kept for another try."""
        self._shards.commit()

    def take_effects(self) -> list[Callable[[], None]]:
        """Return what was to be done after the commit, in its order, and keep nothing of it."""
        effects, self._effects = self._effects, []
        return effects

    def fleet(self) -> Fleet | None:
        return self._fact(FLEET, Fleet)

    def keep_fleet(self, fleet: Fleet) -> None:
        self._keep(FLEET, fleet)

    def slots(self) -> SlotState | None:
        """Return the slot map that was kept, or None. Raises JobError when it is damaged."""
        state = self._fact(SLOTS, SlotState)
        try:
            if state is not None:
                state.validate()
        except ValueError as error:
            raise JobError(
                f"The slot map in the job's ledger is damaged: {error}", hint="A checkpoint has a ledger of its own."
            ) from error
        return state

    def keep_slots(self, state: SlotState) -> None:
        self._keep(SLOTS, state)

    def restore(self) -> RestoreOrder | None:
        """Return the cut that parameter servers still have to restore."""
        return self._fact(RESTORE, RestoreOrder)

    def keep_restore(self, order: RestoreOrder | None) -> None:
        self._keep(RESTORE, order)

    def autoscaler(self) -> Autoscaler | None:
        return self._fact(AUTOSCALER, Autoscaler)

    def keep_autoscaler(self, state: Autoscaler) -> None:
        self._keep(AUTOSCALER, state)

    def cuts(self) -> CutNumbers | None:
        return self._fact(CUTS, CutNumbers)

    def keep_cuts(self, numbers: CutNumbers) -> None:
        self._keep(CUTS, numbers)

    def stopping(self) -> str:
        """Return why the job is to stop; empty while it isn't."""
        return self._fact(_STOPPING, str) or ""

    def keep_stopping(self, reason: str) -> None:
        self._keep(_STOPPING, reason)

    def failing(self, kind: type[T]) -> T | None:
        """Return how the job is going to fail, once its last checkpoint is complete."""
        return self._fact(_FAILING, kind)

    def keep_failing(self, outcome: msgspec.Struct) -> None:
        self._keep(_FAILING, outcome)

    def exporter(self) -> str:
        return self._fact(_EXPORTER, str) or ""

    def keep_exporter(self, node: str) -> None:
        self._keep(_EXPORTER, node)

    def exported(self) -> Exported | None:
        return self._fact(_EXPORTED, Exported)

    def keep_exported(self, exported: Exported) -> None:
        self._keep(_EXPORTED, exported)

    def outcome(self, kind: type[T]) -> T | None:
        return self._fact(_OUTCOME, kind)

    def keep_outcome(self, outcome: msgspec.Struct) -> None:
        self._keep(_OUTCOME, outcome)

    def restore_progress(self, progress: Progress, *, now: float) -> None:
        """Restore the counters and the time since the job began. Metrics of the last samples begin anew."""
        began = self._fact(BEGAN, float)
        if began is not None:
            progress.began = now - max(0.0, self._wall_clock() - began)
        counters = self._fact(PROGRESS, Counters)
        if counters is not None:
            progress.restore(counters)

    def keep_progress(self, progress: Progress) -> None:
        self._keep(PROGRESS, progress.counters())

    def _fact(self, name: str, kind: type[T]) -> T | None:
        return decoded(self._shards.fact(name), kind)

    def _keep(self, name: str, value: object) -> None:
        self._shards.keep_fact(name, msgspec.json.encode(value).decode())


def decoded(text: str | None, kind: type[T]) -> T | None:
    """Return a fact as it was kept; None where there is none."""
    return None if text is None or text == "null" else msgspec.json.decode(text, type=kind)
