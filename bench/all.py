"""Runs bench scripts, one after the other, and prints one table (``--json``: one object a line). ``make bench`` runs every one.

Those that train for twenty minutes or more run quickly, as with ``--quick``, unless ``--long`` is given, or they are named. With
``--record``, what was measured in full is kept with its date and commit, and docs/figures.md made anew. Exit code 1 when a script
failed; a missed target is shown, and is no failure. With ``--rounds N`` scripts that repeat everything do so N times in a run: one round
takes half an hour, where three take more time than a machine may be quiet, and several runs of one commit count together.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _figures
from common import arguments, print_table

HERE = Path(__file__).resolve().parent
NOT_BENCHES = {"all.py", "common.py", "reference.py"}
IN_ROUNDS = {"autoscale.py", "instability.py", "model_fit.py", "several.py"}
LONG = {
    "autoscale.py",
    "hosts.py",
    "instability.py",
    "model_fit.py",
    "oom.py",
    "paper.py",
    "policies.py",
    "sensitivity.py",
    "several.py",
    "size.py",
    "validate_simulation.py",
}


def scripts() -> list[Path]:
    """The bench scripts; files whose name starts with _ are parts of others."""
    return sorted(path for path in HERE.glob("*.py") if path.name not in NOT_BENCHES and path.name[0] != "_")


def run(script: Path, *, quick: bool, rounds: int | None = None) -> tuple[list[dict[str, Any]], bool]:
    """The figures of one script, and whether it has done all it was to: one that can't do a part of it prints those that it has, and fails.
    Its stderr is shown as it comes."""
    command = [sys.executable, str(script), "--json", *(["--quick"] if quick else [])]
    if rounds is not None and script.name in IN_ROUNDS:
        command += ["--rounds", str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return figures, done.returncode == 0


def extend(parser: argparse.ArgumentParser) -> None:
    known = [script.stem for script in scripts()]
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"only these ({', '.join(known)}), in full")
    parser.add_argument("--long", action="store_true", help="also those in full that train for twenty minutes or more")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"of {', '.join(sorted(IN_ROUNDS))}")
    parser.add_argument("--record", action="store_true", help="keep the figures, and make docs/figures.md anew")


def chosen(names: Sequence[str]) -> list[Path]:
    """The scripts of these names, or all. Raises SystemExit for one that isn't there."""
    by_name = {script.stem: script for script in scripts()}
    if unknown := [name for name in names if name not in by_name]:
        raise SystemExit(f"There is no bench script {', '.join(unknown)}; there are {', '.join(by_name)}.")
    return [by_name[name] for name in names] or list(by_name.values())


def main() -> int:
    options = arguments("Run bench scripts.", extend)
    commit = _figures.version() if options.record else ""
    figures: list[dict[str, Any]] = []
    failed = []
    for script in chosen(options.scripts):
        print(f"bench/{script.name} …", file=sys.stderr, flush=True)
        in_full = not options.quick and (script.name not in LONG or options.long or bool(options.scripts))
        result, whole = run(script, quick=not in_full, rounds=options.rounds)
        if not whole:
            failed.append(script.name)
        figures += result
        if options.record and in_full and result:
            _figures.add(result, commit)
        for figure in result if options.json else []:
            print(json.dumps(figure), flush=True)
    if not options.json:
        print_table(figures)
    unknown = _figures.unknown(_figures.read()) if options.record else []
    if unknown:
        named = ", ".join(unknown)
        print(
            f"{named}: kept, but not in docs/figures.md: bench/figure_meanings.toml doesn't say what that is",
            file=sys.stderr,
        )
        print("Say it there, then make the page: python bench/_figures.py", file=sys.stderr)
    elif options.record:
        _figures.write_page()
    for name in failed:
        print(f"bench/{name} failed, or not all of it could be done; its messages are above", file=sys.stderr)
    return 1 if failed or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
