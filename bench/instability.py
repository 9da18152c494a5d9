"""What it costs when a host turns slow under a running job, with and without the brain.

``hot_ps``: two parameter servers (PS) are the bottleneck, and at 30% of the run the host of one is slowed to a quarter, by something that
can't be resized (``_slow_host`` says how that is emulated). ``straggler``: three workers are the bottleneck, and it is one of theirs. The
plan is fixed, cores that no node has are stated, and nodes have CPU limits of their own. Each is run without intervention, with the brain,
and (hot PS) stopped with a checkpoint and begun again on another host.

The machine's pace moves by 5 to 10% within minutes, which would hide losses of seconds if runs that come one after the other were compared.
So each run has a twin: the same job, with or without the brain, at the same time on the same machine, whose host stays as it is. What is
lost is how much longer the job takes for the samples that are left when its host turns slow than its twin, from that moment on, takes for
as many. ``hot_ps.lost_vs_none`` and ``straggler.lost_vs_none``: what is lost with the brain over that without intervention;
``hot_ps.lost_vs_restart``: over that with the restart. The restart begins when ours began to act, as if one observer had ordered either
(at once, if ours never acts). What it loses when ordered at once is in the detail, with its phases and the share of the completion time
that ours saves: the paper has 36.4% and 27.6%.

Each figure is the mean loss of all rounds over that of the other, told with its standard error. Every other round runs the other way
around, with the twins started first. There are as many rounds as make each standard error a third of the target, three at least and
twelve at most, or as many as ``--rounds`` says. ``lost_nearby_vs_restart`` compares what a run lost by its own pace just before and after
it, without its twin, and ``lost_nearby_vs_none`` has that of ours over what is lost without intervention by the run's end.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _instability_runs import CASES, SLOWED_TO, Case, How, Run, prepare, rate_of, run
from _plan_job import set_up, words
from _quiet import Quiet, Round, of_rounds, say
from _slow_host import available
from common import Figure, arguments, emit

LEAST_ROUNDS, MOST_ROUNDS = 3, 12
ERROR_PART = 1 / 3
"""The largest standard error of a figure with which no further round is run, as a part of its target."""
SECONDS, QUICK_SECONDS = 120.0, 60.0
"""Seconds that a run would take if its host stayed as it is, without its start."""
BOUNDS = {"none": 0.15, "restart": 0.3}
"""Targets of the losses over those of another way."""
HOWS: dict[str, tuple[How, ...]] = {"hot_ps": ("none", "ours", "restart"), "straggler": ("none", "ours")}
PAPER = (0.364, 0.276)

Runs = dict[str, Round[Run]]


def measure(
    case: Case, home: Path, seconds: float, rounds: int | None, quiet: Quiet, again: int, *, heed: bool
) -> list[Runs]:
    directory = prepare(case, home)
    rate = rate_of(case, directory, jobs=2)
    samples = int(rate * seconds)
    machine = os.cpu_count() or 1
    say(
        f"{case.name}: {words(case.plan)}, {rate:,.0f} samples/s, {samples:,} samples, and its twin; the host of {case.slow} is slowed "
        f"from {case.cores:g} to {case.cores * SLOWED_TO:g} cores; {machine - 2 * case.plan.milli / 1000:.2f} of {machine} cores are no "
        f"node's"
    )
    found: list[Runs] = []
    noticed = 0.0
    while len(found) < (rounds or MOST_ROUNDS):
        if rounds is None and len(found) >= LEAST_ROUNDS and sure(case, found, heed=heed):
            break
        number, of_round = len(found), Runs()
        for how in HOWS[case.name][:: 1 if number % 2 == 0 else -1]:  # a restart knows from the last of ours when
            subject = partial(run, case, directory, samples, how, noticed_after=noticed, twin_first=number % 2 == 1)
            for one in quiet.attempts(f"{case.name}, {how}", subject, again=again):
                of_round[how] = one
                tell(case, number, one)
            if how == "ours":
                noticed = of_round[how].value.acted_after or 0.0
        found.append(of_round)
    return found


def tell(case: Case, number: int, one: Round[Run]) -> None:
    ran = one.value
    parts = [
        f"{ran.lost:.1f} s longer than its twin",
        *ran.story,
        *(f"{name} {seconds:.1f} s" for name, seconds in ran.phases.items()),
    ]
    if ran.lost_nearby is not None:
        parts.append(f"by its own pace before and after it lost {ran.lost_nearby:.1f} s")
    about = "; ".join(parts)
    disturbed = f" [{one.why}]" if one.why else ""
    say(f"  {case.name} {number + 1}, {ran.how:7}: {ran.seconds:6.1f} s{disturbed}: {about}")


# --- figures --------------------------------------------------------------------------------------------------------------


def figures_of(case: Case, rounds: Sequence[Runs], *, heed: bool) -> list[Figure]:
    found = []
    for other in ("none", "restart"):
        if other not in HOWS[case.name]:
            continue
        target = f"<= {BOUNDS[other]:g}"
        nearby = of_rounds(
            f"{case.name}.lost_nearby_vs_{other}", [_nearby(each, other) for each in rounds], "x", target, heed=heed
        )
        found += [_of_losses(case, rounds, other, target, heed=heed), nearby]
    return [figure for figure in found if figure is not None]


def _of_losses(case: Case, rounds: Sequence[Runs], other: str, target: str, *, heed: bool) -> Figure | None:
    """What ours lost over what the other did, both the mean of the rounds that count: both runs of such a one do. None, which is told,
    if there are none, or the other lost nothing."""
    name = f"{case.name}.lost_vs_{other}"
    counted = [each for each in rounds if not (heed and _disturbed(each, other))]
    lost = [(each["ours"].value.lost, each[other].value.lost) for each in counted]
    if not lost:
        say(f"{name} is left out: no round counts ({'; '.join(sorted({_disturbed(each, other) for each in rounds}))})")
        return None
    ours, others = (statistics.fmean(values) for values in zip(*lost, strict=True))
    if others <= 0:
        say(f"{name} is left out: {other} lost nothing ({others:.1f} s)")
        return None
    ratio = ours / others
    detail = {
        "rounds": [one / another if another > 0 else None for one, another in lost],
        "standard_error": _standard_error([(one - ratio * another) / others for one, another in lost]),
        "disturbed_rounds": sum(bool(_disturbed(each, other)) for each in rounds),
        **({} if heed else {"disturbed_rounds_count": True}),
    }
    return Figure(name, ratio, "x", target, detail={**detail, **_detail(case, rounds, other)})


def sure(case: Case, rounds: Sequence[Runs], *, heed: bool) -> bool:
    """Whether the rounds that count tell each loss well enough."""
    for other, bound in BOUNDS.items():
        if other in HOWS[case.name]:
            found = _of_losses(case, rounds, other, "", heed=heed)
            error = None if found is None else found.detail["standard_error"]
            if error is None or error > bound * ERROR_PART:
                return False
    return True


def _standard_error(values: Sequence[float]) -> float | None:
    """Of their mean; a single one doesn't tell."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _disturbed(of_round: Runs, other: str) -> str:
    """Why what it says of ours and the other doesn't count; empty: it does."""
    return of_round[other].why or of_round["ours"].why


def _nearby(of_round: Runs, other: str) -> Round[float]:
    """Compare what was lost by each run's own pace; without intervention, as its pace doesn't come back, what was lost by the end."""
    runs = [of_round["ours"], of_round[other]]
    lost, against = runs[0].value.lost_nearby, runs[1].value.lost if other == "none" else runs[1].value.lost_nearby
    ratio = lost / against if lost is not None and against is not None and against > 0 else float("nan")
    why = _disturbed(of_round, other) or ("too short to tell a run's own pace" if math.isnan(ratio) else "")
    return Round(ratio, sum(each.seconds for each in runs), max(each.others for each in runs), 0.0, why)


def _detail(case: Case, rounds: Sequence[Runs], other: str) -> dict[str, object]:
    hows = HOWS[case.name]
    detail: dict[str, object] = {
        "plan": words(case.plan),
        "seconds": {how: [round(each[how].value.seconds, 1) for each in rounds] for how in hows},
        "lost_s": {how: [round(each[how].value.lost, 2) for each in rounds] for how in hows},
        "lost_nearby_s": {how: [each[how].value.lost_nearby for each in rounds] for how in hows},
        "acted_after_s": [each["ours"].value.acted_after for each in rounds],
        "saved_of_completion": [1 - each["ours"].value.seconds / each[other].value.seconds for each in rounds],
        "paper_saved_of_completion": PAPER,
    }
    if other == "restart":
        detail["phases_s"] = [each["restart"].value.phases for each in rounds]
        detail["lost_if_restarted_at_once_s"] = [
            round(each["restart"].value.lost - (1 - SLOWED_TO) * (each["ours"].value.acted_after or 0.0), 1)
            for each in rounds
        ]
    return detail


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="(default: as many as are needed; 1 with --quick)")
    parser.add_argument(
        "--seconds", type=float, help=f"of an undisturbed run (default {SECONDS:g}; {QUICK_SECONDS:g} with --quick)"
    )
    parser.add_argument("--only", choices=list(CASES), help="one of the two")
    parser.add_argument("--again", type=int, default=1, help="how often a disturbed run is repeated (default 1)")
    parser.add_argument("--disturbed", action="store_true", help="count what others have disturbed, too")


def main() -> None:
    options = arguments(__doc__ or "", extend)
    if why := available():
        say(f"bench/instability.py measures nothing here: {why}")
        emit(options, [])
        return
    set_up()
    figures: list[Figure] = []
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    rounds, heed = options.rounds or (1 if options.quick else None), not options.disturbed
    with tempfile.TemporaryDirectory(prefix="dl-bench-") as name, Quiet() as quiet:
        os.environ["DLROVER_LITE_HOME"] = name
        for case in CASES.values():
            if options.only in (None, case.name):
                found = measure(case, Path(name), seconds, rounds, quiet, options.again, heed=heed)
                figures += figures_of(case, found, heed=heed)
    emit(options, figures)


if __name__ == "__main__":
    main()
