"""Jobs as the brain has decided for them: its recorded histories as screens have them, with their reasons, which are long."""

from __future__ import annotations

from functools import cache

import msgspec

from dlrover_lite.brain.store.decision_news import CHANGING, chosen, listed
from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui.model import JobDetail
from tests.brain.recording import DIRECTORY, decided, load
from tests.tui.fixed import DETAIL, NOW

HISTORIES = ("cold-start", "scaling-up", "several-jobs", "hot-ps", "predicted-oom", "memory-to-spare", "preemption")
_SECONDS = 30.0
"""Seconds between two decisions."""


@cache
def decisions_of(name: str) -> tuple[Chosen, ...]:
    """The decisions of a recorded history, as if all of them were for one job; the last is just made."""
    made = [one for step in load(DIRECTORY / f"{name}.jsonl").steps for one in decided(step)]
    found = []
    for number, one in enumerate(made, 1):
        at = NOW - _SECONDS * (len(made) - number)
        effect = None
        if one.action == "change" and one.predicted is not None:
            expected = one.predicted.throughput.expected
            effect = msgspec.json.encode({"measured": [expected * 1.05] * 3, "error": 0.05}).decode()
        found.append(chosen(number, msgspec.json.encode(msgspec.structs.replace(one, at=at)).decode(), effect, None))
    return tuple(found)


def job_of(*names: str) -> JobDetail:
    """A job for which all that was decided, one history after the other."""
    told = [one for name in names for one in decisions_of(name)]
    decisions = tuple(
        msgspec.structs.replace(one, number=number, at=NOW - _SECONDS * (len(told) - number))
        for number, one in enumerate(told, 1)
    )
    change = next((one for one in reversed(decisions) if one.action in CHANGING), None)
    row = msgspec.structs.replace(DETAIL.row, change=change, is_changed=True)
    assert change is None or listed(row.id, change).changed is change
    return msgspec.structs.replace(DETAIL, row=row, decisions=decisions)
