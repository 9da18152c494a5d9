"""Which numbers of the brain its plans depend on: each is made smaller and larger, and simulated jobs are run with it.

``sensitivity.numbers``: how many of the numbers in the brain's planning, models and treatments change what jobs reach by more than 2%, at
their end or on their way, when they are three quarters or four thirds of what they are. Each of them is named on stderr, with what it
changes. The others may be anything in that range.

A difference counts beside what the same jobs differ by when nothing is changed but the chance in their queues.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from _host_jobs import Best, SimulatedJob, best_plan, mean_rate, run_alone
from _host_queues import Costs, Machine
from common import Figure, arguments, emit

import dlrover_lite

BRAIN = Path(dlrover_lite.__file__).parent / "brain"
FOLDERS = ("planning", "models", "healing")
OTHERS = ("job_tracker.py", "effect.py")
FACTORS = (0.75, 4 / 3)
ENOUGH = 0.02
"""Difference, as a share, from which on results depend on a number."""
CASES = {"4 cores": [Machine(4.0)], "16 cores": [Machine(16.0)], "2 x 8 cores": [Machine(8.0)] * 2}
COSTS = Costs()
SECONDS, LAST_SECONDS = 240.0, 30.0
WORK_SECONDS = 600.0
"""Seconds that the best plan would take for all of a job's work."""
NOT_NUMBERS = {"FORMAT", "MILLI", "_OF_80_PERCENT", "_HALF_WIDTH_OF_80_PERCENT"}
"""Versions, units, and what mathematics says."""


class Constant(NamedTuple):
    module: str
    name: str
    value: float

    def changed(self, factor: float) -> float:
        """Return another value: of a whole number a whole one, of a share none above 1."""
        if isinstance(self.value, int):
            step = 1 if factor > 1 else -1
            return max(1, step + self.value if abs(self.value) < 4 else round(self.value * factor))
        other = self.value * factor
        return min(other, 1.0) if 0 < self.value < 1 else other


def constants() -> Iterator[Constant]:
    """Find the numbers that stand at the top of the brain's modules."""
    files = [path for folder in FOLDERS for path in sorted((BRAIN / folder).glob("*.py"))]
    for path in [*files, *(BRAIN / name for name in OTHERS)]:
        module = ".".join(("dlrover_lite.brain", *path.relative_to(BRAIN).with_suffix("").parts))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            target = node.targets[0]
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                number = value.value if isinstance(value, ast.Constant) else None
                if not isinstance(name, ast.Name) or name.id in NOT_NUMBERS:
                    continue
                if isinstance(number, int | float) and not isinstance(number, bool):
                    yield Constant(module, name.id, number)


@contextmanager
def replaced(one: Constant, value: float) -> Iterator[None]:
    """Give the number another value, wherever it was imported to."""
    importlib.import_module(one.module)
    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("dlrover_lite.brain")
        and getattr(module, one.name, None) is getattr(sys.modules[one.module], one.name)
    ]
    before = getattr(sys.modules[one.module], one.name)
    try:
        for module in holders:
            setattr(module, one.name, value)
        yield
    finally:
        for module in holders:
            setattr(module, one.name, before)


def run(machines: Sequence[Machine], best: Best, seed: int) -> tuple[float, float]:
    """Let one job run; return what it reaches at its end and on its way, as shares of the best plan."""
    job = SimulatedJob("job", lambda _: COSTS, WORK_SECONDS * best.samples_per_second, seed)
    run_alone(job, machines, SECONDS)
    end = mean_rate(job, SECONDS, since=SECONDS - LAST_SECONDS)
    return end / best.samples_per_second, mean_rate(job, SECONDS) / best.samples_per_second


def outcomes(bests: dict[str, Best], seeds: Sequence[int]) -> dict[str, float]:
    """Compute the mean over seeds of what jobs reach, of each case at the end and on the way."""
    found = {}
    for case, best in bests.items():
        each = [run(CASES[case], best, seed) for seed in seeds]
        for what, values in zip(("end", "way"), zip(*each, strict=True), strict=True):
            found[f"{case}, {what}"] = statistics.mean(values)
    return found


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these numbers, such as _SHIFT")
    parser.add_argument("--seeds", type=int, help="(default 4; 1 with --quick)")


def main() -> None:
    options = arguments("Which numbers of the brain its plans depend on.", extend)
    seeds = range(options.seeds or (1 if options.quick else 4))
    found = [one for one in constants() if not options.only or one.name in options.only]
    if options.quick and not options.only:
        found = found[:: max(1, len(found) // 8)]
    cases = list(CASES)[:1] if options.quick else list(CASES)
    bests = {case: best_plan(CASES[case], COSTS) for case in cases}
    usual = outcomes(bests, seeds)
    chance = outcomes(bests, [seed + 1000 for seed in seeds])
    noise = {what: abs(chance[what] / usual[what] - 1) for what in usual}
    print("by chance alone: " + ", ".join(f"{what} {value:.1%}" for what, value in noise.items()), file=sys.stderr)
    sensitive = {}
    for one in found:
        changes: dict[str, float] = {}
        for factor in FACTORS:
            value = one.changed(factor)
            if value == one.value:
                continue
            with replaced(one, value):
                after = outcomes(bests, seeds)
            for what, reached in after.items():
                change = reached / usual[what] - 1
                if abs(change) > max(ENOUGH, 2 * noise[what]):
                    changes[f"{value:g}: {what}"] = round(change, 4)
        if changes:
            sensitive[f"{one.module.removeprefix('dlrover_lite.brain.')}.{one.name}"] = changes
        told = "; ".join(f"{what} {change:+.1%}" for what, change in changes.items()) or "nothing"
        print(f"{one.module.removeprefix('dlrover_lite.brain.')}.{one.name} = {one.value:g}: {told}", file=sys.stderr)
    emit(
        options,
        [
            Figure("sensitivity.numbers", len(sensitive), "numbers", detail=sensitive),
            Figure("sensitivity.looked_at", len(found), "numbers"),
        ],
    )


if __name__ == "__main__":
    main()
