"""Many seeds, by several processes, and what they come to."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from dlrover_lite.simulation.fuzz.faults import KINDS
from dlrover_lite.simulation.fuzz.run import Ran, run_seed

__all__ = ["Tally", "run_seeds"]

_AHEAD = 4
"""Seeds that are submitted for each process."""


class Tally:
    """What many seeds come to."""

    def __init__(self) -> None:
        self.seeds = self.failing = self.steps = 0
        self.least_steps = self.least_faults = sys.maxsize
        """Fewest steps, and fewest faults, of a seed."""
        self.kinds = Counter[str]()
        """How often faults of each kind have struck."""

    def add(self, ran: Ran) -> None:
        self.seeds += 1
        self.failing += bool(ran.problems)
        self.steps += ran.steps
        self.least_steps = min(self.least_steps, ran.steps)
        self.least_faults = min(self.least_faults, len(ran.faults))
        self.kinds.update(fault.kind for fault in ran.faults)

    def describe(self, seconds: float) -> str:
        """Return it in words. ``seconds``: for how long they have run."""
        if not self.seeds:
            return "no seed has ended"
        head = (
            f"{self.seeds:,} seeds in {seconds:.0f} s ({1000 * seconds / self.seeds:.0f} s for a thousand): {self.failing} failing; "
            f"{self.steps:,} steps (at least {self.least_steps:,}), {self.kinds.total():,} faults (at least {self.least_faults}) "
            f"of {len(self.kinds)} kinds out of {len(KINDS)}"
        )
        return f"{head}\n{'  '.join(f'{count:,} x {kind}' for kind, count in sorted(self.kinds.items()))}"


def run_seeds(numbers: Iterator[int], processes: int) -> Iterator[Ran]:
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
