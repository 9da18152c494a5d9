"""A master that is killed, and another one that goes on."""

from __future__ import annotations

from typing import Any

from dlrover_lite.master.service import Outcome
from dlrover_lite.wire.messages import (
    Export,
    Exported,
    Finished,
    Lease,
    LeaseRequest,
    NodeFailed,
    StatusRequest,
    TopologyRequest,
)
from tests.master.rig import done


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


def test_a_lease_that_its_worker_still_works_on_stays_with_it(make: Any) -> None:
    rig = make(workers=1, samples=400)
    rig.up("ps-0", "worker-0")
    first = rig.lease("worker-0")
    second = rig.lease("worker-0")
    rig.kill()
    rig.start()
    third = rig.ask("worker-0", LeaseRequest("worker-0", holding=[second.token], **done(first)))
    assert third.start == second.stop


def test_nodes_that_ended_while_there_was_no_master(make: Any) -> None:
    rig = make(samples=400)
    rig.up("ps-0", "worker-0", "worker-1")
    lease = rig.lease("worker-1")
    rig.kill()
    rig.backend.ends("worker-1")
    rig.start()
    rig.up("worker-2")
    assert rig.lease("worker-2").start == lease.start


def test_evaluations_outlive_the_master(make: Any) -> None:
    rig = make(workers=1, eval_samples=40, epochs=1, evaluate_every=20)
    rig.up("ps-0", "worker-0")
    answer = rig.lease("worker-0")
    halves = []
    while not isinstance(answer, Export):
        if answer.kind == "eval" and rig.master.restarts < 2:
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


def test_a_master_that_dies_at_the_end_of_the_job(make: Any) -> None:
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
    assert rig.master.exported == Exported("worker-0", 10, 1000)


def test_an_outcome_is_not_forgotten(make: Any) -> None:
    rig = make(workers=1)
    rig.up("ps-0", "worker-0")
    rig.kill_before_the_answer("worker-0", NodeFailed("worker-0", False, "the disk is full", "Traceback"))
    rig.start()
    assert rig.ended().message == "worker-0: the disk is full"
