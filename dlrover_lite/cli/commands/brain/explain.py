"""``explain``: what was decided for a job, from what, why, and what it brought."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dlrover_lite.cli.options import MOST_NUMBER, job_argument, policy_option
from dlrover_lite.cli.output import emit_json, fields, note
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.core.words import at_time, cleaned, give_or_take

if TYPE_CHECKING:
    from dlrover_lite.brain.explain.explanation_data import Explained, WeighedPlan
    from dlrover_lite.brain.store.records import StoredDecision
    from dlrover_lite.brain_server.history_client import BrainHistory
    from dlrover_lite.core.expected_end import ExpectedEnd
    from dlrover_lite.protocol.acts import PolicyName

__all__ = ["explain_"]


@click.command("explain", short_help="Explain what the brain has decided for a job.")
@job_argument
@click.argument("number", metavar="[DECISION]", type=click.IntRange(1, MOST_NUMBER), required=False)
@policy_option
@click.option("--all", "everything", is_flag=True, help="All plans that were weighed, not only some of them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain_(job: str, number: int | None, policy: PolicyName | None, everything: bool, as_json: bool) -> None:
    """Explain a DECISION of the brain for JOB (an id, the start of one, or "last"): what was chosen, why, and why not the
    other plans; what it was predicted to bring, and what it brought; and what it was decided from. Without a number: the
    newest one that changes something. `history JOB` lists them all. With --policy: what that policy would have decided
    instead, from the same inputs.

    Exit codes: 0 explained; 1 the brain knows no such job or decision.
    """
    from dlrover_lite.brain.explain.decision_text import explain, weighed_plans
    from dlrover_lite.brain.explain.explanation import read
    from dlrover_lite.brain.explain.explanation_text import text_of
    from dlrover_lite.brain.store import queries
    from dlrover_lite.cli.commands.brain.history import find_entry, open_history
    from dlrover_lite.client.job_history import bring

    bring(job, note)
    opened = open_history()
    if opened is None:
        raise JobError("There is no history yet.", hint="The brain keeps it: see dlrover-lite brain status")
    with opened:
        entry = find_entry(opened, job)
        one = _chosen(queries.decisions(opened, entry.id, number=number), entry.id, number)
        shown, weighing = read(opened, one)
        if policy is not None and (weighing is None or policy != weighing.name):
            _by_another(opened, one, policy, everything=everything, as_json=as_json)
            return
    if as_json:
        found = _as_object(one, weighed_plans(one.decision, policy=weighing, most=None), shown)
        emit_json({**found, "expected_end": _expected_end(entry.id)})
        return
    text = explain(one.decision, one.effect, policy=weighing, most=None if everything else 12)
    lines = [f"Decision {one.number} for {text}", *text_of(shown)]
    if (end := _expected_end(entry.id)) is not None:
        when = f"{at_time(end.at)} {give_or_take(end.error_seconds)}"
        lines += ["", f"As the job stands now, it will have gone through its samples at {when}."]
    click.echo(cleaned("\n".join(lines), keep_lines=True))


def _by_another(
    opened: BrainHistory, one: StoredDecision, name: PolicyName, *, everything: bool, as_json: bool
) -> None:
    """Print what another policy would have decided. Raises HistoryError where that isn't known any more."""
    from dlrover_lite.brain.explain.decision_text import explain, weighed_plans
    from dlrover_lite.brain.explain.other_policy import decided_by
    from dlrover_lite.cli.commands.brain.plan import decision_json

    other, policy = decided_by(opened, one, name)
    if as_json:
        lines = weighed_plans(other, policy=policy, most=None)
        emit_json({"job": other.job, "number": one.number, "policy": name, **decision_json(other, lines)})
        return
    text = explain(other, policy=policy, most=None if everything else 12)
    lead = f"What the policy {name} would have decided instead of decision {one.number}, from the same inputs:"
    click.echo(cleaned(f"{lead}\n\n{text}", keep_lines=True))


def _expected_end(job: str) -> ExpectedEnd | None:
    """Ask the job's master; None: it isn't on this machine, is over, or doesn't answer."""
    from dlrover_lite.client.handle import JobHandle

    try:
        return JobHandle.find(job).status().expected_end
    except DlroverLiteError:
        return None


def _chosen(found: list[StoredDecision], job: str, number: int | None) -> StoredDecision:
    """Choose the newest decision that acts, else the newest. Raises JobError where there is none."""
    if not found:
        which = f"decision {number}" if number is not None else "decision"
        raise JobError(f"The brain has made no {which} for {job}", hint=f"Those there are: dlrover-lite history {job}")
    acting = [one for one in found if one.decision.acts]
    return (acting or found)[-1]


def _as_object(one: StoredDecision, lines: list[WeighedPlan], shown: Explained) -> dict[str, Any]:
    """Return the object of ``--json``; its keys are documented and stay."""
    from dlrover_lite.cli.commands.brain.plan import decision_json

    decision, effect = one.decision, one.effect
    return {
        "job": decision.job,
        "number": one.number,
        **fields(decision, "at", "stage", "before", "treatment"),
        **decision_json(decision, lines),
        "gain_seconds": decision.predicted.gain._asdict() if decision.predicted else None,
        "inputs": {fact.name: fact.text for fact in shown.facts},
        **fields(shown, "model", "memory", "peers", "like", "missing"),
        "effect": None
        if effect is None
        else {
            **fields(effect, "at", "windows", "scale_seconds", "error", "missed", "text"),
            "samples_per_second": effect.measured._asdict(),
        },
    }
