"""A stored decision, explained. It imports numpy, which nothing else here needs: only who asks for it pays for that."""

from __future__ import annotations

from dlrover_lite.brain.explain.decision_text import explain, weighed_plans
from dlrover_lite.brain.explain.explanation import read
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.history import Rows
from dlrover_lite.tui.model import Explanation
from dlrover_lite.tui.text import clean

__all__ = ["explanation"]


def explanation(history: Rows, job: str, number: int, *, until: float | None = None) -> Explanation | None:
    """Return the explanation of a decision; None where it isn't kept any more. What became known later than ``until`` is left out. Raises
    HistoryError for what can't be read."""
    found = queries.decisions(history, job, number=number)
    if not found:
        return None
    one = found[0]
    rests_on, policy = read(history, one)
    effect = one.effect if one.effect is not None and (until is None or one.effect.at <= until) else None
    text = explain(one.decision, effect, policy=policy)
    paragraphs = tuple(clean(line) for line in text.partition("\n\n")[0].splitlines())
    plans = tuple(weighed_plans(one.decision, policy=policy, most=None))
    return Explanation(job, number, paragraphs, plans, rests_on)
