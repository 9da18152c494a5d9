"""Six real jobs that come and go on this machine: the brain against everyone's own request, equal shares, and first come first served.

The jobs, when they come, and why these stands in ``_several_schedule.py``: different models and sizes within half a minute, one more
important than the others, one that can't shrink, one that fails in mid-run. They share two cores (of a larger machine, two), and each
policy has them all once in a round:

- ``brain``: a recipe says nothing of resources (but that of the job that can't shrink), and the brain decides. It knows no past jobs; with
  ``--warm`` it has seen the schedule once before.
- ``static``: each job has what its user asks for at once, and the kernel gives each job the same part of the cores that they all want.
- ``equal``: the cores are divided evenly among the jobs that are there, with limits that change whenever one comes or goes.
- ``fcfs``: one after the other in the order of arrival, each with the whole machine; what a job can't use goes to the next one.

The last two divide a job's cores among its nodes in a form that was found by trying (``--scan``), which the brain isn't told. With all
policies recipes, checkpoints, and the mechanisms that hold nodes to their cores are the same.

A completion time is that from a job's arrival, whether or not it can begin then, to its end. ``several.mean_jct_ratio`` and
``several.worst_jct_ratio``: the mean, and the worst, of the five jobs that succeed, with the brain over the same with the best of the other
policies in the same round, whichever that is. ``several.makespan_ratio``: the same of the time until the last of all six has ended.
``several.median_miss``: how far all changes were off what the brain had predicted, in the median, as ``history --calibration`` tells. Every
other round runs the other way around. Each job has to have trained on each sample once, and the census is checked bit for bit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _brain_history import History, median_miss
from _plan_job import PlannedJob, set_up, words
from _quiet import Quiet, Round, of_rounds, say
from _several_runs import Outcome, prepare, run
from _several_schedule import BASELINES, CORES, POLICIES, QUICK, SCHEDULE, Form, PolicyName, Workload, scaled
from common import Figure, arguments, emit

ROUNDS = 3
TARGETS = {"mean_jct": "<= 0.85", "worst_jct": "<= 1.0", "makespan": ""}
SCAN_SECONDS = 5.0
FORMS = (
    Form(1, 1, 0.2),
    Form(1, 1, 0.35),
    Form(1, 1, 0.5),
    Form(2, 1, 0.125),
    Form(2, 1, 0.25),
    Form(2, 1, 0.4),
    Form(3, 1, 0.25),
    Form(4, 1, 0.25),
)
"""Forms that ``--scan`` tries."""

Outcomes = dict[PolicyName, Round[Outcome]]


# --- measuring ------------------------------------------------------------------------------------------------------------


def measure(
    home: Path,
    schedule: Sequence[Workload],
    quiet: Quiet,
    *,
    rounds: int,
    again: int,
    policies: Sequence[PolicyName] = POLICIES,
    warm: bool = False,
) -> list[Outcomes]:
    history = History(home)
    if warm:
        say("history: all of it once, with the brain")
        run("brain", schedule, home)
        history.keep()

    def one_run(policy: PolicyName) -> Outcome:
        if policy == "brain":
            history.restore() if warm else history.forget()
        return run(policy, schedule, home)

    found: list[Outcomes] = []
    for number in range(rounds):
        of_round: Outcomes = {}
        for policy in policies[:: 1 if number % 2 == 0 else -1]:
            for one in quiet.attempts(policy, partial(one_run, policy), again=again):
                of_round[policy] = one
                tell(number, one)
        found.append(of_round)
    return found


def tell(number: int, one: Round[Outcome]) -> None:
    outcome = one.value
    disturbed = f" [{one.why}]" if one.why else ""
    say(
        f"  {number + 1}, {outcome.policy}: mean {outcome.mean:.1f} s, worst {outcome.worst:.1f} s, "
        f"makespan {outcome.makespan:.1f} s{disturbed}"
    )
    for each in outcome.completions:
        waited = f", waited {each.waited:.0f} s" if each.waited >= 1 else ""
        failed = "" if each.counts else ", failed as it was to"
        say(f"    {each.name:15} {each.seconds:6.1f} s{waited}{failed}: {'; '.join(each.plans)} ({each.job})")


def scan(home: Path, schedule: Sequence[Workload]) -> None:
    """Try the forms for each job that can have any, in one job that goes through them, and tell samples/s with all cores."""
    for workload in schedule:
        forms = [workload.form] if workload.fixed else FORMS
        recipe = workload.recipe(home, "fcfs", workload.asked)
        recipe["data"]["samples"] = workload.batch_size << 22  # it trains without an end
        plans = [workload.asked if workload.fixed else form.plan(CORES) for form in forms]
        say(f"{workload.name}:")
        with PlannedJob(recipe, plans[0], from_memory=False) as job:
            for plan in plans:
                job.change(plan)
                if (profile := job.measured(plan, SCAN_SECONDS)) is not None:
                    rate = profile.samples_per_second
                    say(f"  {words(plan)}: {rate:,.0f} samples/s, {workload.samples / rate:.0f} s alone")


# --- figures --------------------------------------------------------------------------------------------------------------


def figures_of(rounds: Sequence[Outcomes], *, heed: bool) -> list[Figure]:
    detail = _detail(rounds)
    figures = [
        of_rounds(
            f"several.{what}_ratio", [ratio(each, what) for each in rounds], "x", target, heed=heed, detail=detail
        )
        for what, target in TARGETS.items()
    ]
    counted = [each["brain"].value for each in rounds if not (heed and each["brain"].why)]
    misses = [miss for outcome in counted for one in outcome.completions for miss in one.misses]
    figures.append(median_miss("several.median_miss", misses))
    return [figure for figure in figures if figure is not None]


def ratio(of_round: Outcomes, what: str) -> Round[float]:
    """The brain's over that of the best of the others; disturbed if any of them was, since each could have been the best."""
    values = {policy: value_of(one.value, what) for policy, one in of_round.items()}
    best = min(values[policy] for policy in BASELINES)
    return Round(
        values["brain"] / best,
        sum(one.seconds for one in of_round.values()),
        max(one.others for one in of_round.values()),
        max((one.off for one in of_round.values()), key=abs),
        next((f"{policy}: {one.why}" for policy, one in of_round.items() if one.why), ""),
    )


def value_of(outcome: Outcome, what: str) -> float:
    """Seconds."""
    return {"mean_jct": outcome.mean, "worst_jct": outcome.worst, "makespan": outcome.makespan}[what]


def _detail(rounds: Sequence[Outcomes]) -> Mapping[str, object]:
    return {
        policy: {
            **{f"{what}_s": [round(value_of(each[policy].value, what), 1) for each in rounds] for what in TARGETS},
            "jct_s": [{one.name: round(one.seconds, 1) for one in each[policy].value.completions} for each in rounds],
        }
        for policy in POLICIES
    }


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help=f"(default {ROUNDS}; 1 with --quick)")
    parser.add_argument("--again", type=int, default=1, help="how often a disturbed run is repeated (default 1)")
    parser.add_argument("--disturbed", action="store_true", help="count what others have disturbed, too")
    parser.add_argument("--warm", action="store_true", help="the brain has seen the schedule once before")
    parser.add_argument("--only", choices=POLICIES, help="one policy, without figures")
    parser.add_argument("--scan", action="store_true", help="try the jobs' forms instead, without figures")
    parser.add_argument("--home", type=Path, help="keep jobs and the brain's history in this new directory")


@contextmanager
def state_in(home: Path | None) -> Iterator[Path]:
    """Have jobs in this directory, which stays, or in one that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="dl-bench-") as name:
        if home is not None and home.exists():
            raise SystemExit(f"{home} is there already: name a directory that isn't")
        place = Path(name) if home is None else home.resolve()
        place.mkdir(parents=True, exist_ok=True)
        os.environ["DLROVER_LITE_HOME"] = str(place)
        prepare(place)
        yield place


def main() -> None:
    options = arguments(__doc__ or "", extend)
    set_up()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: round(CORES)])  # what is started has them, too
    schedule = scaled(SCHEDULE, QUICK) if options.quick else SCHEDULE
    with state_in(options.home) as home:
        if options.scan:
            scan(home, schedule)
            return
        with Quiet() as quiet:
            rounds = measure(
                home,
                schedule,
                quiet,
                rounds=options.rounds or (1 if options.quick else ROUNDS),
                again=options.again,
                policies=[options.only] if options.only else POLICIES,
                warm=options.warm,
            )
    emit(options, [] if options.only else figures_of(rounds, heed=not options.disturbed))


if __name__ == "__main__":
    main()
