"""What Python users find: the names there are, progress while they wait, how a job ended, and what it would start with."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

import dlrover_lite
from dlrover_lite.errors import RecipeError
from dlrover_lite.jobs import statuses
from dlrover_lite.jobs.handle import JobHandle
from dlrover_lite.jobs.progress_line import ProgressLine, follow
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.wire.messages import EvaluationResult, Status
from tests.backends.support import PATIENCE_SECONDS, start
from tests.house.sources import ROOT

RECIPE = {"version": 1, "name": "small", "model": "wide_deep", "data": {"format": "synthetic", "samples": 10_000}}


def test_dir_lists_what_there_is_and_all_of_it_can_be_had() -> None:
    assert sorted(dlrover_lite.__all__) == dir(dlrover_lite)
    script = "import dlrover_lite as d; print(*(type(getattr(d, name)).__name__ for name in dir(d)))"
    kinds = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert len(kinds) == len(dlrover_lite.__all__) and "module" not in kinds


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    methods = {name for name in vars(JobHandle) if not name.startswith("_")} - {"find"}
    missing = [name for name in dlrover_lite.__all__ if name != "__version__" and f"dlrover_lite.{name}" not in page]
    missing += [name for name in sorted(methods) if f"job.{name}" not in page]
    assert not missing


class Scripted:
    """A job that has ended after so many looks at it."""

    id = "a-job"

    def __init__(self, looks: int) -> None:
        self.now = 0.0
        self.left = looks

    def wait(self, timeout: float, *, progress: bool) -> Result:
        assert progress is False
        self.now += timeout
        self.left -= 1
        if self.left >= 0:
            raise TimeoutError
        return Result("succeeded", 0.0)

    def status(self) -> Status:
        known = {name: getattr(statuses.starting(Job(Path("a-job"))), name) for name in Status.__struct_fields__}
        evaluations = [EvaluationResult(500, 100, 0.5, 0.75)] if self.left < 2 else []
        training = {"state": "training", "samples": 500, "total_samples": 1000, "samples_per_second": 10.0}
        return Status(**{**known, **training, "evaluations": evaluations})


class NotebookStream(io.StringIO):
    """What a notebook has in place of stderr."""

    __module__ = "ipykernel.iostream"


def followed(stream: io.StringIO, timeout: float | None = None) -> Result:
    job = Scripted(looks=3)
    return follow(job, ProgressLine(stream), timeout, clock=lambda: job.now)  # type: ignore[arg-type]


def test_in_a_notebook_one_line_is_redrawn_and_evaluations_stay() -> None:
    stream = NotebookStream()
    assert followed(stream).ok
    *stay, last = stream.getvalue().split("\n")
    assert [line.rpartition("\r")[2] for line in stay] == [
        "evaluated at 500 samples: AUC 0.7500, loss 0.5000 (on 100 samples)"
    ]
    assert "50%  500/1,000  10/s" in stay[0].split("\r")[2]
    assert last.endswith("\r") and not last.rpartition("\r")[0].rpartition("\r")[2].strip()  # blanks over the line


def test_waiting_with_progress_times_out_too() -> None:
    with pytest.raises(TimeoutError, match="a-job still runs after 1 s"):
        followed(NotebookStream(), timeout=1.0)


@pytest.mark.parametrize(
    ("progress", "stream", "shown"),
    [
        (None, io.StringIO, False),
        (None, NotebookStream, True),
        (True, io.StringIO, True),
        (False, NotebookStream, False),
    ],
)
def test_waiting_shows_progress_where_somebody_looks(
    progress: bool | None, stream: type[io.StringIO], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = start("nodes", "1")
    said = stream()
    monkeypatch.setattr(sys, "stderr", said)
    with pytest.raises(TimeoutError):
        handle.wait(0.01, progress=progress)
    handle.stop()
    assert handle.wait(PATIENCE_SECONDS).state == "stopped"
    assert ("starting" in said.getvalue()) == shown


@pytest.mark.parametrize(
    ("status", "auc", "text"),
    [
        (None, None, "<Result succeeded>"),
        ({"auc": 0.625, "loss": 0.25, "evaluations": []}, 0.625, "<Result succeeded; AUC 0.6250; more in .status>"),
        (
            {"auc": 0.625, "loss": 0.25, "evaluations": [{"auc": 0.5, "loss": 1.0}, {"auc": 0.75, "loss": 0.5}]},
            0.75,
            "<Result succeeded; AUC 0.7500; more in .status>",
        ),
        ({"auc": None, "loss": None}, None, "<Result succeeded; more in .status>"),
    ],
)
def test_a_result_shows_its_auc(status: dict[str, object] | None, auc: float | None, text: str) -> None:
    result = Result("succeeded", 0.0, status=status)
    assert result.auc == auc and repr(result) == text
    assert result.loss == (None if auc is None else {0.625: 0.25, 0.75: 0.5}[auc])


def test_jobs_are_listed_the_oldest_first() -> None:
    before = [job.id for job in dlrover_lite.list_jobs()]
    handles = [start("nodes", "1", name=name) for name in ("one", "two")]
    for handle in handles:
        handle.stop()
        handle.wait(PATIENCE_SECONDS)
    assert [job.id for job in dlrover_lite.list_jobs()] == [*before, *(handle.id for handle in handles)]


def test_the_plan_of_a_job_that_does_not_run(own_directories: Path) -> None:
    found = dlrover_lite.plan(RECIPE, resources={"worker": {"count": 2, "cores": 0.5, "memory": "1GiB"}})
    assert found.plan is not None and (found.plan.worker.count, found.plan.worker.each.cores) == (2, 0.5)
    lines = str(found).splitlines()
    assert lines[-1] == f"index {found.decision.index}" or found.decision.index in str(found)
    assert repr(found).startswith(f"<{found.decision.action}: ")
    assert dlrover_lite.list_jobs() == [] or all(job.state() != "starting" for job in dlrover_lite.list_jobs())
    with pytest.raises(RecipeError, match="epochs"):
        dlrover_lite.plan(RECIPE, training={"epochs": 0})
