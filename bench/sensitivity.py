"""Which numbers of the brain its plans depend on: each is made smaller and larger, and simulated jobs are run with it.

Numbers are the fields of its policies, and what stands at the top of its modules. ``sensitivity.numbers``: how many of them change what
jobs reach by more than 2%, at their end or on their way, when they are three quarters or four thirds of what they are. Each is named on
stderr, with what it changes. The others may be anything in that range: half and twice as much are looked at for these
(``sensitivity.wide``: how many change nothing then either). What the simulated jobs don't meet, as memory that runs out, tells nothing.

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
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from _host_jobs import Best, SimulatedJob, best_plan, mean_rate, run_alone
from _host_queues import Costs, Machine
from common import Figure, arguments, emit

import dlrover_lite
from dlrover_lite.brain.healing.policies import HealthPolicy
from dlrover_lite.brain.planning.job_view import Policy

BRAIN = Path(dlrover_lite.__file__).parent / "brain"
FOLDERS = ("planning", "models", "healing")
OTHERS = ("job_tracker.py", "effect.py")
FACTORS, WIDER = (0.75, 4 / 3), (0.5, 2.0)
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
NOT_NUMBERS = {"FORMAT", "MILLI", "_OF_80_PERCENT", "_HALF_WIDTH_OF_80_PERCENT"}
"""Versions, units, and what mathematics says."""


class Policies(NamedTuple):
    planning: Policy = Policy()
    health: HealthPolicy = HealthPolicy()


class Constant(NamedTuple):
    module: str
    """Module of a number at its top; of a field, "planning" or "health" with the fields that lead to it, joined by dots."""
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
        if not self.is_field:
            with replaced(self, value):
                yield Policies()
            return
        which, *path = self.module.split(".")
        whole = getattr(Policies(), which)
        yield Policies()._replace(**{which: _with(whole, [*path, self.name], value)})


def _with(whole: Any, path: Sequence[str], value: float) -> Any:
    """Return a policy with another value at the end of the path of fields."""
    first, *rest = path
    inner = _with(getattr(whole, first), rest, value) if rest else value
    return msgspec.structs.replace(whole, **{first: inner})


def fields(policy: msgspec.Struct, at: str) -> Iterator[Constant]:
    """Find the numbers among a policy's fields, and those of the policies in it."""
    for name in policy.__struct_fields__:
        value = getattr(policy, name)
        if isinstance(value, msgspec.Struct):
            yield from fields(value, f"{at}.{name}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield Constant(at, name, value, is_field=True)


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


def run(machines: Sequence[Machine], best: Best, seed: int, policies: Policies) -> tuple[float, float]:
    """Let one job run; return what it reaches at its end and on its way, as shares of the best plan."""
    job = SimulatedJob("job", lambda _: COSTS, WORK_SECONDS * best.samples_per_second, seed)
    run_alone(job, machines, SECONDS, policies.planning, policies.health)
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
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these numbers, such as _SHIFT")
    parser.add_argument("--seeds", type=int, help="(default 4; 1 with --quick)")


def changes(
    one: Constant, factors: Sequence[float], bests: dict[str, Best], seeds: Sequence[int], usual: Usual
) -> dict[str, float]:
    """Find what changes, by how much, with each of these factors on a number."""
    found: dict[str, float] = {}
    for value in dict.fromkeys(one.changed(factor) for factor in factors):
        if value == one.value:
            continue
        with one.replaced(value) as policies:
            after = outcomes(bests, seeds, policies)
        for what, reached in after.items():
            change = reached / usual.reached[what] - 1
            if abs(change) > max(ENOUGH, 2 * usual.noise[what]):
                found[f"{value:g}: {what}"] = round(change, 4)
    return found


class Usual(NamedTuple):
    """What jobs reach with the numbers as they are, and by how much that differs by chance, as a share."""

    reached: dict[str, float]
    noise: dict[str, float]


def main() -> None:
    options = arguments("Which numbers of the brain its plans depend on.", extend)
    seeds = range(options.seeds or (1 if options.quick else 4))
    policies = Policies()
    every = [*fields(policies.planning, "planning"), *fields(policies.health, "health"), *constants()]
    found = [one for one in every if not options.only or one.name in options.only]
    if options.quick and not options.only:
        found = found[:: max(1, len(found) // 8)]
    cases = list(CASES)[:1] if options.quick else list(CASES)
    bests = {case: best_plan(CASES[case], COSTS) for case in cases}
    reached = outcomes(bests, seeds, policies)
    chance = outcomes(bests, [seed + 1000 for seed in seeds], policies)
    usual = Usual(reached, {what: abs(chance[what] / reached[what] - 1) for what in reached})
    print(
        "by chance alone: " + ", ".join(f"{what} {value:.1%}" for what, value in usual.noise.items()), file=sys.stderr
    )
    sensitive: dict[str, dict[str, float]] = {}
    wide: dict[str, float] = {}
    for one in found:
        near = changes(one, FACTORS, bests, seeds, usual)
        far = near or changes(one, WIDER, bests, seeds, usual)
        if near:
            sensitive[one.full_name] = near
        elif not far:
            wide[one.full_name] = one.value
        told = "; ".join(f"{what} {change:+.1%}" for what, change in far.items()) or "nothing"
        print(f"{one.full_name} = {one.value:g}: {told}", file=sys.stderr)
    emit(
        options,
        [
            Figure("sensitivity.numbers", len(sensitive), "numbers", detail=sensitive),
            Figure("sensitivity.wide", len(wide), "numbers", detail=wide),
            Figure("sensitivity.looked_at", len(found), "numbers"),
        ],
    )


if __name__ == "__main__":
    main()
