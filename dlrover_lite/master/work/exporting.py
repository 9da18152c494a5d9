"""Which worker writes the model when all training and evaluation is done, and what it has written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dlrover_lite.core.units import format_bytes
from dlrover_lite.master.edge import as_the_master
from dlrover_lite.master.job_state_store import EXPORTED, EXPORTER, JobStateStore
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.master.work.progress import Evaluations
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.protocol.messages import Export, Exported, ExportFailed, Wait
from dlrover_lite.protocol.questions import ExportStatus
from dlrover_lite.recipe.schema import Recipe

__all__ = ["Exporting"]

_WAIT_SECONDS = 0.1
FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 30.0
"""Seconds before an export that has failed is tried again, at most; at first ``FIRST_DELAY_SECONDS``."""


@dataclass(eq=False)
class Exporting:
    """``destination``: the directory of the model. What changes is kept in ``facts``, durable with the next commit. ``free``
    gives the bytes that are left for a directory.

    An export that fails is tried again: all parameters are in memory, and what is in its way may be mended.
    """

    recipe: Recipe
    destination: str
    shards: ShardService
    servers: ParameterServers
    facts: JobStateStore
    evaluations: Evaluations
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    free: Callable[[Path], int]
    url_for_nodes: Callable[[str], str] = as_the_master

    def __post_init__(self) -> None:
        self.exported: Exported | None = None
        self.begun = False
        self.problem: ExportFailed | None = None
        """The export's last failure; None: it hasn't failed, or is done."""
        self._failures = 0
        self._not_before = 0.0
        self._wanted = self.recipe.export.format
        self.exporter = ""
        """The worker that writes it, or has; empty: nobody yet."""
        self._rows = self._rows_before = 0
        """Rows written so far, and those written when this master began to know."""
        self._began: float | None = None

    @property
    def done(self) -> bool:
        return self.exported is not None or self._wanted == "none"

    @property
    def waits(self) -> str:
        """What it waits for, in words; empty: it doesn't."""
        if self.problem is None or self.exported is not None:
            return ""
        left = f" ({format_bytes(self.free(Path(self.destination).parent))} free)" if self.problem.disk_is_full else ""
        return f"{self.problem.message.rstrip('.')}{left}: it is tried again, with all parameters in memory"

    @property
    def status(self) -> ExportStatus | None:
        """How far the worker is that writes it; None: none does."""
        if self._began is None or self.exported is not None or not self.exporter:
            return None
        seconds, total = self.clock() - self._began, max(self._rows, self.servers.rows)
        written = self._rows - self._rows_before
        rate = written / seconds if written > 0 and seconds > 0 else None
        left = (total - self._rows) / rate if rate and total > self._rows else None
        return ExportStatus(self.wall_clock() - seconds, self._rows, total, rate, left)

    def heard(self, worker: str, rows: int) -> None:
        """Note that a worker has written so many rows."""
        if worker == self.exporter and rows:
            if self._began is None:  # told to do so by an earlier master
                self._began, self._rows_before = self.clock(), rows
            self._rows = rows

    def remember(self) -> None:
        """Restore what an earlier master of this job knew."""
        self.exported, self.exporter = self.facts.get(EXPORTED), self.facts.get(EXPORTER) or ""
        self.begun = bool(self.exporter)

    def task(self, node: str) -> Export | Wait | None:
        """Have the first worker to find nothing left write the model; should it die, the next one. Not while slots are on their way."""
        if self._wanted == "none" or self.shards.failure or not self.shards.finished or self.exported is not None:
            return None
        if self.exporter and self.exporter != node:
            return None
        if not self.servers.at_rest:
            return Wait(_WAIT_SECONDS)
        if (left := self._not_before - self.clock()) > 0:
            return Wait(min(1.0, left))
        self.exporter = node
        self.facts.keep(EXPORTER, node)
        self.begun = True
        self._began, self._rows, self._rows_before = self.clock(), 0, 0
        destination = self.url_for_nodes(self.destination)
        return Export(destination, self._wanted, dict(self.shards.id_kinds), self.evaluations.usual_shares())

    def take(self, exported: Exported) -> None:
        self.exported = exported
        self.facts.keep(EXPORTED, exported)

    def failed(self, failed: ExportFailed) -> bool:
        """Try the export again in a while that doubles. Return whether that is another problem than before."""
        known, self.problem = self.problem, failed
        delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(self._failures, 32))
        self._failures += 1
        self._not_before = self.clock() + delay
        self.gone(failed.node)
        return known is None or known.message != failed.message

    def gone(self, worker: str) -> None:
        if self.exporter == worker:
            self.exporter, self._began, self._rows, self._rows_before = "", None, 0, 0
            self.facts.keep(EXPORTER, "")
