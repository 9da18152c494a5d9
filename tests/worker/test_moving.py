"""Slots move, parameter servers come and go, messages get lost: every minibatch is applied once, and no worker waits for ever."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import DeadlineExceeded, JobError
from dlrover_lite.protocol.messages import Topology
from dlrover_lite.tables.layout import BLOCK, slots_of
from dlrover_lite.transport.connector import Connector
from dlrover_lite.worker.parameters.client import PsClient
from dlrover_lite.worker.parameters.dense import DensePlacement
from dlrover_lite.worker.parameters.requests import MinibatchKeys, PullTicket, PushTicket
from tests.worker.scripted import CONFIGURATION, DENSE, LAYOUT, SPECS, Key, PumpedClient, ScriptedJob, ScriptedPs

EVERYTHING = ~slot_sets.none()
HALF = np.arange(slot_sets.SLOTS) % 2 == 0


class Worker:
    """Pulls and pushes minibatches whose gradients are 1: a row's value is how often it was pushed, negated."""

    def __init__(self, job: ScriptedJob) -> None:
        self.job = job
        self.ps: PumpedClient = job.client()
        self.placement = DensePlacement(DENSE)
        self.read: deque[tuple[int, MinibatchKeys]] = deque()
        self.pulls: deque[tuple[int, PullTicket, list[Counter[Key]]]] = deque()
        """With k, and what had been applied when it was asked, by minibatch."""
        self.pushes: list[PushTicket] = []

    def configure(self) -> None:
        now = self.ps.map
        keys = self.placement.keys(now)
        values = self.placement.take(keys, np.zeros(4 * BLOCK, np.float32))
        self.ps.pumped = True
        self.ps.configure(CONFIGURATION, MinibatchKeys(now, [], keys), values)
        self.ps.pumped = False

    def keys(self, k: int) -> MinibatchKeys:
        now = self.ps.map
        ids = np.random.default_rng(k).integers(0, 12, (3, 8), np.uint64)
        return MinibatchKeys(now, LAYOUT.keys(ids, now.owners, now.parts), self.placement.keys(now))

    def pull(self, k: int, keys: MinibatchKeys) -> PullTicket:
        ticket = self.ps.pull(keys, unknown=bool(k % 2))
        self.pulls.append((k, ticket, [Counter(one) for one in self.job.applied.values()]))
        return ticket

    def push(self) -> PushTicket:
        """The oldest pull, which has arrived."""
        k, pull, before = self.pulls.popleft()
        check_values(pull, sum(before, Counter()), sum(self.job.applied.values(), Counter()))
        if k % 2:
            check_unknown(pull)
        ones = [np.ones((len(group.keys), group.dim), np.float32) for group in pull.groups]
        ticket = self.ps.push(0, k, 1.0, pull, ones)
        self.pushes.append(ticket)
        return ticket


def keys_of(ticket: PullTicket) -> Iterator[tuple[int, list[Key]]]:
    """The keys of each group, in order."""
    for g, (group, tables) in enumerate(zip(ticket.groups, SPECS, strict=True)):
        names = [
            table.name for counts in group.counts for table, n in zip(tables, counts, strict=True) for _ in range(n)
        ]
        yield g, [(g, name, key) for name, key in zip(names, group.keys.tolist(), strict=True)]


def check_values(ticket: PullTicket, before: Counter[Key], after: Counter[Key]) -> None:
    """Each row is one that was there at some moment between two."""
    for g, keys in keys_of(ticket):
        rows = ticket.rows(g)
        assert rows.shape == (len(keys), SPECS[g][0].dim)
        for key, row in zip(keys, rows, strict=True):
            assert (row == row[0]).all()
            assert before[key] <= -row[0] <= after[key], key


def check_unknown(ticket: PullTicket) -> None:
    """Keys whose rows are as they begin, and no others, are said to be unknown."""
    for g in range(len(ticket.keys.embedding)):
        assert ticket.unknown(g).tolist() == [row[0] == 0 for row in ticket.rows(g)]
        assert len(ticket.table_rows(g)) == len(SPECS[g])


def check_applied(job: ScriptedJob, workers: list[Worker]) -> None:
    """Each key of each minibatch pushed: once, and nothing else; and the rows are at their owners."""
    owner_of_row = {key: ps for ps in job.here.values() for key in ps.rows}
    for (_, k), applied in job.applied.items():
        ticket = PullTicket(workers[0].keys(k))
        assert applied == Counter(key for _, keys in keys_of(ticket) for key in keys)
    total = sum(job.applied.values(), Counter())
    for key, n in total.items():
        slot = slots_of(key[1], np.array([key[2]], np.uint64))[0]
        assert owner_of_row[key].name == job.owners[slot]
        assert (owner_of_row[key].rows[key] == -n).all()


@pytest.fixture
def job() -> Iterator[ScriptedJob]:
    job = ScriptedJob(2)
    yield job
    job.close()


@pytest.fixture
def worker(job: ScriptedJob) -> Worker:
    worker = Worker(job)
    worker.configure()
    return worker


def step(worker: Worker, k: int) -> PushTicket:
    worker.job.finish(worker.pull(k, worker.keys(k)))
    ticket = worker.push()
    worker.job.finish(ticket)
    return ticket


# --- one thing at a time ----------------------------------------------------------------------------------------------


def test_a_new_slot_map_is_fetched_as_soon_as_an_answer_tells_of_it(job: ScriptedJob, worker: Worker) -> None:
    keys = worker.keys(0)
    pull = worker.pull(0, keys)
    touched = slot_sets.none()
    for _, names in keys_of(pull):
        for _, table, key in names:
            touched[slots_of(table, np.array([key], np.uint64))] = True
    job.move(slot_sets.of(np.flatnonzero(~touched)[:5].tolist()), job.join())
    job.finish(pull)
    worker.ps.pumped = True
    for _ in range(10):
        worker.ps.wait()
    worker.ps.pumped = False
    assert worker.ps.map.version == 2
    job.finish(worker.push())
    assert [ps.asked["Push"] for ps in job.all] == [1, 1, 1]


def test_pull_and_push_follow_a_map_changed_since_the_keys_were_made(job: ScriptedJob, worker: Worker) -> None:
    keys = worker.keys(0)
    job.move(HALF, job.join())
    pull = worker.pull(0, keys)
    job.finish(pull)
    assert worker.ps.map.version == 2
    assert worker.ps.map.names == ("ps-0", "ps-1", "ps-2")
    job.finish(worker.push())
    assert job.topology_requests == 1  # the push of an older map's keys is cut by the newer one at once
    assert worker.pushes[0].staleness == 0
    check_applied(job, [worker])


def test_a_push_follows_a_slot_map_changed_since_its_pull(job: ScriptedJob, worker: Worker) -> None:
    job.finish(worker.pull(0, worker.keys(0)))
    job.move(EVERYTHING, job.all[0])
    job.finish(worker.push())
    assert job.all[1].pushes == 0
    assert worker.ps.map.names == ("ps-0",)
    check_applied(job, [worker])
    job.leave(job.all[1])
    step(worker, 1)
    check_applied(job, [worker])


def test_slots_of_a_server_that_left_silently_are_found(job: ScriptedJob, worker: Worker) -> None:
    """It has applied a push, its answer is lost, its slots move, and it ends."""
    job.finish(worker.pull(0, worker.keys(0)))
    ticket = worker.push()
    old = job.all[1]
    for request in old.received():
        old.answer(request, lose_reply=True)
    job.move(EVERYTHING, job.all[0])
    job.leave(old)
    job.now += 0.6
    worker.ps.wait()  # long for an answer: the map may have changed
    job.finish(ticket)
    check_applied(job, [worker])
    pull = worker.pull(1, worker.keys(1))
    job.finish(pull)
    assert len(pull.shares(0)) == 1


def test_other_servers_answer_while_the_slot_map_is_fetched(job: ScriptedJob, worker: Worker) -> None:
    job.move(HALF & (job.owners == "ps-1"), job.join())
    pull = worker.pull(0, worker.keys(0))
    for _ in range(5):
        job.answer_ps()  # the master says nothing
        worker.ps.wait()
    assert pull.missing == 1
    assert job.all[0].asked["Pull"] == job.all[1].asked["Pull"] == 1
    job.finish(pull)
    assert job.all[0].asked["Pull"] == 1
    assert job.all[1].asked["Pull"] == 2
    assert pull.versions == {"ps-0": 0}


def test_a_master_that_was_restarted_is_asked_again(job: ScriptedJob, worker: Worker) -> None:
    job.move(HALF, job.join())
    pull = worker.pull(0, worker.keys(0))
    job.answer_ps()
    worker.ps.wait()
    assert len(job.master.receive(0.0)) == 1  # and it dies
    job.now += 0.4
    worker.ps.wait()
    assert job.master.receive(0.0) == []
    job.now += 0.2
    worker.ps.wait()
    for request in job.master.receive(0.0):
        job.master.reply(request, Topology(0))  # not all PS have told it yet that they are up
    worker.ps.wait()
    assert pull.missing
    job.now += 0.6
    job.finish(pull)


def test_a_master_that_stays_silent_is_named_in_the_end(job: ScriptedJob, worker: Worker) -> None:
    job.move(EVERYTHING, job.join())
    worker.pull(0, worker.keys(0))
    with pytest.raises(DeadlineExceeded, match="the master gave no newer slot map"):
        for _ in range(1000):
            job.answer_ps()
            job.now += 1.0
            worker.ps.wait()


def test_a_master_that_refuses_is_named(job: ScriptedJob, worker: Worker) -> None:
    job.move(EVERYTHING, job.join())
    worker.pull(0, worker.keys(0))
    job.answer_ps()
    worker.ps.wait()
    for request in job.master.receive(0.0):
        job.master.fail(request, "refused", "no such node")
    with pytest.raises(JobError, match="the master gives no slot map: no such node"):
        worker.ps.wait()


def test_a_target_that_does_not_own_its_slots_yet_is_asked_again(job: ScriptedJob, worker: Worker) -> None:
    job.finish(worker.pull(0, worker.keys(0)))
    target = job.join()
    job.move(EVERYTHING, target, heard=False)
    ticket = worker.push()
    for _ in range(4):
        job.answer_all()
        worker.ps.wait()
    assert target.asked["Push"] == 2  # both pieces
    for _ in range(9):
        job.now += 0.001
        job.answer_all()
        worker.ps.wait()
    assert target.asked["Push"] == 4
    assert job.topology_requests == 1
    target.hear()
    job.finish(ticket)
    check_applied(job, [worker])


def test_a_full_queue_turns_away_what_comes_again(job: ScriptedJob, worker: Worker) -> None:
    job.finish(worker.pull(0, worker.keys(0)))
    job.all[0].full = True
    ticket = worker.push()
    for _ in range(20):
        job.answer_all()
        job.now += 0.001
        worker.ps.wait()
    assert ticket.missing == 1
    assert job.topology_requests == 0
    job.all[0].full = False
    job.finish(ticket)
    check_applied(job, [worker])
    job.all[0].full = True
    job.finish(worker.pull(1, worker.keys(1)))
    worker.push()
    with pytest.raises(DeadlineExceeded, match="ps-0 did not answer Push"):
        for _ in range(300):
            job.answer_all()
            job.now += 2.5
            worker.ps.wait()


@pytest.mark.timeout(100)
def test_wait_wakes_for_what_is_to_be_sent_again(
    job: ScriptedJob, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlrover_lite.worker.parameters.client.CHECK_SECONDS", 600.0)
    # on a real clock: who sleeps longer is stopped by the mark
    ps = PsClient(
        job.topology(), node="w", master_endpoint=job.master.endpoint, connector=Connector(context=job.context)
    )
    ps.pull(worker.keys(0))
    for one in job.all:
        one.owned = slot_sets.none()  # it has yet to hear of its slots
    while any(one.asked["Pull"] < 3 for one in job.all):
        job.answer_ps()
        ps.wait(600.0)
    ps.close()


def test_pushes_held_back_by_a_freeze_reach_the_new_owner(job: ScriptedJob, worker: Worker) -> None:
    job.finish(worker.pull(0, worker.keys(0)), worker.pull(1, worker.keys(1)))
    source = job.all[0]
    source.frozen = HALF
    first = worker.push()
    for _ in range(5):
        job.answer_all()
        worker.ps.wait()
    assert len(source.held) == 1
    second = worker.push()
    job.answer_all()
    job.move(HALF, job.all[1])
    job.finish(first, second)
    check_applied(job, [worker])


def test_a_worker_with_an_old_slot_map_configures_the_present_owners(job: ScriptedJob) -> None:
    first, late = Worker(job), Worker(job)
    first.configure()
    step(first, 0)
    job.move(HALF, job.join())
    late.configure()
    assert late.ps.map.version == 2
    step(late, 1)
    check_applied(job, [late])  # blocks that were there have kept their values


def test_the_first_configuration_follows_a_changed_slot_map(job: ScriptedJob) -> None:
    worker = Worker(job)
    job.move(HALF, job.join())
    worker.configure()
    found = [key for ps in job.here.values() for key in ps.rows]
    assert sorted(found) == [*((2, "dense parameters", b) for b in range(3)), (3, "dense buffers", 0)]
    step(worker, 0)
    check_applied(job, [worker])


def test_refresh_learns_the_present_slot_map(job: ScriptedJob, worker: Worker) -> None:
    worker.ps.pumped = True
    job.move(HALF, job.join())
    worker.ps.refresh()
    assert worker.ps.map.version == 2
    worker.ps.refresh()
    assert worker.ps.map.version == 2
    assert job.topology_requests == 2


def test_a_scan_of_slots_that_move_is_an_error(job: ScriptedJob, worker: Worker) -> None:
    worker.ps.pumped = True
    members = worker.ps.map.members(0)
    job.move(HALF, job.join())
    job.move(~HALF, job.all[1])
    job.leave(job.all[0])
    worker.ps.seconds_a_wait = 0.1
    for _ in range(2):  # while it is asked, and when it is known
        with pytest.raises(JobError, match="slots have moved while the model was written"):
            worker.ps.scan(members, 0, 0, 10)


def test_a_scan_goes_on_with_a_follower(job: ScriptedJob, worker: Worker) -> None:
    step(worker, 0)
    worker.ps.pumped = True
    members = worker.ps.map.members(0)
    whole = worker.ps.scan(members, 0, 0, 100)[0].ids.tolist()
    assert len(whole) > 4
    first, next_start = worker.ps.scan(members, 0, 0, 4)
    job.follow(job.all[0])
    worker.ps.seconds_a_wait = 0.1
    assert next_start is not None
    rest, _ = worker.ps.scan(members, 0, next_start, 100)
    assert first.ids.tolist() + rest.ids.tolist() == whole


def test_the_follower_of_a_dead_server_is_found_without_delay(job: ScriptedJob, worker: Worker) -> None:
    """It had applied a push, and its answer was lost with it; another push it never saw."""
    for k in range(2):
        job.finish(worker.pull(k, worker.keys(k)))
    pushes = [worker.push(), worker.push()]
    dead = job.all[0]
    dead.answer(dead.received()[0], lose_reply=True)
    follower = job.follow(dead)
    before = job.now
    job.finish(*pushes)
    assert job.now - before < 0.3
    assert follower.asked["Push"] == 2
    assert worker.ps.map.names == (follower.name, "ps-1")
    check_applied(job, [worker])


def test_patience_begins_anew_with_each_follower(job: ScriptedJob, worker: Worker) -> None:
    """None of them answers for long before it dies, too: the worker waits as long for the next."""
    ticket = worker.pull(0, worker.keys(0))
    for _ in range(5):
        job.now += 100.0
        worker.ps.wait()
        for ps in list(job.here.values()):
            ps.received()
            job.follow(ps)
        job.answer_master()
        worker.ps.wait()
    job.finish(ticket)


# --- anything at any moment -------------------------------------------------------------------------------------------

ACTIONS = [
    *["read", "read", "pull", "pull", "push", "answer", "answer", "wait", "wait", "wait"],
    *["lose requests", "lose replies", "master", "lose master", "move", "move unheard", "hear"],
    *["freeze", "thaw", "full", "join", "leave", "die", "later", "much later"],
]


def act(job: ScriptedJob, workers: list[Worker], action: str, number: int) -> None:
    worker = workers[number % 2]
    ps: ScriptedPs = list(job.here.values())[number // 2 % len(job.here)]
    some = np.random.default_rng(number).random(slot_sets.SLOTS) < (number % 5) / 4
    match action:
        case "read" if len(worker.read) < 3:
            worker.read.append((number % 7, worker.keys(number % 7)))
        case "pull" if worker.read:
            worker.pull(*worker.read.popleft())
        case "push" if worker.pulls and not worker.pulls[0][1].missing:
            worker.push()
        case "answer" | "lose requests" | "lose replies":
            for request in ps.received():
                if action != "lose requests":
                    ps.answer(request, lose_reply=action == "lose replies")
        case "wait":
            worker.ps.wait()
        case "master":
            job.answer_master()
        case "lose master":
            job.master.receive(0.0)
        case "move" | "move unheard":
            if some.any():
                job.move(some, ps, heard=action == "move")
        case "hear":
            ps.hear()
        case "freeze":
            ps.frozen = some
        case "thaw":
            ps.thaw()
        case "full":
            ps.full = not ps.full
        case "join" if len(job.here) < 4:
            job.join()
        case "leave" if len(job.here) > 1:
            job.move(job.owners == ps.name, next(other for other in job.here.values() if other is not ps))
            job.leave(ps)
        case "die":
            job.follow(ps)
        case "later":
            job.now += 0.006
        case "much later":
            job.now += (0.6, 2.1)[number % 2]  # at most 105 s in all: no deadline


def settle(job: ScriptedJob, workers: list[Worker]) -> None:
    """Nobody is disturbed any more: everything that was begun gets done."""
    for ps in job.here.values():
        ps.hear()
        ps.full = False
        ps.thaw()
    for worker in workers:
        while worker.read:
            worker.pull(*worker.read.popleft())
    job.now += 3.0
    job.finish(*(pull for worker in workers for _, pull, _ in worker.pulls))
    for worker in workers:
        while worker.pulls:
            worker.push()
    job.finish(*(push for worker in workers for push in worker.pushes))


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 4),
    script=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2**16)), min_size=20, max_size=50),
)
def test_any_history_of_moves_and_deaths_applies_each_minibatch_once(count: int, script: list[tuple[str, int]]) -> None:
    job = ScriptedJob(count)
    try:
        workers = [Worker(job), Worker(job)]
        for worker in workers:
            worker.configure()
        for action, number in script:
            act(job, workers, action, number)
        settle(job, workers)
        assert {(ticket.epoch, ticket.k) for worker in workers for ticket in worker.pushes} == set(job.applied)
        check_applied(job, workers)
    finally:
        job.close()
