"""Runs every bench script, one after the other, and prints one table (``--json``: one object a line). ``make bench``.

Those that train for an hour or more run quickly, as with ``--quick``, unless ``--long`` is given. Exit code 1 when a script failed; a
missed target is shown, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import arguments, print_table

HERE = Path(__file__).resolve().parent
NOT_BENCHES = {"all.py", "common.py"}
LONG = {"autoscale.py", "instability.py", "model_fit.py", "oom.py"}


def scripts() -> list[Path]:
    """The bench scripts; files whose name starts with _ are parts of others."""
    return sorted(path for path in HERE.glob("*.py") if path.name not in NOT_BENCHES and path.name[0] != "_")


def run(script: Path, *, quick: bool) -> list[dict[str, Any]] | None:
    """The figures of one script, or None when it failed. Its stderr is shown as it comes."""
    command = [sys.executable, str(script), "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return figures if done.returncode == 0 else None


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--long", action="store_true", help="also those in full that train for an hour or more")


def main() -> int:
    options = arguments("Run every bench script.", extend)
    figures: list[dict[str, Any]] = []
    failed = []
    for script in scripts():
        print(f"bench/{script.name} …", file=sys.stderr, flush=True)
        result = run(script, quick=options.quick or (script.name in LONG and not options.long))
        if result is None:
            failed.append(script.name)
            continue
        figures += result
        for figure in result if options.json else []:
            print(json.dumps(figure), flush=True)
    if not options.json:
        print_table(figures)
    for name in failed:
        print(f"bench/{name} failed; its messages are above", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
