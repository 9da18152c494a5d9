"""When the brain looks next, or why it doesn't."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dlrover_lite.master.autoscale.autoscaler import Autoscaler, Goal
from dlrover_lite.master.autoscale.next_decision import next_look
from dlrover_lite.protocol.questions import NextLook

ON = Autoscaler(job="a", mode="on")
WALL = 1_000_000.0


def master(**fields: Any) -> Any:
    """As much of one as counts, which trains 100 of 4,000 samples a second, and whose interval ends in 7 s."""
    known: dict[str, Any] = {
        "outcome": None,
        "stopping": "",
        "beginning": None,
        "brain": SimpleNamespace(trouble=""),
        "state": ON,
        "trained": False,
        "consumed": 1000,
        "left": 7.0,
        "measured": True,
        "disturbed": "",
        **fields,
    }
    nothing = bool(known["disturbed"])
    return SimpleNamespace(
        outcome=known["outcome"],
        stopping=known["stopping"],
        beginning=known["beginning"],
        brain=known["brain"],
        executor=SimpleNamespace(state=known["state"]),
        shards=SimpleNamespace(
            trained=known["trained"],
            consumed_samples=known["consumed"],
            plan=SimpleNamespace(samples=2000, epochs=2),
        ),
        progress=SimpleNamespace(rate=lambda now: 100.0),
        profiling=SimpleNamespace(
            ends_at=None if nothing else WALL + known["left"],
            seconds_left=0.0 if nothing else known["left"],
            profiler=SimpleNamespace(has_measured=known["measured"], disturbed=known["disturbed"]),
        ),
        now=lambda: 0.0,
    )


def test_the_brain_looks_when_the_interval_has_ended() -> None:
    assert next_look(master()) == NextLook(WALL + 7.0, "")


def test_after_a_change_the_next_look_waits_for_the_first_interval() -> None:
    assert next_look(master(measured=False)) == NextLook(WALL + 7.0, "the first interval with these nodes is measured")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"state": Autoscaler(job="a", mode="off")}, "autoscaling is off for this job"),
        ({"state": ON.pause("by request")}, "autoscaling is paused: by request"),
        (
            {"state": ON.advised(Goal(number=4, what="more"), 0.0, 0)[0]},
            "decision 4 is being carried out",
        ),
        (
            {"state": Autoscaler(job="a", mode="suggest").advised(Goal(number=4, what="more"), 0.0, 0)[0]},
            "decision 4 waits to be accepted or rejected",
        ),
        ({"brain": None}, "no brain advises this job"),
        ({"brain": SimpleNamespace(trouble="the brain is lost (why)")}, "the brain is lost (why)"),
        ({"disturbed": "worker-1 is started"}, "nothing can be measured: worker-1 is started"),
        ({"consumed": 3500}, "the job is done before the next interval is measured"),
        ({"trained": True}, "all is trained"),
        ({"stopping": "by request"}, "the job ends"),
        ({"beginning": object()}, "the job ends"),
    ],
)
def test_the_reason_for_no_next_look_is_given(fields: dict[str, Any], why: str) -> None:
    assert next_look(master(**fields)) == NextLook(None, why)


def test_no_next_look_is_told_of_an_ended_job() -> None:
    assert next_look(master(outcome=object())) is None
