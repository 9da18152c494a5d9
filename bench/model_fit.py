"""How well the throughput model predicts plans that it hasn't seen, from a few that it has: real training on this machine.

A job's plan is changed while it trains, over configurations whose limits fit in this machine beside its daemons (1 to 4 workers, 1 to 3
PS, a quarter of a core to a core each), and over some that are oversubscribed; for each of two models, three times. What nodes read is
made beforehand. Models are fitted to a third of the configurations that fit, in seeded splits, and predict the others from their plans.

``fit.median_error`` and ``fit.p90_error``: relative errors of the form ``bottleneck`` over the rest, ``fit.additive_median_error`` of the
paper's form; ``fit.oversubscribed_median_error``: the same plans fitted to, oversubscribed ones predicted. Each is that of the model it
is worse for. ``--save FILE`` keeps what was measured, ``--load FILE`` evaluates it again without training.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
import numpy as np
from _model_fit_rows import Errors, Row, busy_share, errors_of, load, paces, predictions, save
from _plan_job import PlannedJob, recipe_of, set_up, words
from _quiet import Quiet, Round, of_rounds, say, verdict
from _train_worker import make_batches
from common import Figure, arguments, emit

from dlrover_lite.brain.models.throughput_forms import ADDITIVE, BOTTLENECK
from dlrover_lite.brain.planning.plan_grid import Candidate

MODELS: dict[str, dict[str, Any]] = {
    "wide_deep": {"embedding_dim": 16, "hidden": [256, 128]},
    "dcn": {"embedding_dim": 16},
}
ROUNDS = 3
SECONDS = 8.0
"""A configuration is measured for; settling takes some more."""
RETRIES = 2
"""Of those that were disturbed, at the end of a round."""

WITHIN = [
    Candidate(*plan)
    for plan in (
        (1, 1, 0.25, 0.25), (1, 1, 0.5, 0.25), (1, 1, 0.75, 0.5), (1, 1, 1.0, 0.25), (1, 1, 1.0, 0.5), (1, 1, 1.0, 0.75),
        (2, 1, 0.25, 0.25), (2, 1, 0.5, 0.25), (2, 1, 0.5, 0.5), (2, 1, 0.75, 0.25), (2, 1, 0.4, 1.0),
        (3, 1, 0.25, 0.25), (3, 1, 0.25, 0.5), (3, 1, 0.5, 0.25), (3, 1, 0.4, 0.6),
        (4, 1, 0.25, 0.25), (4, 1, 0.25, 0.5), (4, 1, 0.375, 0.25),
        (1, 2, 0.5, 0.25), (1, 2, 1.0, 0.25), (1, 2, 1.0, 0.4),
        (2, 2, 0.25, 0.25), (2, 2, 0.5, 0.25), (2, 2, 0.6, 0.25),
        (3, 2, 0.25, 0.25), (3, 2, 0.4, 0.25), (4, 2, 0.25, 0.25), (4, 2, 0.3, 0.25),
        (1, 3, 0.5, 0.25), (1, 3, 1.0, 0.25), (2, 3, 0.5, 0.25), (3, 3, 0.25, 0.25),
    )
]  # fmt: skip
"""Of at most 1.8 of two cores: the rest is for the master, the keeper and this process."""
OVERSUBSCRIBED = [
    Candidate(*plan)
    for plan in (
        (2, 1, 1.0, 0.5), (3, 1, 0.75, 0.5), (4, 1, 0.5, 0.5), (4, 1, 1.0, 1.0),
        (2, 2, 1.0, 0.5), (3, 2, 1.0, 0.5), (4, 3, 0.5, 0.5), (2, 3, 1.0, 1.0),
    )
]  # fmt: skip
CALIBRATION = Candidate(1, 1, 0.9, 0.6)
BETWEEN = 10
"""Configurations from one calibration to the next."""
QUICK = 4
"""Every so many of each list."""


# --- measuring ------------------------------------------------------------------------------------------------------------


def measured(
    home: Path, model: str, number: int, plans: Sequence[Candidate], quiet: Quiet, options: argparse.Namespace
) -> list[Row]:
    """A job goes through the plans; those that were disturbed again at its end."""
    name, use = f"bench-fit-{model.replace('_', '-')}", {"use": model, "options": MODELS[model]}
    recipe = recipe_of(home, name, model=use, data={"samples": 10**9})
    rows: dict[Candidate, Row] = {}
    with PlannedJob(recipe, plans[0], from_memory=True) as job:
        left = list(plans)
        for _ in range(1 + RETRIES):
            rows |= {row.plan: row for row in _through(job, model, number, left, quiet, options.seconds)}
            left = [plan for plan in plans if plan not in rows or (rows[plan].why and not options.disturbed)]
            if not left:
                break
    if missing := [words(plan) for plan in plans if plan not in rows]:
        say(f"{model}: nothing could be measured of {', '.join(missing)}")
    return [rows[plan] for plan in plans if plan in rows]


def _through(
    job: PlannedJob, model: str, number: int, plans: Sequence[Candidate], quiet: Quiet, seconds: float
) -> list[Row]:
    """One plan after the other. Before each few of them and at the end comes the plan for calibration: its throughput says how fast the
    machine was."""
    groups = [plans[start : start + BETWEEN] for start in range(0, len(plans), BETWEEN)]
    found: list[list[Row]] = []
    pace: list[float] = []
    for group in [*groups, []]:
        reference = _row(job, model, number, CALIBRATION, quiet, seconds)
        pace.append(reference.profile.samples_per_second if reference is not None else 0.0)
        of_plans = [_row(job, model, number, plan, quiet, seconds) for plan in group]
        found.append([row for row in of_plans if row is not None])
    say(f"{model}, calibration: {', '.join(f'{each:,.0f}' for each in pace)} samples/s")
    usual = statistics.median(pace)
    rows = []
    for of_group, beside in zip(found, pairwise(pace), strict=False):  # nothing is measured after the last one
        off = max((usual / max(each, 1.0) - 1 for each in beside), key=abs)
        rows += [msgspec.structs.replace(row, off=off, why=row.why or verdict(0.0, off)) for row in of_group]
    return rows


def _row(job: PlannedJob, model: str, number: int, plan: Candidate, quiet: Quiet, seconds: float) -> Row | None:
    """None if nothing could be measured."""
    job.change(plan)
    before = quiet.now()
    profile = job.measured(plan, seconds)
    found: Round[None] = quiet.judged(f"{model}, {words(plan)}", None, before, quiet.now(), 0.0)
    if profile is None:
        return None
    say(f"  {model} {words(plan)}: {profile.samples_per_second:,.0f} samples/s over {profile.seconds:.1f} s")
    return Row(model, number, plan, plan in WITHIN, profile, found.others, 0.0, found.why)


def collect(options: argparse.Namespace) -> list[Row]:
    every = QUICK if options.quick else 1
    plans = [*WITHIN[::every], *OVERSUBSCRIBED[::every]]
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="dl-bench-") as name, Quiet() as quiet:
        os.environ["DLROVER_LITE_HOME"] = name
        home = Path(name)
        make_batches(home / "batches.npz")
        for number in range(rounds):
            for model in MODELS if number % 2 == 0 else [*MODELS][::-1]:
                if options.only not in (None, model):
                    continue
                say(f"round {number + 1} of {rounds}, {model}: {len(plans)} configurations")
                rows += measured(home, model, number, plans, quiet, options)
                if options.save is not None:
                    save(options.save, rows)
    return rows


# --- evaluating -----------------------------------------------------------------------------------------------------------


def _part(form: str, part: str, share: float) -> Callable[[dict[str, Errors]], float]:
    """A quantile of the errors of a form over a part of the configurations; not a number where there are none."""

    def value(errors: dict[str, Errors]) -> float:
        found = getattr(errors[form], part)
        return float(np.quantile(found, share)) if found else float("nan")

    return value


FIGURES: dict[str, tuple[str, Callable[[dict[str, Errors]], float], Any]] = {
    "median_error": ("<= 0.07", _part("bottleneck", "within", 0.5), max),
    "p90_error": ("<= 0.2", _part("bottleneck", "within", 0.9), max),
    "additive_median_error": ("", _part("additive", "within", 0.5), max),
    "additive_p90_error": ("", _part("additive", "within", 0.9), max),
    "oversubscribed_median_error": ("", _part("bottleneck", "oversubscribed", 0.5), max),
    "oversubscribed_p90_error": ("", _part("bottleneck", "oversubscribed", 0.9), max),
    "covered": ("", lambda errors: errors["bottleneck"].covered, min),
}
"""Of each its target, what it is for a round of a model, and which of two models is the worse."""


def figures_of(rows: Sequence[Row], *, heed: bool) -> list[Figure]:
    counted = [row for row in rows if not (heed and row.why)]
    groups = sorted({(row.round, row.model) for row in counted})
    found: dict[tuple[int, str], dict[str, Errors]] = {}
    for key in groups:
        of_key = [row for row in counted if (row.round, row.model) == key]
        if sum(row.fits for row in of_key) < 6:
            say(f"round {key[0] + 1}, {key[1]}: too few configurations count")
            continue
        found[key] = {form.name: errors_of(of_key, form) for form in (BOTTLENECK, ADDITIVE)}
        show(of_key)
    detail: dict[str, Any] = {
        "configurations": len(counted),
        "disturbed_configurations": sum(bool(row.why) for row in rows),
    }
    if not heed:
        detail["disturbed_configurations_count"] = True
    figures = []
    for name, (target, value, worse_of) in FIGURES.items():
        by_model: dict[str, list[float]] = {}
        for (_, model), errors in found.items():
            by_model.setdefault(model, []).append(value(errors))
        if not by_model:
            say(f"fit.{name} is left out: nothing counts")
            continue
        medians = {model: statistics.median(each) for model, each in by_model.items()}
        worse = worse_of(medians, key=medians.__getitem__)
        rounds = [Round(each, 0.0, 0.0, 0.0) for each in by_model[worse]]
        figure = of_rounds(
            f"fit.{name}", rounds, "", target, detail={**detail, "worse_for": worse, "by_model": medians}
        )
        figures += [figure] if figure is not None else []
    return figures


def show(rows: Sequence[Row]) -> None:
    """Each configuration as it was measured, the median of what splits without it predicted, what its minibatches cost in CPU over what
    the fitted form has for it, and how busy the host was."""
    say(
        f"{'CONFIGURATION':28}  {'SAMPLES/S':>9}  {'BOTTLENECK':>10}  {'ADDITIVE':>8}  {'CPU':>5}  {'HOST':>5}  {'OTHERS':>6}"
    )
    errors: dict[tuple[str, Candidate], list[float]] = {}
    for form in (BOTTLENECK, ADDITIVE):
        for split in predictions(rows, form):
            for one in split:
                errors.setdefault((form.name, one.row.plan), []).append(one.error)
    for row, pace in zip(rows, paces(rows), strict=True):
        ours, papers = (
            statistics.median(errors.get((form.name, row.plan), [float("nan")])) for form in (BOTTLENECK, ADDITIVE)
        )
        what = words(row.plan) + ("" if row.fits else " (over)")
        say(
            f"{what:28}  {row.profile.samples_per_second:9,.0f}  {ours:+10.1%}  {papers:+8.1%}  {pace:5.2f}  {busy_share(row):5.0%}  "
            f"{row.others:6.1%}"
        )


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help=f"(default {ROUNDS}; 1 with --quick)")
    parser.add_argument("--only", choices=list(MODELS), help="one of the models")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a configuration is measured for")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what was measured")
    parser.add_argument("--load", type=Path, metavar="FILE", help="evaluate what was kept, without training")
    parser.add_argument("--disturbed", action="store_true", help="count what others have disturbed, too")


def main() -> None:
    options = arguments(__doc__ or "", extend)
    set_up()
    rows = load(options.load) if options.load is not None else collect(options)
    emit(options, figures_of(rows, heed=not options.disturbed))


if __name__ == "__main__":
    main()
