"""What a job has trained: evaluated, and written to files. From its export, or from one of its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from dlrover_lite.core.errors import JobError, UsageError
from dlrover_lite.core.files.data_file import spelled
from dlrover_lite.core.progress import Report, Steps, no_steps
from dlrover_lite.recipe.schema import CensusData, CriteoData, CsvData, Data, ParquetData, Recipe, SyntheticData

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.client.resuming import Chosen
    from dlrover_lite.data.base import Dataset
    from dlrover_lite.jobs.store import State
    from dlrover_lite.models.export import Manifest
    from dlrover_lite.models.serving import Metrics

__all__ = ["Display", "Evaluation", "WrittenModel", "best_auc", "evaluate", "export", "exported_model"]

_MOST_JUDGED = 1_000_000
"""Number of generated samples that the best reachable AUC is computed from."""


class Evaluation(msgspec.Struct, frozen=True):
    """What a model is worth on some data."""

    job: str | None
    """Id of the job that trained it; None: it is that of a directory."""
    model: str
    """Directory of the model, or URL and number of the checkpoint."""
    samples: int
    """Number of samples that it was evaluated on."""
    bad_lines: int
    """Number of lines that were left out."""
    loss: float | None
    """Mean log loss."""
    auc: float | None
    """AUC; None: all samples have the same label."""
    best_auc: float | None
    """AUC of the model that drew the labels, of generated data."""
    unknown_ids: dict[str, float]
    """Share of ids that were never trained, by column."""
    unusual_ids: dict[str, float | None]
    """Columns of which that share is far above what the job had seen, with the share that it had; None: it isn't known."""
    warnings: list[str]
    """What is odd about the ids, a text each."""


class WrittenModel(msgspec.Struct, frozen=True):
    """A model that was written to files."""

    job: str
    """Id of the job that trained it."""
    directory: str
    """Directory that it was written to."""
    format: str
    """Format of the model's tables: ``npz`` or ``parquet``."""
    tables: int
    """Number of embedding tables."""
    rows: int
    """Number of rows in all of them."""
    bytes: int
    """Size of all files."""


class Display(Protocol):
    """Shows how work that takes long gets on, and remarks about it."""

    def steps(self) -> AbstractContextManager[Report]:
        """Show steps being done, one after the other."""

    def note(self, text: str) -> None:
        """Show a remark."""


class _Silent:
    """A ``Display`` that shows nothing."""

    @contextmanager
    def steps(self) -> Iterator[Report]:
        yield no_steps

    def note(self, text: str) -> None:
        pass


class _Source(NamedTuple):
    """A model to evaluate, and how to read data for it."""

    directory: Path
    """Directory of the export, or of the recipe."""
    data: Data
    data_directory: Path
    part: Literal["train", "eval"]
    job: str | None
    name: str
    """Name of the model in messages: "the model of JOB"."""
    files_given: bool
    """The data is of files that were named, not the recipe's."""


def evaluate(
    model: str | Path = "last",
    *,
    data: str | Path | Sequence[str | Path] = (),
    checkpoint: str | None = None,
    display: Display | None = None,
) -> Evaluation:
    """Evaluate a trained model on all samples of the ``data`` (files or URLs), or on the recipe's evaluation data; bad lines are left out.

    ``model`` is a job (its id, the start of one, or "last"), or a directory that was exported to. With ``checkpoint`` (``"JOB"``,
    ``"JOB:12"``, a path or URL) it is the one in there, also while the job runs. Raises UsageError, JobError, ModelError or DataError.
    """
    display = display or _Silent()
    named = [data] if isinstance(data, str | Path) else data
    files = [spelled(str(file)) for file in named]
    if checkpoint is not None:
        return _evaluate_cut(_cut_of(checkpoint, display), files, display)
    source = _exported(Path(model), files) if _is_directory(str(model)) else _of_job(str(model), files, display)
    return _evaluate_export(source, display)


def export(
    job: str = "last",
    *,
    to: str | Path,
    checkpoint: str | None = None,
    table_format: Literal["npz", "parquet"] | None = None,
    overwrite: bool = False,
    display: Display | None = None,
) -> WrittenModel:
    """Write the model of a finished job to the directory ``to``; with ``checkpoint`` (as of ``evaluate``) the one in there, also while the
    job runs. ``table_format``: of its tables; None: as they are.

    Raises JobError, ModelError, or UsageError when something is there and ``overwrite`` isn't given.
    """
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.models.copying import copy_export
    from dlrover_lite.models.serving import read_manifest

    display, target = display or _Silent(), Path(to)
    if checkpoint is not None:
        cut = _cut_of(checkpoint, display)
        name = cut.chosen.manifest.job
        with display.steps() as steps:
            written = _write_cut(cut, target, table_format, overwrite=overwrite, steps=steps)
    else:
        handle = JobHandle.find(job)
        name, source = handle.id, exported_model(handle, display)
        with display.steps() as steps:
            written = copy_export(source, target, table_format, overwrite=overwrite, steps=steps, say=display.note)
    manifest = read_manifest(written)
    kinds = {Path(entry.file).suffix[1:] for entry in manifest.tables}
    return WrittenModel(
        job=name,
        directory=str(written),
        format=next(iter(kinds), table_format or "npz"),
        tables=len(manifest.tables),
        rows=sum(entry.rows for entry in manifest.tables),
        bytes=sum(path.stat().st_size for path in written.rglob("*") if path.is_file()),
    )


class _OfCut(NamedTuple):
    chosen: Chosen
    recipe: Recipe


def _cut_of(checkpoint: str, display: Display) -> _OfCut:
    """Find the model in a checkpoint. Raises JobError when there is no such checkpoint."""
    from dlrover_lite.client import resuming
    from dlrover_lite.client.job_sources import files_of
    from dlrover_lite.jobs.checkpoint_location import locate

    located = locate(checkpoint, files_of)
    chosen = resuming.choose(located)
    for line in chosen.passed_over:
        display.note(f"Warning: passed over {line}")
    return _OfCut(chosen, resuming.recipe_of(located, chosen))


def _write_cut(cut: _OfCut, target: Path, table_format: str | None, *, overwrite: bool, steps: Steps) -> Path:
    from dlrover_lite.worker.export.export_checkpoint import export_cut

    usual = cut.recipe.export.format
    return export_cut(
        cut.chosen.store,
        cut.chosen.manifest,
        cut.recipe,
        target,
        table_format or ("npz" if usual == "none" else usual),  # type: ignore[arg-type]
        overwrite=overwrite,
        steps=steps,
    )


def _evaluate_cut(cut: _OfCut, files: list[str], display: Display) -> Evaluation:
    manifest, recipe = cut.chosen.manifest, cut.recipe
    if isinstance(recipe.data, CensusData):
        raise UsageError(f"{manifest.job} is a census, which predicts nothing: there is nothing to evaluate.")
    from dlrover_lite.models.serving import evaluate_model
    from dlrover_lite.worker.export.checkpoint_model import cut_model

    data, part = _data_for(recipe, files)
    directory = Path(recipe.directory)
    name = f"checkpoint {manifest.cut} of {manifest.job}"
    source = _Source(directory, data, directory, part, manifest.job, name, bool(files))

    def measure(dataset: Dataset, steps: Steps) -> Metrics:
        model = cut_model(cut.chosen.store, manifest, recipe, steps)
        tell = partial(_tell_evaluated, steps, dataset.samples)
        return evaluate_model(model, dataset, progress=tell, name=name, code=directory)

    return _evaluate(source, f"{cut.chosen.store.url}:{manifest.cut}", measure, display)


def _is_directory(model: str) -> bool:
    return "/" in model or model == "." or (Path(model) / "model.json").is_file()


def _exported(directory: Path, files: list[str]) -> _Source:
    from dlrover_lite.models.serving import read_manifest

    if not directory.is_dir():
        raise UsageError(
            f"{directory} is no directory.", hint="Name a job, or a directory that a model was exported to."
        )
    manifest = read_manifest(directory)
    if not files:
        raise UsageError(
            f"An exported model comes without data: {directory} can't be evaluated on its own.",
            hint="Name files to evaluate on: --data FILE",
        )
    name = f"the model in {directory}"
    return _Source(directory, _data_of(manifest, files, directory), Path.cwd(), "train", None, name, True)


def _data_of(manifest: Manifest, files: list[str], directory: Path) -> Data:
    """Return the data in these files, read as the training data was."""
    if manifest.data_format == "census":
        raise UsageError(f"{directory} holds a census, which predicts nothing: there is nothing to evaluate.")
    if manifest.data_format in ("criteo", "synthetic"):
        return CriteoData(train=files, eval_share=0.0)
    options: dict[str, Any] = dict(manifest.data_options)
    kinds: dict[str, type[CsvData] | type[ParquetData]] = {"csv": CsvData, "parquet": ParquetData}
    kind = kinds.get(manifest.data_format)
    if kind is None or "label" not in options:
        raise UsageError(
            f"The model in {directory} doesn't say how its training data was read.",
            hint="Evaluate the job that trained it: dlrover-lite evaluate JOB --data FILE",
        )
    options |= {"dense": list(manifest.schema.dense), "categorical": list(manifest.schema.categorical)}
    return kind(train=files, eval_share=0.0, **options)


def _of_job(reference: str, files: list[str], display: Display) -> _Source:
    from dlrover_lite.client.handle import JobHandle

    handle = JobHandle.find(reference)
    directory, recipe = exported_model(handle, display), handle.job.recipe
    if isinstance(recipe.data, CensusData):
        raise UsageError(
            f"{handle.id} is a census, which predicts nothing: there is nothing to evaluate.",
            hint=f"Check it: dlrover-lite census check {handle.id}",
        )
    data, part = _data_for(recipe, files)
    return _Source(directory, data, Path(recipe.directory), part, handle.id, f"the model of {handle.id}", bool(files))


def _data_for(recipe: Recipe, files: list[str]) -> tuple[Data, Literal["train", "eval"]]:
    """Choose these files, or else the recipe's data; and which part of it."""
    data: Data = recipe.data
    if not files or isinstance(data, CensusData):
        return data, "eval"
    if isinstance(data, SyntheticData):
        return CriteoData(train=files, eval_share=0.0), "train"  # in which generated samples are written
    return msgspec.structs.replace(data, train=files, eval=[], eval_share=0.0), "train"


def exported_model(handle: JobHandle, display: Display | None = None) -> Path:
    """Return the directory of a job's exported model, which is fetched if it is in a cluster.

    Raises JobError where there is none, and says what to do.
    """
    result = handle.result()
    if result is None and handle.state() in ("starting", "running"):
        raise JobError(
            f"{handle.id} still runs: its model is exported when it has ended.",
            hint=f"See how far it is: dlrover-lite status {handle.id}",
        )
    if result is not None and result.export is not None:
        with (display or _Silent()).steps() as steps:
            return handle.job.model_directory(result.export, steps)
    if handle.job.recipe.export.format == "none":
        raise JobError(
            f"{handle.id} has no exported model: its recipe says so (export: none).",
            hint=_of_checkpoint(handle) or "Train again with --set export.format=npz",
        )
    raise JobError(
        f"{handle.id} has no exported model: it {how_it_ended(handle.state())}.",
        hint=_of_checkpoint(handle) or f"Why: dlrover-lite status {handle.id}. Other jobs: dlrover-lite jobs",
    )


def _of_checkpoint(handle: JobHandle) -> str:
    """Say how the model of a checkpoint can be had all the same; empty: it can't."""
    from dlrover_lite.jobs.endings import look, model_commands
    from dlrover_lite.jobs.restore_point import Usable

    point = look(handle.job, over=handle.known().over)
    if not isinstance(point, Usable) or point.is_origin:
        return ""
    return "\n".join(model_commands(handle.job, point))


def how_it_ended(state: State) -> str:
    return {"stopped": "was stopped before its end", "suspended": "is suspended", "lost": "was lost"}.get(
        state, f"has {state}"
    )


def _evaluate_export(source: _Source, display: Display) -> Evaluation:
    from dlrover_lite.models.serving import evaluate_export

    def measure(dataset: Dataset, steps: Steps) -> Metrics:
        tell = partial(_tell_evaluated, steps, dataset.samples)
        return evaluate_export(
            source.directory, dataset, progress=tell, name=source.name, say=display.note, steps=steps
        )

    return _evaluate(source, str(source.directory.absolute()), measure, display)


def _tell_evaluated(steps: Steps, total: int, done: int) -> None:
    steps("evaluating", done, total, "samples")


def _evaluate(
    source: _Source, model: str, measure: Callable[[Dataset, Steps], Metrics], display: Display
) -> Evaluation:
    from dlrover_lite.models.matmul import onednn

    dataset = _open(source, display)
    try:
        with display.steps() as steps, onednn():
            metrics = measure(dataset, steps)
    finally:
        dataset.close()
    return Evaluation(
        job=source.job,
        model=model,
        samples=metrics.samples,
        bad_lines=dataset.samples - metrics.samples,
        loss=metrics.loss,
        auc=metrics.auc,
        best_auc=best_auc(source.data),
        unknown_ids=metrics.unknown_ids,
        unusual_ids=metrics.unusual_ids,
        warnings=metrics.warnings,
    )


def _check_format(source: _Source) -> None:
    """Check the format of the files. Raises DataError for a file of another format than the model was trained on."""
    from dlrover_lite.core.errors import DataError
    from dlrover_lite.core.files.data_file import located
    from dlrover_lite.recipe.file_preview import other_format

    data_format = str(source.data.__struct_config__.tag)
    for file in getattr(source.data, "train", ()) if source.files_given else ():
        if wrong := other_format(located(file, source.data_directory), data_format):
            spelled = {"csv": "CSV", "parquet": "Parquet", "criteo": "Criteo's format"}[data_format]
            raise DataError(
                f"{source.name} was trained on {spelled}, and {wrong}.",
                hint=f"Files are read as in training. Write it as {spelled}, with the same columns.",
            )


def _open(source: _Source, display: Display) -> Dataset:
    from dlrover_lite.data.open import open_data

    _check_format(source)
    with display.steps() as report:
        dataset = open_data(source.data, directory=source.data_directory, part=source.part, progress=report)
    if dataset is None:
        raise UsageError(
            f"The recipe of {source.job} has no evaluation data.", hint="Name files to evaluate on: --data FILE"
        )
    return dataset


def best_auc(data: Data) -> float | None:
    """Compute, for generated data, the AUC of the model that drew the labels, on the samples that the job evaluates on."""
    if not isinstance(data, SyntheticData):
        return None
    from dlrover_lite.data import synthetic

    start, samples = (data.samples, data.eval_samples) if data.eval_samples else (0, data.samples)
    value = synthetic.best_auc(data, start, start + min(samples, _MOST_JUDGED))
    return None if value != value else value  # noqa: PLR0124 - NaN: all labels are the same
