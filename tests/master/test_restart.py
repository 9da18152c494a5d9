"""A master that is killed, and another one that goes on."""

from __future__ import annotations

from typing import Any

import pytest

from dlrover_lite.core import slot_sets
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.protocol.messages import (
    Export,
    Exported,
    Finished,
    Lease,
    LeaseRequest,
    NodeFailed,
    PsOrders,
    PsReport,
    TopologyRequest,
)
from dlrover_lite.protocol.questions import MoveRequest, ScaleRequest, StatusRequest, StopRequest
from tests.master.rig import all_of, done


def test_a_restarted_master_goes_on_with_the_nodes_and_the_ledger(make: Any) -> None:
    rig = make(samples=400, epochs=2)
    rig.up("ps-0", "worker-0", "worker-1")
    lease = rig.lease("worker-0")
    rig.ask("worker-0", LeaseRequest("worker-0", want=False, **done(lease)))
    other = rig.lease("worker-1")
    before = rig.ask("cli", StatusRequest())
    rig.kill()
    rig.start()
    status = rig.ask("cli", StatusRequest())
    assert (status.samples, status.master_restarts) == (before.samples, 1)
    assert [(node.id, node.state) for node in status.nodes] == [(n, "up") for n in ("ps-0", "worker-0", "worker-1")]
    assert len(rig.backend.launched) == 3
    assert rig.ask("worker-1", TopologyRequest("worker-1")).ps == [("ps-0", "inproc://ps-0")]
    # the report about a lease of before is taken
    answer = rig.ask("worker-1", LeaseRequest("worker-1", holding=[], **done(other)))
    assert isinstance(answer, Lease)
    assert rig.ask("cli", StatusRequest()).samples == before.samples + 4 * (other.stop - other.start)


def test_a_lease_whose_answer_got_lost_is_leased_again(make: Any) -> None:
    rig = make(workers=1, samples=16, batch_size=4, export="none")
    rig.up("ps-0", "worker-0")
    lease = rig.lease("worker-0")
    rig.kill_before_the_answer("worker-0", LeaseRequest("worker-0", **done(lease)))
    rig.start()
    assert rig.ask("cli", StatusRequest()).samples == 4 * (lease.stop - lease.start)
    repeated = rig.ask("worker-0", LeaseRequest("worker-0", **done(lease)))  # as the worker would
    assert isinstance(repeated, Lease)
    assert repeated.start == lease.stop
    answer = rig.lease("worker-0", **done(repeated))
    while isinstance(answer, Lease):
        answer = rig.lease("worker-0", **done(answer))
    assert isinstance(answer, Finished)
    assert rig.ended().state == "succeeded"
    assert rig.master.shards.consumed_samples == 16


def test_a_lease_its_worker_still_holds_survives_a_restart(make: Any) -> None:
    rig = make(workers=1, samples=400)
    rig.up("ps-0", "worker-0")
    first = rig.lease("worker-0")
    second = rig.lease("worker-0")
    rig.kill()
    rig.start()
    third = rig.ask("worker-0", LeaseRequest("worker-0", holding=[second.token], **done(first)))
    assert third.start == second.stop


def test_nodes_that_ended_without_a_master_are_replaced(make: Any) -> None:
    rig = make(samples=400)
    rig.up("ps-0", "worker-0", "worker-1")
    lease = rig.lease("worker-1")
    rig.kill()
    rig.backend.ends("worker-1")
    rig.start()
    rig.up("worker-2")
    assert rig.lease("worker-2").start == lease.start


def test_evaluations_go_on_after_restarts_of_the_master(make: Any) -> None:
    rig = make(workers=1, eval_samples=40, epochs=1, evaluate_every=20)
    rig.up("ps-0", "worker-0")
    answer = rig.lease("worker-0")
    halves = []
    while not isinstance(answer, Export):
        if answer.kind == "eval" and rig.master.facts.restarts < 2:
            halves.append(answer)
            rig.ask("worker-0", LeaseRequest("worker-0", want=False, **done(answer)))
            rig.kill()
            rig.start()
            answer = rig.lease("worker-0")
        else:
            answer = rig.lease("worker-0", **done(answer))
    assert len(halves) == 2
    evaluations = rig.ask("cli", StatusRequest()).evaluations
    assert [(e.samples, e.auc) for e in evaluations] == [(40, 1.0)] * len(evaluations)
    assert evaluations[-1].at_samples == 40


def test_a_master_that_dies_at_the_end_of_the_job_still_ends_it(make: Any) -> None:
    rig = make(workers=2)
    rig.up("ps-0", "worker-0", "worker-1")
    assert isinstance(rig.work("worker-0", until=Export), Export)
    rig.kill()
    rig.start()
    assert rig.ask("cli", StatusRequest()).state == "exporting"
    assert isinstance(rig.lease("worker-1"), Finished)  # worker-0 is at it
    rig.kill_before_the_answer("worker-0", Exported("worker-0", 10, 1000))
    rig.start()
    assert rig.ended() == Outcome("succeeded")
    assert rig.master.exporting.exported == Exported("worker-0", 10, 1000)


def test_a_jobs_outcome_survives_a_restart(make: Any) -> None:
    rig = make(workers=1)
    rig.up("ps-0", "worker-0")
    rig.kill_before_the_answer("worker-0", NodeFailed("worker-0", False, "the disk is full", "Traceback"))
    rig.start()
    assert rig.ended().message == "worker-0: the disk is full"


def test_nodes_that_an_earlier_master_has_launched_end_with_a_job_that_is_to_stop(make: Any) -> None:
    """Found by seeds 401546 and 402246 of `make fuzz-sim`: the next master took them for nodes that it needn't launch."""
    rig = make(workers=1, samples=4000, checkpoint={"every_seconds": 3600.0})
    rig.up("ps-0", "worker-0")
    rig.lease("worker-0", **done(rig.lease("worker-0")))  # so that a last checkpoint is waited for
    rig.backend.awaited["worker-1"] = "pending: its machine hasn't been told yet"
    rig.ask("cli", ScaleRequest(workers=2))
    rig.backend.wait_for_launch("worker-1")
    rig.ask("cli", StopRequest("had enough"))
    restart(rig)
    rig.ask("cli", StopRequest(now=True))
    assert rig.ended().state == "stopped"
    assert sorted(rig.backend.terminated) == ["ps-0", "worker-0", "worker-1"]


PAIR = ("ps-0", "ps-1")
MOVED = slot_sets.of([5, 6])


def restart(rig: Any) -> None:
    rig.kill()
    rig.start()


def moving(rig: Any) -> PsOrders:
    """What both are told of a move under way."""
    rig.up(*PAIR, "worker-0")
    rig.ask("cli", MoveRequest(slot_sets.pack(MOVED), "ps-1"))
    orders = rig.report("ps-1")
    while not orders.moves:
        orders = rig.report("ps-1", orders=orders)
    return orders


def owners(rig: Any) -> dict[str, int]:
    return {node.id: node.slots for node in rig.ask("cli", StatusRequest()).nodes if node.slots}


def test_orders_are_the_same_after_a_restart_at_every_step_of_a_move(make: Any) -> None:
    rig = make(ps=2, workers=1, samples=400)
    copying = moving(rig)
    restart(rig)
    assert rig.report("ps-1", orders=copying) == copying
    assert rig.report("ps-0").moves == copying.moves
    committed = rig.report("ps-1", orders=copying, ready=[1])
    restart(rig)
    assert rig.report("ps-1", orders=copying, ready=[1]) == committed
    assert rig.ask("worker-0", TopologyRequest("worker-0")).version == committed.version
    assert owners(rig) == {"ps-0": 2046, "ps-1": 2050}
    rig.report("ps-1", orders=committed)
    restart(rig)  # one of them is tidy, and need not say so again
    assert [move.state for move in rig.ask("cli", StatusRequest()).moves] == ["committed"]
    rig.report("ps-0", orders=committed)
    restart(rig)
    assert rig.ask("cli", StatusRequest()).moves == []
    assert rig.report("ps-0", orders=committed).version == committed.version


def test_a_commit_whose_answer_got_lost_is_answered_the_same(make: Any) -> None:
    rig = make(ps=2, workers=1, samples=400)
    copying = moving(rig)
    rig.kill_before_the_answer("ps-1", PsReport("ps-1", 0, 0, 0, version=copying.version, ready=all_of(copying)))
    rig.start()
    again = rig.report("ps-1", orders=copying, ready=[1])
    assert (again.moves, again.version) == ([], copying.version + 1)
    assert slot_sets.unpack(again.owned)[MOVED].all()
    assert not slot_sets.unpack(rig.report("ps-0").owned)[MOVED].any()


def test_a_move_that_was_queued_is_begun_by_the_next_master(make: Any) -> None:
    rig = make(ps=2, workers=1, samples=400)
    rig.up(*PAIR, "worker-0")
    rig.kill_before_the_answer("cli", MoveRequest(slot_sets.pack(MOVED), "ps-1"))
    rig.start()
    rig.follow(*PAIR, until=lambda status: not status.moves)
    assert owners(rig) == {"ps-0": 2046, "ps-1": 2050}


@pytest.mark.parametrize("count", [1, 3])
def test_scaling_finishes_though_the_master_dies_again_and_again(make: Any, count: int) -> None:
    """At each state of nodes and moves that it comes to, and before it answers what it has just committed."""
    rig = make(ps=2, workers=1, samples=400)
    rig.up(*PAIR, "worker-0")
    rig.kill_before_the_answer("cli", ScaleRequest(ps=count))
    rig.start()
    servers = [*PAIR, "ps-2"][: max(2, count)]
    if count == 3:
        restart(rig)
        rig.up("ps-2")
    seen = set()

    def new(status: Any) -> bool:
        state = tuple((move.id, move.state) for move in status.moves), tuple(node.state for node in status.nodes)
        if state in seen:
            return False
        seen.add(state)
        return True

    def at_rest(status: Any) -> bool:
        return not status.moves and sum(bool(node.slots) for node in status.nodes) == count

    while not at_rest(rig.follow(*servers, until=lambda status: new(status) or at_rest(status))):
        restart(rig)
    assert len(seen) >= 3
    assert sum(owners(rig).values()) == 4096
    assert len(owners(rig)) == count
    assert len(rig.backend.launched) == 3 + (count == 3)


def test_a_server_that_died_without_a_master_is_replaced(make: Any) -> None:
    rig = make(ps=2, workers=1, samples=400)
    rig.up(*PAIR, "worker-0")
    rig.ask("cli", ScaleRequest(ps=3))
    rig.up("ps-2")
    rig.follow(*PAIR, "ps-2", finish=False, until=lambda status: bool(status.moves))
    rig.kill()
    rig.backend.ends("ps-2")
    rig.start()
    rig.up("ps-3")
    rig.follow(*PAIR, "ps-3", until=lambda status: not status.moves and len(owners(rig)) == 3)
    assert sorted(owners(rig)) == [*PAIR, "ps-3"]


@pytest.mark.parametrize("seen", [False, True])
def test_a_server_with_slots_that_died_without_a_master_is_followed(make: Any, seen: bool) -> None:
    """``seen``: the master before knew of its death, and had asked for another one."""
    rig = make(ps=2, workers=1, samples=400)
    copying = moving(rig)
    if seen:
        rig.backend.ends("ps-0")
        rig.backend.wait_for_launch("ps-2")
        rig.kill()
    else:
        rig.kill()
        rig.backend.ends("ps-0")
    rig.start()
    rig.up("ps-2")
    assert [(spec.id, spec.follows) for spec in rig.backend.launched if spec.role == "ps"] == [
        ("ps-0", ""),
        ("ps-1", ""),
        ("ps-2", "ps-0"),
    ]
    assert rig.report("ps-2").version > copying.version
    rig.follow("ps-1", "ps-2", until=lambda status: not status.moves)
    assert owners(rig) == {"ps-2": 2046, "ps-1": 2050}


@pytest.mark.parametrize("step", ["keep_slots", "keep_fleet", "launch"])
def test_a_server_is_followed_though_the_master_dies_meanwhile(make: Any, step: str) -> None:
    """Before each thing it does about it; what had been kept by then is found by the next one."""
    rig = make(ps=2, workers=1, samples=400)
    moving(rig)
    rig.kill_at(step)
    rig.backend.ends("ps-0")
    rig.join_killed()
    rig.start()
    rig.up("ps-2")
    rig.follow("ps-1", "ps-2", until=lambda status: not status.moves)
    assert owners(rig) == {"ps-2": 2046, "ps-1": 2050}
    assert [spec.follows for spec in rig.backend.launched] == ["", "", "", "ps-0"]
    assert rig.backend.let_go in ([], ["ps-0"])


def test_a_restarted_master_goes_on_waiting_for_a_follower(make: Any) -> None:
    rig = make(ps=2, workers=1, samples=400)
    rig.up(*PAIR, "worker-0")
    rig.backend.ends("ps-0")
    rig.up("ps-2")
    rig.backend.ends("ps-2")  # the second time it takes a moment
    while "ended (Killed)" not in [node.state for node in rig.ask("cli", StatusRequest()).nodes if node.id == "ps-2"]:
        pass
    restart(rig)
    rig.up("ps-3")
    assert rig.backend.launched[-1].follows == "ps-2"
    assert owners(rig) == {"ps-3": 2048, "ps-1": 2048}
