"""``plan``: what a job would start with, before it does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dlrover_lite.cli.options import overrides, policy_option, recipe_options
from dlrover_lite.cli.output import emit_json, fields

if TYPE_CHECKING:
    from dlrover_lite.brain.explain.explanation_data import WeighedPlan
    from dlrover_lite.brain.planning.decision import Decision
    from dlrover_lite.protocol.acts import PolicyName

__all__ = ["decision_json", "plan"]

EXIT_NONE = 1


@click.command(short_help="Show the plan that a job would start with.")
@recipe_options
@policy_option
@click.option("--all", "everything", is_flag=True, help="All plans that were weighed, not only some of them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    recipe: str,
    settings: tuple[str, ...],
    data: tuple[str, ...],
    policy: PolicyName | None,
    everything: bool,
    as_json: bool,
) -> int:
    """Show the plan that a job of RECIPE would start with now, and the others that were weighed: what they cost, how fast they
    are by the model, when the job would end. Nothing runs.

    The index at the end names the state of the world that this holds for: `run RECIPE --check-index INDEX` refuses if it
    has moved.

    Exit codes: 0 it can start; 1 it would have to wait, or there is too little for it; 2 the recipe can't be run.
    """
    from dlrover_lite.brain.explain.decision_text import weighed_plans
    from dlrover_lite.cli.commands.job.run import prepare_data
    from dlrover_lite.client.dry_run import foresee
    from dlrover_lite.client.handle import resolve

    loaded = resolve(recipe, overrides(settings, data))
    found = foresee(loaded, prepare_data(loaded), policy)
    decision = found.decision
    if as_json:
        lines = weighed_plans(decision, policy=found.inputs.policy, most=None)
        emit_json({"index": decision.index, **decision_json(decision, lines)})
    else:
        click.echo(found.text(time.time(), most=None if everything else 12))
    return 0 if decision.acts else EXIT_NONE


def decision_json(decision: Decision, lines: list[WeighedPlan]) -> dict[str, Any]:
    """Return what ``--json`` says of a decision; its keys are documented and stay."""
    predicted = decision.predicted
    return {
        **fields(decision, "action", "reason", "plan"),
        "samples_per_second": predicted.throughput._asdict() if predicted else None,
        "seconds": predicted.seconds if predicted else None,
        "candidates": _candidates(lines),
    }


def _candidates(lines: list[WeighedPlan]) -> list[dict[str, Any]]:
    return [
        {
            "chosen": line.mark == "*",
            "present": line.mark == "=" or line.verdict.endswith("the present plan"),
            "ps": line.servers,
            **fields(line, "workers", "worker_cores", "ps_cores", "cores", "memory", "seconds", "verdict"),
            "samples_per_second": {"expected": line.rate, "lower": line.lower, "upper": line.upper},
        }
        for line in lines
    ]
