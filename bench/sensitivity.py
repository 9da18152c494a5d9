"""How far each number of the brain may be moved before its plans change: each is made smaller and larger, and simulated jobs are run.

Numbers are the fields of its policies, and what stands at the top of its modules. ``sensitivity.numbers``: how many of them change what
jobs reach by more than 2%, at their end or on their way, when they are three quarters or four thirds of what they are. Of the others, half
and twice as much are looked at too (``sensitivity.wide``: how many change nothing then either). Each is named on stderr, with what it
changes; the ranges in which nothing changes are the figure's detail, and docs/numbers.md has them. What the simulated jobs don't meet, as
memory that runs out, tells nothing.

A difference counts beside what the same jobs differ by when nothing is changed but the chance in their queues. Nothing is timed, so the
machine may do anything else meanwhile; an hour and more, on all cores that there are.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from _figures import version
from _host_jobs import SimulatedJob, mean_rate, run_alone
from _host_plans import Best, best_plan
from _numbers import USUAL, Ranges, module_numbers, policy_fields, read_ranges, write_ranges
from common import Figure, arguments, emit

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.brain.policies import Policies

FACTORS, FARTHER = (0.75, 4 / 3), (0.5, 2.0)
ENOUGH = 0.02
"""Difference, as a share, from which on results depend on a number."""
CASES = {
    "4 cores": [Machine(4.0)],
    "16 cores": [Machine(16.0)],
    "2 x 8 cores": [Machine(8.0)] * 2,
    "2 unlike hosts": [Machine(8.0, 1.3), Machine(8.0, 0.8)],
}
COSTS = Costs()
SECONDS, LAST_SECONDS = 240.0, 30.0
WORK_SECONDS = 600.0
"""Seconds that the best plan would take for all of a job's work."""


class Constant(NamedTuple):
    module: str
    """Module of a number at its top; of a field, the fields of ``Policies`` that lead to it, joined by dots."""
    name: str
    value: float
    is_field: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.module.removeprefix('dlrover_lite.brain.')}.{self.name}"

    def changed(self, factor: float) -> float:
        """Return another value: of a whole number a whole one, of a share none above 1."""
        if isinstance(self.value, int):
            step = 1 if factor > 1 else -1
            return max(1, step + self.value if abs(self.value) < 4 else round(self.value * factor))
        other = self.value * factor
        return min(other, 1.0) if 0 < self.value < 1 else other

    @contextmanager
    def replaced(self, value: float) -> Iterator[Policies]:
        """Give the number another value; yield the policies to run jobs with."""
        if self.is_field:
            yield _with(USUAL, [*self.module.split("."), self.name], value)
            return
        with replaced(self, value):
            yield USUAL


def _with(whole: Any, path: Sequence[str], value: float) -> Any:
    """Return a policy with another value at the end of the path of fields."""
    first, *rest = path
    inner = _with(getattr(whole, first), rest, value) if rest else value
    return msgspec.structs.replace(whole, **{first: inner})


def every_number() -> list[Constant]:
    fields = [Constant(*_named(one.path), one.value, is_field=True) for one in policy_fields()]
    return [*fields, *(Constant(*_named(f"dlrover_lite.brain.{one.path}"), one.value) for one in module_numbers())]


def _named(path: str) -> tuple[str, str]:
    where, _, name = path.rpartition(".")
    return where, name


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


def run(machines: Sequence[Machine], best: Best, seed: int, policies: Policies) -> tuple[float, float]:
    """Let one job run; return what it reaches at its end and on its way, as shares of the best plan."""
    job = SimulatedJob("job", lambda _: COSTS, WORK_SECONDS * best.samples_per_second, seed)
    run_alone(job, machines, SECONDS, policies)
    end = mean_rate(job, SECONDS, since=SECONDS - LAST_SECONDS)
    return end / best.samples_per_second, mean_rate(job, SECONDS) / best.samples_per_second


def outcomes(bests: dict[str, Best], seeds: Sequence[int], policies: Policies) -> dict[str, float]:
    """Compute the mean over seeds of what jobs reach, of each case at the end and on the way."""
    found = {}
    for case, best in bests.items():
        each = [run(CASES[case], best, seed, policies) for seed in seeds]
        for what, values in zip(("end", "way"), zip(*each, strict=True), strict=True):
            found[f"{case}, {what}"] = statistics.mean(values)
    return found


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these numbers, such as shift_times")
    parser.add_argument("--write-ranges", action="store_true", help="write the ranges down, for docs/numbers.md")
    parser.add_argument("--seeds", type=int, help="(default 2; 1 with --quick)")


class Usual(NamedTuple):
    """What jobs reach with the numbers as they are."""

    seeds: Sequence[int]
    bests: dict[str, Best]
    of_first: dict[str, float]
    """With the first seed alone."""
    of_all: dict[str, float]
    noise: dict[str, float]
    """By how much that differs by chance, as a share."""

    @classmethod
    def of(cls, cases: Sequence[str], seeds: Sequence[int]) -> Usual:
        bests = {case: best_plan(CASES[case], COSTS) for case in cases}
        reached = outcomes(bests, seeds, USUAL)
        chance = outcomes(bests, [seed + 1000 for seed in seeds], USUAL)
        noise = {what: abs(chance[what] / reached[what] - 1) for what in reached}
        return cls(seeds, bests, outcomes(bests, seeds[:1], USUAL), reached, noise)

    def changes(self, one: Constant, factor: float) -> tuple[float, dict[str, float]]:
        """Make a number so many times what it is; return what it is then, and what changes by how much. What changes nothing with the first
        seed isn't looked at with the others."""
        value = one.changed(factor)
        found: dict[str, float] = {}
        if value == one.value:
            return value, found
        with one.replaced(value) as policies:
            for seeds, usual in ((self.seeds[:1], self.of_first), (self.seeds, self.of_all)):
                after = outcomes(self.bests, seeds, policies)
                shares = {what: its / usual[what] - 1 for what, its in after.items()}
                found = {w: round(by, 4) for w, by in shares.items() if abs(by) > max(ENOUGH, 2 * self.noise[w])}
                if not found:
                    break
        return value, found


class Range(NamedTuple):
    """The values of a number with which nothing changes, as far as they were looked at."""

    name: str
    value: float
    low: float
    high: float
    near: dict[str, float]
    """What changes near to the value."""
    far: dict[str, float]
    """What changes at half or twice the value, if nothing does nearer."""


def range_of(one: Constant, usual: Usual) -> Range:
    """Move a number down, then up, as long as nothing changes."""
    ends, changed = [one.value, one.value], (dict[str, float](), dict[str, float]())
    for side, factors in enumerate(zip(FACTORS, FARTHER, strict=True)):
        for factor, into in zip(factors, changed, strict=True):
            value, found = usual.changes(one, factor)
            if found:
                into |= {f"{value:g}: {what}": by for what, by in found.items()}
                break
            ends[side] = value
    return Range(one.full_name, one.value, ends[0], ends[1], changed[0], changed[1])


def main() -> None:
    options = arguments("How far each number of the brain may be moved before its plans change.", extend)
    seeds = range(options.seeds or (1 if options.quick else 2))
    found = [one for one in every_number() if not options.only or one.name in options.only]
    if options.quick and not options.only:
        found = found[:: max(1, len(found) // 8)]
    usual = Usual.of(list(CASES)[:1] if options.quick else list(CASES), seeds)
    words = ", ".join(f"{what} {value:.1%}" for what, value in usual.noise.items())
    print(f"by chance alone: {words}", file=sys.stderr)
    ranges: list[Range] = []
    commit = version() if options.write_ranges else ""
    before = read_ranges()
    measured = dict(before.of) if before.commit == commit else {}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for one in pool.map(range_of, found, [usual] * len(found)):
            ranges.append(one)
            told = "; ".join(f"{what} {by:+.1%}" for what, by in (one.near | one.far).items())
            print(f"{one.name} = {one.value:g}: {one.low:g} to {one.high:g} {told}", file=sys.stderr, flush=True)
            if options.write_ranges:
                measured[one.name] = (one.low, one.value, one.high)
                write_ranges(Ranges(commit, measured))
    sensitive = {one.name: one.near for one in ranges if one.near}
    emit(
        options,
        [
            Figure("sensitivity.numbers", len(sensitive), "numbers", detail=sensitive),
            Figure("sensitivity.wide", sum(not one.near and not one.far for one in ranges), "numbers"),
            Figure(
                "sensitivity.looked_at",
                len(ranges),
                "numbers",
                detail={one.name: [one.low, one.value, one.high] for one in ranges},
            ),
        ],
    )


if __name__ == "__main__":
    main()
