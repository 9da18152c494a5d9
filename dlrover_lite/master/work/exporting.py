"""Which worker writes the model when all training and evaluation is done, and what it has written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dlrover_lite.core.units import format_bytes
from dlrover_lite.master.job_state_store import JobStateStore
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.master.work.progress import Evaluations
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.protocol.messages import Export, Exported, ExportFailed, ExportStatus, Wait
from dlrover_lite.recipe.schema import Recipe

__all__ = ["Exporting"]

_WAIT_SECONDS = 0.1
FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 30.0
"""Seconds before an export that has failed is tried again, at most; at first ``FIRST_DELAY_SECONDS``."""


class Exporting:
    """``destination``: the directory of the model. What changes is kept in ``facts``, durable with the next commit.

    An export that fails is tried again: all parameters are in memory, and what is in its way may be mended.
    """

    def __init__(
        self,
        recipe: Recipe,
        destination: str,
        shards: ShardService,
        servers: ParameterServers,
        facts: JobStateStore,
        evaluations: Evaluations,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        free: Callable[[Path], int],
    ) -> None:
        """Prepare the export. ``free`` gives the bytes that are left for a directory."""
        self.exported: Exported | None = None
        self.begun = False
        self.problem: ExportFailed | None = None
        """The export's last failure; None: it hasn't failed, or is done."""
        self._clock, self._wall_clock = clock, wall_clock
        self._free = free
        self._failures = 0
        self._not_before = 0.0
        self._wanted = recipe.export.format
        self._destination = destination
        self._shards = shards
        self._servers = servers
        self._facts = facts
        self._evaluations = evaluations
        self._exporter = ""
        self._rows = self._rows_before = 0
        """Rows written so far, and those written when this master began to know."""
        self._began: float | None = None

    @property
    def exporter(self) -> str:
        """The worker that writes it, or has; empty: nobody yet."""
        return self._exporter

    @property
    def done(self) -> bool:
        return self.exported is not None or self._wanted == "none"

    @property
    def waits(self) -> str:
        """What it waits for, in words; empty: it doesn't."""
        if self.problem is None or self.exported is not None:
            return ""
        left = (
            f" ({format_bytes(self._free(Path(self._destination).parent))} free)" if self.problem.disk_is_full else ""
        )
        return f"{self.problem.message.rstrip('.')}{left}: it is tried again, with all parameters in memory"

    @property
    def status(self) -> ExportStatus | None:
        """How far the worker is that writes it; None: none does."""
        if self._began is None or self.exported is not None or not self._exporter:
            return None
        seconds, total = self._clock() - self._began, max(self._rows, self._servers.rows)
        written = self._rows - self._rows_before
        rate = written / seconds if written > 0 and seconds > 0 else None
        left = (total - self._rows) / rate if rate and total > self._rows else None
        return ExportStatus(self._wall_clock() - seconds, self._rows, total, rate, left)

    def heard(self, worker: str, rows: int) -> None:
        """Note that a worker has written so many rows."""
        if worker == self._exporter and rows:
            if self._began is None:  # told to do so by an earlier master
                self._began, self._rows_before = self._clock(), rows
            self._rows = rows

    def remember(self) -> None:
        """Restore what an earlier master of this job knew."""
        self.exported, self._exporter = self._facts.exported(), self._facts.exporter()
        self.begun = bool(self._exporter)

    def task(self, node: str) -> Export | Wait | None:
        """Have the first worker to find nothing left write the model; should it die, the next one. Not while slots are on their way."""
        if self._wanted == "none" or self._shards.failure or not self._shards.finished or self.exported is not None:
            return None
        if self._exporter and self._exporter != node:
            return None
        if not self._servers.at_rest:
            return Wait(_WAIT_SECONDS)
        if (left := self._not_before - self._clock()) > 0:
            return Wait(min(1.0, left))
        self._exporter = node
        self._facts.keep_exporter(node)
        self.begun = True
        self._began, self._rows, self._rows_before = self._clock(), 0, 0
        return Export(self._destination, self._wanted, dict(self._shards.id_kinds), self._evaluations.usual_shares())

    def take(self, exported: Exported) -> None:
        self.exported = exported
        self._facts.keep_exported(exported)

    def failed(self, failed: ExportFailed) -> bool:
        """Try the export again in a while that doubles. Return whether that is another problem than before."""
        known, self.problem = self.problem, failed
        delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(self._failures, 32))
        self._failures += 1
        self._not_before = self._clock() + delay
        self.gone(failed.node)
        return known is None or known.message != failed.message

    def gone(self, worker: str) -> None:
        if self._exporter == worker:
            self._exporter, self._began, self._rows, self._rows_before = "", None, 0, 0
            self._facts.keep_exporter("")
