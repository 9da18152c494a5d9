"""What commands print: data on stdout (tables for people, JSON for programs), progress and remarks on stderr.

A terminal gets colours (unless NO_COLOR is set) and lines that fit it; a pipe or file gets plain, complete lines.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol

from dlrover_lite.core.words import cleaned

if TYPE_CHECKING:
    from dlrover_lite.core.progress import Report, Unit

__all__ = [
    "Reporter",
    "TerminalDisplay",
    "cleaned",
    "emit_json",
    "fields",
    "hanging",
    "note",
    "progress",
    "table",
    "terminal_width",
]

GAP = "  "
_NARROWEST_TEXT = 20
PLAIN_INTERVAL_SECONDS = 10.0
_NARROWEST = 12
"""Characters of a column that still say something."""
_NUMBER = re.compile(r"-|-?[0-9,]+(\.[0-9]+)?%?")
"""Pattern of numbers that are written out already."""


def emit_json(value: Any) -> None:
    """Print one JSON object (or any value; msgspec structs included) on one line of stdout."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")


def fields(value: object, *names: str) -> dict[str, Any]:
    """Return attributes of a value by their names, as parts of an object to be printed as JSON."""
    return {name: getattr(value, name) for name in names}


def note(text: str) -> None:
    """Print a remark for the person on stderr, so that it never mixes with data."""
    print(cleaned(text, keep_lines=True), file=sys.stderr, flush=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, key: int = 0, drop: Sequence[str] = ()) -> None:
    """Print rows under headings, on stdout. None is shown as "-"; numbers are aligned to the right.

    On a terminal it is never wider than that: columns in ``drop`` are left out, in this order, as long as there is no room for a
    dozen characters of each (or all of them, where they are fewer); then the other columns are cut ("…") before column ``key`` loses a
    character, and that one is folded if it alone is too wide. In a pipe or file nothing is cut.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    right = [bool(rows) and all(_is_number(row[at]) for row in rows) for at in range(len(columns))]
    if sys.stdout.isatty():
        kept = _kept(columns, cells, key, drop)
        columns, right = [columns[at] for at in kept], [right[at] for at in kept]
        _terminal_table(columns, [[line[at] for at in kept] for line in cells], right, kept.index(key))
    else:
        _plain_table(columns, cells, right)


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return bool(_NUMBER.fullmatch(value))
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return cleaned(f"{value:.6g}" if isinstance(value, float) else str(value))


def terminal_width() -> int | None:
    """Return the width of stdout in columns; None where that is no terminal, and lines are not broken."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def hanging(head: str, text: str, width: int | None) -> list[str]:
    """Return ``head`` and the text beside it: its own lines, and those too long for ``width``, go on below its beginning."""
    import textwrap

    room = None if width is None else max(_NARROWEST_TEXT, width - len(head))
    parts: list[str] = []
    for line in map(cleaned, text.splitlines()):
        parts += [line] if room is None else textwrap.wrap(line, room) or [""]
    indent = " " * len(head)
    return [((indent if i else head) + part).rstrip() for i, part in enumerate(parts or [""])]


def _plain_table(columns: Sequence[str], cells: list[list[str]], right: list[bool]) -> None:
    widths = [max(len(line[at]) for line in [columns, *cells]) for at in range(len(columns))]
    for line in [[name.upper() for name in columns], *cells]:
        padded = [
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        ]
        sys.stdout.write(GAP.join(padded).rstrip() + "\n")


def _kept(columns: Sequence[str], cells: list[list[str]], key: int, drop: Sequence[str]) -> list[int]:
    """Return which columns there is room for on this terminal."""
    from rich.cells import cell_len
    from rich.console import Console

    room = Console(file=sys.stdout).width
    widths = [max(cell_len(line[at]) for line in [columns, *cells]) for at in range(len(columns))]
    least = [width if at == key else min(width, _NARROWEST) for at, width in enumerate(widths)]
    kept = list(range(len(columns)))
    for name in drop:
        if sum(least[at] for at in kept) + len(GAP) * (len(kept) - 1) <= room:
            break
        kept.remove(columns.index(name))
    return kept


def _terminal_table(columns: Sequence[str], cells: list[list[str]], right: list[bool], key: int) -> None:
    from rich.cells import cell_len, chop_cells, set_cell_size
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    lines = [[name.upper() for name in columns], *cells]
    wanted = [max(cell_len(line[at]) for line in lines) for at in range(len(columns))]
    widths = fit(wanted, console.width - len(GAP) * (len(columns) - 1), key)
    for number, line in enumerate(lines):
        parts = chop_cells(line[key], widths[key]) or [""]
        for part_number, part in enumerate(parts):
            shown = []
            for at, width in enumerate(widths):
                text = part if at == key else line[at] if part_number == 0 else ""
                if cell_len(text) > width:
                    text = set_cell_size(text, max(width - 1, 0)) + "…"[:width]
                space = " " * (width - cell_len(text))
                shown.append(space + text if right[at] else text + space)
            console.print(Text(GAP.join(shown).rstrip(), style="" if number else "bold", no_wrap=True), crop=False)


def fit(wanted: Sequence[int], room: int, key: int) -> list[int]:
    """Return column widths that add up to at most ``room``: the widest ones give way first, and the key column last."""
    widths = list(wanted)
    others = [at for at in range(len(widths)) if at != key]
    while sum(widths) > room and any(widths[at] > 1 for at in others):
        widest = max(others, key=lambda at: widths[at])
        widths[widest] -= 1
    widths[key] = max(1, min(widths[key], room - sum(widths[at] for at in others)))
    return widths


class Reporter(Protocol):
    def __call__(self, done: float | None = None, note: str = "") -> None:
        """Show ``done`` of the total so far, and a short text beside it."""


@contextmanager
def progress(
    label: str,
    total: float | None = None,
    *,
    unit: Unit | None = None,
    clock: Callable[[], float] = time.monotonic,
    stream: IO[str] | None = None,
) -> Iterator[Reporter]:
    """Show a live line on stderr: a bar when ``total`` is known, and a text. Call what it yields with each news. With ``unit``, what the
    total is of, it says how much is done, how fast, and how long the rest takes.

    Without a terminal it is a plain line at most every ten seconds, and the last one::

        with progress("Indexing train.tsv", size) as report:
            report(position, note="1.2 M lines")
    """
    stream = sys.stderr if stream is None else stream
    shown = (
        _plain_progress(label, total, clock, stream) if not stream.isatty() else _live_progress(label, total, stream)
    )
    with shown as show:
        if unit is None:
            yield show
            return
        from dlrover_lite.core.progress import work_text

        began = clock()

        def report(done: float | None = None, note: str = "") -> None:
            text = "" if done is None else work_text(done, total, unit, clock() - began)
            show(done, ", ".join(part for part in (note, text) if part))

        yield report


@contextmanager
def _live_progress(label: str, total: float | None, stream: IO[str]) -> Iterator[Reporter]:
    from rich.cells import cell_len, set_cell_size
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(file=stream, highlight=False)
    label = cleaned(label)
    bar = [BarColumn(bar_width=20), TaskProgressColumn()] if total is not None else []
    # The texts are cut here: rich would take the room from the bar and the label.
    room_beside = len("  20  100%  ") + 20 if bar else 1
    text = TextColumn("{task.fields[note]}", markup=False)
    with Progress(TextColumn("{task.description}", markup=False), *bar, text, console=console) as live:
        task = live.add_task(set_cell_size(label, min(cell_len(label), console.width // 2)), total=total, note="")

        def show(done: float | None = None, note: str = "") -> None:
            room = max(0, console.width - min(cell_len(label), console.width // 2) - room_beside)
            note = cleaned(note)
            if cell_len(note) > room:
                note = set_cell_size(note, max(room - 1, 0)) + "…"[:room]
            live.update(task, completed=done, note=note)

        yield show


@contextmanager
def _plain_progress(label: str, total: float | None, clock: Callable[[], float], stream: IO[str]) -> Iterator[Reporter]:
    from dlrover_lite.core.progress import percent

    shown_at = clock()
    line = last = ""

    def show(done: float | None = None, note: str = "") -> None:
        nonlocal shown_at, line, last
        share = f" {percent(done, total)}" if done is not None and total else ""
        line = cleaned(f"{label}{share}{': ' if note else ''}{note}")
        if clock() - shown_at >= PLAIN_INTERVAL_SECONDS:
            print(line, file=stream, flush=True)
            shown_at, last = clock(), line

    try:
        yield show
    finally:
        if line != last:
            print(line, file=stream, flush=True)


class TerminalDisplay:
    """Shows on stderr how long work gets on: a ``client.trained_models.Display``."""

    @contextmanager
    def steps(self) -> Iterator[Report]:
        """Show a line for each step from its first report on, one after the other."""
        with ExitStack() as stack:
            current: tuple[str, Reporter] | None = None

            def report(what: str, done: float, total: float, unit: Unit | None = None) -> None:
                nonlocal current
                if current is None or current[0] != what:
                    stack.close()
                    current = what, stack.enter_context(progress(what, total, unit=unit))
                current[1](done)

            yield report

    def note(self, text: str) -> None:
        note(text)
