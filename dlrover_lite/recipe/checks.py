"""What the types of the schema can't say: keys that don't go together, and the files that a recipe names."""

from __future__ import annotations

import ast
import importlib.util
from collections import Counter
from pathlib import Path

from dlrover_lite.core.files.data_file import located
from dlrover_lite.core.files.regular import MOST_SOURCE_BYTES, read_file
from dlrover_lite.core.files.retries import QUICK
from dlrover_lite.core.files.urls import credentials_problem
from dlrover_lite.core.problems import Place, nearest
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.recipe.census import census_problems
from dlrover_lite.recipe.cluster_checks import cluster_problems
from dlrover_lite.recipe.data_files import file_problem, files_of
from dlrover_lite.recipe.file_preview import Finding, examine
from dlrover_lite.recipe.id_kinds import reconcile
from dlrover_lite.recipe.id_preview import look_at_files
from dlrover_lite.recipe.model_options import BUILT_IN_OPTIONS
from dlrover_lite.recipe.schema import (
    CensusData,
    Checkpoint,
    CriteoData,
    CsvData,
    Data,
    Export,
    Model,
    Optimizer,
    ParquetData,
    Recipe,
    ResourceLimits,
    Schedule,
    SyntheticData,
)
from dlrover_lite.recipe.schema_reader import Check, Given
from dlrover_lite.recipe.source import List, Node, Section, written_at
from dlrover_lite.recipe.words import found

__all__ = ["BUILT_IN_MODELS", "ONLY_FOR", "section_checks"]

BUILT_IN_MODELS = tuple(BUILT_IN_OPTIONS)

ONLY_FOR: dict[type, dict[str, tuple[str, ...]]] = {
    Optimizer: {
        "epsilon": ("adagrad", "adam"),
        "beta1": ("adam",),
        "beta2": ("adam",),
        "l1": ("ftrl",),
        "l2": ("ftrl",),
        "beta": ("ftrl",),
    },
    Schedule: {"decay_samples": ("linear", "cosine"), "final_factor": ("linear", "cosine")},
}
"""Keys that only some values of ``use`` have."""

_DATA_HINT = "--data FILE takes the place of data.train."
_FORMAT_HINT = "Check that it is the right file, and what the data section says of it."
_MOST_HEADS = 100
"""The most files of one glob that are looked into."""


def section_checks(
    directory: Path, *, check_files: bool, machine: Resources | None = None, in_cluster: bool = False
) -> dict[type, Check]:
    """Return the checks by section. Files are looked for (relative to ``directory``), and extras, with ``check_files`` only. No node may
    have more memory than ``machine``. ``in_cluster``: the data aren't on this machine."""

    def model(value: Model, given: Given, tree: Node) -> None:
        _model(value, given, directory if check_files else None)
        _options(value, given, tree)

    def file_data(value: CriteoData | CsvData | ParquetData, given: Given, tree: Node) -> None:
        if not value.eval and value.eval_share >= 1:
            given.add("eval_share", "nothing would be left to train on; expected a share below 1")
        if isinstance(value, CsvData | ParquetData):
            _columns(value, given)
        fields = ("train", "eval")
        secrets = [field for field in fields if _secrets(value, field, given, tree)]
        if check_files and not in_cluster and not secrets:
            for field in fields:
                _files(value, field, given, tree, directory)
            _kinds_of_ids(value, given, tree, directory)
            if isinstance(value, ParquetData):
                _needs_pyarrow("format", "reading Parquet", given)

    def export(value: Export, given: Given, tree: Node) -> None:
        if check_files and value.format == "parquet":
            _needs_pyarrow("format", "writing Parquet", given)

    def limits(value: ResourceLimits, given: Given, tree: Node) -> None:
        _limits(value, given, tree)
        if machine is not None:
            _fits(value, machine, given, tree)

    def checkpoint(value: Checkpoint, given: Given, tree: Node) -> None:
        _destination(value.directory, directory, given, check=check_files and not in_cluster)

    def recipe(value: Recipe, given: Given, tree: Node) -> None:
        _recipe(value, given, tree)
        if value.kubernetes is not None and check_files:
            for key, message in cluster_problems(value, value.kubernetes):
                given.add(key, message, place=written_at(tree, key).place)

    return {
        Checkpoint: checkpoint,
        CriteoData: file_data,
        CsvData: file_data,
        Export: export,
        Model: model,
        Optimizer: _only_for,
        ParquetData: file_data,
        Recipe: recipe,
        ResourceLimits: limits,
        Schedule: _schedule,
    }


def _recipe(value: Recipe, given: Given, tree: Node) -> None:
    if value.training.evaluate_every and (why := _nothing_to_evaluate_on(value.data)):
        key = "training.evaluate_every"
        given.add(key, f"there is nothing to evaluate on: {why}", place=written_at(tree, key).place)
    for key, message in census_problems(value):
        given.add(key, message, place=written_at(tree, key).place)


def _nothing_to_evaluate_on(data: Data) -> str:
    """Say why there is nothing to evaluate on; "" where there is something."""
    if isinstance(data, CensusData):
        return "data of the format census is to be counted only"
    if isinstance(data, SyntheticData):
        return "" if data.eval_samples else "data.eval_samples is 0"
    return "" if data.eval or data.eval_share else "data.eval_share is 0"


def _only_for(value: Optimizer | Schedule, given: Given, tree: Node) -> None:
    for field, uses in ONLY_FOR[type(value)].items():
        if field in given.keys and value.use not in uses:
            given.add(field, f"{value.use} has no {field}; it belongs to {' and '.join(uses)}")


def _schedule(value: Schedule, given: Given, tree: Node) -> None:
    _only_for(value, given, tree)
    if value.decay_samples is not None and value.decay_samples < value.warmup_samples:
        given.add(
            "decay_samples", f"{value.decay_samples} lies before the end of warmup_samples, {value.warmup_samples}"
        )


def _limits(value: ResourceLimits, given: Given, tree: Node) -> None:
    if value.total is None:
        return
    roles = {name: role for name, role in (("ps", value.ps), ("worker", value.worker)) if role is not None}
    cores = sum(role.count * role.cores for role in roles.values())
    memory = sum(role.count * role.memory for role in roles.values())
    who = " and ".join(f"{role.count} × {name}" for name, role in roles.items())
    if cores > value.total.cores * (1 + 1e-9):
        given.add("total", f"{who} take {cores:g} cores, more than the total of {value.total.cores:g}")
    if memory > value.total.memory:
        total = format_bytes(value.total.memory)
        given.add("total", f"{who} take {format_bytes(memory)} of memory, more than the total of {total}")


def _fits(value: ResourceLimits, machine: Resources, given: Given, tree: Node) -> None:
    for name in ("ps", "worker"):
        role = getattr(value, name)
        if role is not None and role.memory > machine.memory:
            place = written_at(tree, f"{name}.memory").place
            there = format_bytes(machine.memory)
            message = f"{format_bytes(role.memory)} for each is more than the {there} of memory that this machine has"
            given.add(f"{name}.memory", message, place=place)


def _columns(value: CsvData | ParquetData, given: Given) -> None:
    if not value.dense and not value.categorical:
        given.add("", "names no features; list columns under dense, categorical or both")
    for field in ("dense", "categorical"):
        names = getattr(value, field)
        if value.label in names:
            given.add(field, f"{value.label!r} is the label, and can't be a feature too")
        for name in _doubles(names):
            given.add(field, f"{name!r} is listed twice")
    for name in [name for name in value.dense if name in set(value.categorical)]:
        given.add("categorical", f"{name!r} is listed under dense too")
    if isinstance(value, CsvData):
        if value.delimiter in '\r\n"':
            given.add("delimiter", f"{value.delimiter!r} can't separate columns")
        for name in _doubles(value.columns):
            given.add("columns", f"{name!r} is listed twice")
        if value.columns:
            for field, names in (("label", [value.label]), ("dense", value.dense), ("categorical", value.categorical)):
                for name in names:
                    if name not in value.columns:
                        close = nearest(name, value.columns)
                        more = f"; did you mean {close}?" if close else ""
                        given.add(field, f"{name!r} is not among data.columns{more}")


def _doubles(names: list[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _needs_pyarrow(field: str, what: str, given: Given) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        given.add(field, f"{what} needs pyarrow: pip install 'dlrover-lite[parquet]'")


def _destination(written: str, directory: Path, given: Given, *, check: bool) -> None:
    """Check where checkpoints go: a path that is or may become a directory, or a URL for which there is a package."""
    scheme, colon, rest = written.partition("://")
    if problem := credentials_problem(written):
        given.add("directory", problem)
        return
    if colon and scheme != "file":
        from fsspec.registry import get_filesystem_class, known_implementations

        if scheme not in known_implementations:
            given.add(
                "directory", f"{scheme}:// is nothing that fsspec knows; write a path, or a URL as s3://bucket/folder"
            )
        elif check:
            try:
                get_filesystem_class(scheme)
            except ImportError as error:
                given.add("directory", f"{scheme}:// can't be used here: {error}")
        return
    path = directory / Path(rest if colon else written).expanduser()
    if check and path.exists() and not path.is_dir():
        given.add("directory", f"{path} is a file; expected a directory")


# Files


def _files(data: CriteoData | CsvData | ParquetData, field: str, given: Given, tree: Node, directory: Path) -> None:
    hint = _DATA_HINT if field == "train" and not _overridden(given.keys.get(field)) else ""
    for number, pattern in enumerate(getattr(data, field)):
        place = _place(tree, field, number)
        file = located(pattern, directory, QUICK)
        problem = file_problem(file)
        if problem:
            given.add(field, problem, place=place, hint=hint)
            continue
        for path in files_of(file)[:_MOST_HEADS]:
            findings = list(examine(path, data))
            for finding in findings:
                _add_finding(finding, data, given, tree, field, place)
            if findings:
                break  # those of one file are enough


def _secrets(data: CriteoData | CsvData | ParquetData, field: str, given: Given, tree: Node) -> bool:
    """Refuse URLs with credentials, wherever the files are; return whether there are any."""
    found = [(number, credentials_problem(pattern)) for number, pattern in enumerate(getattr(data, field))]
    for number, problem in found:
        if problem:
            given.add(field, problem, place=_place(tree, field, number))
    return any(problem for _, problem in found)


def _kinds_of_ids(data: CriteoData | CsvData | ParquetData, given: Given, tree: Node, directory: Path) -> None:
    """Check the kinds of ids of Parquet files, which may differ from file to file; in text they follow from the format."""
    if not isinstance(data, ParquetData):
        return
    named = [located(pattern, directory, QUICK) for pattern in (*data.train, *data.eval)]
    files = [path for file in named for path in files_of(file)[:_MOST_HEADS]]
    agreement = reconcile(look_at_files(files, data), whose="the recipe")
    for column, message in agreement.problems:
        place = _place(tree, "categorical", data.categorical.index(column))
        given.add("categorical", message, place=place, hint=agreement.hint)


def _add_finding(
    finding: Finding,
    data: CriteoData | CsvData | ParquetData,
    given: Given,
    tree: Node,
    field: str,
    place: Place | None,
) -> None:
    if finding.field:
        names = getattr(data, finding.field)
        number = names.index(finding.column) if isinstance(names, list) else 0
        given.add(finding.field, finding.message, place=_place(tree, finding.field, number))
    else:
        given.add(field, finding.message, place=place, hint=_FORMAT_HINT)


def _place(tree: Node, field: str, number: int) -> Place | None:
    """Return the place of an entry of a list, where it was written as one."""
    written = tree.entries.get(field) if isinstance(tree, Section) else None
    return written.items[number].place if isinstance(written, List) else None


def _overridden(place: Place | None) -> bool:
    return place is not None and place.override is not None


def _model(value: Model, given: Given, directory: Path | None) -> None:
    use = value.use
    file, colon, name = use.rpartition(":")
    if not colon and not use.endswith(".py"):
        if use not in BUILT_IN_MODELS:
            close = nearest(use, BUILT_IN_MODELS)
            more = f"; did you mean {close}?" if close else f"; expected {', '.join(BUILT_IN_MODELS)} or file.py:Class"
            given.add("use", f"unknown model {use!r}{more}")
        return
    if not colon:
        file, name = use, ""
    if not file.endswith(".py") or (name and not name.isidentifier()):
        given.add("use", f"expected {', '.join(BUILT_IN_MODELS)} or file.py:Class, found {use!r}")
    elif directory is not None:
        _model_file(directory / file, file, name, given)
    elif not name:
        given.add("use", f"names no class; write {use}:Class")


def _options(value: Model, given: Given, tree: Node) -> None:
    """Check the options of built-in models; what a class of somebody's own takes isn't known before it is imported."""
    rules = BUILT_IN_OPTIONS.get(value.use)
    written = tree.entries.get("options") if isinstance(tree, Section) else None
    if rules is None or not isinstance(written, Section):
        return
    for name, node in written.entries.items():
        if name not in rules:
            close = nearest(name, rules)
            more = f"did you mean {close}?" if close else f"its options are {', '.join(rules)}"
            given.add(f"options.{name}", f"{value.use} has no such option; {more}", place=node.place)
        elif not rules[name].fits(value.options[name]):
            message = f"expected {rules[name].accepts}, found {found(node)}"
            given.add(f"options.{name}", message, place=node.place)


def _model_file(path: Path, file: str, name: str, given: Given) -> None:
    if not path.is_file():
        given.add("use", file_problem(path) or f"{path} is not a file")
        return
    try:
        tree = ast.parse(read_file(path, MOST_SOURCE_BYTES), filename=str(path))
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        given.add("use", f"{path}:{error.lineno or 1}: {error.msg}{text}")
        return
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        given.add("use", f"{path} can't be read as Python: {error.strerror if isinstance(error, OSError) else error}")
        return
    classes, others = _top_level(tree.body)
    listed = f"; classes there: {', '.join(classes)}" if classes else ""
    if not name:
        given.add("use", f"names no class; write {file}:{classes[0] if len(classes) == 1 else 'Class'}{listed}")
    elif name not in classes and name not in others and "*" not in others:
        close = nearest(name, classes)
        more = f"; did you mean {close}?" if close else listed
        given.add("use", f"{path} defines no class {name}{more}")


def _top_level(body: list[ast.stmt]) -> tuple[list[str], set[str]]:
    """List the names of the classes that a module defines, and the names of what else could be one."""
    classes: list[str] = []
    others: set[str] = set()
    for statement in body:
        match statement:
            case ast.ClassDef():
                classes.append(statement.name)
            case ast.FunctionDef():  # a function that makes the module does as well
                others.add(statement.name)
            case ast.Import() | ast.ImportFrom():
                others.update((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
            case ast.Assign():
                others.update(target.id for target in statement.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                others.add(name)
            case ast.If() | ast.Try() | ast.With():
                inner = [*statement.body, *getattr(statement, "orelse", []), *getattr(statement, "finalbody", [])]
                for handler in getattr(statement, "handlers", []):
                    inner += handler.body
                more_classes, more_others = _top_level(inner)
                classes += more_classes
                others |= more_others
    return classes, others
