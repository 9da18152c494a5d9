"""The shard service: who gets which minibatches of which pass next.

Epochs follow each other without a pause: the next one opens as soon as nothing of the last is left to lease. Evaluation rounds are
leased first, to whoever asks, and hold nobody up. A loop over it drains requests, calls ``report_and_lease`` for each, commits once,
and only then replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import JobError, ModelError
from dlrover_lite.core.intervals import Range
from dlrover_lite.master.work.lease_size import LeasePolicy, WorkerRates, lease_size
from dlrover_lite.master.work.ledger import NOTHING_CONSUMED, Consumed
from dlrover_lite.master.work.ledger_data import Failure, Pass
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.shard_plan import (
    FINAL_ROUND,
    ID_KINDS,
    PLAN,
    ROUNDS_DUE,
    RoundResult,
    ShardPlan,
    result_fact,
    samples_fact,
)
from dlrover_lite.protocol.messages import Ack, Finished, Lease, Wait
from dlrover_lite.recipe.id_kinds import IdKind, IdKinds, compare

if TYPE_CHECKING:
    from dlrover_lite.master.events import EventLog
    from dlrover_lite.master.work.progress import Evaluations

__all__ = ["Answer", "ShardPlan", "ShardService"]

HOPELESS_FAILURES = 3
"""Number of different minibatches that fail before any succeeds, from which on the model or the data is at fault, not the minibatches."""

DEFAULT_POLICY = LeasePolicy()

SLOW_START_MINIBATCHES = 64
SLOW_START_SECONDS = 10.0
"""Seconds after the first lease in which workers of a job join one by one; see ``ShardService._starting``."""


class Answer(msgspec.Struct, frozen=True):
    """``work`` is the message to reply with, after the commit. ``consumed`` tells what became of the report: metrics that came with it
    count if and only if ``consumed.accepted`` and, to count nothing twice, ``consumed.newly`` is the number of minibatches reported."""

    work: Lease | Wait | Finished | Ack
    consumed: Consumed


class ShardService:
    """Leases a job's minibatches, over an open store, which it loads, and which its owner closes. Raises JobError when the store holds
    another plan's ledger."""

    def __init__(
        self,
        store: LedgerStore,
        plan: ShardPlan,
        *,
        policy: LeasePolicy = DEFAULT_POLICY,
        wait_seconds: float = 0.2,
        slow_start_minibatches: int = 0,
        story: EventLog | None = None,
        id_kinds: IdKinds | None = None,
    ) -> None:
        """Create the service. With ``slow_start_minibatches`` workers join one by one: see ``_starting``. ``story`` is told what happens to
        minibatches. ``id_kinds``: of the data as it is now."""
        self._slow_start = slow_start_minibatches
        self._first_lease_at: float | None = None
        self.plan = plan
        self.ledger = store.load(block_minibatches=plan.block_minibatches)
        self.failure: ModelError | None = None
        """Why the job can't succeed any more; nothing is leased once it is set."""
        self._story = story
        self._done_at_first_failure: int | None = None
        """Number of training minibatches done when one failed first; None: nothing has failed since this service began."""
        self._failed_in: list[Pass] = []
        """The pass of the minibatch that was skipped last, where that was one too many."""
        self.store = store
        self._policy = policy
        self._wait = Wait(wait_seconds)
        self._rates = {"train": WorkerRates(policy.memory_seconds), "eval": WorkerRates(policy.memory_seconds)}
        self._workers: set[str] = set()
        self._lease_factors: dict[str, float] = {}
        """Factors of workers that are to be leased less at once than their speed says."""
        self._dead: set[str] = set()
        self._check_plan()
        self.id_kinds = self._check_kinds(id_kinds or {})
        """Kinds of ids that the job has been trained with."""
        self._rounds_due = int(store.fact(ROUNDS_DUE) or 0)
        final = store.fact(FINAL_ROUND)
        self._final_round = None if final is None else int(final)
        self._unfinished = [of for of in self.ledger.passes() if not self.ledger.finished(of)]
        self._sort_unfinished()
        self._epochs_opened = sum(of.kind == "train" for of in self.ledger.passes())
        self._rounds_opened = len(self.ledger.passes()) - self._epochs_opened
        self._round_began_at = [int(store.fact(samples_fact(i)) or 0) for i in range(self._rounds_opened)]
        self._samples_of_finished = sum(
            self._samples_done(of) for of in self.ledger.passes() if of.kind == "train" and of not in self._unfinished
        )
        self._judge_hopeless()
        if skipped := self.quarantined():
            self._judge_skipped(skipped[-1][0])
        self._advance()
        self.commit()

    def _check_plan(self) -> None:
        mine = msgspec.json.encode(self.plan).decode()
        kept = self.store.fact(PLAN)
        if kept is None:
            self.store.put_fact(PLAN, mine)
        elif kept != mine:
            raise JobError(
                f"The ledger {self.store.path} belongs to other data or another recipe: it was made for {kept}, not for {mine}",
                hint="Data, batch size and epochs can't change within a job: start a new one.",
            )

    def _check_kinds(self, now: IdKinds) -> IdKinds:
        """Return the kinds kept with the ledger, and of columns that it knows nothing of those of ``now``."""
        text = self.store.fact(ID_KINDS)
        kept = {} if text is None else from_json(text, dict[str, IdKind])
        compare(kept, now, whose="the job").require()
        kinds = {**now, **kept}
        if kinds != kept:
            self.store.put_fact(ID_KINDS, msgspec.json.encode(kinds).decode())
        return kinds

    # --- what there is --------------------------------------------------------------------------------------------------

    @property
    def consumed_samples(self) -> int:
        """Number of consumed samples over all epochs; without the quarantined minibatches."""
        return self._samples_of_finished + sum(self._samples_done(of) for of in self._unfinished if of.kind == "train")

    @property
    def trained(self) -> bool:
        """Whether all epochs are through."""
        return self._epochs_opened == self.plan.epochs and all(of.kind == "eval" for of in self._unfinished)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train or to evaluate, or the job has failed."""
        return self.failure is not None or (not self._unfinished and self.trained)

    @property
    def epoch(self) -> int:
        """The lowest epoch not finished; the last one when all are."""
        return min((of.index for of in self._unfinished if of.kind == "train"), default=self.plan.epochs - 1)

    def epochs_under_way(self) -> tuple[int, list[Pass]]:
        """Return the lowest epoch that isn't through (or the next one, when all that were opened are), and those opened from there on. One
        whose skipped minibatches have failed the job isn't: they are tried again if it goes on from a checkpoint."""
        open_epochs = [of.index for of in [*self._unfinished, *self._failed_in] if of.kind == "train"]
        below = min(open_epochs, default=self._epochs_opened)
        minibatches = self.plan.minibatches(self.plan.samples)
        return below, [Pass("train", index, minibatches) for index in range(below, self._epochs_opened)]

    def quarantined(self) -> list[tuple[Pass, Failure]]:
        return [(of, failure) for of, failure in self.ledger.failures() if failure.quarantined]

    @property
    def has_evaluated(self) -> bool:
        """Whether an evaluation round is through, or there is none to come."""
        if not self.plan.eval_samples:
            return True
        return any(of.kind == "eval" and self.ledger.finished(of) for of in self.ledger.passes())

    def round_began_at(self, index: int) -> int:
        """Return the number of consumed samples when evaluation round ``index`` was opened."""
        return self._round_began_at[index]

    def rounds_through(self) -> tuple[int, int, bool]:
        """Return for a cut: evaluation rounds from the first on that are through, how many were due by then, and whether the final one is
        among them. Those not through are to be opened anew."""
        through = 0
        rounds = [of for of in self.ledger.passes() if of.kind == "eval"]
        while through < len(rounds) and rounds[through] not in self._unfinished:
            through += 1
        final = self._final_round is not None and self._final_round < through
        opened = self._rounds_opened - (self._final_round is not None)
        return through, self._rounds_due - max(0, opened - through), final

    @property
    def suspects_parameters(self) -> bool:
        """Whether fewer minibatches have succeeded than failed since one failed first: more likely than single samples, the parameters
        themselves are at fault, as after too large a learning rate."""
        failures = sum(1 + failure.quarantined for _, failure in self.ledger.failures())
        before = self._done_at_first_failure
        return failures > 0 and (before is None or self._minibatches_done() - before < failures)

    def _minibatches_done(self) -> int:
        return sum(self.ledger.done(of).total for of in self.ledger.passes() if of.kind == "train")

    # --- requests -------------------------------------------------------------------------------------------------------

    def report_and_lease(
        self,
        worker: str,
        token: int | None = None,
        consumed: Sequence[Range] = (),
        failed: tuple[int, str] | None = None,
        *,
        give_back: bool = False,
        want: bool = True,
        holding: Sequence[int] = (),
        now: float,
    ) -> Answer:
        """Take a report about lease ``token`` and, if it is wanted, give the next lease. ``now``: seconds of a steady clock.

        ``failed`` is a minibatch and the error it raised. Wait: all that is left is leased to others (or waits to be retried by them).
        A worker that was declared dead is believed about the past, and told that it has finished. ``holding``: the leases of which it will
        still report something; what is open of all others of its leases is to do again. An answer may have got lost with the master that
        gave it, and a report with one that could not make it durable.
        """
        result = NOTHING_CONSUMED
        if token is not None:
            if consumed:
                result = self._consumed(worker, token, consumed, now)
            if failed is not None:
                self._failed(token, *failed)
            if give_back:
                self._tell_open(token, "given back by")
                self.store.apply(self.ledger.give_back(token))
        for known in self.ledger.tokens(worker):
            if known not in holding:
                self._tell_open(known, "to do again: it knows nothing of its lease,")
                self.store.apply(self.ledger.give_back(known))
        if worker in self._dead or self.finished:
            return Answer(Finished(), result)
        self._workers.add(worker)
        return Answer(self._lease(worker, now) if want else Ack(), result)

    def worker_joined(self, worker: str) -> None:
        """Note that a process with this name is up: what its forerunner of the same name had leased, if any, is to do again."""
        self.worker_died(worker)
        self._dead.discard(worker)
        self._workers.add(worker)

    def lease_less(self, worker: str, factor: float) -> None:
        """Lease a worker ``factor`` times what it would get at once; 1: all of that."""
        self._lease_factors[worker] = factor

    def worker_died(self, worker: str) -> None:
        """Note that the worker is dead, was stopped, or is given up as too late: its leases are to do again, and it gets no more, whatever
        requests of it are still on their way, until ``worker_joined``."""
        self._workers.discard(worker)
        self._dead.add(worker)
        for rates in self._rates.values():
            rates.forget(worker)
        for token in self.ledger.tokens(worker):
            self._tell_open(token, "to do again, after the end of")
        self.store.apply(self.ledger.expire(worker))

    def _tell_open(self, token: int, text: str) -> None:
        """Tell the story that what is open of a lease is in trouble."""
        if self._story is not None and (held := self.ledger.held(token)) is not None:
            of, worker, pieces = held
            for start, stop in pieces:
                self._story.trouble(of, start, stop, text, worker)

    def restore_evaluations(self, evaluations: Evaluations) -> list[Pass]:
        """Give back what was kept of evaluation rounds; returns those not through, in their order."""
        unfinished = []
        for of in self.ledger.passes():
            if of.kind == "eval":
                if (state := self.store.metrics(of)) is not None:
                    evaluations.restore(of.index, state)
                if (result := self.store.fact(result_fact(of.index))) is not None:
                    evaluations.results.append(from_json(result, RoundResult).message())
                elif self.ledger.finished(of):
                    evaluations.close(of.index, at_samples=self.round_began_at(of.index))
                else:
                    unfinished.append(of)
        return unfinished

    def commit(self) -> None:
        """Make all that was asked for durable: only then may the answers be sent. Raises JobError; what couldn't be written is kept for
        another try."""
        self.store.commit()

    # --- how ------------------------------------------------------------------------------------------------------------

    def _consumed(self, worker: str, token: int, ranges: Sequence[Range], now: float) -> Consumed:
        result, changes = self.ledger.consumed(token, ranges)
        self.store.apply(changes)
        of = result.of
        if of is not None and result.newly:
            if self._story is not None:
                for start, stop in ranges:
                    self._story.lease(of, start, stop, "done by", worker)
            self._rates[of.kind].reported(worker, result.newly, now)
            self._after_progress(of)
        return result

    def _failed(self, token: int, k: int, error: str) -> None:
        held = self.ledger.held(token)
        failure, changes = self.ledger.failed(token, k, error)
        self.store.apply(changes)
        if failure is not None and held is not None:
            of = held[0]
            if self._done_at_first_failure is None:
                self._done_at_first_failure = self._minibatches_done()
            self._tell_failure(of, failure)
            self._judge_hopeless()
            self._judge_skipped(of)
            self._after_progress(of)

    def _tell_failure(self, of: Pass, failure: Failure) -> None:
        if self._story is not None:
            worker, error, what = failure.worker, failure.error, "failed, to be retried alone,"
            if failure.second_worker is not None:
                worker, error, what = failure.second_worker, failure.second_error, "failed again, quarantined,"
            self._story.trouble(of, failure.k, failure.k + 1, f"{what} with {_headline(error)!r} on", worker)

    def _after_progress(self, of: Pass) -> None:
        if self.ledger.finished(of) and of in self._unfinished:
            self._unfinished.remove(of)
            if of.kind == "train":
                self._samples_of_finished += self._samples_done(of)
            self._advance()
        elif self.plan.evaluate_every and of.kind == "train":
            self._advance()

    def _lease(self, worker: str, now: float) -> Lease | Wait | Finished:
        only_worker = len(self._workers) == 1
        starting = self._starting(worker, now)
        for of in self._unfinished:
            if of.kind == "train" and starting:
                return self._wait
            if lease := self._lease_of(of, worker, only_worker, now):
                return lease
        if self._open_next_epoch() and (lease := self._lease_of(self._unfinished[-1], worker, only_worker, now)):
            return lease
        return Finished() if self.finished else self._wait

    def _starting(self, worker: str, now: float) -> bool:
        """Return whether it is too early for one more worker to train.

        The first steps from random values are large and all point the same way: taken several times over by workers that don't
        see each other's, they spoil a model for good. So each further worker joins after some more minibatches, but none
        waits longer than a few seconds.
        """
        if not self._slow_start or self._epochs_opened != 1:
            return False
        if self._first_lease_at is None:
            self._first_lease_at = now
        if now - self._first_lease_at > SLOW_START_SECONDS:
            return False
        others = sum(self.ledger.holds(other) for other in self._workers if other != worker)
        return self.consumed_samples < others * self._slow_start * self.plan.batch_size

    def _lease_of(self, of: Pass, worker: str, only_worker: bool, now: float) -> Lease | None:
        remaining = self.ledger.todo(of)
        if not remaining and not self.ledger.aside(of):
            return None
        rates, workers = self._rates[of.kind], len(self._workers)
        size = lease_size(
            rates.rate(worker),
            total_rate=rates.total(workers),
            workers=workers,
            remaining=remaining,
            policy=self._policy,
        )
        size = max(1, int(size * self._lease_factors.get(worker, 1.0)))
        idle = not self.ledger.holds(worker)
        lease, changes = self.ledger.lease(of, worker, size, only_worker=only_worker)
        if lease is not None:
            self.store.apply(changes)
            rates.granted(worker, now, idle=idle)
            if self._story is not None:
                self._story.lease(of, lease.start, lease.stop, "leased to", worker)
        return lease

    def _advance(self) -> None:
        """Open what is due: the first epoch, an evaluation round (one at a time), the final evaluation."""
        if self.failure is not None:
            return
        if not self._epochs_opened:
            self._open_next_epoch()
        if not self.plan.eval_samples:
            return
        if self.trained:
            if self._final_round is None:
                self._final_round = self._rounds_opened
                self.store.put_fact(FINAL_ROUND, str(self._final_round))
                self._open_round()
        elif self.plan.evaluate_every:
            due = self.consumed_samples // self.plan.evaluate_every
            if due > self._rounds_due and all(of.kind == "train" for of in self._unfinished):
                self._rounds_due = due
                self.store.put_fact(ROUNDS_DUE, str(due))
                self._open_round()

    def _open_next_epoch(self) -> bool:
        if self._epochs_opened == self.plan.epochs or self.failure is not None:
            return False
        self._open(Pass("train", self._epochs_opened, self.plan.minibatches(self.plan.samples)))
        self._epochs_opened += 1
        return True

    def _open_round(self) -> None:
        self._round_began_at.append(self.consumed_samples)
        self.store.put_fact(samples_fact(self._rounds_opened), str(self.consumed_samples))
        self._open(Pass("eval", self._rounds_opened, self.plan.minibatches(self.plan.eval_samples)))
        self._rounds_opened += 1

    def _open(self, of: Pass) -> None:
        self.store.apply(self.ledger.open_pass(of))
        self._unfinished.append(of)
        self._sort_unfinished()

    def _sort_unfinished(self) -> None:
        """Sort the unfinished passes in the order they are leased in: evaluation first."""
        self._unfinished.sort(key=lambda of: (of.kind == "train", of.index))

    def _samples_done(self, of: Pass) -> int:
        done = self.ledger.done(of)
        missing = of.minibatches * self.plan.batch_size - self.plan.samples if of.minibatches - 1 in done else 0
        return done.total * self.plan.batch_size - missing

    def _judge_skipped(self, of: Pass) -> None:
        """Fail the job if more minibatches are skipped than may be. ``of``: the pass of the last one."""
        skipped = self.quarantined()
        if len(skipped) > self.plan.max_skipped_minibatches and self.failure is None:
            self._failed_in = [of]
            names = ", ".join(f"minibatch {failure.k} of {where}" for where, failure in skipped[:3])
            more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
            self._fail(
                f"{names}{more} failed twice, on {skipped[0][1].worker} and on {skipped[0][1].second_worker}, "
                f"and the recipe allows {self.plan.max_skipped_minibatches} to be skipped",
                skipped[0][1].second_error,
                "Mend what the error says, or allow more with training.max_skipped_minibatches.",
            )

    def _judge_hopeless(self) -> None:
        failures = self.ledger.failures()
        if len(failures) >= HOPELESS_FAILURES and not any(self.ledger.done(of) for of in self.ledger.passes()):
            self._fail(
                f"{len(failures)} different minibatches failed before any succeeded",
                failures[-1][1].error,
                "This is most likely an error in the model or in how the recipe describes the data.",
            )

    def _fail(self, what: str, error: str, hint: str) -> None:
        if self.failure is None:
            error = error.rstrip()
            self.failure = ModelError(f"{what}: {_headline(error)}", hint=hint, user_traceback=error)


def _headline(error: str) -> str:
    """Return a traceback's message, up to three lines of it as one: what follows its head and its frames, which are indented."""
    lines = error.splitlines()
    before = [i for i, line in enumerate(lines) if line.startswith(("  ", "Traceback"))]
    message = lines[before[-1] + 1 :] if before else lines
    return " ".join(line.strip() for line in message[:3])
