"""How good the brain's plans are on hosts that aren't this one: against the best plan there is, found by simulating."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _host_jobs import Cluster, SimulatedJob, best_plan, changes_of, last_rates, mean_rate
from _host_queues import Costs, Machine

CASES = {
    "2": [Machine(2.0)],
    "4": [Machine(4.0)],
    "8": [Machine(8.0)],
    "16": [Machine(16.0)],
    "64": [Machine(64.0)],
    "96": [Machine(96.0)],
    "200": [Machine(200.0)],
    "4 x 16": [Machine(16.0)] * 4,
    "20 x 16": [Machine(16.0)] * 20,
    "uneven": [Machine(8.0, 1.3), Machine(16.0), Machine(16.0, 0.7), Machine(4.0, 1.5)],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=list(CASES), nargs="+", default=list(CASES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    for name in options.only:
        machines = CASES[name]
        began = time.monotonic()
        best = best_plan(machines, Costs())
        print(
            f"{name}: best {best.plan.describe()}: {best.samples_per_second:,.0f} samples/s ({time.monotonic() - began:.1f} s)"
        )
        for seed in range(options.seeds):
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as directory:
                cluster = Cluster(machines, Path(directory))
                job = SimulatedJob("job", lambda _: Costs(), total_samples=600.0 * best.samples_per_second, seed=seed)
                cluster.arrives(job)
                while cluster.now - job.began < options.seconds:
                    cluster.pass_window()
                cluster.close()
            rate = best.samples_per_second
            print(
                f"  seed {seed}: end {last_rates(job, 6) / rate:.3f}, way {mean_rate(job, 300.0) / rate:.3f}"
                f" ({time.monotonic() - began:.1f} s) {cluster.said}"
            )
            for one in changes_of(job):
                print(
                    f"    {one.at - job.began:5.0f} s {one.action} {one.choice and one.choice.describe()}: {one.reason[:150]}"
                )


if __name__ == "__main__":
    main()
