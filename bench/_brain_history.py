"""What the brain of a bench's home keeps: put aside and brought back, and what it says of a job."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

from common import Figure

from dlrover_lite.brain.planning.plan_grid import Candidate

__all__ = ["History", "granted", "median_miss", "misses_of"]


class History:
    """What the brain knows of jobs past; no brain runs while it is changed."""

    def __init__(self, home: Path) -> None:
        self._kept = home / "history"

    def forget(self) -> None:
        self._stop()
        if self._directory().exists():
            shutil.rmtree(self._directory())

    def keep(self) -> None:
        self._stop()
        shutil.copytree(self._directory(), self._kept)

    def restore(self) -> None:
        self.forget()
        shutil.copytree(self._kept, self._directory())

    @staticmethod
    def _directory() -> Path:
        from dlrover_lite.brain_server.files import BrainFiles

        return BrainFiles().directory

    @staticmethod
    def _stop() -> None:
        from dlrover_lite.brain_server import brain_process

        brain_process.stop()


def granted(job: str) -> tuple[list[tuple[float, Candidate]], str]:
    """The plans that the brain knows it to have had, and when; and why the first one."""
    from dlrover_lite.brain.job_tracker import candidate
    from dlrover_lite.brain.store import queries
    from dlrover_lite.brain.store.database import ConfigStore
    from dlrover_lite.brain_server.files import BrainFiles

    with ConfigStore(BrainFiles().database) as store:
        found = [(record.at, candidate(record.plan)) for record in queries.plans(store, job, kind="granted")]
        decided = queries.decisions(store, job, number=1)
    changes = [one for i, one in enumerate(found) if i == 0 or one[1] != found[i - 1][1]]
    return changes, decided[0].decision.reason if decided else ""


def misses_of(job: str) -> list[float]:
    """How far each change of the running job's plan that was judged was off what was predicted, as ``history --calibration`` has it: a
    share of that. Its first plan is none: nothing of the job is measured by then."""
    from dlrover_lite.brain.store import queries
    from dlrover_lite.brain.store.database import ConfigStore
    from dlrover_lite.brain_server.files import BrainFiles

    with ConfigStore(BrainFiles().database) as store:
        return [abs(one.effect.error) for one in queries.judged_decisions(store, job) if one.action != "start"]


def median_miss(name: str, misses: Sequence[float]) -> Figure | None:
    """Make the figure of that name; None where nothing was changed, or nothing that was could be judged."""
    if not misses:
        return None
    detail = {"changes": len(misses), "misses": list(misses)}
    return Figure(name, statistics.median(misses), "x", "<= 0.1", detail=detail)
