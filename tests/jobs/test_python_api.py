"""What Python users find: the names there are, progress while they wait, how a job ended, and what it would start with."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

import dlrover_lite
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.client.progress_line import ProgressLine, follow
from dlrover_lite.core.errors import JobError, RecipeError, UsageError
from dlrover_lite.jobs import final_status
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.protocol.questions import EvaluationResult, Status
from tests.backends.support import PATIENCE_SECONDS, start
from tests.repository.sources import ROOT

RECIPE = {"version": 1, "name": "small", "model": "wide_deep", "data": {"format": "synthetic", "samples": 10_000}}


def test_dir_lists_all_public_names_and_each_can_be_imported() -> None:
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
        known = {name: getattr(final_status.starting(Job(Path("a-job"))), name) for name in Status.__struct_fields__}
        evaluations = [EvaluationResult(500, 100, 0.5, 0.75)] if self.left < 2 else []
        training = {"state": "training", "samples": 500, "total_samples": 1000, "samples_per_second": 10.0}
        return Status(**{**known, **training, "evaluations": evaluations})


class NotebookStream(io.StringIO):
    """What a notebook has in place of stderr."""

    __module__ = "ipykernel.iostream"


def followed(stream: io.StringIO, timeout: float | None = None) -> Result:
    job = Scripted(looks=3)
    return follow(job, ProgressLine(stream), timeout, clock=lambda: job.now)  # type: ignore[arg-type]


def test_notebook_progress_redraws_one_line_and_keeps_evaluations() -> None:
    stream = NotebookStream()
    assert followed(stream).ok
    *stay, last = stream.getvalue().split("\n")
    assert [line.rpartition("\r")[2] for line in stay] == [
        "evaluated at 500 samples: AUC 0.7500, loss 0.5000 (on 100 samples)"
    ]
    assert "50%  500/1,000  10/s" in stay[0].split("\r")[2]
    assert last.endswith("\r") and not last.rpartition("\r")[0].rpartition("\r")[2].strip()  # blanks over the line


def test_wait_with_progress_times_out_too() -> None:
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
def test_wait_shows_progress_on_terminals_and_notebooks_or_if_asked(
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
def test_result_shows_auc_and_loss(status: dict[str, object] | None, auc: float | None, text: str) -> None:
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


def test_plan_of_a_recipe_without_running_it(own_directories: Path) -> None:
    found = dlrover_lite.plan(RECIPE, resources={"worker": {"count": 2, "cores": 0.5, "memory": "1GiB"}})
    assert found.plan is not None and (found.plan.worker.count, found.plan.worker.each.cores) == (2, 0.5)
    lines = str(found).splitlines()
    assert lines[-1] == f"index {found.decision.index}" or found.decision.index in str(found)
    assert repr(found).startswith(f"<{found.decision.action}: ")
    assert dlrover_lite.list_jobs() == [] or all(job.state() != "starting" for job in dlrover_lite.list_jobs())
    with pytest.raises(RecipeError, match="epochs"):
        dlrover_lite.plan(RECIPE, training={"epochs": 0})


def test_validate_tries_a_recipe_with_its_data_and_model(own_directories: Path, tmp_path: Path) -> None:
    found = dlrover_lite.validate(RECIPE, resources={"total": {"cores": 2, "memory": "4GiB"}})
    assert found.recipe.training.epochs == 1 and found.plan.worker.count >= 1
    assert found.tried.dense_parameters is not None and found.tried.dense_parameters > 0
    with pytest.raises(RecipeError, match=r"override training\.epochs"):
        dlrover_lite.validate(RECIPE, **{"training.epochs": 0})
    (tmp_path / "moody.py").write_text(
        "class Model:\n    def __init__(self, schema):\n        raise ValueError('not today')\n"
    )
    with pytest.raises(RecipeError, match=r"recipe: model") as caught:
        dlrover_lite.validate({**RECIPE, "model": f"{tmp_path}/moody.py:Model"})
    assert "not today" in (caught.value.message + str(vars(caught.value).get("user_traceback")))


def test_a_trained_job_is_evaluated_and_exported(own_directories: Path, tmp_path: Path) -> None:
    """From its export and from a checkpoint: the same model."""
    handle = dlrover_lite.run(RECIPE, wait=True, training={"batch_size": 512}, data={"eval_samples": 2_000})
    of_job = dlrover_lite.evaluate(handle.id)
    assert (of_job.job, of_job.samples, of_job.bad_lines) == (handle.id, 2_000, 0)
    assert of_job.auc is not None and of_job.auc == pytest.approx(handle.result().auc, abs=1e-6)  # type: ignore[union-attr]
    assert of_job.best_auc is not None and of_job.best_auc > 0.5
    written = dlrover_lite.export(handle.id, to=tmp_path / "model", table_format="parquet")
    assert (written.job, written.format, written.tables) == (handle.id, "parquet", 26)
    assert written.bytes == sum(path.stat().st_size for path in (tmp_path / "model").rglob("*") if path.is_file())
    with pytest.raises(UsageError, match="comes without data"):
        dlrover_lite.evaluate(written.directory)
    with pytest.raises(JobError, match="There are no checkpoints"):
        dlrover_lite.evaluate(checkpoint=handle.id)
