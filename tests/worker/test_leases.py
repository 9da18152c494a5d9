"""The worker's lease book against a master that follows a script, over a real socket."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from dlrover_lite.core.errors import DeadlineExceeded, JobError
from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.protocol.messages import Ack, Export, Finished, Lease, LeaseRequest, MasterRequests, UnknownIds, Wait
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import LATER, Request
from dlrover_lite.transport.server import Server
from dlrover_lite.worker.leases import HeldLease, LeaseBook

PATIENCE = 20.0
_names = itertools.count()


class Script:
    """The master's side and the book's clock. ``asked`` takes the book's next request, ``says`` answers it."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.endpoint = f"inproc://master-{next(_names)}"
        self.server = Server(self.endpoint, MasterRequests, context=context, remember_replies=True)
        self.now = 0.0
        self.book = LeaseBook("worker-0", self.endpoint, connector=Connector(context=context), clock=lambda: self.now)
        self.request: Request | None = None

    def asked(self) -> LeaseRequest:
        (self.request,) = self.server.receive(PATIENCE)
        assert isinstance(self.request.body, LeaseRequest)
        return self.request.body

    def silent(self) -> bool:
        return self.server.receive(0.02) == []

    def says(self, body: Any) -> None:
        assert self.request is not None
        self.server.reply(self.request, body)
        self.book.pump(timeout_seconds=PATIENCE)

    def take(self) -> tuple[HeldLease, int]:
        found = self.book.next()
        assert found is not None
        return found

    def begin(self, lease: Lease) -> None:
        assert self.book.next() is None
        assert self.asked() == LeaseRequest("worker-0")
        self.says(lease)


@pytest.fixture
def script() -> Iterator[Script]:
    context: zmq.Context[Any] = zmq.Context()
    script = Script(context)
    yield script
    script.book.close()
    script.server.close()
    context.destroy(linger=0)


def train(token: int, start: int, stop: int) -> Lease:
    return Lease(token, "train", 0, start, stop)


def test_ahead_the_next_lease_is_asked_for_when_a_quarter_is_left_and_begins_after_this_one(script: Script) -> None:
    script.book.asks_ahead = True
    script.begin(train(1, 0, 8))
    taken = [script.take()[1] for _ in range(5)]
    assert script.silent() and script.book.following is None
    taken.append(script.take()[1])
    script.book.pump()
    assert script.asked().want
    script.says(train(2, 20, 28))
    following = script.book.following
    assert following is not None and following.lease.token == 2
    taken += [script.take()[1] for _ in range(3)]
    assert taken == [0, 1, 2, 3, 4, 5, 6, 7, 20]
    assert script.book.following is None
    assert script.silent()  # nothing is asked while this lease has more than its quarter


def test_the_next_lease_is_asked_for_when_the_last_minibatch_is_handed_out(script: Script) -> None:
    script.begin(train(1, 0, 3))
    ks = []
    for _ in range(2):
        held, k = script.take()
        ks.append(k)
        held.consumed(k)
    assert script.silent()
    held, k = script.take()
    request = script.asked()
    assert request.want
    assert (request.token, request.consumed) == (1, [(0, 2)])  # what is known to be consumed goes with it
    assert script.book.next() is None  # the answer is on its way
    script.says(train(2, 7, 8))
    held.consumed(k)
    assert script.take()[1] == 7
    request = script.asked()  # sent before 7 was handed out: there was nothing to want yet
    assert (request.token, request.consumed, request.want) == (1, [(2, 3)], False)
    script.says(Ack())
    assert script.asked() == LeaseRequest("worker-0", holding=[2])
    assert [*ks, k] == [0, 1, 2]


def test_progress_is_reported_now_and_then(script: Script) -> None:
    script.begin(train(1, 0, 1000))
    for expected, longest in (([(0, 2)], 0.5), ([(2, 4)], 0.25)):
        for _ in range(2):
            held, k = script.take()
            held.work.stepped(longest)
            held.work.add_scores(np.array([0.5], np.float32), np.array([1.0], np.float32))
            held.consumed(k)
        assert script.silent()
        script.now += 1.0
        script.book.pump()
        request = script.asked()
        assert (request.consumed, request.want) == (expected, False)
        assert request.report is not None
        assert (request.report.samples, request.report.minibatches) == (2, 2)
        assert request.report.longest_step_seconds == longest
        script.says(Ack())


def test_metrics_and_bad_lines_are_told(script: Script) -> None:
    script.begin(train(1, 0, 1))
    held, k = script.take()
    script.asked()
    logits, labels = np.array([2.0, -1.0, 0.0], np.float32), np.array([1, 0, 1], np.float32)
    held.work.add_scores(logits, labels)
    held.work.add_bad([f"a.csv:{i}: bad" for i in range(9)])
    held.work.add_seconds("read", 0.5)
    held.work.add_seconds("read", 0.25)
    held.work.staleness[3] = 2
    for seconds in (0.01, 0.25, 0.02):
        held.work.stepped(seconds)
    held.consumed(k)
    script.says(Wait(0.0))
    report = script.asked().report
    assert report is not None
    assert (report.samples, report.bad_lines, len(report.bad_examples)) == (3, 9, 5)
    assert (report.seconds, report.staleness) == ({"read": 0.75}, {3: 2})
    assert report.longest_step_seconds == 0.25
    metrics, expected = BinaryMetrics.from_bytes(report.metrics), BinaryMetrics()
    expected.add(logits, labels)
    assert (metrics.auc, metrics.log_loss) == (expected.auc, expected.log_loss)


def test_a_waiting_worker_asks_again_when_told_and_not_before(script: Script) -> None:
    assert script.book.next() is None
    script.asked()
    script.says(Wait(5.0))
    assert script.book.next() is None
    assert script.book.ask_again_in == pytest.approx(5.0)
    script.book.idle(0.01)  # nothing may be asked: it only waits
    assert script.silent()
    script.now += 5.0
    assert script.book.ask_again_in == 0.0
    assert script.book.next() is None
    assert script.asked() == LeaseRequest("worker-0")
    script.says(train(4, 2, 3))
    assert script.take()[1] == 2


def test_no_work_is_asked_for_after_finished(script: Script) -> None:
    script.begin(train(1, 0, 1))
    held, k = script.take()
    script.asked()
    held.consumed(k)
    script.says(Wait(0.0))
    script.asked()
    script.says(Finished())
    assert script.book.finished
    assert script.book.next() is None
    assert script.silent()


def test_the_export_is_a_task_like_a_lease(script: Script) -> None:
    assert script.book.next() is None
    script.asked()
    script.says(Export("/somewhere", "npz"))
    assert script.book.export == Export("/somewhere", "npz")
    assert script.book.next() is None
    assert script.silent()


def test_each_failure_is_reported_with_its_error(script: Script) -> None:
    script.begin(train(1, 0, 4))
    for _ in range(3):
        held, k = script.take()
        if k == 1:
            held.consumed(k)
        else:
            held.failed(k, f"error {k}")
    script.book.pump()
    first = script.asked()
    assert (first.token, first.consumed, first.failed, first.error) == (1, [], 0, "error 0")
    script.says(Ack())
    second = script.asked()
    assert (second.consumed, second.failed, second.error) == ([(1, 2)], 2, "error 2")
    script.says(Ack())
    assert script.silent()
    assert script.take()[1] == 3  # the lease goes on


def test_an_evaluation_lease_is_reported_whole(script: Script) -> None:
    script.begin(Lease(9, "eval", 0, 0, 3))
    for _ in range(2):
        held, k = script.take()
        held.work.add_scores(np.zeros(1, np.float32), np.ones(1, np.float32))
        held.work.add_unknown([UnknownIds("a", "t", 1, 50 + k), UnknownIds("b", "b", 0, 9)])
        held.consumed(k)
    script.now += 10.0
    script.book.pump()
    assert script.silent()  # half of it would count twice if this worker died and it was done again
    held, k = script.take()
    assert script.asked() == LeaseRequest("worker-0", holding=[9])
    held.work.add_scores(np.zeros(1, np.float32), np.ones(1, np.float32))
    held.consumed(k)
    script.says(Wait(60.0))
    request = script.asked()
    assert (request.token, request.consumed) == (9, [(0, 3)])
    assert request.report is not None
    assert request.report.samples == 3
    assert request.report.unknown_ids == [UnknownIds("a", "t", 2, 51), UnknownIds("b", "b", 0, 9)]


def test_a_failure_within_an_evaluation_loses_none_of_its_scores(script: Script) -> None:
    script.begin(Lease(9, "eval", 0, 0, 4))
    for failing in (False, True):
        held, k = script.take()
        if failing:
            held.failed(k, "error")
        else:
            held.work.add_scores(np.zeros(1, np.float32), np.ones(1, np.float32))
            held.consumed(k)
    script.book.pump()
    request = script.asked()
    assert (request.failed, request.consumed, request.report) == (1, [], None)
    script.says(Ack())
    for _ in range(2):
        held, k = script.take()
        held.work.add_scores(np.zeros(1, np.float32), np.ones(1, np.float32))
        held.consumed(k)
    consumed: list[tuple[int, int]] = []
    samples = 0
    while consumed != [(0, 1), (2, 4)]:
        request = script.asked()
        consumed += request.consumed
        samples += request.report.samples if request.report else 0
        script.says(Wait(0.0))
    assert samples == 3


def test_leaving_reports_what_is_done_and_gives_the_rest_back(script: Script) -> None:
    import threading

    script.begin(train(1, 0, 10))
    for _ in range(3):
        held, k = script.take()
        held.consumed(k)
    leaving = threading.Thread(target=script.book.leave, args=(PATIENCE,))
    leaving.start()
    request = script.asked()
    assert script.request is not None
    script.server.reply(script.request, Ack())
    leaving.join()
    assert (request.token, request.consumed, request.give_back, request.want) == (1, [(0, 3)], True, False)


def test_leaving_gives_back_a_lease_that_comes_late(script: Script) -> None:
    import threading

    assert script.book.next() is None
    script.asked()
    leaving = threading.Thread(target=script.book.leave, args=(PATIENCE,))
    leaving.start()
    assert script.request is not None
    script.server.reply(script.request, Lease(3, "eval", 1, 0, 5))
    request = script.asked()
    script.server.reply(script.request, Ack())
    leaving.join()
    assert (request.token, request.consumed, request.give_back, request.report) == (3, [], True, None)


def test_a_request_whose_answer_is_lost_is_repeated(script: Script) -> None:
    assert script.book.next() is None
    script.asked()
    assert script.request is not None
    sequence = script.request.sequence
    script.now += 3.0
    script.book.pump()
    assert script.asked() == LeaseRequest("worker-0")
    assert script.request.sequence == sequence  # the same question, so that no second lease is given
    script.says(train(1, 0, 2))
    assert script.take()[1] == 0


def test_a_silent_master_is_given_up(script: Script) -> None:
    assert script.book.next() is None
    script.now += 1000.0
    with pytest.raises(DeadlineExceeded, match="the master did not answer"):
        script.book.pump()


def test_a_refusal_of_the_master_is_an_error(script: Script) -> None:
    assert script.book.next() is None
    script.asked()
    assert script.request is not None
    script.server.fail(script.request, "refused", "who are you?", "go away")
    with pytest.raises(JobError, match="who are you"):
        script.book.pump(timeout_seconds=PATIENCE)


def test_a_master_that_puts_a_request_off_is_asked_again(script: Script) -> None:
    assert script.book.next() is None
    script.asked()
    for _ in range(5):
        script.now += 100.0
        assert script.request is not None
        script.server.answer(script.request, LATER)
        script.book.pump(timeout_seconds=PATIENCE)
        script.now += 1.0
        script.book.pump()
        (again,) = script.server.receive(PATIENCE)
        assert (again.session, again.sequence) == (script.request.session, script.request.sequence)
        script.request = again
    script.says(Lease(1, "train", 0, 0, 2))
    assert script.book.next() is not None
