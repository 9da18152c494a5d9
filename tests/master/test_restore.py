"""Jobs that go on from a cut: the ledger that is made of one, and a master that goes back to one by itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dlrover_lite.checkpoint.layout import GroupShape
from dlrover_lite.checkpoint.manifest import Consumed, Manifest, configuration_of
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import CheckpointDamaged, JobError
from dlrover_lite.jobs.store import Beginning
from dlrover_lite.master.checkpoints.restore import MOST
from dlrover_lite.master.checkpoints.restored_ledger import (
    begun_anew,
    check_plan,
    facts_for,
    ledger_of,
    settings_of,
    write_ledger,
)
from dlrover_lite.master.slots import topology_requests
from dlrover_lite.master.slots.parameter_servers import consumed
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.progress import Evaluations, Progress
from dlrover_lite.master.work.shards import ShardPlan, ShardService
from dlrover_lite.protocol.messages import (
    Lease,
    LeaseRequest,
    NodeFailed,
    PsOrders,
    RestoreOrder,
    RestoreReport,
    Topology,
    TopologyRequest,
    TrainingSettings,
    Wait,
)
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.protocol.questions import RestoreStatus, StatusRequest, StopRequest, StoryRequest
from dlrover_lite.ps.snapshots.restore import configured
from dlrover_lite.recipe import schema
from dlrover_lite.recipe.schema import Optimizer
from tests.file_calls import recorded
from tests.master.rig import PATIENCE, Rig, done

RECIPE = schema.Recipe(version=1, name="cut", model=schema.Model(use="wide_deep"), data=schema.SyntheticData(samples=1))
SGD, ADAM, FTRL = Optimizer(use="sgd"), Optimizer(use="adam"), Optimizer(use="ftrl")
STATE_ANEW = [f"the optimizer's state of {what} begins anew" for what in ("embeddings", "dense parameters")]
COUNTS_ANEW = [f"counts of updates of {what} begin at 0" for what in ("embeddings", "dense parameters")]
CONFIGURATION = Configure(1, [TableSpec("a", 2, 0.0)], DenseSpec(0, 0), SGD, SGD)


def manifest_of(shards: ShardService, evaluations: Evaluations | None = None, **fields: Any) -> Manifest:
    progress = Progress(window_samples=1000, max_bad_share=0.0, began=0.0)
    facts = facts_for(RECIPE, shards, evaluations or Evaluations(), progress, now=7.0)
    noted: dict[str, Any] = {"job": "rig-1", "cut": 1, "at": 1e9, "map_version": 1, "facts": facts, "parts": []}
    noted |= {"configuration": configuration_of(CONFIGURATION), "groups": [GroupShape(2, 0)]}
    return Manifest(**{**noted, "consumed": Consumed(*consumed(shards)), "samples": shards.consumed_samples, **fields})


def write_cut(store: CheckpointStore, cut: int, manifest: Manifest) -> None:
    """Of no rows."""
    store.create()
    writer = store.begin(cut)
    with writer.part("rig-1", 0, np.ones(slot_sets.SLOTS, np.bool_), [GroupShape(2, 0)]) as part:
        entry = msgspec.structs.replace(part.finish(), clocks=[0])
    writer.commit(Manifest(**{**fields_of(manifest), "cut": cut, "parts": [entry]}))


def fields_of(manifest: Manifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in manifest.__struct_fields__}


def opened(path: Path, plan: ShardPlan) -> tuple[LedgerStore, ShardService]:
    store = LedgerStore(path)
    return store, ShardService(store, plan, wait_seconds=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_a_ledger_made_of_a_cut_repeats_only_unfinished_work(tmp_path: Path, seed: int) -> None:
    """Leases, failures and quarantine in any order; then what is done is done, and all else is done once more and once; what has failed in
    epochs under way, too."""
    chance = random.Random(seed)
    plan = ShardPlan(samples=chance.randrange(70, 90), batch_size=4, epochs=3, max_skipped_minibatches=99)
    store, shards = opened(tmp_path / "ledger.sqlite", plan)
    leases: list[tuple[str, Lease]] = []
    for step in range(chance.randrange(1, 60)):
        worker = f"worker-{chance.randrange(3)}"
        answer = shards.report_and_lease(worker, now=float(step)).work
        if isinstance(answer, Lease):
            leases.append((worker, answer))
        chance.shuffle(leases)
        if leases and chance.random() < 0.8:
            worker, lease = leases.pop()
            failed = (lease.start, "bad") if chance.random() < 0.2 else None
            ranges = [(lease.start + (failed is not None), lease.stop)]
            ranges = [one for one in ranges if one[0] < one[1]]
            shards.report_and_lease(worker, lease.token, ranges, failed, want=False, give_back=True, now=float(step))
    shards.commit()
    manifest = manifest_of(shards)
    tokens = shards.ledger.data().tokens_reserved
    made = tmp_path / "ledger-1.sqlite"
    with recorded() as calls:
        write_ledger(made, ledger_of(manifest, plan, tokens_reserved=tokens), {}, block_minibatches=0)
    calls.check_durable(made)
    assert made.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob("ledger-1.sqlite?*"))
    again_store, again = opened(tmp_path / "ledger-1.sqlite", plan)
    assert again.consumed_samples == shards.consumed_samples == manifest.samples
    through = [(of, failure) for of, failure in shards.quarantined() if of.index < manifest.consumed.below]
    assert again.ledger.failures() == through
    assert consumed(again) == consumed(shards)
    first = again.report_and_lease("worker-9", now=0.0).work
    assert not isinstance(first, Lease) or first.token >= tokens
    store.close()
    again_store.close()


def test_an_open_evaluation_is_begun_anew_and_finished_ones_stay(tmp_path: Path) -> None:
    plan = ShardPlan(samples=40, batch_size=4, epochs=2, eval_samples=8, evaluate_every=20)
    store, shards = opened(tmp_path / "ledger.sqlite", plan)
    evaluations = Evaluations()
    while True:
        lease = shards.report_and_lease("worker-0", now=0.0).work
        assert isinstance(lease, Lease)
        if lease.kind == "eval" and lease.index == 1:
            break  # the second round is under way
        shards.report_and_lease("worker-0", lease.token, [(lease.start, lease.stop)], want=False, now=0.0)
        of = next((of for of in shards.ledger.passes() if of.kind == "eval"), None)
        if of is not None and shards.ledger.finished(of) and not evaluations.results:
            evaluations.close(0, at_samples=shards.round_began_at(0))
    manifest = manifest_of(shards, evaluations)
    write_ledger(tmp_path / "ledger-1.sqlite", ledger_of(manifest, plan), {}, block_minibatches=0)
    again_store, again = opened(tmp_path / "ledger-1.sqlite", plan)
    known = Evaluations()
    (unfinished,) = again.restore_evaluations(known)
    assert [(one.at_samples, one.samples) for one in known.results] == [(evaluations.results[0].at_samples, 0)]
    assert unfinished.index == 1
    store.close()
    again_store.close()


def test_a_cut_taken_with_other_data_is_refused(tmp_path: Path) -> None:
    plan = ShardPlan(samples=40, batch_size=4, epochs=2)
    store, shards = opened(tmp_path / "ledger.sqlite", plan)
    manifest = manifest_of(shards)
    store.close()
    check_plan(manifest, ShardPlan(samples=40, batch_size=4, epochs=5, eval_samples=7))
    with pytest.raises(JobError, match="41 samples an epoch instead of 40"):
        check_plan(manifest, ShardPlan(samples=41, batch_size=4, epochs=2))
    later = Manifest(**{**fields_of(manifest), "consumed": Consumed(2, [])})
    with pytest.raises(JobError, match="epoch 1, and the recipe has 1 epochs"):
        check_plan(later, ShardPlan(samples=40, batch_size=4, epochs=1))
    with pytest.raises(CheckpointDamaged, match="its facts make no sense"):
        check_plan(Manifest(**{**fields_of(manifest), "facts": {"plan": 3}}), plan)


# --- a master ---------------------------------------------------------------------------------------------------------------------


def cut_now(rig: Rig, cut: int) -> None:
    """Of what its ledger says now; its master is between two turns, or the test is the only one who asks. Written when the master is done
    with what it does in the background: as it starts it removes half-written cuts."""
    store = CheckpointStore(str(rig.directory / "checkpoints"))
    generation = rig.master.facts.generation.number
    configuration = configuration_of(configured(CONFIGURATION, settings_of(rig.job.recipe)))
    fields = {"job": rig.job.id, "cut": cut, "generation": generation, "configuration": configuration}
    manifest = manifest_of(rig.master.shards, **fields)
    if rig.master.checkpoints is None:
        write_cut(store, cut, manifest)
        return
    rig.io.submit(lambda: write_cut(store, cut, manifest), lambda _: None)


def until_launched(rig: Rig, *nodes: str) -> None:
    for node in nodes:
        rig.backend.wait_for_launch(node)


def orders(rig: Rig, node: str, **fields: Any) -> PsOrders:
    """Once there is a map."""
    while not isinstance(found := rig.report(node, **fields), PsOrders) or not found.version:
        rig.passes()
    return found


def train(rig: Rig, worker: str, leases: int) -> None:
    for _ in range(leases):
        rig.ask(worker, LeaseRequest(worker, want=False, **done(rig.lease(worker))))


LOST = {
    "user_error": False,
    "message": "the parameters of ps-0 are lost: nothing of its memory is left",
    "because": "lost",
}


def test_servers_are_told_where_they_find_checkpoints_that_the_master_sees_elsewhere(make: Callable[..., Rig]) -> None:
    rig = make(ps=1, workers=1, samples=4000)
    rig.url_for_nodes = lambda url: f"dlrover-lite://master:7072{url}"
    rig.up("ps-0", "worker-0")
    train(rig, "worker-0", 2)
    cut_now(rig, 1)
    rig.ask("ps-0", NodeFailed("ps-0", **LOST))
    until_launched(rig, "ps-1")
    rig.up("ps-1")
    order = orders(rig, "ps-1").restore
    assert order is not None and order.url == f"dlrover-lite://master:7072{rig.directory / 'checkpoints'}"
    beginning = rig.job.beginning()
    assert beginning is not None and beginning.url == str(rig.directory / "checkpoints"), "as the master finds it"


def test_a_job_with_lost_parameters_goes_back_to_its_newest_cut(make: Callable[..., Rig]) -> None:
    rig = make(ps=2, workers=1, samples=4000)
    rig.up("ps-0", "ps-1", "worker-0")
    train(rig, "worker-0", 2)
    cut_now(rig, 1)
    at_cut = rig.ask("cli", StatusRequest()).samples
    train(rig, "worker-0", 3)
    held = rig.lease("worker-0")
    lost = (rig.ask("cli", StatusRequest()).samples - at_cut) // 4
    rig.ask("ps-1", NodeFailed("ps-1", **LOST))
    until_launched(rig, "ps-2", "ps-3", "worker-1")
    assert {"ps-0", "ps-1", "worker-0"} <= {*rig.backend.terminated, *rig.backend.let_go}
    rig.up("ps-2", "ps-3", "worker-1")
    status = rig.ask("cli", StatusRequest())
    told = f"went back to checkpoint 1 (the parameters of ps-0 are lost: nothing of its memory is left): {lost} minibatches are done again"
    assert (status.samples, status.generation, status.begun) == (at_cut, 1, told)
    assert status.master_restarts == 0
    order = RestoreOrder(str(rig.directory / "checkpoints"), 1, 1, training=settings_of(rig.recipe))
    assert orders(rig, "ps-2").restore == order
    # a report of a lease of before, sent by one that is no more
    rig.ask("worker-0", LeaseRequest("worker-0", want=False, **done(held)))
    assert rig.ask("cli", StatusRequest()).samples == at_cut
    waiting = rig.client("worker-1").send(TopologyRequest("worker-1"))
    assert orders(rig, "ps-2", restored=1).restore == order
    assert rig.client("worker-1").receive(0.05) is None
    assert orders(rig, "ps-3", restored=1).restore is None
    reply = rig.client("worker-1").receive(PATIENCE)
    assert reply is not None
    assert reply.sequence == waiting
    assert isinstance(reply.body, Topology)
    texts = [entry.text for entry in rig.ask("cli", StoryRequest("master")).entries]
    assert told in texts


def test_a_job_that_takes_no_cuts_fails_when_parameters_are_lost(make: Callable[..., Rig]) -> None:
    rig = make(workers=1)
    rig.up("ps-0", "worker-0")
    rig.ask("ps-0", NodeFailed("ps-0", **LOST))
    outcome = rig.ended()
    assert outcome.state == "failed"
    assert outcome.message == "ps-0: the parameters of ps-0 are lost: nothing of its memory is left"


def test_a_job_that_had_no_cut_yet_begins_again_at_its_start(make: Callable[..., Rig]) -> None:
    rig = make(ps=1, workers=1, samples=4000, checkpoint={"every_seconds": 3600.0, "keep": 5})
    rig.up("ps-0", "worker-0")
    train(rig, "worker-0", 3)
    held = rig.lease("worker-0")
    lost = rig.ask("cli", StatusRequest()).samples // 4
    rig.ask("ps-0", NodeFailed("ps-0", **LOST))
    until_launched(rig, "ps-1", "worker-1")
    rig.up("ps-1", "worker-1")
    status = rig.ask("cli", StatusRequest())
    told = f"went back to its start (the parameters of ps-0 are lost: nothing of its memory is left): {lost} minibatches are done again"
    assert (status.samples, status.generation, status.begun) == (0, 1, told)
    assert orders(rig, "ps-1").restore is None, "there is nothing to read"
    rig.ask("worker-0", LeaseRequest("worker-0", want=False, **done(held)))  # by one that is no more
    assert rig.ask("cli", StatusRequest()).samples == 0
    train(rig, "worker-1", 2)
    cut_now(rig, 1)
    rig.ask("ps-1", NodeFailed("ps-1", **LOST))
    rig.up("ps-2", "worker-2")
    assert rig.ask("cli", StatusRequest()).begun.startswith("went back to checkpoint 1 (")


def test_a_job_that_never_has_a_cut_begins_again_a_few_times_only(make: Callable[..., Rig]) -> None:
    rig = make(ps=1, workers=1, samples=4000, checkpoint={"every_seconds": 3600.0, "keep": 5})
    for time in range(MOST + 1):
        rig.up(f"ps-{time}", f"worker-{time}")
        rig.ask(f"ps-{time}", NodeFailed(f"ps-{time}", **LOST))
    outcome = rig.ended()
    assert outcome.state == "failed"
    assert f"The job has gone back {MOST} times and got no further: that is enough" in outcome.message


def test_a_job_that_gets_further_goes_back_as_often_as_it_must(make: Callable[..., Rig]) -> None:
    rig = make(ps=1, workers=1, samples=4000, checkpoint={"every_seconds": 3600.0, "keep": 5})
    for time in range(MOST + 3):
        rig.up(f"ps-{time}", f"worker-{time}")
        train(rig, f"worker-{time}", 1)
        cut_now(rig, time + 1)
        rig.ask(f"ps-{time}", NodeFailed(f"ps-{time}", **LOST))
    rig.up(f"ps-{MOST + 3}", f"worker-{MOST + 3}")
    status = rig.ask("cli", StatusRequest())
    assert (status.generation, status.begun.partition(" (")[0]) == (MOST + 3, f"went back to checkpoint {MOST + 3}")


def test_a_damaged_cut_is_passed_over_and_reported(make: Callable[..., Rig]) -> None:
    rig = make(workers=1, samples=4000)
    rig.up("ps-0", "worker-0")
    train(rig, "worker-0", 1)
    cut_now(rig, 1)
    train(rig, "worker-0", 2)
    cut_now(rig, 2)
    cut_now(rig, 3)
    next((rig.directory / "checkpoints" / "cut-00000003").glob("*.part")).unlink()
    rig.ask("ps-0", NodeFailed("ps-0", **LOST))
    rig.up("ps-1", "worker-1")
    assert "went back to checkpoint 2" in rig.ask("cli", StatusRequest()).begun
    why = "cut-00000002/ps-0.part is damaged: block 3 of 9: its checksum is another"
    rig.ask("ps-1", NodeFailed("ps-1", False, why, because="damaged"))
    rig.up("ps-2", "worker-2")
    status = rig.ask("cli", StatusRequest())
    assert (status.generation, status.begun.partition(" (")[0]) == (2, "went back to checkpoint 1")
    assert why in status.begun
    texts = [entry.text for entry in rig.ask("cli", StoryRequest("master")).entries]
    assert any(text.startswith("passed over checkpoint 3: ") and "is missing" in text for text in texts)
    # another loss: what was found damaged isn't tried again, nor what builds on it
    rig.ask("ps-2", NodeFailed("ps-2", **LOST))
    rig.up("ps-3", "worker-3")
    status = rig.ask("cli", StatusRequest())
    assert (status.generation, status.begun.partition(" (")[0]) == (3, "went back to checkpoint 1")
    rig.ask("ps-3", NodeFailed("ps-3", False, "cut-00000001/x is damaged", because="damaged"))
    outcome = rig.ended()
    assert (outcome.state, outcome.message) == (
        "failed",
        "ps-3: cut-00000001/x is damaged, and no checkpoint can be used",
    )


@pytest.mark.parametrize("dies", ["before its next checkpoint", "after it"])
def test_a_job_never_goes_back_to_abandoned_cuts(make: Callable[..., Rig], dies: str) -> None:
    """The job was stopped with cuts 1 to 3, and a person has let it go on from 1."""
    rig = make(workers=1, samples=4000, checkpoint={"every_seconds": 3600.0, "keep": 5})
    rig.up("ps-0", "worker-0")
    for cut in (1, 2, 3):
        train(rig, "worker-0", 1)
        cut_now(rig, cut)
    rig.kill()
    store = CheckpointStore(str(rig.checkpoints))
    rig.job.write_beginning(Beginning(1, store.url, 1, exactly=True).after(rig.job.beginning(), store.url, 0))
    rig.start()
    rig.up("ps-1", "worker-1")
    assert rig.ask("cli", StatusRequest()).samples == store.manifest(1).samples
    while (known := rig.ask("cli", StatusRequest()).checkpoints).newest is None:
        rig.passes()
    assert known.newest.number == 1
    if dies == "after it":
        cut_now(rig, 4)
    rig.ask("ps-1", NodeFailed("ps-1", **LOST))
    rig.up("ps-2", "worker-2")
    expected = 1 if dies == "before its next checkpoint" else 4
    status = rig.ask("cli", StatusRequest())
    assert (status.generation, status.begun.partition(" (")[0]) == (2, f"went back to checkpoint {expected}")
    texts = [entry.text for entry in rig.ask("cli", StoryRequest("master")).entries]
    abandoned = "passed over checkpoints 3, 2: abandoned, the job has gone on from an older one"
    assert (abandoned in texts) == (expected == 1)
    rig.ask("ps-2", NodeFailed("ps-2", **LOST))  # and once more
    rig.up("ps-3", "worker-3")
    assert rig.ask("cli", StatusRequest()).begun.startswith(f"went back to checkpoint {expected} (")
    assert [cut.number for cut in store.checkpoints(lineage=rig.master.facts.generation.lineage) if cut.abandoned] == [
        3,
        2,
    ]


def test_a_job_goes_back_to_cuts_only_so_often(make: Callable[..., Rig]) -> None:
    rig = make(workers=1)
    rig.up("ps-0", "worker-0")
    cut_now(rig, 1)
    for number in range(5):
        rig.ask(f"ps-{number}", NodeFailed(f"ps-{number}", **LOST))
        rig.up(f"ps-{number + 1}")
    rig.ask("ps-5", NodeFailed("ps-5", **LOST))
    assert rig.ended().message.endswith("The job has gone back 5 times and got no further: that is enough")


@pytest.mark.parametrize("moment", ["noted", "ended", "written"])
def test_a_master_that_dies_while_going_back_finishes_it_after_restart(
    make: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    from dlrover_lite.master.checkpoints import restore as generations
    from tests.master import rig as rigs

    rig = make(workers=1, samples=4000)
    rig.up("ps-0", "worker-0")
    cut_now(rig, 1)
    train(rig, "worker-0", 2)

    def dies(*_: Any, **__: Any) -> None:
        raise rigs._Killed

    if moment == "noted":
        monkeypatch.setattr(rig.master.reconciler, "end_all", dies)
    elif moment == "ended":
        monkeypatch.setattr(generations, "write_ledger", dies)
    else:
        monkeypatch.setattr(generations, "_forget_old", dies)
    rig.client("ps-0").send(NodeFailed("ps-0", **LOST))
    rig.join_killed()
    monkeypatch.undo()
    rig.start()
    rig.up("ps-1", "worker-1")
    status = rig.ask("cli", StatusRequest())
    assert (status.samples, status.generation) == (0, 1)
    assert orders(rig, "ps-1").restore is not None


def test_a_job_can_be_stopped_while_it_goes_back(make: Callable[..., Rig]) -> None:
    rig = make(workers=1, checkpoint={"every_seconds": 3600.0, "keep": 5})
    rig.up("ps-0", "worker-0")
    cut_now(rig, 1)
    rig.backend.is_slow_to_end = True
    rig.ask("ps-0", NodeFailed("ps-0", **LOST))
    rig.step_until(lambda: {"ps-0", "worker-0"} <= set(rig.backend.terminated))
    assert rig.ask("cli", StatusRequest()).message == "goes back to checkpoint 1"
    rig.ask("cli", StopRequest())
    for node in ("ps-0", "worker-0"):
        rig.backend.ends(node)
    outcome = rig.ended()
    assert (outcome.state, outcome.message) == ("stopped", "stopped by request")


def test_status_tells_how_far_a_restore_is(make: Callable[..., Rig]) -> None:
    rig = make(ps=2, workers=1, samples=4000)
    rig.up("ps-0", "ps-1", "worker-0")
    train(rig, "worker-0", 2)
    cut_now(rig, 7)
    rig.ask("ps-1", NodeFailed("ps-1", **LOST))
    until_launched(rig, "ps-2", "ps-3", "worker-1")
    rig.up("ps-2", "ps-3", "worker-1")
    orders(rig, "ps-2")
    before = rig.ask("cli", StatusRequest())
    assert before.message == "reading checkpoint 7"
    assert before.restoring == RestoreStatus(7, None, 0, 0, 0, 0)
    # of another generation: from before
    orders(rig, "ps-2", restoring=RestoreReport(0, 5, 5, 50, 50, 1.0))
    assert rig.ask("cli", StatusRequest()).restoring.rows == 0
    half, tenth = RestoreReport(1, 50, 100, 500, 1000, 2.0), RestoreReport(1, 20, 200, 200, 2000, 2.0)
    orders(rig, "ps-2", restoring=half)
    known = rig.ask("cli", StatusRequest()).restoring
    assert (known.rows, known.total_rows, known.seconds_left) == (50, 100, None), "nothing is known of the other one"
    orders(rig, "ps-3", restoring=tenth)
    status = rig.ask("cli", StatusRequest())
    known = status.restoring
    assert (known.rows, known.total_rows, known.bytes, known.total_bytes) == (70, 300, 700, 3000)
    assert (known.rows_per_second, known.bytes_per_second) == (35.0, 350.0)
    assert known.seconds_left == 18.0, "of the slower one"
    assert known.since is not None and known.since <= rig.master.wall_now() - 2.0
    assert status.message == f"reading checkpoint 7: {known.text}"
    assert known.text == "23%, 70 of 300 rows, 700 B of 2.93 KiB, 350 B/s, 0:18 left"
    orders(rig, "ps-2", restored=1)
    orders(rig, "ps-3", restored=1)
    over = rig.ask("cli", StatusRequest())
    assert over.restoring is None
    assert "checkpoint 7" not in over.message


def test_a_waiting_worker_is_told_that_a_checkpoint_is_read(
    make: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would give up otherwise, and tens of gigabytes take their time."""
    monkeypatch.setattr(topology_requests, "STILL_READING_SECONDS", 0.0)
    rig = make(ps=1, workers=1, samples=4000)
    rig.up("ps-0", "worker-0")
    train(rig, "worker-0", 1)
    cut_now(rig, 1)
    rig.ask("ps-0", NodeFailed("ps-0", **LOST))
    until_launched(rig, "ps-1", "worker-1")
    rig.up("ps-1", "worker-1")
    orders(rig, "ps-1")
    for _ in range(3):
        assert rig.ask("worker-1", TopologyRequest("worker-1")) == Wait(0.0)
    orders(rig, "ps-1", restored=1)
    assert isinstance(rig.ask("worker-1", TopologyRequest("worker-1")), Topology)


def test_restoring_goes_on_though_the_master_dies(make: Callable[..., Rig]) -> None:
    rig = make(ps=2, workers=1, samples=4000)
    rig.up("ps-0", "ps-1")
    cut_now(rig, 1)
    rig.ask("ps-0", NodeFailed("ps-0", **LOST))
    rig.up("ps-2", "ps-3", "worker-1")
    orders(rig, "ps-2", restored=1)
    rig.kill()
    rig.start()
    assert orders(rig, "ps-2", restored=1).restore is not None
    assert orders(rig, "ps-3", restored=1).restore is None
    rig.kill()
    rig.start()
    assert orders(rig, "ps-2").restore is None
    assert isinstance(rig.ask("worker-1", TopologyRequest("worker-1")), Topology)
    assert rig.ask("cli", StatusRequest()).master_restarts == 2


def test_a_new_job_begins_with_a_cut_of_another(make: Callable[..., Rig], tmp_path: Path) -> None:
    plan = ShardPlan(samples=4000, batch_size=4, epochs=1)
    store, shards = opened(tmp_path / "other.sqlite", plan)
    lease = shards.report_and_lease("worker-0", now=0.0).work
    assert isinstance(lease, Lease)
    shards.report_and_lease("worker-0", lease.token, [(lease.start, lease.stop)], want=False, now=0.0)
    cuts = CheckpointStore(str(tmp_path / "elsewhere"))
    alike = msgspec.structs.replace(CONFIGURATION, optimizer=Optimizer(), embedding_optimizer=Optimizer())
    write_cut(cuts, 4, manifest_of(shards, job="other-1"))
    write_cut(cuts, 5, manifest_of(shards, job="other-1", configuration=configuration_of(alike)))
    store.close()
    consumed_samples = 4 * lease.stop
    for only, cut, samples, counted, expected in (
        (False, 5, consumed_samples, False, []),
        (False, 5, consumed_samples, True, COUNTS_ANEW),
        (True, 5, 0, True, COUNTS_ANEW),
        (True, 4, 0, False, STATE_ANEW),
        (True, 4, 0, True, STATE_ANEW + COUNTS_ANEW),
    ):
        directory = tmp_path / f"job-{only}-{cut}-{counted}"
        directory.mkdir()
        beginning = Beginning(1, cuts.url, cut, only_parameters=only)
        rig = make(directory=directory, beginning=beginning, optimizer_state=counted, samples=4000)
        rig.up("ps-0", "worker-0")
        status = rig.ask("cli", StatusRequest())
        what = "the parameters of " if only else ""
        told, *anew = status.begun.split("; ")
        assert (status.samples, told) == (samples, f"begins with {what}checkpoint {cut} of other-1")
        assert anew == expected
        training = rig.job.recipe.training
        settings = TrainingSettings(training.seed, training.optimizer, training.optimizer, counted)
        assert orders(rig, "ps-0").restore == RestoreOrder(
            cuts.url, cut, 1, applied_minibatches=not only, training=settings
        )


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ({}, False),
        ({"counted": True}, True),
        ({"embedding_optimizer": ADAM, "optimizer": ADAM}, True),
        ({"embedding_optimizer": ADAM}, None),
        ({"counted": True, "embedding_optimizer": FTRL, "optimizer": FTRL}, False),
    ],
    ids=["of no counts", "of counts", "of Adam", "of Adam in part", "of another optimizer"],
)
def test_counts_of_updates_that_a_cut_does_not_have_begin_at_0(
    tmp_path: Path, before: dict[str, Any], kept: bool | None, counted: bool
) -> None:
    """``kept``: None: of embeddings only."""
    store, shards = opened(tmp_path / "ledger.sqlite", ShardPlan(samples=40, batch_size=4, epochs=1))
    then = msgspec.structs.replace(CONFIGURATION, **before)
    found = manifest_of(shards, configuration=configuration_of(then))
    store.close()
    settings = TrainingSettings(
        1,
        SGD if then.optimizer == FTRL else then.optimizer,
        SGD if then.optimizer == FTRL else then.embedding_optimizer,
        counted,
    )
    state = STATE_ANEW if then.optimizer == FTRL else []
    counts = {True: [], False: COUNTS_ANEW, None: COUNTS_ANEW[1:]}[kept]
    assert begun_anew(found, settings) == state + (counts if counted else [])


def test_a_cut_of_version_1_has_update_counts(tmp_path: Path) -> None:
    store, shards = opened(tmp_path / "ledger.sqlite", ShardPlan(samples=40, batch_size=4, epochs=1))
    configuration = configuration_of(CONFIGURATION)
    del configuration["counted"]
    found = manifest_of(shards, configuration=configuration)
    store.close()
    assert begun_anew(found, TrainingSettings(1, SGD, SGD, counted=True)) == []
