"""Keeping jobs healthy: what is amiss is found and treated, what isn't is left alone, and nothing is given that isn't there."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.explain.decision_text import explain
from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.healing.mitigation import HealInputs, NodeNow
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.acts import AddPs, MoveSlots, Replace, Resize, SmallerShards, Tell
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, WorkerUse

ROWS = 1_000_000


def profile(
    number: int = 0,
    *,
    rates: tuple[float, ...] = (1.0, 1.0, 1.0),
    busy: tuple[float, ...] = (0.5, 0.5),
    cpu: tuple[float, ...] = (),
    queue: tuple[float, ...] = (),
    throttled: float = 0.0,
    growth: float = 0.0,
    scale: float = 1.0,
    seconds: float = 10.0,
    others: float | None = None,
) -> Profile:
    """Workers at ``rates``, PS that are ``busy``, in the ``number``-th window of 10 s, or in the first ``seconds`` of it. ``others``:
    cores of the host's four that strangers take; None: nothing is known of it."""
    long = seconds / 10
    rows = int(ROWS * (1 + growth * number))
    return Profile(
        job="job",
        at=90.0 + 10 * number + seconds,
        seconds=seconds,
        batch_size=1000,
        samples=int(100_000 * scale * long * sum(rates) / len(rates)),
        samples_so_far=int(1_000_000 * (number + 1) * scale),
        workers=tuple(
            WorkerUse(f"worker-{i}", "a", 1.0, int(1000 * rate * scale * long), 9.0 * long, throttled * long)
            for i, rate in enumerate(rates)
        ),
        ps=tuple(
            PsUse(
                f"ps-{i}", "a", 0.5, int(1000 * scale * long), (cpu or busy)[i] * seconds, share * seconds,
                (queue or busy)[i] * 2 * seconds, throttled * long,
                rows // len(busy), 200 * rows // len(busy), 200 * rows // len(busy) + 80 * MIB,
            )
            for i, share in enumerate(busy)
        ),
        hosts=() if others is None else (HostUse("a", 4.0, others),),
    )  # fmt: skip


def inputs(profiles: tuple[Profile, ...], *, limit: int = 4 * GIB, **fields: object) -> HealInputs:
    last = profiles[-1]
    nodes = [NodeNow(use.node, "ps", "a", Resources(use.cores, limit)) for use in last.ps]
    nodes += [NodeNow(use.node, "worker", "a", Resources(use.cores, GIB)) for use in last.workers]
    known = {
        "job": "job",
        "at": last.at,
        "profiles": profiles,
        "nodes": tuple(nodes),
        "free": {"a": Resources(1.0, 2 * GIB), "b": Resources(4.0, 8 * GIB)},
        "least": {"ps": limit, "worker": GIB},
        "total_samples": 1e9,
    }
    return HealInputs(**(known | fields))  # type: ignore[arg-type]


def windows(count: int = 4, **fields: object) -> tuple[Profile, ...]:
    return tuple(profile(number, **fields) for number in range(count))  # type: ignore[arg-type]


def treated(found: HealInputs) -> dict[str, object]:
    return {one.treatment.node: one.treatment.act for one in heal(found) if one.treatment}


def effective(found: HealInputs) -> tuple[object, ...]:
    return tuple(msgspec.structs.replace(one.treatment, done_at=found.at) for one in heal(found))  # type: ignore[type-var]


# --- workers --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.75, 1.25), min_size=1, max_size=6).map(tuple),
    st.lists(st.floats(0.4, 0.5), min_size=1, max_size=4).map(tuple),
)
def test_a_healthy_job_is_left_alone(rates: tuple[float, ...], busy: tuple[float, ...]) -> None:
    assert heal(inputs(windows(rates=rates, busy=busy))) == ()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 6), st.floats(0.05, 0.55), st.floats(0.2, 50.0))
def test_a_slow_worker_is_found_however_fast_the_job_is(peers: int, which: int, rate: float, scale: float) -> None:
    rates = [1.0] * (peers + 1)
    rates[slow := which % (peers + 1)] = rate
    known = windows(rates=tuple(rates), scale=scale)
    assert treated(inputs(known)) == {f"worker-{slow}": Replace(Resources(1.0, GIB), "b")}
    ((node, act),) = treated(inputs(known, total_samples=known[-1].samples_so_far)).items()
    assert node == f"worker-{slow}" and isinstance(act, SmallerShards)
    assert act.factor == pytest.approx(rate, abs=0.02 / min(1.0, scale))


def test_a_short_slowdown_of_a_worker_is_not_treated() -> None:
    steady, slow = windows(3), profile(3, rates=(1.0, 0.2, 1.0), seconds=2.0)
    assert treated(inputs((*steady, slow))) == {}
    assert treated(inputs((*steady, profile(3, rates=(1.0, 0.55, 1.0))))) == {}
    assert treated(inputs((*steady[:1], profile(1, rates=(1.0, 0.2, 1.0)), profile(2), slow))) == {}


@pytest.mark.parametrize("seconds", [3.0, 10.0])
def test_a_much_slower_worker_is_replaced_after_seconds(seconds: float) -> None:
    slow = profile(3, rates=(1.0, 0.2, 1.0), seconds=seconds)
    assert treated(inputs((*windows(3), slow))) == {"worker-1": Replace(Resources(1.0, GIB), "b")}
    before = (0.5, 1.0, 1.0)  # one that was slow is no slower than it was
    assert treated(inputs((*windows(1, rates=before), profile(1, rates=before, seconds=seconds)))) == {}


def test_a_worker_with_fewer_cores_may_be_slower() -> None:
    halved = [
        msgspec.structs.replace(one, workers=(msgspec.structs.replace(one.workers[0], cores=0.5), *one.workers[1:]))
        for one in windows(rates=(0.5, 1.0, 1.0))
    ]
    assert treated(inputs(tuple(halved))) == {}


def test_slow_worker_is_replaced_where_that_pays_else_gets_smaller_shards() -> None:
    slow = windows(rates=(0.3, 1.0, 1.0))
    assert treated(inputs(slow, free={})) == {"worker-0": Replace(Resources(1.0, GIB))}
    here = {"a": Resources(0.0, 2 * GIB)}
    assert treated(inputs(slow, free=here)) == {"worker-0": Replace(Resources(1.0, GIB), "a")}
    held_back = windows(rates=(0.3, 1.0, 1.0), throttled=3.0)
    assert treated(inputs(held_back)) == {"worker-0": Resize(Resources(2.0, GIB))}
    full = inputs(slow, free={"a": Resources(1.0, GIB // 2)})
    near_the_end = inputs(slow, total_samples=slow[-1].samples_so_far + 1e5)
    for found in (full, near_the_end):
        assert treated(found) == {"worker-0": SmallerShards(pytest.approx(0.3))}
    past = effective(near_the_end)
    assert treated(msgspec.structs.replace(near_the_end, past=past)) == {}  # nothing has been measured since
    later = windows(8, rates=(0.3, 1.0, 1.0))
    still = inputs(later, past=past, total_samples=later[-1].samples_so_far + 1e5)
    assert treated(still) == {"worker-0": Tell()}
    assert heal(msgspec.structs.replace(still, past=(*past, *effective(still)))) == ()  # said once


def test_replacements_of_slow_workers_have_a_budget() -> None:
    first = inputs(windows(rates=(0.3, 1.0, 1.0)))
    replaced = [msgspec.structs.replace(one, node=f"old-{at}") for at, one in enumerate(effective(first) * 3)]
    assert isinstance(treated(msgspec.structs.replace(first, past=tuple(replaced)))["worker-0"], SmallerShards)


# --- parameter servers ----------------------------------------------------------------------------------------------


def test_a_hot_ps_gives_slots_to_its_peers() -> None:
    found = treated(inputs(windows(busy=(0.9, 0.3, 0.5))))
    assert list(found) == ["ps-0"]
    act = found["ps-0"]
    assert isinstance(act, MoveSlots)
    assert act.share == pytest.approx(1 - (1 / 3) / (0.9 / 1.7), abs=0.01)
    assert act.to["ps-1"] > act.to["ps-2"] and sum(act.to.values()) == pytest.approx(1, abs=0.001)


def test_a_throttled_ps_gets_more_cores() -> None:
    assert treated(inputs(windows(busy=(0.9, 0.3), throttled=3.0))) == {"ps-0": Resize(Resources(1.0, 4 * GIB))}
    few = inputs(windows(busy=(0.9, 0.3), throttled=3.0), free={"a": Resources(0.25, 0)})
    assert treated(few) == {"ps-0": Resize(Resources(0.75, 4 * GIB))}
    assert isinstance(treated(inputs(windows(busy=(0.9, 0.3), throttled=3.0), resizable=False))["ps-0"], MoveSlots)


def test_where_nodes_share_their_cores_none_is_held_back_by_its_own() -> None:
    """They are stopped together: that says nothing of one of them, and cores of its own wouldn't help it."""

    def shared(**fields: Any) -> HealInputs:
        profiles = windows(throttled=3.0, **fields)
        return inputs(tuple(msgspec.structs.replace(one, shared_cores=True) for one in profiles))

    assert isinstance(treated(shared(rates=(0.3, 1.0, 1.0)))["worker-0"], Replace)
    assert isinstance(treated(shared(busy=(0.9, 0.3)))["ps-0"], MoveSlots)


def test_a_ps_that_is_stopped_with_all_others_of_its_job_is_not_hot_for_that() -> None:
    own = windows(busy=(0.3, 0.1), queue=(1.0, 0.1), throttled=8.0)
    assert "ps-0" in treated(inputs(own))
    together = tuple(msgspec.structs.replace(one, shared_cores=True) for one in own)
    assert "ps-0" not in treated(inputs(together))


@pytest.mark.parametrize(("peers", "share"), [(0.4, 0.48), (0.7, 0.24), (0.77, 0.184), (0.92, None)])
def test_a_ps_that_works_all_the_time_gives_slots_to_peers_that_do_not(peers: float, share: float | None) -> None:
    """All wait for it: that it works half as long again as they do says nothing where it can't work any longer."""
    busy = (1.0, peers, peers, peers, peers)
    queue = (9.0, *(0.1,) * 4)
    act = treated(inputs(windows(busy=busy, queue=queue))).get("ps-0")
    if share is None:
        assert act is None
        return
    assert isinstance(act, MoveSlots) and act.share == pytest.approx(share, abs=0.001)
    assert act.to == pytest.approx(dict.fromkeys(("ps-1", "ps-2", "ps-3", "ps-4"), 0.25))


def test_a_hot_ps_gives_slots_to_one_that_has_just_come() -> None:
    """What it did alone says nothing of how much less its peer does."""
    alone = [profile(at, busy=(busy,)) for at, busy in enumerate((0.3, 0.3, 0.3, 0.3, 0.95, 0.95))]
    act = treated(inputs((*alone, profile(6, busy=(0.95, 0.19))), free={}))["ps-0"]
    assert act == MoveSlots(0.4, {"ps-1": 1.0})


def test_a_ps_that_nobody_waits_for_keeps_its_slots() -> None:
    assert treated(inputs(windows(busy=(0.9, 0.5), queue=(0.1, 0.1)))) == {}


def test_a_ps_whose_host_gets_slow_is_replaced_elsewhere() -> None:
    """Alone it has no peers to be compared with: it takes longer than it used to."""
    before, now = windows(4, busy=(0.3,)), [profile(at, busy=(0.95,), cpu=(0.3,)) for at in range(4, 7)]
    assert treated(inputs((*before, *now))) == {"ps-0": Replace(Resources(0.5, 4 * GIB), "b")}
    assert treated(inputs((*before, *now), free={})) == {"ps-0": Tell()}
    assert treated(inputs((*before, *now), total_samples=now[-1].samples_so_far + 1e5)) == {"ps-0": Tell()}


def test_a_ps_that_has_long_been_slow_is_replaced() -> None:
    """What is usual by now tells nothing, and that it was told as hot before, nothing either: its peers work as long as they compute."""
    slow = inputs(windows(30, busy=(0.69, 0.2), cpu=(0.2, 0.2), scale=0.3))
    assert treated(slow) == {"ps-0": Replace(Resources(0.5, 4 * GIB), "b")}
    told = msgspec.structs.replace(effective(slow)[0], act=Tell(), done_at=None)  # type: ignore[type-var]
    assert treated(msgspec.structs.replace(slow, past=(told,))) == {"ps-0": Replace(Resources(0.5, 4 * GIB), "b")}


def test_short_windows_that_were_slow_already_do_not_say_what_is_usual() -> None:
    """Nobody waited for it at first."""
    usual = windows(2, busy=(0.5, 0.5))
    quiet = [
        profile(number, busy=(0.5, 0.1), cpu=(0.125, 0.1), queue=(0.1, 0.1), scale=0.25, seconds=2.5)
        for number in range(2, 6)
    ]
    slow = profile(6, busy=(0.78, 0.12), cpu=(0.17, 0.12), queue=(0.4, 0.1), scale=0.3, seconds=2.5)
    alone = [msgspec.structs.replace(one, ps=one.ps[:1]) for one in (*usual, *quiet, slow)]
    assert treated(inputs((*usual, *quiet, slow))) == {"ps-0": Replace(Resources(0.5, 4 * GIB), "b")}
    assert treated(inputs(tuple(alone[:-1]))) == {}


def test_peers_take_over_slots_of_a_slow_ps_without_another_host() -> None:
    before, now = windows(4, busy=(0.3, 0.3)), [profile(at, busy=(0.9, 0.3), cpu=(0.3, 0.3)) for at in range(4, 7)]
    act = treated(inputs((*before, *now), free={}))["ps-0"]
    assert isinstance(act, MoveSlots) and act.to == {"ps-1": 1.0}
    assert act.share == pytest.approx(1 - 2 * (1 / 3) / (1 + 1 / 3), abs=0.01)


def slow_host(*, peers: int = 1, others: float | None = None, seconds: float = 10.0) -> tuple[Profile, ...]:
    """That of the first of the PS, since one window, which says enough."""
    busy = (0.3,) * (1 + peers)
    slowed = profile(4, busy=(0.95, *(0.15 for _ in busy[1:])), cpu=busy, scale=0.5, seconds=seconds, others=others)
    return (*windows(4, busy=busy, others=others), slowed)


@pytest.mark.parametrize("seconds", [3.0, 10.0])
@pytest.mark.parametrize("peers", [0, 1, 5])
def test_a_ps_whose_host_gets_much_slower_is_replaced_after_seconds(seconds: float, peers: int) -> None:
    profiles = slow_host(peers=peers, seconds=seconds)
    sure = peers or seconds > 3  # alone, it may be what the job does now
    assert treated(inputs(profiles)) == ({"ps-0": Replace(Resources(0.5, 4 * GIB), "b")} if sure else {})
    assert treated(inputs((*profiles[:4], profile(4, busy=(0.3,) * (1 + peers), scale=0.5)))) == {}
    if peers:  # all alike: a busy machine, not one slow host
        assert treated(inputs((*profiles[:4], profile(4, busy=(0.9,) * (1 + peers), scale=0.5)))) == {}


@pytest.mark.parametrize(
    ("peers", "others", "replaced"), [(1, 3.9, True), (0, 0.5, True), (0, 3.9, False), (0, None, False)]
)
def test_a_slow_ps_is_replaced_on_its_host_if_the_host_is_not_the_cause(
    peers: int, others: float | None, replaced: bool
) -> None:
    here = {"a": Resources(0.0, 8 * GIB)}
    act = treated(inputs(slow_host(peers=peers, others=others), free=here))["ps-0"]
    assert act == (Replace(Resources(0.5, 4 * GIB), "a") if replaced else Tell())
    little = treated(inputs(slow_host(peers=peers, others=others), free={"a": Resources(4.0, GIB)}))["ps-0"]
    assert isinstance(little, MoveSlots if peers else Tell)


def test_peers_take_over_slots_of_a_slow_ps_near_the_end() -> None:
    """Of ten, one does a tenth: what is lost by that until the end is less than what it takes until another one is there."""
    profiles = slow_host(peers=9)
    last = profiles[-1]
    left = inputs(profiles, total_samples=last.samples_so_far + 300 * last.samples_per_second)
    act = treated(left)["ps-0"]
    assert isinstance(act, MoveSlots) and sum(act.to.values()) == pytest.approx(1, abs=0.001)
    assert isinstance(treated(inputs(profiles))["ps-0"], Replace)


def test_a_ps_on_a_slow_host_keeps_the_slots_it_can_serve() -> None:
    fourfold = (*windows(4, busy=(0.24, 0.24)), profile(4, busy=(0.96, 0.24), cpu=(0.24, 0.24)))
    act = treated(inputs(fourfold, free={}))["ps-0"]
    assert isinstance(act, MoveSlots) and 0.5 * (1 - act.share) == pytest.approx(1 / 5)


def test_busy_without_a_queue_is_no_trouble() -> None:
    assert treated(inputs(windows(busy=(0.9, 0.3), queue=(0.1, 0.1)))) == {}


# --- memory ---------------------------------------------------------------------------------------------------------


@functools.cache
def growing() -> tuple[Profile, ...]:
    return windows(10, growth=0.4)


NOW = growing()[-1].ps[0].used_bytes


@settings(max_examples=40, deadline=None)
@given(
    st.floats(1.01, 3.0), st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.booleans(), st.integers(0, 2), st.floats(1.2, 20.0)
)  # fmt: skip
def test_memory_relief_suffices_and_stays_within_what_is_free(
    limit: float, here: float, there: float, resizable: bool, cores: int, rest: float
) -> None:
    free = {"a": Resources(0.0, int(here * NOW)), "b": Resources(float(cores), int(there * NOW))}
    total = rest * growing()[-1].samples_so_far
    found = inputs(growing(), limit=int(limit * NOW), free=free, resizable=resizable, total_samples=total)
    memory, added, decisions = 0, 0, heal(found)
    for one in decisions:
        assert one.treatment is not None and one.memory is not None
        match act := one.treatment.act:
            case Resize():
                for given in (act.resources, *act.others.values()):
                    assert resizable and given.memory > limit * NOW - 1
                    memory += given.memory - int(limit * NOW)
                assert one.memory.limit == act.resources.memory
            case AddPs():
                added += act.resources.memory
                assert one.memory.expected < one.memory.limit
            case MoveSlots():
                assert 0 < act.share <= 1
            case _:
                assert isinstance(act, Tell) and one.action == "tell"
    assert memory <= free["a"].memory and added <= free["b"].memory
    nodes = [one.treatment.node for one in decisions if one.treatment]
    assert len(nodes) == len(set(nodes))


def test_no_further_treatment_after_a_memory_relief() -> None:
    found = inputs(growing(), limit=int(1.05 * NOW), free={"a": Resources(0.0, 64 * GIB)})
    ((first, act),) = treated(found).items()
    assert isinstance(act, Resize)
    given = {first: act.resources, **act.others}
    assert sorted(given) == ["ps-0", "ps-1"]  # they grow alike: one treatment for both
    nodes = tuple(msgspec.structs.replace(node, resources=given.get(node.node, node.resources)) for node in found.nodes)
    assert heal(msgspec.structs.replace(found, nodes=nodes)) == ()


def test_a_treatment_under_way_is_not_decided_again() -> None:
    found = inputs(growing(), limit=int(1.05 * NOW))
    under_way = tuple(one.treatment for one in heal(found) if one.treatment)
    assert under_way
    assert heal(msgspec.structs.replace(found, past=under_way)) == ()


# --- as data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found",
    [inputs(windows(rates=(0.3, 1.0))), inputs(windows(busy=(0.9, 0.3))), inputs(growing(), limit=int(1.05 * NOW))],
    ids=["worker", "ps", "memory"],
)  # fmt: skip
def test_stored_heal_inputs_give_the_same_decisions_with_explanations(found: HealInputs) -> None:
    again = msgspec.json.decode(msgspec.json.encode(found), type=HealInputs)
    decisions = heal(again)
    assert decisions == heal(found) and decisions
    for one in decisions:
        assert msgspec.json.decode(msgspec.json.encode(one), type=Decision) == one
        assert one.stage == "heal" and one.treatment is not None
        assert one.treatment.node in explain(one)
