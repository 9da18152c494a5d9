"""What every bench script shares. A script measures one subject, and prints figures::

    from common import Figure, arguments, emit, medians

    options = arguments("How long --help takes.")
    seconds = medians({"help": time_help, "click": time_click}, rounds=5 if options.quick else 21)
    ratio = seconds["help"] / seconds["click"]
    emit(options, [Figure("cli.help_ratio", ratio, "x", "<= 4", baseline=seconds["click"])])

With ``--json``, each figure is a JSON object on a line of its own; without, they are rows of a table. What a script
reports beside its figures goes to stderr. ``python bench/all.py`` runs every script.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dlrover_lite.backends.host import linux

__all__ = ["Figure", "arguments", "emit", "line_of", "medians", "print_table", "start_process"]


@dataclass(frozen=True)
class Figure:
    """One measured number. ``target`` is "", a bound such as ">= 1.5", or "0.7 to 0.9"; ``baseline`` was measured in the same run."""

    figure: str
    value: float
    unit: str
    target: str = ""
    baseline: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else explains the number; only in the JSON."""

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if not self.target:
            return None
        sign, _, bound = self.target.partition(" ")
        if bound.startswith("to "):
            return float(sign) <= self.value <= float(bound.removeprefix("to "))
        number = float(bound.replace(",", "").split()[0])
        if sign not in (">=", "<="):
            raise ValueError(f"target {self.target!r} is not '>= number', '<= number' or 'number to number'")
        return self.value >= number if sign == ">=" else self.value <= number

    def as_json(self) -> str:
        return json.dumps({**asdict(self), "ok": self.ok})


def arguments(
    description: str, extend: Callable[[argparse.ArgumentParser], object] | None = None
) -> argparse.Namespace:
    """The command line: ``--json``, ``--quick``, and what ``extend`` adds to the parser."""
    os.environ.setdefault("DLROVER_LITE_BRAIN", "off")  # a daemon would outlive the script
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="a rough answer within a minute")
    if extend is not None:
        extend(parser)
    return parser.parse_args()


def medians(subjects: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: int = 1) -> dict[str, float]:
    """The median of what each subject returns over ``rounds`` rounds; a round runs all of them, in turn.

    Interleaving spreads what else happens on the machine over all subjects, and every second round runs
    backwards, so that none always follows the same one. The first ``warm_up`` rounds don't count.
    """
    results: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(-warm_up, rounds):
        order = list(subjects) if number % 2 == 0 else list(subjects)[::-1]
        for name in order:
            value = subjects[name]()
            if number >= 0:
                results[name].append(value)
    return {name: statistics.median(values) for name, values in results.items()}


def start_process(script: str, *parameters: str) -> subprocess.Popen[str]:
    """``script`` of this directory, as a process to talk with by lines; it imports what this one does, and ends when this one does."""
    source = str(Path(__file__).resolve().parent.parent)
    paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        linux.tied([sys.executable, str(Path(script).resolve()), *parameters]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that the process prints. Raises SystemExit when it has ended instead."""
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line.strip()
    raise SystemExit(f"a process of the benchmark ended with exit code {process.wait()}")


def emit(options: argparse.Namespace, figures: Sequence[Figure]) -> None:
    """Print the figures on stdout, as ``--json`` says."""
    if options.json:
        for figure in figures:
            print(figure.as_json(), flush=True)
    else:
        print_table([{**asdict(figure), "ok": figure.ok} for figure in figures])


def print_table(figures: Sequence[Mapping[str, Any]]) -> None:
    """Figures (as in the JSON) as a table on stdout."""
    head = ("FIGURE", "VALUE", "UNIT", "TARGET", "OK", "BASELINE")
    rows = [head]
    for figure in figures:
        ok = {True: "yes", False: "NO", None: "-"}[figure["ok"]]
        baseline = "-" if figure["baseline"] is None else f"{figure['baseline']:,.4g}"
        rows.append(
            (figure["figure"], f"{figure['value']:,.4g}", figure["unit"], figure["target"] or "-", ok, baseline)
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    sys.stdout.flush()
