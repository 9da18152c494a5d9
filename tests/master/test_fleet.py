"""All nodes of a job as a state machine: events in, instructions out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.units import Resources
from dlrover_lite.master.nodes.fleet import (
    FailJob,
    Fleet,
    Launch,
    Note,
    ServerDown,
    ServerGone,
    ServerReplaced,
    Terminate,
    WorkerGone,
)
from dlrover_lite.master.nodes.places import Places
from dlrover_lite.master.nodes.relaunch import POLICIES, delay_seconds, larger, memory_again, recent, with_another
from dlrover_lite.protocol.hosts import HostNodes
from tests.master.fleet_events import PLAN, ROOMY, Seen, begun, ends, exited, of, started


def test_all_nodes_of_the_plan_are_launched() -> None:
    fleet, instructions = Fleet(PLAN, ROOMY).begin(0.0)
    launched = [launch.node.id for launch in of(Launch, instructions)]
    assert launched == ["ps-0", "ps-1", "worker-0", "worker-1", "worker-2"]
    assert {node.resources for node in fleet.of("ps")} == {Resources(1.0, 100)}
    assert {node.resources for node in fleet.of("worker")} == {Resources(2.0, 200)}
    assert all(node.state == "launched" for node in fleet.by_id.values())


def test_servers_are_up_when_all_have_said_hello_in_any_order() -> None:
    fleet, _ = begun().hello("ps-0", "ipc://a", 1.0)
    assert not fleet.all_ps_up()
    fleet = fleet.observed(*started("ps-0"), 2.0)[0].observed(*started("ps-1"), 2.0)[0]
    assert fleet.by_id["ps-0"].state == "up"  # a report that comes late takes nothing back
    fleet, _ = fleet.hello("ps-1", "ipc://b", 3.0)
    assert fleet.all_ps_up()
    assert [node.endpoint for node in fleet.of("ps")] == ["ipc://a", "ipc://b"]
    assert fleet.hello("ps-7", "x", 4.0) == fleet.hello("stranger", "", 4.0) == (fleet, [])


def test_a_dead_worker_is_replaced_under_a_new_name() -> None:
    fleet, instructions = ends(begun(), "worker-1", "Unknown", detail="exit code 7")
    assert of(WorkerGone, instructions) == [WorkerGone("worker-1")]
    (launch,) = of(Launch, instructions)
    assert (launch.node.id, launch.node.resources) == ("worker-3", Resources(2.0, 200))
    assert fleet.by_id["worker-1"].state == "ended"
    texts = [note.text for note in of(Note, instructions)]
    assert "ended: Unknown: exit code 7" in texts
    assert "worker-3 takes its place" in texts
    assert ends(fleet, "worker-1") == (fleet, [])
    assert fleet.hello("worker-1", "late", 2.0) == (fleet, [])


def test_each_end_reason_has_a_budget_and_growing_delays() -> None:
    fleet, now, delays = begun(), 1.0, []
    for i in range(POLICIES["Unknown"].budget):
        fleet, instructions = ends(fleet, f"worker-{i}", "Unknown", now)
        assert not of(FailJob, instructions)
        if not of(Launch, instructions):
            (late,) = fleet.pending
            delays.append(late.due - now)
            assert fleet.tick(late.due - 0.01) == (fleet, [])
            now = late.due
            fleet, instructions = fleet.tick(now)
        assert len(of(Launch, instructions)) == 1
        assert len(fleet.staying) == 3
    assert delays == [0.5, 1.0]
    assert len(of(Launch, ends(fleet, "worker-4", "Killed", now)[1])) == 1  # another reason, another budget
    _, instructions = ends(fleet, "worker-3", "Unknown", now, "exit code 9")
    (failure,) = of(FailJob, instructions)
    assert "workers keep ending" in failure.message
    assert "exit code 9" in failure.message
    assert set(failure.nodes) == {"worker-1", "worker-2", "worker-3"}


def test_nodes_killed_by_request_are_replaced_without_a_budget() -> None:
    fleet = begun()
    for i in range(POLICIES["Killed"].budget + 3):
        node = f"worker-{i}"
        fleet, instructions = fleet.kill(node, 1.0)
        assert of(Terminate, instructions) == [Terminate(node, gently=False)]
        assert fleet.kill(node, 1.0) == (fleet, [])
        assert Terminate(node, gently=False) in fleet.restored(2.0)[1]
        fleet, instructions = ends(fleet, node, "Unknown", detail="exit code 9")
        assert len(of(Launch, instructions)) == 1 and not of(FailJob, instructions)
        assert "ended: Killed: by request" in [note.text for note in of(Note, instructions)]
    assert fleet.returns == {} and len(fleet.staying) == 3
    assert fleet.kill("worker-0", 1.0) == fleet.kill("stranger", 1.0) == (fleet, [])


def test_a_server_killed_by_request_gets_a_follower_with_its_memory() -> None:
    fleet, instructions = begun().kill("ps-1", 1.0)
    assert of(Terminate, instructions) == [Terminate("ps-1", gently=False, keep_memory=True)]
    _, instructions = ends(fleet, "ps-1")
    (launch,) = of(Launch, instructions)
    assert (launch.node.id, launch.node.follows) == ("ps-2", "ps-1")


def test_a_draining_worker_that_is_killed_is_not_replaced() -> None:
    fleet, _ = begun().drain("worker-1", 1.0)
    fleet, _ = fleet.kill("worker-1", 2.0)
    assert not of(Launch, ends(fleet, "worker-1")[1])


def test_a_user_error_is_not_retried() -> None:
    _, instructions = ends(begun(), "worker-0", "UserError")
    assert of(FailJob, instructions)
    assert not of(Launch, instructions)


@pytest.mark.parametrize("reason", ["Killed", "OOMKilled", "Preempted", "Unknown", "Succeeded", None])
def test_an_ended_server_with_slots_gets_a_follower(reason: str | None) -> None:
    fleet, instructions = ends(begun(), "ps-1", reason)
    kinds = [type(each) for each in instructions if not isinstance(each, Note)]
    assert kinds == [ServerDown, ServerReplaced, Launch]  # who owns what is known before anybody is launched
    assert of(ServerReplaced, instructions) == [ServerReplaced("ps-1", "ps-2")]
    (launch,) = of(Launch, instructions)
    memory = 150 if reason == "OOMKilled" else 100
    assert (launch.node.id, launch.node.follows, launch.node.resources) == ("ps-2", "ps-1", Resources(1.0, memory))
    told = [note.text for note in of(Note, instructions)]
    more = ", of which it may have 150 B instead of 100 B" if reason == "OOMKilled" else ""
    assert f"ps-2 takes its place with its memory{more}" in told
    assert ends(fleet, "ps-1", reason) == (fleet, [])


def test_follower_of_a_resized_server_has_room_for_its_rows() -> None:
    larger, _ = begun().resized("ps-1", Resources(3.0, 250))
    fleet, instructions = ends(larger, "ps-1")
    assert of(Launch, instructions)[0].node.resources == Resources(1.0, 250)
    assert fleet.planned("ps").each == Resources(1.0, 100)  # that was for this one alone
    smaller, _ = begun().resized("ps-1", Resources(1.0, 60))
    assert of(Launch, ends(smaller, "ps-1")[1])[0].node.resources == Resources(1.0, 100)


def test_a_follower_that_dies_is_followed_with_a_delay_and_in_the_end_not() -> None:
    fleet, now, follows = begun(), 1.0, "ps-1"
    for i in range(POLICIES["Unknown"].budget):
        fleet, instructions = ends(fleet, follows, "Unknown", now)
        assert of(ServerDown, instructions) == [ServerDown(follows)]
        if i:
            assert not of(ServerReplaced, instructions)  # nobody knows its name yet
            assert len(fleet.staying_of("ps")) == fleet.following() == 1
            now = fleet.pending[0].due
            fleet, instructions = fleet.tick(now)
        (replaced,) = of(ServerReplaced, instructions)
        assert replaced == ServerReplaced(follows, f"ps-{2 + i}")
        assert of(Launch, instructions)[0].node.follows == follows
        follows = replaced.new
    fleet, instructions = ends(fleet, follows, "Unknown", now)
    assert "parameter servers keep ending" in of(FailJob, instructions)[0].message
    assert not of(Launch, instructions)


def test_a_leaving_server_gets_followers_until_it_is_empty() -> None:
    fleet, _ = begun().scale_ps(1, 1.0, leaving=["ps-1"])
    fleet, instructions = fleet.observed(*exited("ps-1"), 2.0, leaving=["ps-1"])
    assert of(Launch, instructions)[0].node.follows == "ps-1"
    assert [node.id for node in fleet.staying_of("ps", ["ps-2"])] == ["ps-0"]
    fleet, _ = fleet.observed(*exited("ps-2"), 3.0, leaving=["ps-2"])
    (late,) = fleet.pending
    assert (late.follows, fleet.coming_back("ps", ["ps-2"])) == ("ps-2", [])
    again, instructions = fleet.scale_ps(2, 4.0, leaving=["ps-2"])
    assert again.pending == [late]
    assert [launch.node.follows for launch in of(Launch, instructions)] == [""]


def test_scaling_down_keeps_the_pending_follower() -> None:
    fleet, _ = ends(begun(), "ps-1")
    fleet, _ = ends(fleet, "ps-2")
    fleet, _ = fleet.scale_ps(1, 2.0)
    assert [late.follows for late in fleet.pending] == ["ps-2"]


def test_memory_of_a_server_without_a_follower_is_freed() -> None:
    _, instructions = begun().observed(*exited("ps-1"), 1.0, owns=False)
    assert of(Terminate, instructions) == [Terminate("ps-1", gently=False)]
    fleet, _ = begun().hello("ps-1", "", 1.0)
    fleet, instructions = fleet.give_up("ps-1", "stuck", "silent", 2.0)
    assert of(Terminate, instructions) == [Terminate("ps-1", gently=False, keep_memory=True)]
    assert Terminate("ps-1", gently=False, keep_memory=True) in fleet.restored(3.0)[1]
    _, instructions = ends(fleet, "ps-1")
    assert of(Launch, instructions)[0].node.follows == "ps-1"


@given(st.integers(1, 500), st.lists(st.integers(1, 500), min_size=1, max_size=5), st.integers(0, 3000))
def test_servers_that_begin_again_have_room_for_what_they_had(planned: int, had: list[int], beside: int) -> None:
    """Those before them fitted; so do these, with no less together, whatever they are planned with."""
    room = (sum(had) + beside) // len(had)
    each = memory_again(planned, had, room)
    assert each * len(had) <= sum(had) + beside + len(had), "rounded up"
    assert each * len(had) >= sum(had)
    assert each <= max(planned, *had)
    assert memory_again(planned, had, 10**9) == max(planned, *had)


def test_a_user_error_of_a_server_fails_the_job() -> None:
    _, instructions = ends(begun(), "ps-1", "UserError")
    (failure,) = of(FailJob, instructions)
    assert failure.nodes == ["ps-1"]
    assert "UserError) and its parameters are lost" in failure.message


def test_nodes_that_come_back_seldom_may_do_so_for_ever() -> None:
    fleet, now = begun(), 0.0
    for number in range(3, 20):
        now += 1300.0  # three an hour at most
        fleet, instructions = ends(fleet, f"worker-{number - 1}" if number > 3 else "worker-0", "Unknown", now)
        now += 30.0
        fleet, later = fleet.tick(now)
        assert [launch.node.id for launch in of(Launch, [*instructions, *later])] == [f"worker-{number}"]
    _, instructions = ends(fleet, "worker-19", "Unknown", now + 60.0)
    (failure,) = of(FailJob, instructions)
    assert "worker-19 was number 4 within an hour to end as Unknown" in failure.message


def test_a_server_without_slots_comes_back_like_a_worker() -> None:
    fleet, instructions = begun().observed(*exited("ps-1", "Unknown"), 1.0, owns=False)
    assert of(ServerGone, instructions) == [ServerGone("ps-1")]
    (launch,) = of(Launch, instructions)
    assert (launch.node.id, launch.node.role, launch.node.resources) == ("ps-2", "ps", Resources(1.0, 100))
    fleet, instructions = fleet.observed(*exited("ps-2", "Unknown"), 1.0, owns=False)
    assert not of(Launch, instructions)
    assert [note.text for note in of(Note, instructions)][-1] == "another parameter server takes its place in 0.5 s"
    assert ends(fleet, "worker-0", "Unknown")[0].returns == {
        "ps": {"Unknown": (1.0, 1.0)},
        "worker": {"Unknown": (1.0,)},
    }
    assert len(fleet.scale(5, 1.0)[0].pending) == 1  # it is no worker
    fleet, instructions = fleet.tick(2.0)
    assert [launch.node.id for launch in of(Launch, instructions)] == ["ps-3"]
    fleet, instructions = fleet.observed(*exited("ps-3", "OOMKilled"), 3.0, owns=False)
    assert of(Launch, instructions)[0].node.resources == Resources(1.0, 150)
    fleet, _ = fleet.observed(*exited("ps-4", "Unknown"), 3.0, owns=False)
    _, instructions = fleet.tick(9.0)[0].observed(*exited("ps-5", "Unknown"), 9.0, owns=False)
    assert "parameter servers keep ending" in of(FailJob, instructions)[0].message


def test_a_leaving_server_without_slots_does_not_come_back() -> None:
    for fleet, leaving in ((begun(), ["ps-1"]), (begun().drain("ps-1", 1.0)[0], [])):
        fleet, instructions = fleet.scale_ps(1, 1.0, leaving=["ps-1"])
        assert not of(Launch, instructions)
        fleet, instructions = fleet.observed(*exited("ps-1"), 2.0, owns=False, leaving=leaving)
        assert of(ServerGone, instructions)
        assert not of(Launch, instructions)
        assert len(fleet.staying_of("ps")) == fleet.plan.ps.count == 1


def test_scaling_servers_does_not_count_leaving_ones() -> None:
    fleet, instructions = begun().scale_ps(3, 1.0, leaving=["ps-0"])
    assert [launch.node.id for launch in of(Launch, instructions)] == ["ps-2", "ps-3"]
    for node in ("ps-0", "ps-1", "ps-2"):
        fleet, _ = fleet.hello(node, "", 2.0)
    assert not fleet.all_ps_up(["ps-0"])
    fleet, _ = fleet.hello("ps-3", "", 2.0)
    assert fleet.all_ps_up(["ps-0"])
    assert not fleet.all_ps_up()


def test_a_named_worker_is_drained() -> None:
    fleet, instructions = begun().drain("worker-1", 1.0, why="drained by request")
    assert of(Terminate, instructions) == [Terminate("worker-1", gently=True)]
    assert fleet.plan.worker.count == 2
    assert fleet.drain("worker-1", 1.0) == (fleet, [])
    fleet, instructions = fleet.drain("worker-0", 1.0, replace=True)
    assert [launch.node.id for launch in of(Launch, instructions)] == ["worker-3"]
    assert fleet.plan.worker.count == 2


def test_nodes_remember_the_host_that_they_are_wanted_on() -> None:
    fleet, instructions = begun().drain("worker-0", 1.0, replace=True, host="b")
    assert [launch.node.host for launch in of(Launch, instructions)] == ["b"]
    fleet, instructions = fleet.scale_ps(3, 1.0, host="c")
    assert [launch.node.host for launch in of(Launch, instructions)] == ["c"]
    again = msgspec.json.decode(msgspec.json.encode(fleet), type=Fleet)
    asked = of(Launch, again.restored(2.0)[1])
    assert {one.node.id: one.node.host for one in asked if one.node.host} == {"worker-3": "b", "ps-2": "c"}
    fleet, instructions = ends(fleet, "worker-3")
    assert [launch.node.host for launch in of(Launch, instructions)] == [""]


def test_fleets_of_the_version_before_are_read() -> None:
    """Their nodes were wanted on no host."""
    told = msgspec.to_builtins(begun())
    for node in told["by_id"].values():
        del node["host"]
    assert msgspec.convert(told, Fleet) == begun()


def test_ends_of_nodes_after_the_job_are_successes() -> None:
    fleet = begun().finished()
    for node in list(fleet.by_id):
        fleet, instructions = ends(fleet, node)
        assert not of(Launch, instructions)
        assert not of(FailJob, instructions)
        assert (fleet.by_id[node].reason, fleet.by_id[node].detail) == ("Succeeded", "")
    assert fleet.running == []


@pytest.mark.parametrize(("kind", "reason"), [("overdue", "StartupTimeout"), ("stuck", "Hung")])
def test_a_node_given_up_is_killed_and_ends_with_our_reason(kind: Any, reason: str) -> None:
    fleet = begun()
    if kind == "stuck":
        fleet, _ = fleet.hello("worker-1", "", 1.0)
    fleet, instructions = fleet.give_up("worker-1", kind, "nothing was heard", 2.0)
    assert of(Terminate, instructions) == [Terminate("worker-1", gently=False)]
    assert fleet.give_up("worker-1", kind, "again", 3.0) == (fleet, [])
    fleet, instructions = ends(fleet, "worker-1", "Killed", detail="killed on request")
    assert (fleet.by_id["worker-1"].reason, fleet.by_id["worker-1"].detail) == (reason, "nothing was heard")
    assert len(of(Launch, instructions)) == 1


def test_scaling_up_launches_and_down_drains_the_youngest() -> None:
    fleet, instructions = begun().scale(5, 1.0)
    assert [launch.node.id for launch in of(Launch, instructions)] == ["worker-3", "worker-4"]
    for node in ("worker-0", "worker-1", "worker-2", "worker-4"):
        fleet, _ = fleet.hello(node, "", 2.0)
    fleet, instructions = fleet.scale(2, 3.0)
    # the one that isn't up first, then from the youngest on
    assert of(Terminate, instructions) == [Terminate(f"worker-{i}", gently=True) for i in (3, 4, 2)]
    for node in ("worker-2", "worker-3", "worker-4"):
        fleet, instructions = ends(fleet, node, "Killed")
        assert not of(Launch, instructions)
        assert fleet.by_id[node].reason == "Succeeded"
    _, instructions = ends(fleet, "worker-0", "Killed")
    assert len(of(Launch, instructions)) == 1  # two are wanted


def test_scaling_down_needs_no_worker_that_would_only_come_back() -> None:
    fleet = begun()
    for i in (0, 3):  # the second one comes back later
        fleet, _ = ends(fleet, f"worker-{i}", "Killed")
    assert len(fleet.pending) == 1
    fleet, instructions = fleet.scale(2, 2.0)
    assert fleet.pending == [] or not of(Terminate, instructions)
    assert len(fleet.staying) + len(fleet.pending) == 2


def test_a_fleet_survives_as_text_and_goes_on() -> None:
    fleet, _ = begun().hello("worker-0", "", 1.0)
    fleet, _ = fleet.scale(2, 2.0)
    fleet, _ = fleet.give_up("worker-1", "overdue", "late", 3.0)
    again = msgspec.json.decode(msgspec.json.encode(fleet), type=Fleet)
    assert again == fleet
    restored, instructions = again.restored(50.0)
    assert [launch.node.id for launch in of(Launch, instructions)] == ["ps-0", "ps-1"]
    assert of(Terminate, instructions) == [Terminate("worker-1", gently=False), Terminate("worker-2", gently=True)]
    assert {node.since for node in restored.by_id.values()} == {50.0}


@given(st.lists(st.floats(-1e5, 1e5), max_size=20))
def test_returns_count_for_an_hour(times: list[float]) -> None:
    noted: tuple[float, ...] = ()
    for now in times:  # of another machine's clock, some of them
        before = recent(noted, now)
        noted = with_another(noted, now)
        assert recent(noted, now) == len(noted) == before + 1
        assert recent(noted, now + 3601.0) == 0, "also those of a clock that was ahead"


def test_delays_and_growth_are_bounded() -> None:
    policy = POLICIES["Preempted"]
    assert [delay_seconds(policy, before) for before in (0, 1, 2, 50)] == [0.0, 0.5, 1.0, policy.longest_delay_seconds]
    assert larger(Resources(1.0, 100), 1.5, 120) == Resources(1.0, 120)
    assert larger(Resources(1.0, 100), 1.5, 119) is None
    assert larger(Resources(1.0, 100), 1.0, 100) == Resources(1.0, 100)


NAMES = st.sampled_from(["ps-0", "ps-1", "ps-2", "ps-3", *(f"worker-{i}" for i in range(8)), "stranger"])
REASONS = st.sampled_from(["Killed", "Succeeded", "OOMKilled", "Unknown", "Preempted", None])
EVENTS = st.one_of(
    st.builds(started, NAMES),
    st.builds(exited, NAMES, REASONS),
    NAMES,
    st.integers(1, 6),
    st.floats(0.1, 40.0),
    st.tuples(NAMES, st.sampled_from(["overdue", "stuck"])),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(EVENTS, max_size=50))
def test_any_history_keeps_the_number_of_workers_or_says_why_not(history: list[Any]) -> None:
    fleet, now, failed = begun(), 1.0, False
    for thing in history:
        known = set(fleet.by_id)
        if isinstance(thing, Seen):
            fleet, instructions = fleet.observed(*thing, now)
        elif isinstance(thing, str):
            fleet, instructions = fleet.hello(thing, "", now)
        elif isinstance(thing, int):
            fleet, instructions = fleet.scale(thing, now)
        elif isinstance(thing, float):
            now += thing
            fleet, instructions = fleet.tick(now)
        else:
            fleet, instructions = fleet.give_up(thing[0], thing[1], "why", now)
        launched = [launch.node for launch in of(Launch, instructions)]
        assert all(node.id not in known and fleet.by_id[node.id] == node for node in launched)
        failed = failed or bool(of(FailJob, instructions))
        leaving = sum(node.state == "ending" for node in fleet.of("worker"))
        coming = len(fleet.coming_back("worker"))
        assert len(fleet.staying) + coming + leaving >= fleet.plan.worker.count - fleet.left or failed
        assert len(fleet.staying) + coming <= fleet.plan.worker.count
        servers = len(fleet.staying_of("ps")) + fleet.following() + sum(n.state == "ending" for n in fleet.of("ps"))
        assert servers == 2 or failed
        chains = [node.follows for node in fleet.by_id.values() if node.follows]
        assert len(chains) == len({*chains})
        assert all(fleet.by_id[followed].state == "ended" for followed in chains)
        assert all(
            recent(fleet.returns.get("worker", {}).get(reason, ()), now) <= policy.budget
            for reason, policy in POLICIES.items()
        )


def test_nodes_begin_where_they_are_placed() -> None:
    placement = (HostNodes("a", workers=1, servers=2), HostNodes("b", workers=1))
    _, instructions = Fleet(PLAN, ROOMY, placement=placement).begin(0.0)
    launched = {launch.node.id: launch.node.host for launch in of(Launch, instructions)}
    assert launched == {"ps-0": "a", "ps-1": "a", "worker-0": "a", "worker-1": "b", "worker-2": ""}


def test_newcomers_start_where_most_are_missing_and_those_leave_that_are_too_many() -> None:
    host_of = {"worker-0": "a", "worker-1": "b", "worker-2": "b"}
    fleet, instructions = begun().scale(5, 1.0, places=Places({"a": 2, "b": 2, "c": 1}, host_of))
    assert [launch.node.host for launch in of(Launch, instructions)] == ["a", "c"]
    fleet, instructions = fleet.scale(3, 2.0, places=Places({"a": 2, "c": 1}, host_of))
    assert {one.node for one in of(Terminate, instructions)} == {"worker-1", "worker-2"}
    fleet, instructions = begun().scale(2, 1.0)
    assert [one.node for one in of(Terminate, instructions)] == ["worker-2"], "the youngest, where no place is wanted"


def test_of_those_that_are_too_many_on_a_host_only_so_many_go_first() -> None:
    host_of = {"worker-0": "a", "worker-1": "b", "worker-2": "b"}
    _, instructions = begun().scale(1, 1.0, places=Places({"b": 1}, host_of))
    assert {one.node for one in of(Terminate, instructions)} == {"worker-0", "worker-2"}
