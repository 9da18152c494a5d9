"""A decision in words, for people: what was chosen and why, and why each of the others was not."""

from __future__ import annotations

from dlrover_lite.brain.effect import Effect
from dlrover_lite.brain.explain.explanation_data import WeighedPlan
from dlrover_lite.brain.explain.explanation_text import Rows
from dlrover_lite.brain.planning.decision import Candidates, Decision
from dlrover_lite.brain.planning.job_view import Policy
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import plural

__all__ = ["explain", "weighed_plans"]

_SHOWN = 12
_SLACK = 1e-9


def weighed_plans(decision: Decision, *, policy: Policy | None = None, most: int | None = _SHOWN) -> list[WeighedPlan]:
    """List the candidates by cost, the chosen one marked, each with what spoke for or against it; at most ``most`` of them, spread over the
    costs (the chosen, the present and the smallest plan are always among them). Empty for a decision without candidates."""
    table = decision.candidates
    if table is None:
        return []
    return [_weighed(decision, table, at, policy or Policy()) for at in _picked(table, most)]


def explain(
    decision: Decision, effect: Effect | None = None, *, policy: Policy | None = None, most: int | None = _SHOWN
) -> str:
    """Write a decision as several lines of text."""
    what = f"{decision.action} {decision.treatment.node}" if decision.treatment else decision.action
    text = [f"{decision.job}: {what}. {_sentence(decision)}"]
    if (p := decision.predicted) is not None:
        rate, gain = p.throughput, p.gain
        text.append(
            f"Predicted: {rate.expected:,.0f} samples/s (80% band {rate.lower:,.0f} to {rate.upper:,.0f}), "
            f"{p.seconds:,.0f} s to go; against staying {gain.expected:+,.0f} s saved ({gain.lower:+,.0f} to {gain.upper:+,.0f})."
        )
    if (m := decision.memory) is not None:
        text.append(
            f"Memory of {_whose(decision)}: {format_bytes(m.expected)} at its peak (80% band "
            f"{format_bytes(m.lower)} to {format_bytes(m.upper)}), limit {format_bytes(m.limit)}."
        )
    if effect is not None:
        text.append(f"What it brought: {effect.text}.")
    if decision.room is not None:
        text.append(f"It could have had {_cores(decision.room.cores)} and {format_bytes(decision.room.memory)}.")
    plans = weighed_plans(decision, policy=policy, most=most)
    if plans and decision.candidates is not None:
        text += ["", *_table(plans)]
        if (hidden := len(decision.candidates.workers) + decision.candidates.left_out - len(plans)) > 0:
            text.append(f"({plural(hidden, 'more plan')} between these)")
    if decision.index:
        text += ["", f"index {decision.index}"]
    return "\n".join(text)


def _whose(decision: Decision) -> str:
    """Say whose memory a decision foresees."""
    if decision.treatment is None:
        return "each PS"
    return "all PS together" if decision.treatment.cause == "ceiling" else decision.treatment.node


def _sentence(decision: Decision) -> str:
    """Write the reason with a capital, unless it begins with a name."""
    reason = decision.reason
    return f"{reason}." if decision.treatment is not None else f"{reason[:1].upper()}{reason[1:]}."


def _picked(table: Candidates, most: int | None) -> list[int]:
    count = len(table.workers)
    if most is None or count <= most:
        return list(range(count))
    always = {at for at in (table.chosen, table.now, table.minimum, count - 1) if at is not None}
    always |= {at for at in (table.chosen - 1, table.chosen + 1) if 0 <= at < count}
    rest = max(0, most - len(always))
    spread = {round(step * (count - 1) / max(1, rest)) for step in range(rest)}
    return sorted(always | spread)


def _weighed(decision: Decision, table: Candidates, at: int, policy: Policy) -> WeighedPlan:
    mark = "*" if at == table.chosen else "=" if at == table.now else ""
    return WeighedPlan(
        mark,
        table.workers[at],
        table.worker_cores[at],
        table.servers[at],
        table.ps_cores[at],
        table.cores[at],
        table.memory[at],
        table.throughput[at],
        table.lower[at],
        table.upper[at],
        table.seconds[at],
        _verdict(decision, table, at, policy),
    )


def _verdict(decision: Decision, table: Candidates, at: int, policy: Policy) -> str:
    chosen = table.chosen
    if at == chosen:
        return "chosen" if at != table.now else "chosen: the present plan"
    room = decision.room
    later = table.seconds[at] - table.seconds[chosen]
    more = table.cores[at] - table.cores[chosen]
    name = "the present plan: " if at == table.now else ""
    if room is not None and table.cores[at] > room.cores + _SLACK:
        return f"{name}needs {_cores(table.cores[at] - room.cores)} more than it may have"
    if room is not None and table.memory[at] > room.memory:
        return f"{name}needs {format_bytes(table.memory[at] - room.memory)} of memory more than it may have"
    if decision.action == "explore":
        return f"{name}{_by_time(later)} as far as is known; the chosen one is tried to learn more"
    if later >= 0:
        cost = f", for {_cores(-more)} less" if more < 0 else f", and costs {_cores(more)} more" if more > 0 else ""
        return f"{name}{_by_time(later)}{cost}"
    if later > -policy.tie_share * table.seconds[at]:
        return f"{name}{_by_time(later)}, too little {f'for {_cores(more)} more' if more > 0 else 'to count'}"
    if chosen == table.now or more <= 0:
        return f"{name}{_by_time(later)} by the model; what is said above keeps it from that"
    return f"{name}{_by_time(later)} for {_cores(more)} more, by which other jobs gain more"


def _cores(count: float) -> str:
    return "1 core" if abs(count - 1) < 5e-4 else f"{count:.3g} cores"


def _by_time(later: float) -> str:
    seconds = f"{abs(later):,.0f}" if abs(later) >= 100 else f"{abs(later):.3g}"
    return f"ends {seconds} s {'later' if later >= 0 else 'sooner'}"


def _table(plans: list[WeighedPlan]) -> list[str]:
    head = ("", "WORKERS", "PS", "CORES", "MEMORY", "SAMPLES/S", "80% BAND", "TO GO", "")
    rows = (
        (
            plan.mark,
            f"{plan.workers} x {plan.worker_cores:g}",
            f"{plan.servers} x {plan.ps_cores:g}",
            f"{plan.cores:g}",
            format_bytes(plan.memory),
            f"{plan.rate:,.0f}",
            f"{plan.lower:,.0f}-{plan.upper:,.0f}",
            f"{plan.seconds:,.0f} s",
            plan.verdict,
        )
        for plan in plans
    )
    return Rows(head, tuple(rows), left=tuple(range(len(head)))).lines()
