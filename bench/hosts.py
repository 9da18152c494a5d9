"""How good the brain's plans are on machines and clusters other than this one: against the best plan there is, on simulated hosts.

``hosts.final_ratio``: samples/s of a job that nothing is known of, over the last half minute of its first five, over those of the best
plan. ``hosts.way_ratio``: the same over all of the five minutes, its start included. The worst case counts, of each the median over
seeds. What is simulated, and how the best plan is found, is told in ``_host_queues`` and ``_host_jobs``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _host_jobs import Best, Cluster, SimulatedJob, best_plan, changes_of, mean_rate
from _host_queues import Costs, Machine
from common import Figure, arguments, emit

CASES = {
    "2 cores": [Machine(2.0)],
    "4 cores": [Machine(4.0)],
    "8 cores": [Machine(8.0)],
    "16 cores": [Machine(16.0)],
    "64 cores": [Machine(64.0)],
    "96 cores": [Machine(96.0)],
    "200 cores": [Machine(200.0)],
    "4 x 16 cores": [Machine(16.0)] * 4,
    "20 x 16 cores": [Machine(16.0)] * 20,
    "4 unlike hosts": [Machine(8.0, 1.3), Machine(16.0), Machine(16.0, 0.7), Machine(4.0, 1.5)],
}
QUICK = ("4 cores", "16 cores")
COSTS = Costs()
SECONDS, LAST_SECONDS = 300.0, 30.0
WORK_SECONDS = 600.0
"""Seconds that the best plan would take for all of a job's work."""


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=list(CASES), nargs="+", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, help="(default 10; 2 with --quick)")


def ratios(machines: list[Machine], best: Best, seed: int) -> tuple[float, float]:
    """Let one job run; return the ratios at its end and on its way."""
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-bench-") as directory:
        cluster = Cluster(machines, Path(directory))
        job = SimulatedJob("job", lambda _: COSTS, WORK_SECONDS * best.samples_per_second, seed)
        cluster.arrives(job)
        while cluster.now - job.began < SECONDS:
            cluster.pass_window()
        cluster.close()
    for sentence in cluster.said:
        raise SystemExit(f"The brain complains: {sentence}")
    for one in changes_of(job):
        plan = one.choice.describe() if one.choice is not None else ""
        print(f"    {one.at - job.began:5.0f} s: {one.action} {plan}", file=sys.stderr)
    end = mean_rate(job, SECONDS, since=SECONDS - LAST_SECONDS)
    return end / best.samples_per_second, mean_rate(job, SECONDS) / best.samples_per_second


def main() -> None:
    options = arguments("The brain's plans on many kinds of hosts, against the best ones.", extend)
    seeds = options.seeds or (2 if options.quick else 10)
    found: dict[str, tuple[float, float]] = {}
    for case in options.only or (QUICK if options.quick else CASES):
        best = best_plan(CASES[case], COSTS)
        print(f"{case}: {best.plan.describe()}: {best.samples_per_second:,.0f} samples/s", file=sys.stderr)
        each = [ratios(CASES[case], best, seed) for seed in range(seeds)]
        found[case] = (statistics.median(end for end, _ in each), statistics.median(way for _, way in each))
        print(f"  at the end {found[case][0]:.3f}, on the way {found[case][1]:.3f}", file=sys.stderr)
    emit(
        options,
        [
            Figure("hosts.final_ratio", min(end for end, _ in found.values()), "x", ">= 0.95", detail=found),
            Figure("hosts.way_ratio", min(way for _, way in found.values()), "x", ">= 0.75", detail=found),
        ],
    )


if __name__ == "__main__":
    main()
