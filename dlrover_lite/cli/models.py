"""``evaluate`` and ``export``: what a job has trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dlrover_lite.cli.options import from_option
from dlrover_lite.errors import JobError, UsageError

if TYPE_CHECKING:
    from dlrover_lite.data.base import Dataset
    from dlrover_lite.jobs.handle import JobHandle
    from dlrover_lite.jobs.resuming import Chosen
    from dlrover_lite.models.export import Manifest
    from dlrover_lite.recipe.schema import Data, Recipe

__all__ = ["evaluate", "export_"]


class _Source(NamedTuple):
    """A model to evaluate, and how to read data for it."""

    directory: Path
    data: Data
    data_directory: Path
    part: str
    job: str | None
    name: str
    """In messages: "the model of JOB"."""
    files_given: bool
    """The data is that of ``--data``."""


@click.command(short_help="Evaluate a trained model on data.")
@click.argument("model", metavar="[JOB|DIRECTORY]", required=False)
@from_option
@click.option("--data", multiple=True, metavar="FILE", help="Evaluate on all samples of this file; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def evaluate(model: str | None, origin: str | None, data: tuple[str, ...], as_json: bool) -> None:
    """Evaluate a trained model: loss, AUC, and the share of ids that it was never trained on, on the recipe's evaluation data, or on all
    samples of --data files.

    The model is that of a job (its id, the start of one, or "last", which is the default), or a DIRECTORY that was exported to;
    with --from, the one in a checkpoint, also while the job runs. Lines that can't be used are left out.
    """
    from dlrover_lite.cli.output import emit_json

    files = [str(Path(file).expanduser().absolute()) for file in data]
    if origin is not None:
        result = _evaluate_cut(_cut_of(origin, model), files)
    else:
        model = model or "last"
        result = _evaluate(_exported(Path(model), files) if _is_directory(model) else _of_job(model, files))
    if as_json:
        emit_json(result)
        return
    from dlrover_lite.cli.output import note
    from dlrover_lite.unknown_ids import unknown_text
    from dlrover_lite.words import count, metric

    best = "" if result["best_auc"] is None else f"  (best reachable {metric(result['best_auc'])})"
    click.echo(f"samples  {count(result['samples'])}")
    if result["bad_lines"]:
        click.echo(f"left out {count(result['bad_lines'])} bad lines")
    click.echo(f"loss     {metric(result['loss'])}")
    click.echo(f"AUC      {metric(result['auc'])}{best}")
    if result["unknown_ids"]:
        click.echo(f"unknown  {unknown_text(result['unknown_ids'], 6)} (ids that were never trained)")
    for warning in result["warnings"]:
        note(f"Warning: {warning}")


class _OfCut(NamedTuple):
    chosen: Chosen
    recipe: Recipe


def _cut_of(origin: str, other: str | None) -> _OfCut:
    """Raises click.UsageError when something else is named too, JobError when there is no such checkpoint."""
    from dlrover_lite.checkpoint.locate import locate
    from dlrover_lite.cli.output import note
    from dlrover_lite.jobs import resuming

    if other is not None:
        raise click.UsageError(f"Either {other} or --from {origin}: which model is meant?")
    located = locate(origin)
    chosen = resuming.choose(located)
    for line in chosen.passed_over:
        note(f"Warning: passed over {line}")
    return _OfCut(chosen, resuming.recipe_of(located, chosen))


def _write_cut(
    cut: _OfCut, target: Path, table_format: str | None, *, overwrite: bool, progress: Callable[[int], object] | None
) -> Path:
    from dlrover_lite.worker.export_cut import export_cut

    usual = cut.recipe.export.format
    return export_cut(
        cut.chosen.url,
        cut.chosen.manifest,
        cut.recipe,
        target,
        table_format or ("npz" if usual == "none" else usual),  # type: ignore[arg-type]
        overwrite=overwrite,
        progress=progress,
    )


def _evaluate_cut(cut: _OfCut, files: list[str]) -> dict[str, Any]:
    import tempfile

    from dlrover_lite.recipe.schema import CensusData

    manifest, recipe = cut.chosen.manifest, cut.recipe
    if isinstance(recipe.data, CensusData):
        raise UsageError(f"{manifest.job} is a census, which predicts nothing: there is nothing to evaluate.")
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-") as directory:
        written = _write_cut(cut, Path(directory) / "model", "npz", overwrite=False, progress=None)
        data, part = _data_for(recipe, files)
        name = f"checkpoint {manifest.cut} of {manifest.job}"
        result = _evaluate(_Source(written, data, Path(recipe.directory), part, manifest.job, name, bool(files)))
    return {**result, "model": f"{cut.chosen.url}:{manifest.cut}"}


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
    """These files, read as the training data was."""
    from dlrover_lite.recipe.schema import CriteoData, CsvData, ParquetData

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


def _of_job(reference: str, files: list[str]) -> _Source:
    from dlrover_lite.jobs.handle import JobHandle
    from dlrover_lite.recipe.schema import CensusData

    handle = JobHandle.find(reference)
    directory, recipe = exported_model(handle), handle.job.recipe
    if isinstance(recipe.data, CensusData):
        raise UsageError(
            f"{handle.id} is a census, which predicts nothing: there is nothing to evaluate.",
            hint=f"Check it: dlrover-lite census check {handle.id}",
        )
    data, part = _data_for(recipe, files)
    return _Source(directory, data, Path(recipe.directory), part, handle.id, f"the model of {handle.id}", bool(files))


def _data_for(recipe: Recipe, files: list[str]) -> tuple[Data, str]:
    """Of these files, or else the recipe's; and which part of it."""
    import msgspec

    from dlrover_lite.recipe.schema import CensusData, CriteoData, SyntheticData

    data: Data = recipe.data
    if not files or isinstance(data, CensusData):
        return data, "eval"
    if isinstance(data, SyntheticData):
        return CriteoData(train=files, eval_share=0.0), "train"  # in which generated samples are written
    return msgspec.structs.replace(data, train=files, eval=[], eval_share=0.0), "train"


def exported_model(handle: JobHandle) -> Path:
    """The directory of a job's exported model. Raises JobError where there is none, and says what to do."""
    result = handle.result()
    if result is None and handle.state() in ("starting", "running"):
        raise JobError(
            f"{handle.id} still runs: its model is exported when it has ended.",
            hint=f"See how far it is: dlrover-lite status {handle.id}",
        )
    if result is not None and result.export is not None:
        directory = Path(result.export)
        # A job's directory may have been moved, with all that is in it.
        return directory if directory.is_dir() else handle.job.export
    if handle.job.recipe.export.format == "none":
        raise JobError(
            f"{handle.id} has no exported model: its recipe says so (export: none).",
            hint=_of_checkpoint(handle) or "Train again with --set export.format=npz",
        )
    raise JobError(
        f"{handle.id} has no exported model: it {_how_it_ended(handle)}.",
        hint=_of_checkpoint(handle) or f"Why: dlrover-lite status {handle.id}. Other jobs: dlrover-lite jobs",
    )


def _of_checkpoint(handle: JobHandle) -> str:
    """How its model can be had all the same; empty: it can't."""
    from dlrover_lite.checkpoint.restore_point import Usable
    from dlrover_lite.jobs.endings import look, model_commands

    point = look(handle.job)
    if not isinstance(point, Usable) or point.is_origin:
        return ""
    return "\n".join(model_commands(handle.job, point))


def _how_it_ended(handle: JobHandle) -> str:
    state = handle.state()
    return {"stopped": "was stopped before its end", "lost": "was lost"}.get(state, f"has {state}")


def _evaluate(source: _Source) -> dict[str, Any]:
    from dlrover_lite.cli.output import note, progress
    from dlrover_lite.cli.summary import best_auc
    from dlrover_lite.models.matmul import onednn
    from dlrover_lite.models.serving import evaluate_export

    dataset = _open(source)
    try:
        with progress("evaluating", dataset.samples) as report, onednn():
            metrics = evaluate_export(source.directory, dataset, progress=report, name=source.name, say=note)
    finally:
        dataset.close()
    return {
        "job": source.job,
        "model": str(source.directory.absolute()),
        "samples": metrics.samples,
        "bad_lines": dataset.samples - metrics.samples,
        "loss": metrics.loss,
        "auc": metrics.auc,
        "best_auc": best_auc(source.data),
        "unknown_ids": metrics.unknown_ids,
        "unusual_ids": metrics.unusual_ids,
        "warnings": metrics.warnings,
    }


def _check_format(source: _Source) -> None:
    """Raises DataError for a file of another format than the model was trained on."""
    from dlrover_lite.errors import DataError
    from dlrover_lite.recipe.heads import other_format

    data_format = str(source.data.__struct_config__.tag)
    for file in getattr(source.data, "train", ()) if source.files_given else ():
        if wrong := other_format(Path(file), data_format):
            spelled = {"csv": "CSV", "parquet": "Parquet", "criteo": "Criteo's format"}[data_format]
            raise DataError(
                f"{source.name} was trained on {spelled}, and {wrong}.",
                hint=f"Files are read as in training. Write it as {spelled}, with the same columns.",
            )


def _open(source: _Source) -> Dataset:
    from dlrover_lite.cli.indexing import indexing
    from dlrover_lite.data.open import open_data

    _check_format(source)
    with indexing() as report:
        part = "train" if source.part == "train" else "eval"
        dataset = open_data(source.data, directory=source.data_directory, part=part, progress=report)  # type: ignore[arg-type]
    if dataset is None:
        raise UsageError(
            f"The recipe of {source.job} has no evaluation data.", hint="Name files to evaluate on: --data FILE"
        )
    return dataset


@click.command("export", short_help="Write a job's model to files.")
@click.argument("job", metavar="[JOB]", required=False)
@from_option
@click.option(
    "--to", "target", metavar="DIR", required=True, type=click.Path(path_type=Path), help="Directory to write."
)
@click.option(
    "--format", "table_format", type=click.Choice(["npz", "parquet"]), help="Of the tables; default: as they are."
)
@click.option("--overwrite", is_flag=True, help="Replace an exported model that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def export_(
    job: str | None, origin: str | None, target: Path, table_format: str | None, overwrite: bool, as_json: bool
) -> None:
    """Write the model of a finished JOB to a directory. JOB is an id, the start of one, or "last", which is the default. With
    --from, write the one in a checkpoint, also while the job runs.
    """
    from dlrover_lite.cli.output import emit_json, note, progress
    from dlrover_lite.jobs.handle import JobHandle
    from dlrover_lite.models.copying import copy_export
    from dlrover_lite.models.serving import read_manifest

    if origin is not None:
        cut = _cut_of(origin, job)
        name = cut.chosen.manifest.job
        with progress("exporting") as show:
            written = _write_cut(
                cut, target, table_format, overwrite=overwrite, progress=lambda rows: show(note=f"{rows:,} rows")
            )
    else:
        handle = JobHandle.find(job or "last")
        name, source = handle.id, exported_model(handle)
        with progress("exporting", sum(entry.rows for entry in read_manifest(source).tables)) as report:
            written = copy_export(source, target, table_format, overwrite=overwrite, progress=report, say=note)  # type: ignore[arg-type]
    size = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    manifest = read_manifest(written)
    kind = {Path(entry.file).suffix[1:] for entry in manifest.tables}
    rows = sum(entry.rows for entry in manifest.tables)
    result = {
        "job": name,
        "directory": str(written),
        "format": next(iter(kind), table_format or "npz"),
        "tables": len(manifest.tables),
        "rows": rows,
        "bytes": size,
    }
    if as_json:
        emit_json(result)
        return
    from dlrover_lite.units import format_bytes
    from dlrover_lite.words import count

    click.echo(
        f"Wrote {written}: {result['tables']} tables with {count(rows)} rows ({result['format']}), {format_bytes(size)}."
    )
    click.echo(f"Load it in Python: dlrover_lite.load_model({str(written)!r})")
