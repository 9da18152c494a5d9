"""The ledger against a naive model: a dict from minibatch to state, under any mixture of deaths, retries, duplicates and late reports."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dlrover_lite.master.work.ledger import MAX_ERROR_LENGTH, Consumed, Ledger
from dlrover_lite.master.work.ledger_data import Pass
from dlrover_lite.master.work.ledger_store import LedgerStore

WORKERS = ["a", "b", "c"]
workers = st.sampled_from(WORKERS)
pieces = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3)


class Model:
    """What should be so, minibatch by minibatch: "todo", "done", a token, ("aside", worker), or "quarantined"."""

    def __init__(self, minibatches: int) -> None:
        self.state: dict[int, object] = dict.fromkeys(range(minibatches), "todo")
        self.first_failure: dict[int, str] = {}

    def ks(self, state: object) -> list[int]:
        return [k for k, s in self.state.items() if s == state]

    def free(self, token: int) -> None:
        for k in self.ks(token):
            self.state[k] = ("aside", self.first_failure[k]) if k in self.first_failure else "todo"

    def done(self, ks) -> int:
        newly = [k for k in ks if self.state[k] != "done"]
        for k in newly:
            self.state[k] = "done"
            self.first_failure.pop(k, None)
        return len(newly)


class LedgerMachine(RuleBasedStateMachine):
    """Also loses the master now and then: what was committed is loaded again, and everything must be as it was then."""

    @initialize(train=st.integers(1, 12), evaluation=st.integers(1, 5), block=st.sampled_from([0, 1, 3, 4]))
    def start(self, train, evaluation, block):
        self.directory = TemporaryDirectory()
        self.path = Path(self.directory.name) / "ledger.sqlite"
        self.block = block
        self.store = LedgerStore(self.path)
        self.ledger = Ledger(block_minibatches=block)
        self.passes = [Pass("train", 0, train), Pass("eval", 0, evaluation)]
        self.models = [Model(train), Model(evaluation)]
        for of in self.passes:
            self.store.apply(self.ledger.open_pass(of))
        self.store.commit()
        self.leases: dict[int, tuple[int, str, range]] = {}  # all ever given out: pass, worker, minibatches
        self.fenced: dict[int, range] = {}  # what was open of a lease when it was taken away

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.directory.cleanup()

    def tokens(self):
        return sorted(self.leases)

    def live(self, token: int) -> bool:
        return any(token in model.state.values() for model in self.models)

    @rule(which=st.integers(0, 1), worker=workers, most=st.integers(1, 6), only=st.booleans())
    def lease(self, which, worker, most, only):
        model = self.models[which]
        lease, changes = self.ledger.lease(self.passes[which], worker, most, only_worker=only)
        self.store.apply(changes)
        eligible = [k for k, s in model.state.items() if isinstance(s, tuple) and (only or s[1] != worker)]
        todo = model.ks("todo")
        if lease is None:
            assert not eligible
            assert not todo
            return
        assert (lease.kind, lease.index) == (self.passes[which].kind, self.passes[which].index)
        ks = range(lease.start, lease.stop)
        assert 1 <= len(ks) <= most
        assert lease.token > max(self.leases, default=0)
        if eligible:
            assert list(ks) == eligible[:1]
        else:
            assert lease.start == todo[0]
            assert set(ks) <= set(todo)
        for k in ks:
            model.state[k] = lease.token
        self.leases[lease.token] = (which, worker, ks)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), parts=pieces, whole=st.booleans())
    def report(self, data, parts, whole):
        token = data.draw(st.sampled_from(self.tokens()))
        which, _, ks = self.leases[token]
        model = self.models[which]
        ranges = [(ks.start, ks.stop)] if whole else parts
        claimed = {k for start, stop in ranges for k in range(start, stop)}
        mine = set(model.ks(token))
        result, changes = self.ledger.consumed(token, ranges)
        self.store.apply(changes)
        if which == 1:
            exact = bool(mine) and sum(len(range(*part)) for part in ranges) == len(claimed & mine)
            assert result.accepted == exact, "evaluation counts exactly the reports of what is leased under this token"
            assert result.newly == (model.done(claimed) if exact else 0)
        elif mine:
            assert result == Consumed(self.passes[0], model.done(claimed & mine), True)
        elif token in self.fenced and set(model.state.values()) != {"done"}:
            assert result == Consumed(self.passes[0], model.done(claimed & set(self.fenced[token])), True)
        else:
            assert result == Consumed(None, 0, False)

    def take_away(self, token: int) -> None:
        model = self.models[self.leases[token][0]]
        if ks := model.ks(token):
            self.fenced[token] = range(min(ks), max(ks) + 1)
            model.free(token)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def give_back(self, data):
        token = data.draw(st.sampled_from(self.tokens()))
        self.store.apply(self.ledger.give_back(token))
        self.take_away(token)

    @rule(worker=workers)
    def die(self, worker):
        self.store.apply(self.ledger.expire(worker))
        for token, (_, holder, _) in self.leases.items():
            if holder == worker:
                self.take_away(token)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), text=st.text(max_size=4))
    def fail(self, data, text):
        token = data.draw(st.sampled_from(self.tokens()))
        which, worker, ks = self.leases[token]
        model = self.models[which]
        k = data.draw(st.sampled_from(ks))
        failure, changes = self.ledger.failed(token, k, text)
        self.store.apply(changes)
        if model.state[k] != token:
            assert failure is None
        elif k in model.first_failure:
            assert failure.quarantined
            assert (failure.worker, failure.second_worker, failure.second_error) == (
                model.first_failure[k],
                worker,
                text,
            )
            model.state[k] = "quarantined"
        else:
            assert not failure.quarantined
            model.state[k], model.first_failure[k] = ("aside", worker), worker

    @rule()
    def restart_the_master(self):
        self.store.commit()
        before = self.ledger.data()
        self.store.close()
        self.store = LedgerStore(self.path)
        self.ledger = self.store.load(block_minibatches=self.block)
        assert self.ledger.data() == before

    @invariant()
    def the_ledger_is_what_the_model_says(self):
        if not hasattr(self, "ledger"):
            return
        self.ledger.validate()
        data = self.ledger.data()
        for of, model in zip(self.passes, self.models, strict=True):
            seen: dict[int, object] = {}
            for span in data.spans:
                if span.pass_number == of.number:
                    seen.update(dict.fromkeys(range(span.start, span.stop), span.token or "done"))
            for failure in data.failures:
                if failure.pass_number == of.number and failure.k not in seen:
                    seen[failure.k] = "quarantined" if failure.quarantined else ("aside", failure.worker)
            assert {k: seen.get(k, "todo") for k in range(of.minibatches)} == model.state
            assert self.ledger.todo(of) == len(model.ks("todo"))
            open_minibatches = sum(isinstance(state, int) for state in model.state.values())
            assert sum(self.ledger.leased(of.kind).values()) == open_minibatches
            assert self.ledger.finished(of) == (set(model.state.values()) <= {"done", "quarantined"})
            for worker in WORKERS:
                held = any(holder == worker and self.live(token) for token, (_, holder, _) in self.leases.items())
                assert self.ledger.holds(worker) == held


LedgerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAnyMixture = LedgerMachine.TestCase


def opened(minibatches: int = 100, kind="train", **options) -> tuple[Ledger, Pass]:
    ledger, of = Ledger(**options), Pass(kind, 0, minibatches)
    ledger.open_pass(of)
    return ledger, of


@given(st.integers(1, 200), st.integers(1, 40), st.lists(st.integers(1, 50), min_size=1, max_size=300))
def test_a_lease_ends_at_a_block_boundary_unless_halved_by_that(minibatches, block, sizes):
    ledger, of = opened(minibatches, block_minibatches=block)
    for most in sizes:
        lease, _ = ledger.lease(of, "a", most)
        if lease is None:
            break
        size = lease.stop - lease.start
        assert size == min(most, minibatches - lease.start) or (lease.stop % block == 0 and 2 * size >= most)
        crossed = lease.stop // block * block
        if lease.stop % block and lease.stop < minibatches and crossed > lease.start:
            assert 2 * (crossed - lease.start) < most, "it splits a block though it could have ended before"


def test_a_late_training_report_counts_once_and_spares_others_the_work():
    ledger, of = opened(10)
    old, _ = ledger.lease(of, "a", 10)
    ledger.expire("a")
    new, _ = ledger.lease(of, "b", 6)
    result, _ = ledger.consumed(old.token, [(4, 8)])
    assert result == Consumed(of, 4, True)
    assert list(ledger.done(of)) == [(4, 8)]
    assert ledger.consumed(new.token, [(0, 6)])[0] == Consumed(of, 4, True)
    assert ledger.todo(of) == 2
    ledger.validate()


def test_a_late_report_about_evaluation_is_refused():
    ledger, of = opened(10, kind="eval")
    old, _ = ledger.lease(of, "a", 10)
    ledger.expire("a")
    result, changes = ledger.consumed(old.token, [(0, 10)])
    assert not result.accepted
    assert not changes
    assert ledger.todo(of) == 10


def test_a_failing_minibatch_is_retried_elsewhere_then_quarantined():
    ledger, of = opened(10)
    lease, _ = ledger.lease(of, "a", 10)
    ledger.failed(lease.token, 3, "first")
    assert ledger.lease(of, "a", 5) == (None, [])
    retry, _ = ledger.lease(of, "b", 5)
    assert (retry.start, retry.stop) == (3, 4)
    failure, _ = ledger.failed(retry.token, 3, "second")
    assert failure.quarantined
    assert (failure.worker, failure.error, failure.second_worker, failure.second_error) == ("a", "first", "b", "second")
    ledger.consumed(lease.token, [(0, 3), (4, 10)])
    assert ledger.finished(of)
    assert ledger.failures() == [(of, failure)]


def test_the_only_worker_retries_its_own_failed_minibatch():
    ledger, of = opened(2)
    lease, _ = ledger.lease(of, "a", 2)
    ledger.failed(lease.token, 0, "x")
    retry, _ = ledger.lease(of, "a", 2, only_worker=True)
    assert (retry.start, retry.stop) == (0, 1)


def test_a_long_error_text_keeps_its_end():
    ledger, of = opened(2)
    lease, _ = ledger.lease(of, "a", 2)
    failure, _ = ledger.failed(lease.token, 0, "x" * 10_000 + "ValueError: the end")
    assert len(failure.error) == MAX_ERROR_LENGTH
    assert failure.error.endswith("ValueError: the end")


def test_a_pass_is_opened_once():
    ledger, of = opened()
    with pytest.raises(ValueError, match="open already"):
        ledger.open_pass(of)
