"""Runs seeds, one after the other or until it is stopped: ``python -m dlrover_lite.simulation.fuzz --help``."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

from dlrover_lite.simulation.fuzz.run import run_seed
from dlrover_lite.simulation.fuzz.seeds import Tally, run_seeds

_TOLD_EVERY = 100
"""Seeds after which it is told how many there were."""


@click.command()
@click.option("--seed", type=int, help="Run this one seed, and print what has happened.")
@click.option("--first", type=int, default=1, show_default=True, help="The first seed.")
@click.option("--seeds", type=int, help="How many seeds; without a number until it is stopped.")
@click.option("--processes", type=int, default=os.cpu_count() or 1, help="Processes that run seeds.")
@click.option("--keep", type=click.Path(path_type=Path), help="With --seed: keep its files in this directory.")
def main(seed: int | None, first: int, seeds: int | None, processes: int, keep: Path | None) -> None:
    """Run simulated jobs with faults that follow from a seed, and check after every event what must hold."""
    if seed is not None:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
        ran = run_seed(seed, directory=keep)
        click.echo(f"{ran.report()}\n{ran.steps} steps, {ran.seconds:.1f} s simulated, {len(ran.faults)} faults")
        sys.exit(1 if ran.problems else 0)
    numbers = itertools.count(first) if seeds is None else iter(range(first, first + seeds))
    sys.exit(1 if _run_all(numbers, processes) else 0)


def _run_all(numbers: Iterator[int], processes: int) -> int:
    """Run all these seeds; return how many have found something, or were too short to count."""
    began, tally = time.monotonic(), Tally()
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        for ran in run_seeds(numbers, processes):
            tally.add(ran)
            if ran.problems:
                click.echo(ran.report() + "\n")
            if tally.seeds % _TOLD_EVERY == 0:
                click.echo(
                    f"{tally.seeds:,} seeds in {time.monotonic() - began:.0f} s, {tally.failing} of them failing"
                )
    except KeyboardInterrupt:
        click.echo("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
    click.echo(tally.describe(time.monotonic() - began))
    return tally.failing


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop as by ctrl-C: who is killed at once leaves processes behind that run seeds."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
