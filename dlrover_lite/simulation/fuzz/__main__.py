"""Runs seeds, one after the other or until it is stopped: ``python -m dlrover_lite.simulation.fuzz --help``."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

import click

from dlrover_lite.simulation.fuzz.run import Ran, run_seed

_AHEAD = 4
"""Seeds that are submitted for each process."""


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
    """Run all these seeds; return how many have found something."""
    began, kinds = time.monotonic(), Counter[str]()
    done = failing = steps = faults = 0
    least_steps = least_faults = sys.maxsize
    try:
        for ran in _results(numbers, processes):
            done += 1
            steps, faults = steps + ran.steps, faults + len(ran.faults)
            least_steps, least_faults = min(least_steps, ran.steps), min(least_faults, len(ran.faults))
            kinds.update(fault.kind for fault in ran.faults)
            if ran.problems:
                failing += 1
                click.echo(ran.report() + "\n")
            if done % 100 == 0:
                click.echo(f"{done:,} seeds in {time.monotonic() - began:.0f} s, {failing} of them failing")
    except KeyboardInterrupt:
        click.echo("stopped")
    if done:
        seconds = time.monotonic() - began
        click.echo(
            f"{done:,} seeds in {seconds:.0f} s ({1000 * seconds / done:.0f} s for a thousand): {failing} failing; {steps:,} steps "
            f"(at least {least_steps:,}), {faults:,} faults (at least {least_faults}) of {len(kinds)} kinds"
        )
        click.echo("  ".join(f"{count:,} x {kind}" for kind, count in sorted(kinds.items())))
    return failing


def _results(numbers: Iterator[int], processes: int) -> Iterator[Ran]:
    """Yield what comes of seeds, as they end."""
    if processes <= 1:
        yield from map(run_seed, numbers)
        return
    with ProcessPoolExecutor(processes) as pool:
        waiting: set[Future[Ran]] = {
            pool.submit(run_seed, one) for one in itertools.islice(numbers, processes * _AHEAD)
        }
        try:
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                waiting |= {pool.submit(run_seed, one) for one in itertools.islice(numbers, len(ended))}
                for one in ended:
                    yield one.result()
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
