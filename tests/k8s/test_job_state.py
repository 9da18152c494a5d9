"""How a job is, by the annotations and numbers of its StatefulSet alone."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.backends.k8s.jobs.job_state import (
    JobSet,
    again_annotations,
    end_annotations,
    new_annotations,
    running_annotations,
    stop_annotations,
    summary_of,
)
from dlrover_lite.jobs.store import Beginning, Result

NOW = 1_800_000_000.0


def seen(annotations: dict[str, Any], *, wanted: int, there: int, generation: int = 1, observed: int = 1) -> JobSet:
    plain = {
        "metadata": {
            "name": "clicks-1",
            "annotations": {k: v for k, v in annotations.items() if v is not None},
            "generation": generation,
        },
        "spec": {"replicas": wanted},
        "status": {"replicas": there, "observedGeneration": observed},
    }
    return msgspec.convert(plain, JobSet)


def test_a_job_is_followed_from_its_making_to_its_end_and_on() -> None:
    told: dict[str, Any] = dict(new_annotations(NOW, None))
    made = summary_of(seen(told, wanted=0, there=0), NOW + 1)
    assert (made.state, made.over, made.created_at) == ("starting", False, NOW)
    told |= running_annotations(NOW + 5)
    runs = summary_of(seen(told, wanted=1, there=1), NOW + 6)
    assert (runs.state, runs.over, runs.started_at, runs.result) == ("running", False, NOW + 5, None)
    told |= stop_annotations("terminal closed")
    assert seen(told, wanted=0, there=1).stop == "terminal closed"
    assert not summary_of(seen(told, wanted=0, there=1), NOW + 7).over
    told |= end_annotations(
        Result("stopped", NOW + 8, "stopped by request", status={"samples": 5, "nodes": [1] * 9999})
    )
    ending = summary_of(seen(told, wanted=0, there=1), NOW + 9)
    assert (ending.state, ending.over) == ("stopped", False)
    ended = summary_of(seen(told, wanted=0, there=0), NOW + 10)
    assert ended.over and ended.ended_at == NOW + 8 and ended.result is not None
    assert ended.result.status == {"samples": 5}, "only what is short"
    beginning = Beginning(1, "somewhere", 3)
    told |= again_annotations(seen(told, wanted=0, there=0), beginning)
    again = seen(told, wanted=1, there=0, generation=3, observed=2)
    assert (again.attempt, again.beginning, again.result) == (2, beginning, None)
    assert (summary_of(again, NOW + 11).state, summary_of(again, NOW + 11).over) == ("starting", False)


def test_a_job_that_lost_its_master_with_no_word_is_lost() -> None:
    told = new_annotations(NOW, None) | running_annotations(NOW + 5)
    lost = summary_of(seen(told, wanted=0, there=0), NOW + 60)
    assert (lost.state, lost.over) == ("lost", True)
    assert lost.result is not None and lost.result.message and lost.result.hint


def test_a_job_whose_making_was_broken_off_is_over_after_a_while() -> None:
    told = new_annotations(NOW, None)
    assert not summary_of(seen(told, wanted=0, there=0), NOW + 10).over
    assert summary_of(seen(told, wanted=0, there=0), NOW + 1000).over


def test_it_isnt_over_while_the_controller_hasnt_seen_the_change() -> None:
    told = new_annotations(NOW, None) | running_annotations(NOW + 5) | end_annotations(Result("stopped", NOW + 6))
    assert not summary_of(seen(told, wanted=0, there=0, generation=5, observed=4), NOW + 7).over


@given(
    st.dictionaries(
        st.sampled_from(
            [f"dlrover-lite.io/{name}" for name in ("state", "created-at", "started-at", "result", "stop", "attempt")]
        ),
        st.text(max_size=20),
    )
)
def test_annotations_that_somebody_has_edited_make_no_exception(annotations: dict[str, str]) -> None:
    one = seen(annotations, wanted=0, there=0)
    summary = summary_of(one, NOW)
    assert summary.over in (True, False) and one.attempt >= 0


@given(st.text(max_size=20_000), st.text(max_size=20_000), st.text(max_size=20_000))
def test_a_result_fits_an_annotation(message: str, hint: str, traceback: str) -> None:
    told = end_annotations(
        Result("failed", NOW, message, hint, traceback, status={"evaluations": [{"auc": 0.5}] * 1000})
    )
    assert sum(len(value.encode()) for value in told.values()) < 200_000
    back = summary_of(seen(told, wanted=0, there=0), NOW).result
    assert back is not None and back.state == "failed"
