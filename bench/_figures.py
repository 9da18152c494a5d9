"""Figures that were measured, kept with their date and commit in ``figures.jsonl``; and the page made of them, docs/figures.md."""

from __future__ import annotations

import datetime
import json
import statistics
import subprocess
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["AGES", "Record", "add", "newest", "overdue", "page", "read", "unknown", "version", "write_page"]

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "figures.jsonl"
MEANINGS: dict[str, str] = tomllib.loads((HERE / "figure_meanings.toml").read_text(encoding="utf-8"))
AGES: dict[str, dict[str, Any]] = tomllib.loads((HERE / "figure_ages.toml").read_text(encoding="utf-8"))
"""Code that the figures of each group (the part of their names before the dot) measure, and the days by which they may be older."""
ON_PAPER = HERE / "figures_on_paper.md"
"""What follows from the figures for sizes that no machine here has; written by hand."""
PAGE = HERE.parent / "docs" / "figures.md"

HEAD = """\
# Figures

What `make bench` measures, on a machine with two noisy cores (2.5 GHz, 24 GiB): ratios and times, most as medians of interleaved
rounds of one run. What a script does in detail stands at its beginning (`bench/`). Of several runs with the same commit the
median counts, and their range is told. `python bench/all.py --record` adds to this page, `python bench/all.py --record train wire`
only what these two scripts measure. A row may be older than the newest change of the code that it measures by so many days; then
a test fails, and it is to be measured again.

| figure | what it is | measured | target | met | runs | date | days | commit |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Record:
    """One figure of one run of a script. ``date`` is a day, ``commit`` the short name of what was measured; ``target`` is "" or a bound."""

    figure: str
    value: float
    unit: str
    target: str
    ok: bool | None
    date: str
    commit: str


def read(path: Path = RECORDS) -> list[Record]:
    """Read all records, the oldest first."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Record(**json.loads(line)) for line in lines]


def version() -> str:
    """Name the commit that is checked out. Raises SystemExit where files differ from it: a figure of those would be nobody's."""

    made = (":!bench/figures.jsonl", ":!docs/figures.md")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *made)
    if changed:
        raise SystemExit(f"--record measures a commit, and these files differ from it:\n{changed}\nCommit them first.")
    return _git("rev-parse", "--short=7", "HEAD")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(HERE.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def add(figures: Iterable[Mapping[str, Any]], commit: str, path: Path = RECORDS) -> None:
    """Append figures, as the scripts print them with ``--json``, measured today."""
    date = time.strftime("%Y-%m-%d")
    with path.open("a", encoding="utf-8") as file:
        for figure in figures:
            kept = {name: figure[name] for name in ("figure", "value", "unit", "target", "ok")}
            file.write(json.dumps({**kept, "date": date, "commit": commit}) + "\n")


def newest(records: Iterable[Record]) -> dict[str, Record]:
    """Return the record of each figure that was measured last."""
    return {record.figure: record for record in records}


def overdue(records: Iterable[Record]) -> list[str]:
    """Say which figures are older than the code that they measure by more than their rows allow."""
    changed = {group: _changed_on(age["code"]) for group, age in AGES.items()}
    found = []
    for name, record in newest(records).items():
        group = name.partition(".")[0]
        days = (changed[group] - datetime.date.fromisoformat(record.date)).days
        if days > AGES[group]["days"]:
            found.append(f"{name} was measured {days} days before its code changed last: python bench/all.py --record")
    return found


def _changed_on(code: Sequence[str]) -> datetime.date:
    """Return the day of the newest commit that has changed any of these files or folders."""
    return datetime.date.fromisoformat(_git("log", "-1", "--format=%cs", "--", *code))


def unknown(records: Iterable[Record]) -> list[str]:
    """Return the names of figures that ``MEANINGS`` says nothing of."""
    return sorted({record.figure for record in records} - MEANINGS.keys())


def page(records: Sequence[Record]) -> str:
    """Write the page: of each figure the runs with the commit that was measured last, in the order of ``MEANINGS``; then what follows
    from them.

    Raises KeyError for a figure that has no meaning there.
    """
    by_figure: dict[str, list[Record]] = {}
    for record in records:
        by_figure.setdefault(record.figure, []).append(record)
    if strangers := unknown(records):
        raise KeyError(f"bench/figure_meanings.toml says nothing of {', '.join(strangers)}")
    rows = [_row(by_figure[name]) for name in MEANINGS if name in by_figure]
    missing = [f"`{name}`" for name in MEANINGS if name not in by_figure]
    tail = f"\nNot measured yet: {', '.join(missing)}.\n" if missing else ""
    return HEAD + "\n".join(rows) + "\n" + tail + "\n" + ON_PAPER.read_text(encoding="utf-8")


def _row(records: Sequence[Record]) -> str:
    last = records[-1]
    values = sorted(record.value for record in records if record.commit == last.commit)
    value = statistics.median(values)
    measured = f"{_number(value)} {last.unit}".rstrip()
    if len(values) > 1:
        measured += f" ({_number(values[0])} to {_number(values[-1])})"
    met = {None: "", True: "yes", False: "**no**"}[_met(value, last)]
    days = str(AGES[last.figure.partition(".")[0]]["days"])
    cells = (
        f"`{last.figure}`",
        MEANINGS[last.figure],
        measured,
        last.target,
        met,
        str(len(values)),
        last.date,
        days,
        f"`{last.commit}`",
    )
    return f"| {' | '.join(cells)} |"


def _met(value: float, record: Record) -> bool | None:
    from common import Figure

    return Figure(record.figure, value, record.unit, record.target).ok


def _number(value: float) -> str:
    """Three digits that count, no exponent."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.6f}"


def write_page() -> None:
    PAGE.write_text(page(read()), encoding="utf-8")


if __name__ == "__main__":
    write_page()
