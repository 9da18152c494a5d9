"""How soon a job ends that says nothing of resources, against the best plan there is: real training with all cores, 8 at most.

The oracle is the fixed plan that ends first: of the plans that the brain can give, all that give the ceiling away are tried for some
seconds each in one job, and the best five are run in full. Against it: two users' plans, kept to the end (one asks for too much, one
for too little; a quarter of the samples is run, and the rest taken to go on so), the brain without any history (cold), and with a
history of jobs that are related but not the same, and of decoys (warm; the same history each time). A run's time is from its launch to
its end.

``autoscale.cold_ratio``, ``warm_ratio``, ``user_ratio`` (the geometric mean of both): over the oracle's time in the same round.
``warm_over_cold``: the warm job's time over the cold one's in the same round.
``first_plan_ratio``: samples/s with the warm job's first plan over the oracle's. ``cpu_used`` and ``memory_used``: of the warm job's
nodes over what they were given; for memory, at their peak. ``auc_difference``: between the scaled jobs and the oracle's, of samples held
out. ``median_miss``: how far the changes of all cold and warm jobs were off what was predicted, in the median, as
``history --calibration`` tells. All runs are told in a table. ``--without-oracle`` leaves out the fixed plans (of which a few are tried, to
know how many samples make a job of that length), and gives ``warm_over_cold`` and ``median_miss`` alone. ``--save FILE`` keeps what was
measured, ``--load FILE`` works figures out again without training.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from _autoscale_runs import CEILING, FullRun, Workload, full_run, plans_within, scan, user_run
from _brain_history import History, median_miss
from _plan_job import resources_of, set_up, words
from _quiet import Quiet, Round, of_rounds, say
from common import Figure, arguments, emit

from dlrover_lite.brain.planning.plan_grid import Candidate

WORKLOAD = Workload("ads-clicks")
RELATED = (
    Workload("ads-clicks-small-batch", batch_size=512),
    Workload("ads-clicks-narrow", options={"embedding_dim": 8, "hidden": [256, 128]}, batch_size=2048),
    Workload("ads-views", options={"embedding_dim": 32, "hidden": [256, 128]}, ids=50_000),
)
DECOYS = (
    Workload("search-ranking", model="dlrm", options={"embedding_dim": 64}, batch_size=256, ids=2_000),
    Workload(
        "feed-quality", model="xdeepfm", options={"embedding_dim": 4, "cin_sizes": [16, 16]}, batch_size=4096, ids=500
    ),
)
USERS = {"user, too much": Candidate(4, 3, 1.0, 1.0), "user, too little": Candidate(1, 1, 0.5, 0.25)}
ROUNDS = 3


@dataclass(frozen=True)
class Size:
    """How much is run; times in seconds."""

    oracle: float = 200.0
    history: float = 60.0
    scan: float = 6.0
    plans: int = 1000
    best: int = 5
    related: int = 3
    decoys: int = 2
    rounds: int = ROUNDS


QUICK = Size(oracle=60.0, history=30.0, plans=8, best=2, related=2, decoys=1, rounds=1)
FEW_PLANS = 20
"""Number of plans that are tried where none is run in full."""


@dataclass
class Found:
    """Runs by name, a round after the other."""

    full: dict[str, list[Round[FullRun]]] = field(default_factory=dict)
    users: dict[str, list[Round[float]]] = field(default_factory=dict)
    oracle: dict[str, Candidate] = field(default_factory=dict)
    """The plans that were run in full, by the names of their runs."""
    first_rate: float | None = None
    """Samples/s with the warm job's first plan, where no run has measured it."""


def save(path: Path, found: Found) -> None:
    path.write_bytes(msgspec.json.encode(found))


def load(path: Path) -> Found:
    return msgspec.json.decode(path.read_bytes(), type=Found)


# --- measuring ------------------------------------------------------------------------------------------------------------


def measure(home: Path, size: Size, quiet: Quiet, again: int, *, with_oracle: bool) -> Found:
    rates = _scanned(home, size, quiet)
    best = sorted(rates, key=rates.__getitem__, reverse=True)[: size.best]
    samples = int(rates[best[0]] * size.oracle)
    say(f"{samples:,} samples; the best plans: {', '.join(words(plan) for plan in best)}")
    history = History(home)
    _past(home, size, rates[best[0]], history)
    found = Found(oracle={f"oracle? {words(plan)}": plan for plan in best} if with_oracle else {})

    def fixed(plan: Candidate) -> FullRun:
        recipe = WORKLOAD.recipe(home, samples, resources=resources_of(plan), autoscale="off")
        return full_run(recipe, brain=False)

    def scaled(*, warm: bool) -> FullRun:
        history.restore() if warm else history.forget()
        try:
            return full_run(WORKLOAD.recipe(home, samples, resources={"total": CEILING}), brain=True)
        finally:
            history.forget()

    subjects = {name: partial(fixed, plan) for name, plan in found.oracle.items()}
    subjects |= {"cold": partial(scaled, warm=False), "warm": partial(scaled, warm=True)}
    for number in range(size.rounds):
        for name in list(subjects)[:: 1 if number % 2 == 0 else -1]:
            for one in quiet.attempts(name, subjects[name], again=again):
                say(
                    f"  {name}: {'; '.join([f'{one.value.seconds:.1f} s', *one.value.plans, *filter(None, [one.value.why])])}"
                )
            found.full.setdefault(name, []).append(one)
        for name, plan in USERS.items() if with_oracle else ():
            of_user = quiet.measure(name, partial(user_run, home, WORKLOAD, samples, plan))
            found.users.setdefault(name, []).append(of_user)
            say(f"  {name}: {of_user.value:.1f} s with {words(plan)}")
    first = found.full["warm"][-1].value.first
    if with_oracle and first is not None and all(one.value.rate_with(first) is None for one in found.full["warm"]):
        say(f"the warm job's first plan, {words(first)}, was not measured: tried for some seconds")
        found.first_rate = scan(home, WORKLOAD, [first], size.scan).get(first)
    return found


def _scanned(home: Path, size: Size, quiet: Quiet) -> dict[Candidate, float]:
    plans = plans_within(CEILING["cores"])
    chosen = plans[:: max(1, math.ceil(len(plans) / size.plans))]
    say(f"tries {len(chosen)} plans of {len(plans)}")
    rates = quiet.measure("scan", partial(scan, home, WORKLOAD, chosen, size.scan)).value
    if not rates:
        raise SystemExit("no plan could be measured")
    return rates


def _past(home: Path, size: Size, rate: float, history: History) -> None:
    """Jobs that the brain has seen, each by itself."""
    history.forget()
    for workload in (*RELATED[: size.related], *DECOYS[: size.decoys]):
        say(f"history: {workload.name}")
        recipe = workload.recipe(home, int(rate * size.history), resources={"total": CEILING})
        full_run(recipe, brain=True, most_seconds=2 * size.history)
    history.keep()
    history.forget()


# --- figures --------------------------------------------------------------------------------------------------------------


def figures_of(found: Found, *, heed: bool) -> list[Figure]:
    counted = [one for name in ("cold", "warm") for one in found.full[name] if not (heed and one.why)]
    misses = [miss for one in counted for miss in one.value.misses]
    of_both = [_warm_over_cold(found, heed=heed), median_miss("autoscale.median_miss", misses)]
    return [figure for figure in [*_figures_of_oracle(found, heed=heed), *of_both] if figure is not None]


def _warm_over_cold(found: Found, *, heed: bool) -> Figure | None:
    cold, warm = found.full["cold"], found.full["warm"]
    ratios = [_over(one, other) for one, other in zip(warm, cold, strict=True)]
    detail = {
        "seconds": {"cold": [one.value.seconds for one in cold], "warm": [one.value.seconds for one in warm]},
        "plans": {"cold": [one.value.plans for one in cold], "warm": [one.value.plans for one in warm]},
    }
    return of_rounds("autoscale.warm_over_cold", ratios, "x", "<= 1.0", heed=heed, detail=detail)


def _figures_of_oracle(found: Found, *, heed: bool) -> list[Figure | None]:
    """What is measured against fixed plans; nothing where none was run."""
    if not found.oracle:
        return []
    oracle = first_to_end({name: found.full[name] for name in found.oracle})
    best, warm = found.full[oracle], found.full["warm"]
    cold = [_over(one, other) for one, other in zip(found.full["cold"], best, strict=True)]
    users = [
        [_ratio(one, one.value, other) for one, other in zip(rounds, best, strict=True)]
        for rounds in found.users.values()
    ]
    plan = found.oracle[oracle]
    detail = {"oracle": words(plan), "oracle_s": [round(one.value.seconds, 1) for one in best]}
    of_users = {"each": {name: [one.value for one in each] for name, each in zip(found.users, users, strict=True)}}
    of_warm = {"plans": [one.value.plans for one in warm], "why": [one.value.why for one in warm]}
    wanted: list[tuple[str, Sequence[Round[float]], str, str, Mapping[str, Any]]] = [
        ("cold_ratio", cold, "x", "<= 1.3", {"plans": [one.value.plans for one in found.full["cold"]]}),
        ("warm_ratio", [_over(one, other) for one, other in zip(warm, best, strict=True)], "x", "<= 1.12", of_warm),
        ("user_ratio", [_together(each) for each in zip(*users, strict=True)], "x", "", of_users),
        ("first_plan_ratio", _first(found, plan, best), "x", ">= 0.85", of_warm),
        ("cpu_used", [_with(one, one.value.cpu_used) for one in warm], "", ">= 0.8", {}),
        ("memory_used", [_with(one, one.value.memory_used) for one in warm], "", ">= 0.7", {}),
        ("auc_difference", _auc_differences(found, best), "", "<= 0.002", {}),
    ]
    return [
        of_rounds(f"autoscale.{name}", rounds, unit, target, heed=heed, detail={**detail, **more})
        for name, rounds, unit, target, more in wanted
    ]


def first_to_end(runs: Mapping[str, Sequence[Round[FullRun]]]) -> str:
    """Return the name of the plan that ends first, in the median of the rounds in which all plans count, or of all rounds if there is none:
    a machine's pace changes from round to round, so plans are compared in the same ones."""
    rounds = list(zip(*runs.values(), strict=True))
    counted = [each for each in rounds if not any(one.why for one in each)] or rounds
    seconds = zip(*[[one.value.seconds for one in each] for each in counted], strict=True)
    return min(zip(map(statistics.median, seconds), runs, strict=True))[1]


def _with(one: Round[FullRun], value: float) -> Round[float]:
    return Round(value, one.seconds, one.others, one.off, one.why)


def _ratio(one: Round[float], seconds: float, other: Round[FullRun]) -> Round[float]:
    """Over the oracle's in the same round: both have to count."""
    return Round(seconds / other.value.seconds, one.seconds, one.others, one.off, one.why or other.why)


def _over(one: Round[FullRun], other: Round[FullRun]) -> Round[float]:
    return _ratio(_with(one, one.value.seconds), one.value.seconds, other)


def _together(each: Sequence[Round[float]]) -> Round[float]:
    """The geometric mean; counts if all do."""
    mean = statistics.geometric_mean([one.value for one in each])
    return Round(mean, sum(one.seconds for one in each), 0.0, 0.0, next((one.why for one in each if one.why), ""))


def _first(found: Found, plan: Candidate, best: Sequence[Round[FullRun]]) -> list[Round[float]]:
    rounds = []
    for one, other in zip(found.full["warm"], best, strict=True):
        rate, usual = one.value.rate_with(one.value.first) or found.first_rate, other.value.rate_with(plan)
        if rate is not None and usual is not None:
            value = _with(one, rate / usual)
            rounds.append(Round(value.value, one.seconds, one.others, one.off, one.why or other.why))
    return rounds


def _auc_differences(found: Found, best: Sequence[Round[FullRun]]) -> list[Round[float]]:
    """Of the worse of both scaled jobs, to the oracle's: other load doesn't change it."""
    return [
        Round(max(abs(one.value.auc - other.value.auc) for one in scaled), other.seconds, 0.0, 0.0)
        for *scaled, other in zip(found.full["cold"], found.full["warm"], best, strict=True)
    ]


def table(found: Found) -> None:
    say(f"{'RUN':36}  {'ROUND':>5}  {'SECONDS':>7}  {'CPU':>5}  {'MEMORY':>6}  {'OTHERS':>6}  {'AUC':>6}  PLANS")
    for name, rounds in found.full.items():
        for number, one in enumerate(rounds):
            run = one.value
            say(
                f"{name:36}  {number + 1:5}  {run.seconds:7.1f}  {run.cpu_used:5.0%}  {run.memory_used:6.0%}  {one.others:6.1%}  "
                f"{run.auc:.4f}  {', '.join(run.plans)}"
            )
    for name, of_user in found.users.items():
        for number, each in enumerate(of_user):
            say(
                f"{name:36}  {number + 1:5}  {each.value:7.1f}  {'':5}  {'':6}  {each.others:6.1%}  {'':6}  {words(USERS[name])}"
            )


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help=f"(default {ROUNDS}; 1 with --quick)")
    parser.add_argument(
        "--seconds", type=float, help=f"of the oracle's run (default {Size().oracle:g}; {QUICK.oracle:g} with --quick)"
    )
    parser.add_argument("--again", type=int, default=1, help="how often a disturbed run is repeated (default 1)")
    parser.add_argument("--disturbed", action="store_true", help="count what others have disturbed, too")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what was measured")
    parser.add_argument("--load", type=Path, metavar="FILE", help="work out figures of what was kept, without training")
    parser.add_argument("--without-oracle", action="store_true", help="the cold and the warm job, without fixed plans")


def main() -> None:
    options = arguments(__doc__ or "", extend)
    found = _run(options) if options.load is None else load(options.load)
    if options.save is not None:
        save(options.save, found)
    table(found)
    emit(options, figures_of(found, heed=not options.disturbed))


def _run(options: argparse.Namespace) -> Found:
    set_up()
    size = QUICK if options.quick else Size()
    size = replace(size, oracle=options.seconds or size.oracle, rounds=options.rounds or size.rounds)
    if options.without_oracle:
        size = replace(size, plans=min(size.plans, FEW_PLANS))
    with tempfile.TemporaryDirectory(prefix="dl-bench-") as name, Quiet() as quiet:
        os.environ["DLROVER_LITE_HOME"] = name
        history = History(Path(name))
        try:
            return measure(Path(name), size, quiet, options.again, with_oracle=not options.without_oracle)
        finally:
            history.forget()


if __name__ == "__main__":
    main()
