"""A job near its end is left alone: no change of its plan, or of its nodes, that takes longer than what is left."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.planning.decision import Round, decide
from dlrover_lite.brain.planning.job_view import JobView, RoundInputs
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Candidate, MemoryNeed
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.acts import AddPs, MoveSlots, Resize
from tests.brain.models import load, view
from tests.brain.test_health import inputs, windows

NOW = Candidate(4, 1, 0.75, 0.5)
RATE = 50_000.0


def ending(seconds: float, **fields: Any) -> JobView:
    """A job that has so much to do with what it has, and whose plan takes 4 s to be changed."""
    measured = Band(RATE, RATE * 0.99, RATE * 1.01)
    known = {"now": NOW, "measured": measured, "remaining_samples": seconds * RATE, "change_seconds": 4.0}
    return view("ending", **{**known, **fields})


def shared(*views: JobView, cores: float = 4.0) -> Round:
    return decide(RoundInputs(at=0.0, capacity=Resources(cores, 10**6), jobs=views), load)


@given(
    st.sampled_from([0.0, 0.4, 2.0, 3.9]),
    st.sampled_from([0.5, 1.0, 8.0]),
    st.sampled_from([0.5, 2.0, 4.0]),
    st.integers(0, 3),
)
def test_nothing_changes_a_job_that_ends_before_a_change_takes_effect(
    seconds: float, priority: float, cores: float, others: int
) -> None:
    """Neither others that come, nor that there is less than there was."""
    new = [view(f"new-{at}", priority=priority) for at in range(others)]
    found = shared(ending(seconds, scale_seconds=1.0), *new, cores=cores).of("ending")
    assert (found.action, found.choice) == ("stay", NOW)
    assert found.reason.endswith(f"it ends in {seconds:.0f} s, sooner than a change would take effect")


def test_who_comes_begins_with_what_is_left_or_waits() -> None:
    found = shared(ending(2.0), view("new", priority=8.0), cores=4.25)
    assert found.of("new").action == "start"
    choice = found.of("new").choice
    assert choice is not None and choice.cores <= 0.75
    full = shared(ending(2.0), view("new", priority=8.0), cores=3.5).of("new")
    assert full.action == "queue"
    assert "ending has less priority, but can't give way: it ends in 2 s" in full.reason


def test_a_job_with_more_to_do_makes_room() -> None:
    found = shared(ending(60.0), view("new", priority=8.0), cores=3.5)
    assert found.of("ending").choice != NOW
    unknown = shared(ending(2.0, remaining_samples=None), view("new", priority=8.0), cores=3.5)
    assert unknown.of("ending").choice != NOW


def test_a_job_keeps_the_reason_that_it_has_been_given() -> None:
    found = shared(ending(2.0, fixed=True, held="autoscaling is off for it"))
    assert "autoscaling is off for it" in found.of("ending").reason


@pytest.mark.parametrize("left", [2.0, 3600.0])
def test_slow_nodes_are_not_changed_in_the_last_moment(left: float) -> None:
    hot = windows(busy=(0.9, 0.3, 0.5))
    held_back = windows(rates=(0.3, 1.0, 1.0), throttled=3.0)
    for seen in (hot, held_back):
        total = seen[-1].samples_so_far + left * seen[-1].samples_per_second
        acts = [one.treatment.act for one in heal(inputs(seen, total_samples=total)) if one.treatment]
        assert any(isinstance(act, Resize | MoveSlots) for act in acts) == (left > 3.0)


def test_memory_that_runs_out_before_the_end_is_given_all_the_same() -> None:
    seen = windows(10, growth=0.4)
    limit = int(1.001 * seen[-1].ps[0].used_bytes)
    total = seen[-1].samples_so_far + 2.0 * seen[-1].samples_per_second
    acts = [one.treatment.act for one in heal(inputs(seen, limit=limit, total_samples=total)) if one.treatment]
    assert acts and all(isinstance(act, Resize) for act in acts)


# --- memory, where hosts aren't known ------------------------------------------------------------------------------------


def acts_of_a_full_server(host: str, **free: Resources) -> list[object]:
    seen = windows(10, growth=0.4)
    known = inputs(seen, limit=int(1.05 * seen[-1].ps[0].used_bytes), free=free, total_samples=1e9)
    nodes = tuple(msgspec.structs.replace(node, host=host) for node in known.nodes)
    found = heal(msgspec.structs.replace(known, nodes=nodes))
    return [one.treatment.act for one in found if one.treatment is not None]


PLENTY = Resources(0.0, 100 * GIB)


@pytest.mark.parametrize("host", ["a", "b", ""])
def test_a_full_server_gets_memory_in_place_on_any_of_two_hosts(host: str) -> None:
    """All cores are taken. Where its host isn't named, both have the room."""
    (act,) = acts_of_a_full_server(host, a=PLENTY, b=PLENTY)
    assert isinstance(act, Resize) and len(act.others) == 1


def test_a_server_on_an_unnamed_host_gets_no_memory_that_may_not_be_there() -> None:
    acts = acts_of_a_full_server("", a=Resources(0.0, 0), b=Resources(2.0, 100 * GIB))
    assert [type(act) for act in acts] == [AddPs, AddPs]
    assert {act.host for act in acts if isinstance(act, AddPs)} == {"b"}


def test_rows_move_to_a_host_with_few_cores_left_rather_than_nowhere() -> None:
    acts = acts_of_a_full_server("a", a=Resources(0.0, 10 * MIB), b=Resources(0.3, 100 * GIB))
    added = [act for act in acts if isinstance(act, AddPs)]
    assert added and added[0].host == "b" and added[0].resources.cores == pytest.approx(0.3)
    assert sum(act.resources.cores for act in added) <= 0.3


def test_needs_of_memory_count_where_a_job_is_kept_to_its_end() -> None:
    """Nobody gets the memory that it still has."""
    need = MemoryNeed(worker=100 * MIB, ps=100 * MIB)
    jobs = ending(2.0, need=need), view("new", need=need)
    found = decide(RoundInputs(at=0.0, capacity=Resources(8.0, 550 * MIB), jobs=jobs), load)
    assert found.of("new").action == "queue"
