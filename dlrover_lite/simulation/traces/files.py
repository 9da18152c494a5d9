"""A trace as a CSV file (docs/simulation.md has its columns): writing one, and reading one with every mistake named by line and column."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlrover_lite.core.errors import TraceError
from dlrover_lite.core.files.regular import FileTooLarge, NotRegularFile, read_file
from dlrover_lite.core.problems import Place, Problems, nearest
from dlrover_lite.core.units import MIB, MOST_CORES
from dlrover_lite.core.words import plural
from dlrover_lite.simulation.traces.cells import parse_cell, write_cell
from dlrover_lite.simulation.traces.columns import ANY_OF, BY_NAME, COLUMNS
from dlrover_lite.simulation.traces.generator import complete
from dlrover_lite.simulation.traces.parameters import Parameters
from dlrover_lite.simulation.traces.trace import Trace, TraceJob

__all__ = ["parse_trace", "read_text_file", "read_trace", "write_trace"]

LARGEST_FILE_BYTES = 256 * MIB
MOST_SHOWN = 20
"""Number of problems of a file that are told; of more, how many there are."""
_HINT = "docs/simulation.md has all columns; `dlrover-lite simulate --generate 1` writes a trace to look at."


def write_trace(trace: Trace) -> str:
    """Write a trace as ``read_trace`` reads it: the same trace, always as the same text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in COLUMNS)
    for job in trace.jobs:
        writer.writerow(write_cell(getattr(job, column.name)) for column in COLUMNS)
    return text.getvalue()


def read_trace(path: str | Path, *, seed: int = 0, parameters: Parameters | None = None) -> Trace:
    """Read a trace. What it doesn't say of a job is drawn from its name and the seed, as a generated job's is.

    Raises TraceError with a line for every problem.
    """
    return parse_trace(read_text_file(Path(path)), source=str(path), seed=seed, parameters=parameters)


def parse_trace(text: str, *, source: str = "trace", seed: int = 0, parameters: Parameters | None = None) -> Trace:
    """Read a trace from the text of its file. ``source`` names it in errors."""
    reader = _Reader(source)
    rows = reader.rows(text)
    reader.raise_if_any()
    drawn_from = parameters or Parameters()
    return Trace.of([_job(values, seed, drawn_from) for values in rows])


def read_text_file(path: Path, *, what: str = "a trace") -> str:
    """Read a file whole. Raises TraceError where it can't be, or isn't text."""
    place, problems = Place(str(path)), Problems(TraceError)
    content = b""
    try:
        content = read_file(path, LARGEST_FILE_BYTES)
    except (FileTooLarge, NotRegularFile) as error:
        problems.add(place, "", f"not {what}: {error.strerror}")
    except IsADirectoryError:
        problems.add(place, "", "this is a directory; name the file in it")
    except FileNotFoundError:
        problems.add(place, "", "no such file", hint=_HINT if what == "a trace" else "")
    except OSError as error:
        problems.add(place, "", f"can't be read: {error.strerror}")
    problems.raise_if_any()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.add(Place(str(path), line), "", f"not {what}: this isn't UTF-8 text")
        problems.raise_if_any()
        raise


def _job(values: Mapping[str, Any], seed: int, parameters: Parameters) -> TraceJob:
    if all(column.name in values for column in COLUMNS if column.missing != "default"):
        return TraceJob(**values)
    return complete(values, seed, parameters)


class _Reader:
    """Reads lines, and collects what is wrong with them."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._problems = Problems(TraceError)
        self._count = 0
        self._lines: dict[str, int] = {}
        """Line of each job, by its name."""

    def raise_if_any(self) -> None:
        if self._count > MOST_SHOWN:
            self._problems.add(Place(self._source), "", f"{plural(self._count, 'problem')}; these are the first ones")
        self._problems.raise_if_any()

    def rows(self, text: str) -> list[dict[str, Any]]:
        """Return the values that each job has, by column."""
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        found: list[dict[str, Any]] = []
        header: list[str] | None = None
        line = 1
        try:
            for cells in reader:
                if header is None:
                    header = self._header([cell.strip() for cell in cells], line)
                    if not header:
                        return []
                elif cells:
                    found.append(self._row(header, cells, line))
                line = reader.line_num + 1
        except csv.Error as error:
            self._add(line, "", f"not CSV: {error}; a cell that contains a comma or a quote needs quotes around it")
        if header is None:
            self._add(0, "", "the file is empty", hint=_HINT)
        elif not found and not self._count:
            self._add(0, "", "there are no jobs below the header", hint=_HINT)
        return found

    def _add(self, line: int, column: str, message: str, *, hint: str = "") -> None:
        self._count += 1
        if self._count <= MOST_SHOWN:
            self._problems.add(Place(self._source, line), column, message, hint=hint)

    def _header(self, names: list[str], line: int) -> list[str]:
        """Check the names of columns; return none where the lines below can't be understood by them."""
        before = self._count
        for name in dict.fromkeys(names):
            if name not in BY_NAME:
                close = nearest(name, BY_NAME)
                more = f"did you mean {close}?" if close else "leave it out, or rename it"
                self._add(line, name, f"unknown column; {more}", hint=_HINT)
            elif names.count(name) > 1:
                self._add(line, name, "given twice")
        for column in COLUMNS:
            if column.missing == "refused" and column.name not in names:
                self._add(line, column.name, "missing; each trace needs this column", hint=_HINT)
        if not any(name in names for name in ANY_OF):
            self._add(line, ANY_OF[0], f"missing; each trace needs {' or '.join(ANY_OF)}", hint=_HINT)
        return names if self._count == before else []

    def _row(self, header: list[str], cells: list[str], line: int) -> dict[str, Any]:
        if len(cells) != len(header):
            message = f"expected {plural(len(header), 'cell')}, as in the header, found {len(cells)}"
            self._add(line, "", f"{message}; a text that contains a comma needs quotes")
            return {}
        values: dict[str, Any] = {}
        for name, cell in zip(header, cells, strict=True):
            if not cell.strip():
                if BY_NAME[name].missing == "refused":
                    self._add(line, name, "missing; each job needs it")
                continue
            try:
                values[name] = parse_cell(name, cell)
            except ValueError as error:
                self._add(line, name, str(error))
        given = [name for name in ANY_OF if name in header and cells[header.index(name)].strip()]
        if len(given) != 1:
            self._add(line, ANY_OF[0], f"each job needs {' or '.join(ANY_OF)}" + (", not both" if given else ""))
        self._check_quota(values, line)
        first = self._lines.setdefault(values.get("name", ""), line)
        if "name" in values and first != line:
            self._add(line, "name", f"{values['name']} is the name of the job in line {first}, too")
        return values

    def _check_quota(self, values: Mapping[str, Any], line: int) -> None:
        """Note it where a job's user asks for more than it may have. ``MOST_CORES`` is no quota."""
        needed = ("most_cores", "workers", "worker_cores", "servers", "server_cores")
        if not all(name in values for name in needed):
            return
        most, workers, worker_cores, servers, server_cores = (values[name] for name in needed)
        if (asked := workers * worker_cores + servers * server_cores) > most and most < MOST_CORES:
            self._add(
                line,
                "most_cores",
                f"expected at least the {asked:g} cores that the job's user asks for, found {most:g}",
            )
