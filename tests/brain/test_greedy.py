"""Sharing: never more than there is, everybody's smallest plan first, more for the more important, the same every time."""

from __future__ import annotations

from itertools import pairwise, permutations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.greedy import Walk, fewest_nodes, stairs_of
from dlrover_lite.brain.planning.job_view import JobView, Policy, RoundInputs
from dlrover_lite.brain.planning.pareto import Points
from dlrover_lite.brain.planning.plan_grid import Candidate, MemoryNeed
from dlrover_lite.brain.planning.plan_values import Options, options_of
from dlrover_lite.core.units import Resources
from tests.brain.models import data, load, view

models = st.builds(
    lambda worker, request, server, latency: data(worker=worker, request=request, server=server, latency=latency),
    st.floats(0.005, 0.05), st.sampled_from([0.0, 0.002]), st.floats(0.002, 0.05), st.sampled_from([0.0, 0.02]),
)  # fmt: skip
needs = st.builds(
    lambda worker, ps, tables: MemoryNeed(worker=worker, ps=ps, tables=tables),
    st.integers(0, 20), st.integers(0, 20), st.integers(0, 100),
)  # fmt: skip
running = st.builds(
    Candidate,
    st.integers(1, 6), st.integers(1, 3), st.sampled_from([0.25, 0.5, 1.0]), st.sampled_from([0.25, 0.5, 0.6]),
)  # fmt: skip
priorities = st.sampled_from([0.5, 1.0, 1.5, 4.0])


def jobs(*, running=running):
    one = st.builds(
        lambda model, need, priority, samples, now, scale, waited: view(
            model=model, need=need, priority=priority, remaining_samples=samples, now=now, scale_seconds=scale,
            waited_seconds=waited,
        ),
        models, needs, priorities, st.sampled_from([None, 1e5, 1e7]), st.one_of(st.none(), running), st.sampled_from([0.0, 5.0]),
        st.sampled_from([0.0, 100.0, 5000.0]),
    )  # fmt: skip
    return st.lists(one, min_size=1, max_size=5).map(
        lambda views: tuple(msgspec.structs.replace(view, job=f"job-{at}") for at, view in enumerate(views))
    )


capacities = st.builds(Resources, st.sampled_from([1.0, 2.0, 5.5, 40.0]), st.sampled_from([100, 300, 10**6]))
RUNNING = ("start", "stay", "change", "explore")


@settings(max_examples=50, deadline=None)
@given(jobs(), capacities)
def test_plans_stay_within_capacity_and_bounds(views: tuple[JobView, ...], capacity):
    found = decide(RoundInputs(at=0.0, capacity=capacity, jobs=views), load)
    cores = memory = 0.0
    for one, decision in zip(views, found.decisions, strict=True):
        assert (decision.choice is not None) == (decision.action in RUNNING)
        if decision.choice is None:
            continue
        cores += decision.choice.cores
        memory += one.need.of(decision.choice)
        if decision.choice != one.now:  # what it has may be outside: it was chosen under other circumstances
            assert one.bounds.holds(decision.choice)
    if any("sooner than a change would take effect" in one.reason for one in found.decisions):
        # who ends so soon keeps what it has, though there is less than there was; nobody else gets more by that
        had = sum(one.now.cores for one in views if one.now is not None)
        assert cores <= max(capacity.cores, had) + 1e-9
        return
    assert cores <= capacity.cores + 1e-9
    assert memory <= capacity.memory
    left = capacity.cores - cores, capacity.memory - memory
    if any("room is made for it" in decision.reason for decision in found.decisions):  # what is left is for those
        assert found.free.cores <= left[0] + 1e-9 and found.free.memory <= left[1]
    else:
        assert found.free.cores == pytest.approx(left[0]) and found.free.memory == left[1]


@settings(max_examples=40, deadline=None)
@given(jobs(running=st.nothing()), capacities)
def test_admitted_jobs_get_at_least_their_smallest_plan(views, capacity):
    found = decide(RoundInputs(at=0.0, capacity=capacity, jobs=views), load)
    for one, decision in zip(views, found.decisions, strict=True):
        options = options_of(one, load(one.model), capacity, Policy())
        if options is None:
            assert decision.action == "refuse"
        elif decision.choice is not None:
            at = options.points.find(decision.choice)
            assert options.points.throughput[at] >= options.points.throughput[options.minimum]


def _walk(views, capacity):
    options = [options_of(view, load(view.model), capacity, Policy()) for view in views]
    if None in options:
        return None
    walk = Walk(options, capacity, {one.view.job: stairs_of(one) for one in options}, {})
    return walk if walk.free_milli >= 0 and walk.free_memory >= 0 else None


@settings(max_examples=60, deadline=None)
@given(jobs(), capacities, st.integers(0, 4), st.sampled_from([1.3, 3.0, 50.0]))
def test_a_higher_priority_never_gets_less(views, capacity, which, factor):
    at = which % len(views)
    raised = msgspec.structs.replace(views[at], priority=views[at].priority * factor)
    before = _walk(views, capacity)
    if before is None:
        return
    after = _walk((*views[:at], raised, *views[at + 1 :]), capacity)
    job = raised.job
    gain = before.options[job].gain
    assert gain[after.chosen[job]] >= gain[before.chosen[job]] - 1e-9


@settings(max_examples=30, deadline=None)
@given(jobs(), capacities, st.randoms())
def test_the_order_of_the_jobs_does_not_matter(views, capacity, random):
    mixed = list(views)
    random.shuffle(mixed)
    one, other = (
        {d.job: d for d in decide(RoundInputs(at=0.0, capacity=capacity, jobs=tuple(jobs)), load).decisions}
        for jobs in (views, mixed)
    )
    assert one == other


def test_a_reason_names_jobs_in_the_same_order_whatever_theirs_is():
    """Two that can't give way, and one that waits for them."""
    there = [
        view(job, now=Candidate(1, 1, 0.5, 0.25), model=data(), priority=0.5, stays="it takes no checkpoints")
        for job in ("b", "c")
    ]
    waits = view("a", model=data(), priority=2.0)
    rounds = (RoundInputs(at=0.0, capacity=Resources(1.0, 10**6), jobs=(*each, waits)) for each in (there, there[::-1]))
    one, other = (decide(each, load).of("a").reason for each in rounds)
    assert one == other
    assert "b has less priority, but can't give way: it takes no checkpoints; c has less" in one


def test_of_jobs_that_have_waited_as_long_the_first_of_the_queue_is_named_whatever_their_order_is():
    """There is room for the second and the third, and not for the first."""
    firm = view("firm", now=Candidate(1, 1, 0.5, 0.25), model=data(), need=MemoryNeed(worker=50), stays="it ends soon")
    first = view("a", model=data(), need=MemoryNeed(worker=60), waited_seconds=5000.0)
    second = view("b", model=data(), waited_seconds=5000.0)
    third = view("c", model=data(), priority=0.5)
    for order in permutations((firm, first, second, third)):
        found = decide(RoundInputs(at=0.0, capacity=Resources(4.0, 100), jobs=order), load)
        assert "doesn't fit" in found.of("a").reason
        assert all("a has waited for 83 min and comes before it" in found.of(job).reason for job in ("b", "c"))


def test_a_job_alone_gets_its_fastest_plan():
    inputs = RoundInputs(at=0.0, capacity=Resources(3.0, 10**6), jobs=(view(model=data(worker=0.03, server=0.01)),))
    choice = decide(inputs, load).of("a").choice
    options = options_of(inputs.jobs[0], load(inputs.jobs[0].model), inputs.capacity, inputs.policy)
    assert choice is not None
    best = options.points.throughput.max()
    assert options.points.throughput[options.points.find(choice)] >= best / 1.0101


def test_the_cheaper_of_equally_fast_plans_is_chosen():
    """The PS is all that counts, and can't have more than 3 cores: workers beyond that bring nothing."""
    inputs = RoundInputs(at=0.0, capacity=Resources(9.0, 10**6), jobs=(view(model=data(worker=0.01, server=0.1)),))
    choice = decide(inputs, load).of("a").choice
    assert choice is not None
    assert (choice.servers, choice.ps_cores) == (3, 1.0)
    assert choice.cores < 5


@pytest.mark.parametrize("latency", [0.001, 0.05])
def test_fewer_workers_are_chosen_where_more_hardly_help(latency: float):
    """What a worker waits for others makes many small ones better: a little, or by much."""
    job = view(model=data(worker=0.03, latency=latency, server=0.003))
    chosen = {}
    for share in (0.0, 0.03):
        inputs = RoundInputs(
            at=0.0, capacity=Resources(1.3, 10**6), jobs=(job,), policy=Policy(fewer_nodes_share=share)
        )
        decision = decide(inputs, load).of("a")
        assert decision.choice is not None and decision.predicted is not None
        chosen[share] = decision.choice, decision.predicted.seconds
    (many, least), (few, seconds) = chosen[0.0], chosen[0.03]
    assert few.cores == many.cores
    assert (few.workers < many.workers) is (latency < 0.01)
    assert seconds <= 1.03 * least


def options(*plans: tuple[Candidate, float]) -> Options:
    """With seconds to go, by rising cost."""
    columns = [np.array([getattr(plan, name) for plan, _ in plans]) for name in Candidate.__struct_fields__]
    milli = np.array([plan.milli for plan, _ in plans])
    seconds = np.array([seconds for _, seconds in plans])
    points = Points(*columns, milli, 1 / seconds, 1 / seconds, 1 / seconds, np.ones(len(plans), np.bool_))
    memory = np.array([plan.workers for plan, _ in plans])
    gain = 1000 - seconds
    return Options(view(), points, memory, gain, gain, gain, gain, 0, None, 1000.0, 1.0)


def test_fewest_nodes_among_about_equally_fast_plans():
    """All four within 3%: many small workers with fewer cores are a little faster than few with all of them, but wouldn't be chosen."""
    four = options(
        (Candidate(4, 1, 0.375, 0.375), 197.4),
        (Candidate(2, 1, 0.75, 0.375), 200.1),
        (Candidate(4, 1, 0.375, 0.5), 194.7),
        (Candidate(2, 1, 0.75, 0.5), 197.6),
    )
    assert fewest_nodes(four, 2, 0.03) == 3
    assert fewest_nodes(four, 0, 0.03) == 1
    assert fewest_nodes(four, 2, 0.0) == 2
    assert fewest_nodes(four, 2, 0.01) == 2


@settings(max_examples=50, deadline=None)
@given(models)
def test_more_cores_never_make_a_job_slower(model):
    policy = Policy(tie_share=0.0)
    seconds = []
    for eighths in range(4, 25):
        inputs = RoundInputs(at=0.0, capacity=Resources(eighths / 8, 10**6), jobs=(view(model=model),), policy=policy)
        predicted = decide(inputs, load).of("a").predicted
        assert predicted is not None
        seconds.append(predicted.seconds)
    assert all(later <= before * (1 + 1e-9) for before, later in pairwise(seconds))


def test_resources_of_a_finished_job_go_to_the_others():
    jobs = tuple(view(f"job-{i}", model=data(spread=0.02)) for i in range(3))
    three = decide(RoundInputs(at=0.0, capacity=Resources(3.0, 10**6), jobs=jobs), load)
    left = [msgspec.structs.replace(job, now=three.of(job.job).choice) for job in jobs[:2]]
    two = decide(RoundInputs(at=0.0, capacity=Resources(3.0, 10**6), jobs=tuple(left)), load)
    before, after = ([found.of(job.job).predicted.throughput.expected for job in left] for found in (three, two))
    assert all(now >= was for now, was in zip(after, before, strict=True))
    assert sum(after) > 1.3 * sum(before)


def test_jobs_are_admitted_by_priority_and_age():
    """Each takes half a core at least, and there is room for two."""
    jobs = (
        view("old", waited_seconds=3000.0),
        view("important", priority=3.0),
        view("new"),
        view("huge", need=MemoryNeed(worker=10**9)),
    )
    found = decide(RoundInputs(at=0.0, capacity=Resources(1.2, 10**6), jobs=jobs), load)
    assert {job.job: found.of(job.job).action for job in jobs} == {
        "old": "start", "important": "start", "new": "queue", "huge": "refuse",
    }  # fmt: skip
    assert "number 1 in the queue" in found.of("new").reason
    assert "needs more than there is" in found.of("huge").reason


def test_small_jobs_overtake_a_large_one_until_it_has_waited_too_long():
    large = MemoryNeed(worker=80)
    runs = view("runs", now=Candidate(1, 1, 0.25, 0.25), need=MemoryNeed(worker=30))

    def actions(waited):
        jobs = (runs, view("large", need=large, waited_seconds=waited), view("small", need=MemoryNeed(worker=10)))
        found = decide(RoundInputs(at=0.0, capacity=Resources(8.0, 100), jobs=jobs), load)
        return found.of("large").action, found.of("small").action

    assert actions(60.0) == ("queue", "start")
    assert actions(1800.0) == ("queue", "queue")


def test_a_much_higher_priority_preempts_the_weakest():
    now = Candidate(1, 1, 0.25, 0.25)
    jobs = (
        view("weak", now=now, priority=1.0, ran_seconds=50.0),
        view("weak-and-new", now=now, priority=1.0, ran_seconds=10.0),
        view("strong", now=now, priority=3.0),
        view("new", priority=2.0),
    )
    found = decide(RoundInputs(at=0.0, capacity=Resources(1.5, 10**6), jobs=jobs), load)
    assert {job.job: found.of(job.job).action for job in jobs} == {
        "weak": "stay", "weak-and-new": "preempt", "strong": "stay", "new": "queue",
    }  # fmt: skip
    assert "new has a higher priority" in found.of("weak-and-new").reason
    assert "room is made for it by weak-and-new" in found.of("new").reason
    told = msgspec.structs.replace(jobs[3], room_promised=True)
    gone = (jobs[0], view("weak-and-new", waited_seconds=1.0), jobs[2], told)
    assert decide(RoundInputs(at=0.0, capacity=Resources(1.5, 10**6), jobs=gone), load).of("new").action == "start"
    less = (*jobs[:3], msgspec.structs.replace(jobs[3], priority=1.9))
    found = decide(RoundInputs(at=0.0, capacity=Resources(1.5, 10**6), jobs=less), load)
    assert found.of("new").action == "queue"
