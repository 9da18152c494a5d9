"""What it brings that nodes keep memory which they have freed: ``kept_memory.rate_ratio``, samples/s of a job with it over without.

Two parameter servers are the bottleneck. Pairs of runs, in turn: how much glibc gives back to the kernel by itself is a matter of chance,
and for a whole run the same, so the figure is the median of pairs, with their spread.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _instability_runs import CASES, prepare, rate_of
from _plan_job import set_up, words
from _quiet import spread
from common import Figure, arguments, emit

from dlrover_lite.brain.planning.plan_grid import Candidate

TWO_PS = replace(CASES["hot_ps"], plan=Candidate(1, 2, 1.0, 0.2))
PAIRS, QUICK_PAIRS = 7, 2
VARIABLE, LEFT = "GLIBC_TUNABLES", "glibc.malloc.perturb=0"
"""A user who tells the allocator anything is heeded; this is what it does anyway."""


def rate(home: Path, *, kept: bool) -> float:
    if kept:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = LEFT
    return rate_of(TWO_PS, home)


def main() -> None:
    options = arguments(__doc__ or "")
    set_up()
    with tempfile.TemporaryDirectory(prefix="dl-bench-") as name:
        os.environ["DLROVER_LITE_HOME"] = name
        home = prepare(TWO_PS, Path(name))
        rate(home, kept=True)  # whatever is compiled once
        rates: dict[bool, list[float]] = {True: [], False: []}
        for number in range(QUICK_PAIRS if options.quick else PAIRS):
            for kept in (True, False) if number % 2 == 0 else (False, True):
                rates[kept].append(rate(home, kept=kept))
    ratios = [with_it / without for with_it, without in zip(rates[True], rates[False], strict=True)]
    detail = {
        "plan": words(TWO_PS.plan),
        "pairs": ratios,
        "spread": spread(ratios),
        "with_samples_per_second": spread(rates[True]),
        "without_samples_per_second": spread(rates[False]),
    }
    without = statistics.median(rates[False])
    emit(options, [Figure("kept_memory.rate_ratio", statistics.median(ratios), "x", ">= 1.05", without, detail)])


if __name__ == "__main__":
    main()
