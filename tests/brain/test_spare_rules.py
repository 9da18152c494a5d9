"""Memory that isn't needed is taken back: much of it or none, only of what is sure, and never so that a node needs it again soon."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.explain.decision_text import explain
from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.healing.mitigation import HealInputs, NodeNow, Treatment
from dlrover_lite.brain.healing.policies import HealthPolicy, ReclaimPolicy
from dlrover_lite.brain.models.memory_history import MemoryHistory
from dlrover_lite.brain.models.memory_model import worker_limit
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.acts import Resize
from dlrover_lite.protocol.profiles import Level
from tests.brain.simulated import Job

USED = 200 * MIB
"""By a worker, at most."""


def job_of(servers: int = 2, *, workers: int = 3, limit: int = GIB, **fields: Any) -> Job:
    job = Job(Candidate(workers, servers, 1.0, 1.0), **{"seed": 1, "progress": 20, "rows_per_sample": 4.0, **fields})
    job.limits = {f"ps-{at}": limit for at in range(servers)}
    return job


def inputs_of(job: Job, windows: int = 4, *, used: int = USED, **fields: Any) -> HealInputs:
    profiles = fields.pop("profiles", None) or job.windows(windows)
    nodes = [
        msgspec.structs.replace(node, used_bytes=used if node.role == "worker" else job.used(node.node))
        for node in job.nodes()
    ]
    known = {
        "job": job.name,
        "at": profiles[-1].at,
        "profiles": tuple(profiles),
        "nodes": tuple(nodes),
        "free": {"a": Resources(0.0, GIB)},
        "total_samples": 1.5 * job.samples,
    }
    return HealInputs(**(known | fields))


def lowered(inputs: HealInputs) -> dict[str, int]:
    """By node, its new limit."""
    found = heal(inputs)
    if not found:
        return {}
    (one,) = found
    assert one.treatment is not None and one.action == "heal" and one.treatment.cause == "memory to spare", one.reason
    assert isinstance(one.treatment.act, Resize) and one.treatment.node in explain(one)
    act = one.treatment.act
    return {one.treatment.node: act.resources.memory, **{node: its.memory for node, its in act.others.items()}}


def test_spare_memory_is_taken_from_all_nodes_at_once() -> None:
    job = job_of()
    inputs = inputs_of(job)
    given = lowered(inputs)
    assert sorted(given) == ["ps-0", "ps-1", "worker-0", "worker-1", "worker-2"]
    assert {given[f"worker-{at}"] for at in range(3)} == {worker_limit(USED)}
    (one,) = heal(inputs)
    assert "come back" in one.reason and "ps-0" in one.reason and "worker-2" in one.reason
    for node in ("ps-0", "ps-1"):
        assert job.used(node) < given[node] < 0.75 * GIB
    cores = {node.node: node.resources.cores for node in inputs.nodes}
    assert one.treatment is not None and isinstance(one.treatment.act, Resize)
    assert {name: its.cores for name, its in one.treatment.act.others.items()}.items() <= cores.items()


@settings(max_examples=8, deadline=None)
@given(st.floats(0.3, 0.95), st.floats(1.0, 16.0), st.floats(1.1, 2.0), st.integers(0, 50), st.booleans())
@example(0.9375, 1.0, 2.0, 0, False)
def test_memory_a_server_keeps_suffices_to_the_end_without_waste(
    slope: float, rows: float, rest: float, seed: int, checkpoints: bool
) -> None:
    """It is neither relieved nor lowered again until the time is looked at for which its limit doesn't hold any more, if its tables grow as
    they did; then it is relieved in time."""
    job = job_of(1, workers=1, limit=64 * GIB, slope=slope, rows_per_sample=rows * 50 ** (0.7 - slope), seed=seed)
    profiles = list(job.windows(6))
    total = rest * job.samples
    spill = 0.25 if checkpoints else 0.0
    inputs = inputs_of(job, profiles=profiles, used=0, total_samples=total, spill_part=spill)
    given = lowered(inputs)
    if not given:
        return  # not sure enough yet
    job.limits["ps-0"] = given["ps-0"]
    share, times = inputs.policy.ahead_share, inputs.policy.relief.times_ahead
    looked_at = (1 + share * times) / (1 + share) * job.samples
    past = tuple(msgspec.structs.replace(one.treatment, done_at=inputs.at) for one in heal(inputs) if one.treatment)
    while job.samples < total:
        profiles.append(job.window())
        if job.samples > total:
            break
        assert job.used("ps-0") < job.limits["ps-0"], "it would have been killed"
        later = inputs_of(
            job,
            profiles=profiles,
            used=0,
            total_samples=total,
            spill_part=spill,
            past=past,
            free={"a": Resources(0.0, 64 * GIB)},
        )
        for one in heal(later):
            assert job.samples > looked_at and one.treatment is not None and isinstance(one.treatment.act, Resize)
            assert one.treatment.cause == "memory ahead" and one.treatment.act.resources.memory > job.limits["ps-0"]
            job.limits["ps-0"] = one.treatment.act.resources.memory
            past += (msgspec.structs.replace(one.treatment, done_at=later.at),)
    most = job.base + (job.used("ps-0") - job.base) * (1 + spill)
    assert job.limits["ps-0"] <= max(1.45 * most, 130 * MIB)


def test_no_spare_memory_is_taken_if_not_resizable() -> None:
    assert lowered(inputs_of(job_of(), resizable=False)) == {}


def test_spare_memory_of_workers_is_taken_as_soon_as_they_are_measured() -> None:
    assert {f"worker-{at}" for at in range(3)} <= lowered(inputs_of(job_of(), windows=1)).keys()


def test_no_spare_memory_is_taken_where_it_may_not_be() -> None:
    inputs = inputs_of(job_of())
    assert lowered(inputs)
    assert lowered(msgspec.structs.replace(inputs, spare=False)) == {}


def test_a_job_that_is_nearly_done_keeps_its_memory() -> None:
    job = job_of()
    profiles = job.windows(4)
    assert lowered(inputs_of(job, profiles=profiles, total_samples=job.samples * 1.0001)) == {}


def test_memory_that_a_server_keeps_is_for_as_long_as_what_it_was_trained_tells() -> None:
    """The tables may be seen whole soon, or grow for ever."""
    job = job_of(limit=2 << 40, workers=1)
    profiles = job.windows(4)
    near, far, farther = (
        lowered(inputs_of(job, profiles=profiles, used=0, total_samples=times * job.samples))
        for times in (1.5, 1e2, 1e3)
    )
    assert sorted(near) == ["ps-0", "ps-1"]
    assert near["ps-0"] < far["ps-0"] == farther["ps-0"] < 3 * near["ps-0"]


def test_no_spare_memory_is_taken_that_a_relief_would_give_again() -> None:
    job = job_of(limit=64 * GIB, workers=1)
    inputs = inputs_of(job, profiles=job.windows(6), used=0, total_samples=1e3 * job.samples)
    given = lowered(inputs)
    job.limits |= given
    assert given and heal(inputs_of(job, profiles=inputs.profiles, used=0, total_samples=1e3 * job.samples)) == ()


@pytest.mark.parametrize("progress", [1.0, 2.0])
def test_memory_left_to_a_young_server_does_until_more_could_be_taken(progress: float) -> None:
    job = job_of(limit=4 * GIB, workers=1, progress=progress, rows_per_sample=20.0)
    profiles = job.windows(3)
    total, taken_at = 1e3 * job.samples, profiles[-1].at
    given = lowered(inputs_of(job, profiles=profiles, used=0, total_samples=total))
    assert given
    job.limits |= given
    while profiles[-1].at < taken_at + 60.0:
        profiles = [*profiles, *job.windows(1)]
        assert heal(inputs_of(job, profiles=profiles, used=0, total_samples=total)) == ()


def test_little_spare_memory_is_not_taken() -> None:
    job = job_of(limit=GIB, workers=2)
    worth = lowered(inputs_of(job, windows=4))
    job = job_of(limit=int(worth["ps-0"] / 0.92), workers=2)
    job.limits |= {f"worker-{at}": 260 * MIB for at in range(2)}
    assert lowered(inputs_of(job, windows=4)) == {}


def test_of_a_forecast_that_is_not_sure_only_much_memory_is_taken() -> None:
    unsure = HealthPolicy(reclaim=ReclaimPolicy(most_over_expected=1.0))  # whatever is kept is more than that

    def given(limit: int, windows: int = 4, **fields: Any) -> int | None:
        return lowered(inputs_of(job_of(1, limit=limit, workers=1), windows=windows, used=0, **fields)).get("ps-0")

    sure = given(4 * GIB)
    assert sure is not None and given(4 * GIB, policy=unsure) == sure
    assert given(int(2.1 * sure), policy=unsure) == sure and given(int(1.9 * sure), policy=unsure) is None
    assert given(int(1.9 * sure)) == sure
    assert given(64 * GIB, windows=2, policy=unsure) is None, "two levels tell no curve"


@pytest.mark.parametrize("part", [0.0, 0.1, 0.25])
def test_room_for_snapshots_is_room_for_more_rows_than_foreseen(part: float) -> None:
    job = job_of(1, limit=4 * GIB, workers=1)
    profiles = job.windows(4)
    rows, both = (lowered(inputs_of(job, profiles=profiles, used=0, spill_part=its))["ps-0"] for its in (0.0, part))
    assert rows <= both < (1 + 0.8 * part) * rows + MIB


def test_a_worker_keeps_less_once_none_has_used_more_for_minutes() -> None:
    job = job_of()
    job.limits |= {f"worker-{at}": worker_limit(USED) for at in range(3)}
    inputs = inputs_of(job)
    assert not any(node.startswith("worker") for node in lowered(inputs))
    given = lowered(msgspec.structs.replace(inputs, worker_steady=True))
    assert {given[f"worker-{at}"] for at in range(3)} == {worker_limit(USED, steady=True)}
    assert USED < 0.9 * worker_limit(USED, steady=True) < 0.9 * worker_limit(USED), "or it would get more at once"


@pytest.mark.parametrize("by_levels", [False, True])
def test_a_peak_with_rows_that_have_left_since_raises_no_limit(by_levels: bool) -> None:
    job = job_of(limit=2 * GIB, workers=1)
    profiles = list(job.windows(4))
    least, most = lowered(inputs_of(job, profiles=profiles, used=0)), int(1.3 * job.used("ps-0"))
    before = profiles[1]
    servers = [
        msgspec.structs.replace(use, used_bytes=most, row_bytes=use.row_bytes + most - use.used_bytes)
        if use.node == "ps-0"
        else use
        for use in before.ps
    ]
    profiles[1] = msgspec.structs.replace(before, ps=tuple(servers))

    def given(peak: int) -> int:
        inputs = inputs_of(job, profiles=profiles, used=0)
        nodes = [msgspec.structs.replace(one, used_bytes=peak) if one.node == "ps-0" else one for one in inputs.nodes]
        levels = MemoryHistory(map(Level.of, profiles)) if by_levels else ()
        return lowered(msgspec.structs.replace(inputs, nodes=tuple(nodes), levels=levels))["ps-0"]

    assert given(most) == least["ps-0"]
    assert given(most + 200 * MIB) > 1.1 * least["ps-0"], (
        "a snapshot took so much beside its rows, whatever it had of these"
    )


def test_workers_get_the_largest_used_memory_and_unmeasured_ones_keep_theirs() -> None:
    job = job_of(limit=0)
    job.limits = {"ps-0": 100 * MIB, "ps-1": 100 * MIB, "worker-1": 300 * MIB}
    inputs = inputs_of(job, used=0)
    assert not any(node.startswith("worker") for node in _safe(inputs))
    nodes = tuple(_with_use(node, 400 * MIB if node.node == "worker-2" else USED) for node in inputs.nodes)
    given = _safe(msgspec.structs.replace(inputs, nodes=nodes))
    assert {name: given[name] for name in given if name.startswith("worker")} == {
        "worker-0": 500 * MIB,
        "worker-2": 500 * MIB,
    }


def test_workers_keep_their_memory_until_an_evaluation_was_measured() -> None:
    job = job_of()
    inputs = inputs_of(job)
    assert sorted(lowered(msgspec.structs.replace(inputs, evaluated=False))) == ["ps-0", "ps-1"]
    evaluated = msgspec.structs.replace(inputs, worker_peak=2 * USED)  # by one that has ended since
    assert {lowered(evaluated)[f"worker-{at}"] for at in range(3)} == {worker_limit(2 * USED)}


def _safe(inputs: HealInputs) -> dict[str, int]:
    """With PS that have all they may need."""
    nodes = tuple(
        node
        if node.role == "worker"
        else msgspec.structs.replace(node, resources=Resources(1.0, int(1.6 * inputs.profiles[-1].ps[0].used_bytes)))
        for node in inputs.nodes
    )
    return lowered(msgspec.structs.replace(inputs, nodes=nodes))


def _with_use(node: NodeNow, used: int) -> NodeNow:
    return msgspec.structs.replace(node, used_bytes=used) if node.role == "worker" else node


def test_memory_is_not_lowered_below_what_the_recipe_says() -> None:
    given = lowered(inputs_of(job_of(), least={"ps": GIB, "worker": 400 * MIB}))
    assert given == dict.fromkeys(["worker-0", "worker-1", "worker-2"], 400 * MIB)


def test_a_node_is_left_alone_for_a_while_after_its_memory_was_changed() -> None:
    job = job_of()
    inputs = inputs_of(job)
    act = Resize(Resources(1.0, GIB), {"worker-1": Resources(1.0, GIB)})

    def after(cause: Any, seconds: float) -> dict[str, int]:
        done_at = inputs.at - seconds
        past = Treatment(at=done_at - 1, node="ps-0", host="a", cause=cause, act=act, reason="", done_at=done_at)
        return lowered(msgspec.structs.replace(inputs, past=(past,)))

    for cause in ("memory ahead", "memory to spare"):
        assert sorted(after(cause, 50.0)) == ["ps-1", "worker-0", "worker-2"]
        assert sorted(after(cause, 70.0)) == sorted(lowered(inputs))
    assert sorted(after("hot ps", 1.0)) == sorted(lowered(inputs))


def test_lowering_memory_waits_for_a_relief_but_not_the_reverse() -> None:
    job = job_of(rows_per_sample=8.0)
    profiles = job.windows(6)
    job.limits["ps-0"] = int(1.02 * job.used("ps-0"))
    inputs = inputs_of(job, profiles=profiles, total_samples=10 * job.samples)
    first = heal(inputs)
    assert [one.treatment.cause for one in first if one.treatment] == ["memory ahead"]
    act = Resize(Resources(1.0, 100 * MIB), {"worker-0": Resources(1.0, 100 * MIB)})
    lowers = Treatment(at=inputs.at - 1, node="ps-0", host="a", cause="memory to spare", act=act, reason="")
    again = heal(msgspec.structs.replace(inputs, past=(lowers,)))
    assert [one.treatment for one in again] == [one.treatment for one in first]


def test_spare_memory_is_decided_by_levels_but_not_without_profiles() -> None:
    job = job_of()
    inputs = inputs_of(job)
    levels = tuple(map(Level.of, inputs.profiles))
    assert lowered(msgspec.structs.replace(inputs, levels=levels)) == lowered(inputs)
    assert heal(msgspec.structs.replace(inputs, profiles=(), levels=levels)) == ()


def test_no_spare_memory_is_taken_before_a_new_plan_is_measured() -> None:
    job = job_of()
    profiles = list(job.windows(4))
    job.plan = Candidate(2, 2, 1.0, 1.0)
    assert lowered(inputs_of(job, profiles=profiles)) == {}
    profiles += job.windows(1)
    assert sorted(lowered(inputs_of(job, profiles=profiles))) == ["ps-0", "ps-1", "worker-0", "worker-1"]


@pytest.mark.parametrize("part", [0.0, 0.25])
def test_a_server_that_memory_was_taken_from_is_not_in_need_at_once(part: float) -> None:
    job = job_of(1, limit=64 * GIB, workers=1)
    profiles = job.windows(6)
    for rest in (1.0005, 1.01, 1.1, 1.5, 3.0, 100.0):
        job.limits["ps-0"] = 64 * GIB
        fields = {"profiles": profiles, "used": 0, "total_samples": rest * job.samples, "spill_part": part}
        if given := lowered(inputs_of(job, **fields)):
            job.limits |= given
            assert heal(inputs_of(job, **fields)) == (), rest
