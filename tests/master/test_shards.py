"""The shard service: order of passes, evaluation rounds, tails, failures, deaths, restarts."""

from __future__ import annotations

import heapq
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.intervals import IntervalSet
from dlrover_lite.master.work.lease_size import LeasePolicy
from dlrover_lite.master.work.ledger import Consumed
from dlrover_lite.master.work.ledger_data import Pass
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.shards import ShardPlan, ShardService
from dlrover_lite.protocol.messages import Ack, Finished, Lease, Wait

ONE_AT_A_TIME = LeasePolicy(largest_minibatches=1)


@pytest.fixture
def store(tmp_path: Path):
    with LedgerStore(tmp_path / "ledger.sqlite") as store:
        yield store


def plan(minibatches: int = 10, epochs: int = 1, **options) -> ShardPlan:
    return ShardPlan(samples=minibatches * 4, batch_size=4, epochs=epochs, **options)


class Worker:
    """Asks for leases and reports them, at times of its own."""

    def __init__(self, service: ShardService, name: str) -> None:
        self.service, self.name, self.now = service, name, 0.0
        self.lease: Lease | None = None

    def ask(self, **report):
        self.now += 1.0
        token = self.lease.token if self.lease else None
        answer = self.service.report_and_lease(self.name, token, now=self.now, **report)
        self.lease = answer.work if isinstance(answer.work, Lease) else None
        return answer

    def finish(self):
        """Report the lease done and ask for the next."""
        return self.ask(consumed=[(self.lease.start, self.lease.stop)] if self.lease else [])

    def fail(self, error: str = "ValueError: no"):
        return self.ask(failed=(self.lease.start, error), give_back=True)


def name(work) -> str:
    return f"{work.kind} {work.index}:{work.start}-{work.stop}" if isinstance(work, Lease) else type(work).__name__


def test_no_worker_waits_between_epochs(store):
    service = ShardService(store, plan(2, epochs=2), policy=ONE_AT_A_TIME)
    a, b = Worker(service, "a"), Worker(service, "b")
    assert [name(w.ask().work) for w in (a, b)] == ["train 0:0-1", "train 0:1-2"]
    assert name(b.finish().work) == "train 1:0-1"
    assert service.epoch == 0
    assert name(b.finish().work) == "train 1:1-2"
    assert name(b.finish().work) == "Wait"
    assert name(a.finish().work) == "Finished"
    assert name(b.ask().work) == "Finished"
    assert service.finished
    assert service.failure is None
    assert service.consumed_samples == 16


def test_a_report_without_a_wish_is_acknowledged(store):
    service = ShardService(store, plan())
    worker = Worker(service, "a")
    lease = worker.ask().work
    answer = worker.ask(consumed=[(lease.start, lease.start + 1)], want=False)
    assert isinstance(answer.work, Ack)
    assert answer.consumed == Consumed(Pass("train", 0, 10), 1, True)


def test_the_last_minibatch_of_an_epoch_may_be_short(store):
    service = ShardService(store, ShardPlan(samples=9, batch_size=4, epochs=2))
    worker = Worker(service, "a")
    seen = []
    while not isinstance(worker.finish().work, Finished):
        seen.append(service.consumed_samples)
    assert service.consumed_samples == 18
    assert set(seen) <= {0, 4, 8, 9, 13, 17}


def test_evaluation_is_leased_first_when_due_and_once_more_at_the_end(store):
    service = ShardService(store, plan(5, eval_samples=8, evaluate_every=8), policy=ONE_AT_A_TIME)
    a, b = Worker(service, "a"), Worker(service, "b")
    got = [name(a.ask().work), name(a.finish().work), name(a.finish().work), name(b.ask().work), name(b.finish().work)]
    assert got == ["train 0:0-1", "train 0:1-2", "eval 0:0-1", "eval 0:1-2", "train 0:2-3"]
    # Round 1 is due at 16 samples, while round 0 is still under way: it opens behind it, and holds nobody up.
    assert [name(b.finish().work) for _ in range(2)] == ["train 0:3-4", "train 0:4-5"]
    assert [name(a.finish().work) for _ in range(3)] == ["eval 1:0-1", "eval 1:1-2", "Wait"]
    assert [name(b.finish().work) for _ in range(3)] == ["eval 2:0-1", "eval 2:1-2", "Finished"]
    assert [service.round_began_at(i) for i in range(3)] == [8, 16, 20]


def test_an_evaluation_due_with_the_last_sample_is_the_final_one(store):
    service = ShardService(store, plan(2, eval_samples=4, evaluate_every=8), policy=ONE_AT_A_TIME)
    worker = Worker(service, "a")
    assert [name(worker.finish().work) for _ in range(4)] == ["train 0:0-1", "train 0:1-2", "eval 0:0-1", "Finished"]


def test_a_dead_workers_rest_is_leased_again_and_it_gets_no_more_work(store):
    service = ShardService(store, plan(4), policy=LeasePolicy(first_minibatches=4))
    a, b = Worker(service, "a"), Worker(service, "b")
    lease = a.ask().work
    assert name(lease) == "train 0:0-2"
    a.service.report_and_lease("a", lease.token, [(0, 1)], want=False, now=1.0)
    service.worker_died("a")
    assert name(b.ask().work) == "train 0:1-2"
    late = a.ask(consumed=[(0, 2)])
    assert name(late.work) == "Finished"
    assert late.consumed == Consumed(Pass("train", 0, 4), 1, True)
    service.worker_joined("a")
    assert name(a.ask().work) == "train 0:2-3"


def test_a_worker_that_rejoins_has_lost_its_leases(store):
    service = ShardService(store, plan(4), policy=ONE_AT_A_TIME)
    assert name(Worker(service, "a").ask().work) == "train 0:0-1"
    service.worker_joined("a")
    assert name(Worker(service, "a").ask().work) == "train 0:0-1"


def test_service_knows_whether_an_evaluation_is_finished(store):
    service = ShardService(store, plan(2, eval_samples=8), policy=ONE_AT_A_TIME)
    worker = Worker(service, "a")
    seen = []
    while name(worker.finish().work) != "Finished":
        seen.append(service.has_evaluated)
    assert (len(seen), any(seen)) == (4, False) and service.has_evaluated
    service.commit()
    assert ShardService(store, service.plan).has_evaluated, "a restarted master doesn't know"


def test_without_evaluation_data_no_evaluation_is_waited_for(store):
    assert ShardService(store, plan(2), policy=ONE_AT_A_TIME).has_evaluated


def test_a_late_evaluation_report_does_not_count(store):
    service = ShardService(store, plan(1, eval_samples=4))
    a, b = Worker(service, "a"), Worker(service, "b")
    a.ask()
    assert name(a.finish().work) == "eval 0:0-1"
    service.worker_died("a")
    assert name(b.ask().work) == "eval 0:0-1"
    assert not a.finish().consumed.accepted
    assert b.finish().consumed == Consumed(Pass("eval", 0, 1), 1, True)


def test_a_failed_minibatch_waits_for_another_worker(store):
    service = ShardService(store, plan(2), policy=ONE_AT_A_TIME)
    a, b = Worker(service, "a"), Worker(service, "b")
    assert [name(w.ask().work) for w in (a, b)] == ["train 0:0-1", "train 0:1-2"]
    assert name(a.fail().work) == "Wait"
    assert name(b.finish().work) == "train 0:0-1"
    assert name(b.finish().work) == "Finished"
    assert service.failure is None


def test_a_minibatch_that_fails_twice_fails_the_job_at_once(store):
    service = ShardService(store, plan(976, epochs=2, eval_samples=8), policy=ONE_AT_A_TIME)
    worker = Worker(service, "a")
    assert name(worker.ask().work) == "train 0:0-1"
    assert name(worker.fail().work) == "train 0:0-1"
    assert service.failure is None
    answer = worker.fail("Traceback\nValueError: bad day")
    assert [failure.k for _, failure in service.quarantined()] == [0]
    assert name(answer.work) == "Finished"
    assert service.finished
    assert "minibatch 0 of epoch 0 failed twice" in str(service.failure)
    assert "ValueError: bad day" in str(service.failure)
    assert service.failure.hint
    service.commit()
    assert ShardService(store, service.plan).failure is not None, "a restarted master judges the same"


def test_all_workers_are_finished_once_too_much_was_skipped(store):
    service = ShardService(store, plan(3, epochs=2), policy=ONE_AT_A_TIME)
    a, b = Worker(service, "a"), Worker(service, "b")
    assert [name(w.ask().work) for w in (a, b)] == ["train 0:0-1", "train 0:1-2"]
    assert name(a.fail().work) == "train 0:2-3"
    assert name(b.finish().work) == "train 0:0-1"
    assert name(b.fail().work) == "Finished"
    assert name(a.finish().work) == "Finished"
    assert service.consumed_samples == 8  # what was under way counts, and is kept


@pytest.mark.parametrize(("allowed", "last_k"), [(0, 2), (1, 1)])
def test_minibatches_that_failed_the_job_are_not_consumed(store, allowed, last_k):
    """Parameter servers are told of the epochs before that nothing of them comes any more; of this one they aren't, though all of it is
    done or quarantined: a job that goes on from a checkpoint tries it again."""
    service = ShardService(store, plan(3, epochs=3, max_skipped_minibatches=allowed), policy=ONE_AT_A_TIME)
    worker = Worker(service, "a")
    work = worker.ask().work
    while isinstance(work, Lease):
        skipped = work.index < allowed and work.start == 0
        fails = skipped or (work.index == allowed and work.start == last_k)
        work = (worker.fail() if fails else worker.finish()).work
    assert service.failure is not None
    below, under_way = service.epochs_under_way()
    assert (below, [of.index for of in under_way]) == (allowed, [allowed])


def test_parameters_are_suspected_when_little_succeeds_after_a_failure(store):
    service = ShardService(store, plan(100, max_skipped_minibatches=50), policy=ONE_AT_A_TIME)
    a, b = Worker(service, "a"), Worker(service, "b")
    for worker in (a, b):
        worker.ask()
    for _ in range(5):
        a.finish()
    assert not service.suspects_parameters
    a.fail()
    assert service.suspects_parameters  # so far
    b.finish()
    assert not service.suspects_parameters  # single samples are at fault
    for _ in range(6):
        a.fail()
        b.fail()
    assert service.suspects_parameters
    service.commit()
    assert ShardService(store, service.plan).suspects_parameters, "a restarted master doesn't know"


def test_the_job_goes_on_with_skipped_minibatches_the_recipe_allows(store):
    service = ShardService(store, plan(2, epochs=2, max_skipped_minibatches=1), policy=ONE_AT_A_TIME)
    worker = Worker(service, "a")
    worker.ask()
    worker.fail()
    work = worker.fail().work
    while isinstance(work, Lease):
        work = worker.finish().work
    assert service.failure is None
    assert [(str(of), failure.k) for of, failure in service.quarantined()] == [("epoch 0", 0)]
    assert service.consumed_samples == 12


def test_three_different_failures_before_any_success_fail_the_job_at_once(store):
    service = ShardService(store, plan(10, max_skipped_minibatches=10), policy=ONE_AT_A_TIME)
    workers = [Worker(service, w) for w in "abc"]
    for worker in workers:
        worker.ask()
    assert [name(worker.ask(failed=(worker.lease.start, "TypeError: never works")).work) for worker in workers][
        -1
    ] == "Finished"
    assert "3 different minibatches failed before any succeeded" in str(service.failure)
    assert "TypeError: never works" in str(service.failure)


def test_a_restarted_service_goes_on_where_the_last_commit_was(tmp_path):
    path = tmp_path / "ledger.sqlite"
    job = plan(6, epochs=2, eval_samples=4, evaluate_every=16)
    done: dict[str, list[str]] = {}
    lease, turn = None, 0
    while True:
        with LedgerStore(path) as store:
            service = ShardService(store, job, policy=ONE_AT_A_TIME)
            consumed = [(lease.start, lease.stop)] if lease else []
            answer = service.report_and_lease("a", lease.token if lease else None, consumed, now=float(turn))
            samples = service.consumed_samples
            if turn % 3 < 2:  # else the master dies before it commits, and the worker asks again
                service.commit()
                if answer.consumed.newly:
                    done.setdefault(f"{lease.kind} {lease.index}", []).append(f"{lease.start}-{lease.stop}@{samples}")
                lease = answer.work
        turn += 1
        if isinstance(lease, Finished):
            break
    assert {of: [entry.split("@")[0] for entry in entries] for of, entries in done.items()} == {
        **{f"train {epoch}": [f"{k}-{k + 1}" for k in range(6)] for epoch in range(2)},
        **{f"eval {i}": ["0-1"] for i in range(3)},
    }
    assert [done[f"eval {i}"][0].split("@")[1] for i in range(3)] == ["16", "32", "48"]


def test_a_ledger_of_another_plan_is_refused(store):
    ShardService(store, plan(10))
    with pytest.raises(JobError, match="belongs to other data or another recipe"):
        ShardService(store, plan(11))


def simulate(service: ShardService, speeds: dict[str, float]) -> tuple[dict[str, float], list[tuple[str, int, int]]]:
    """Workers that do ``speeds`` minibatches/s, on a clock of their own. Returns when each was first told to wait or that all is
    done, and the leases (worker, index of pass, size)."""
    ready = [(0.0, i, worker, None) for i, worker in enumerate(speeds)]
    idle_at: dict[str, float] = {}
    leases: list[tuple[str, int, int]] = []
    turn = len(ready)
    while ready:
        now, _, worker, lease = heapq.heappop(ready)
        consumed = [(lease.start, lease.stop)] if lease else []
        work = service.report_and_lease(worker, lease.token if lease else None, consumed, now=now).work
        turn += 1
        if isinstance(work, Lease):
            assert worker not in idle_at
            leases.append((worker, work.index, work.stop - work.start))
            heapq.heappush(ready, (now + (work.stop - work.start) / speeds[worker], turn, worker, work))
        else:
            idle_at.setdefault(worker, now)
            if isinstance(work, Wait):
                heapq.heappush(ready, (now + work.seconds, turn, worker, None))
    return idle_at, leases


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(10, 100), min_size=1, max_size=8),
    st.integers(200, 5000),
    st.integers(1, 3),
    st.sampled_from([0, 16]),
)
def test_no_straggler_holds_the_tail(tmp_path_factory, speeds, minibatches, epochs, block):
    with LedgerStore(tmp_path_factory.mktemp("job") / "ledger.sqlite") as store:
        service = ShardService(store, plan(minibatches, epochs, block_minibatches=block))
        idle_at, leases = simulate(service, {f"worker-{i}": speed for i, speed in enumerate(speeds)})
        assert service.finished
        assert service.consumed_samples == epochs * minibatches * 4
    # Everyone is busy until the end, give or take a minibatch or two of the slowest.
    assert max(idle_at.values()) - min(idle_at.values()) <= 2.5 / min(speeds)
    # And the price is small: leases of two seconds (of half as much at worst where they rather end with a block), and a
    # logarithmic number of smaller ones at the end of each epoch.
    seconds = epochs * minibatches / sum(speeds)
    lease_seconds = 1 if block else 2
    assert len(leases) <= len(speeds) * (seconds / lease_seconds + epochs * (3 * minibatches.bit_length() + 6))


def test_a_slow_worker_gets_small_leases(store):
    service = ShardService(store, plan(20_000))
    _, leases = simulate(service, {"fast": 100.0, "slow": 10.0})
    sizes = {worker: [size for who, _, size in leases if who == worker] for worker in ("fast", "slow")}
    assert max(sizes["fast"]) == 200
    assert max(sizes["slow"]) == 20
    assert sizes["fast"][0] == sizes["slow"][0] == 2
    assert sizes["fast"][-1] == sizes["slow"][-1] == 1


def test_every_minibatch_of_every_epoch_is_leased_once(store):
    service = ShardService(store, plan(997, epochs=3, block_minibatches=16))
    seen = [IntervalSet() for _ in range(3)]
    workers = [Worker(service, f"worker-{i}") for i in range(3)]
    turn = 0
    while not service.finished:
        worker = workers[turn * 7 % 3]
        turn += 1
        work = worker.finish().work
        if isinstance(work, Lease):
            assert not seen[work.index].within(work.start, work.stop)
            seen[work.index].add(work.start, work.stop)
    assert [list(epoch) for epoch in seen] == [[(0, 997)]] * 3


def test_at_the_start_workers_join_one_by_one(store):
    service = ShardService(store, plan(400), policy=LeasePolicy(largest_minibatches=10), slow_start_minibatches=20)
    one, two, three = (Worker(service, name) for name in "abc")
    assert isinstance(one.ask().work, Lease)
    assert isinstance(two.ask().work, Wait)
    while service.ledger.done(Pass("train", 0, 400)).total < 20:
        one.finish()
        one.now -= 1.0  # a second job takes no time here
    assert isinstance(two.ask().work, Lease)
    assert isinstance(three.ask().work, Wait)
    while service.ledger.done(Pass("train", 0, 400)).total < 40:
        one.finish()
        one.now -= 1.0
    assert isinstance(three.ask().work, Lease)


def test_at_the_start_no_worker_waits_for_a_slow_or_dead_one(store):
    service = ShardService(store, plan(400), slow_start_minibatches=1_000)
    one, two = Worker(service, "a"), Worker(service, "b")
    one.ask()
    assert isinstance(two.ask().work, Wait)
    service.worker_died("a")
    assert isinstance(two.ask().work, Lease)
    three = Worker(service, "c")
    assert isinstance(three.ask().work, Wait)
    three.now += 60.0
    assert isinstance(three.ask().work, Lease)


def test_a_request_that_comes_again_to_another_master_keeps_no_lease(store, tmp_path: Path):
    """Found by seed 44 of `make fuzz-sim`: the master before has answered it, so its worker doesn't wait for an answer any more."""
    first = ShardService(store, plan(8), policy=LeasePolicy(largest_minibatches=2))
    held = first.report_and_lease("a", now=0.0).work
    first.commit()
    store.close()
    with LedgerStore(tmp_path / "ledger.sqlite") as again:
        service = ShardService(again, plan(8), policy=LeasePolicy(largest_minibatches=2))
        stale = service.report_and_lease("a", now=1.0).work  # the request that was answered with what it holds
        assert isinstance(held, Lease) and isinstance(stale, Lease)
        report = {"consumed": [(held.start, held.stop)], "holding": [held.token], "now": 2.0}
        following = service.report_and_lease("a", held.token, **report).work
        assert isinstance(following, Lease)
        assert service.ledger.tokens("a") == [following.token], "nobody knows of the other one"
        report = {"holding": [following.token], "want": False, "now": 3.0}
        assert service.report_and_lease("a", following.token, **report).work == Ack()
        assert service.ledger.tokens("a") == [following.token]


def test_what_a_worker_holds_no_more_is_to_do_again(store):
    """Found by seed 40865 of `make fuzz-sim`: a master that was killed had taken the report of it, and nothing of that was durable."""
    service = ShardService(store, plan(8), policy=LeasePolicy(first_minibatches=4))
    first = service.report_and_lease("a", now=0.0).work
    assert name(first) == "train 0:0-4"
    service.report_and_lease("a", first.token, [(0, 1)], want=False, holding=[first.token], now=1.0)
    assert service.ledger.tokens("a") == [first.token]
    # of minibatch 1 it has told another master
    following = service.report_and_lease("a", first.token, [(2, 4)], now=2.0).work
    assert name(following) == "train 0:1-2"
    assert service.ledger.tokens("a") == [following.token]
