"""Who is let in: nobody waits for whom there would be room, and who gives way makes room for somebody more important."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.planning.admission import Need, admit
from dlrover_lite.brain.planning.job_view import JobView, Policy
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.units import Resources
from tests.brain.models import view

POLICY = Policy(reserve_after_seconds=1e9)
NOW = Candidate(1, 1, 0.5, 0.5)

jobs = st.lists(
    st.tuples(
        st.booleans(), st.sampled_from([1.0, 1.5, 2.0, 4.0, 9.0]), st.integers(1, 8), st.integers(1, 8), st.floats(0, 3000)
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(jobs, st.integers(1, 20), st.integers(1, 20))
def test_no_job_is_queued_that_would_fit(drawn: list[tuple], cores: int, memory: int) -> None:
    views: list[JobView] = []
    needs = {}
    for at, (runs, priority, milli, size, waited) in enumerate(drawn):
        name = f"job-{at}"
        views.append(view(name, now=NOW if runs else None, priority=priority, waited_seconds=0.0 if runs else waited))
        needs[name] = Need(milli * 1000, size)
    by_name = {one.job: one for one in views}
    found = admit(views, needs, Resources(float(cores), memory), POLICY)
    assert sorted([*found.admitted, *found.queued, *found.preempted]) == sorted(by_name)
    free = Need(
        cores * 1000 - sum(needs[job].milli for job in found.admitted),
        memory - sum(needs[job].memory for job in found.admitted),
    )
    assert free.milli >= 0 and free.memory >= 0
    for job in found.queued:
        weaker = [
            other for other in found.admitted if by_name[other].priority * POLICY.preempt_ratio <= by_name[job].priority
        ]
        milli = free.milli + sum(needs[other].milli for other in weaker)
        size = free.memory + sum(needs[other].memory for other in weaker)
        passed_by = any(by_name[one].now is None for one in found.admitted)  # they came first, or took what was left
        assert needs[job].milli > milli or needs[job].memory > size or passed_by
    for job, taker in found.preempted.items():
        assert by_name[job].now is not None
        assert not taker or by_name[taker].priority >= POLICY.preempt_ratio * by_name[job].priority
    assert all(by_name[job].now is None for job in found.queued)


def test_a_job_admitted_by_age_waits_again_for_a_more_important_one() -> None:
    """Old and unimportant, it comes first by its age; what is new and important needs its place."""
    views = (view("old", waited_seconds=1e5), view("new", priority=5.0))
    found = admit(views, {"old": Need(1000, 1), "new": Need(1000, 1)}, Resources(1.0, 1), POLICY)
    assert (found.admitted, found.queued, dict(found.preempted)) == (("new",), ("old",), {})


def test_only_as_many_jobs_are_preempted_as_needed() -> None:
    views = (
        *(view(f"small-{at}", now=NOW, ran_seconds=float(at)) for at in range(3)),
        view("large", now=NOW, ran_seconds=5.0),
        view("new", priority=3.0),
    )
    needs = {one.job: Need(1000, 1) for one in views} | {"large": Need(3000, 1), "new": Need(3000, 1)}
    found = admit(views, needs, Resources(6.0, 100), POLICY)
    assert dict(found.preempted) == {"small-0": "new", "small-1": "new", "small-2": "new"}


def test_a_plan_that_was_refused_is_better_than_to_give_way() -> None:
    """Whoever was told to shrink, and couldn't, shrinks all the same before anybody gives way for that."""
    views = (view("large", now=NOW, ran_seconds=9.0), view("small", now=NOW), view("new"))
    needs = {"large": Need(2000, 1), "small": Need(1000, 1), "new": Need(1000, 1)}
    least = {"large": Need(500, 1)}
    for cores, stay, queued, give_way in (
        (3.0, ("large", "small"), ("new",), {}),  # nobody has to shrink for who waits
        (2.0, ("large", "small"), ("new",), {}),
        (0.5, ("large",), ("new",), {"small": ""}),
    ):
        found = admit(views, needs, Resources(cores, 9), POLICY, reluctant=least)
        assert (found.admitted, found.queued, dict(found.preempted)) == (stay, queued, give_way)


def test_nobody_gives_way_for_what_there_is_in_a_few_seconds() -> None:
    """One is being changed and has all it had until that is done; for an important one its smallest plan will leave enough then."""
    views = (view("small", now=NOW), view("changes", now=NOW, fixed=True), view("urgent", priority=4.0))
    needs = {"small": Need(500, 1), "changes": Need(3500, 1), "urgent": Need(1000, 1)}
    at_once = admit(views, needs, Resources(4.0, 9), POLICY)
    assert list(at_once.preempted.values()) == ["urgent"]
    soon = admit(views, needs, Resources(4.0, 9), POLICY, later={"changes": Need(500, 1)})
    assert (soon.preempted, soon.queued) == ({}, ("urgent",))
    large = {**needs, "urgent": Need(3600, 1)}
    assert admit(views, large, Resources(4.0, 9), POLICY, later={"changes": Need(500, 1)}).preempted
