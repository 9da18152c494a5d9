"""Which minibatches are to do, leased, done or quarantined: ranges in memory, no clock and no I/O.

Every operation returns the changes to save beside its result; ``LedgerData`` is the whole of it as data. What holds always:

- each minibatch of a pass is in exactly one of: todo, put aside (failed once, to be retried alone), leased under one token, done,
  quarantined (failed twice). ``validate`` checks it.
- done is for ever. A report about training is believed even after the lease was taken away, since each parameter server applies a
  minibatch once whoever sends it; a late evaluation report is refused, since its metrics would count twice.
- tokens only rise, also over restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from dlrover_lite.core.intervals import IntervalSet, Range
from dlrover_lite.master.work.ledger_data import (
    Change,
    Failure,
    FailureGone,
    Fenced,
    FencedGone,
    LedgerData,
    Pass,
    Span,
    SpanGone,
    TokensReserved,
)
from dlrover_lite.protocol.messages import Lease

__all__ = ["Consumed", "Ledger"]

TOKENS_AT_A_TIME = 4096
"""Number of tokens that are reserved at a time, so that giving one out needs no write of its own."""

MAX_ERROR_LENGTH = 4000
"""Characters kept of an error text: its end, where the exception of a traceback is."""


class Consumed(msgspec.Struct, frozen=True):
    """What became of a report: the pass it was about (None: the token names no lease), the minibatches that became done by it,
    and whether it counts. A report that does not count must leave no trace in metrics either."""

    of: Pass | None
    newly: int
    accepted: bool


NOTHING_CONSUMED = Consumed(None, 0, False)


class _Held(msgspec.Struct, gc=False):
    """A lease: ``pieces`` are what is still open of it, in order, never empty."""

    token: int
    worker: str
    number: int
    pieces: list[Range]


class _PassState:
    """One pass. ``aside`` are the failures that wait for their second try; ``failures`` are all failures of minibatches not done."""

    __slots__ = ("aside", "done", "failures", "held", "number", "of", "quarantined", "todo")

    def __init__(self, of: Pass) -> None:
        self.of = of
        self.number = of.number
        self.todo = IntervalSet([(0, of.minibatches)])
        self.done = IntervalSet()
        self.held: dict[int, _Held] = {}
        self.failures: dict[int, Failure] = {}
        self.aside: dict[int, Failure] = {}
        self.quarantined = 0

    @property
    def finished(self) -> bool:
        return self.done.total + self.quarantined == self.of.minibatches


class Ledger:
    """``block_minibatches``: length of the blocks the samples are shuffled in; leases rather end where a block ends (0: no blocks)."""

    def __init__(self, data: LedgerData | None = None, *, block_minibatches: int = 0) -> None:
        self._block = block_minibatches
        self._passes: dict[int, _PassState] = {}
        self._state: dict[Pass, _PassState] = {}  # the same, for callers
        self._held: dict[int, _Held] = {}
        self._of_worker: dict[str, dict[int, _Held]] = {}
        self._fenced: dict[int, Fenced] = {}
        self._next_token = self._tokens_reserved = 1
        if data is not None:
            self._load(data)

    # --- what there is ----------------------------------------------------------------------------------------------

    def passes(self) -> list[Pass]:
        return [self._passes[number].of for number in sorted(self._passes)]

    def todo(self, of: Pass) -> int:
        """Return the number of minibatches that anyone may lease."""
        return self._state[of].todo.total

    def aside(self, of: Pass) -> int:
        """Return the number of minibatches that failed once and wait to be retried alone."""
        return len(self._state[of].aside)

    def done(self, of: Pass) -> IntervalSet:
        """Return the consumed minibatches, to read only."""
        return self._state[of].done

    def finished(self, of: Pass) -> bool:
        """Return whether nothing of the pass is left: all is done or quarantined."""
        return self._state[of].finished

    def failures(self) -> list[tuple[Pass, Failure]]:
        """List the minibatches that failed and are not done, the quarantined ones among them."""
        states = (self._passes[number] for number in sorted(self._passes))
        return [(state.of, state.failures[k]) for state in states for k in sorted(state.failures)]

    def holds(self, worker: str) -> bool:
        """Return whether the worker has a lease."""
        return worker in self._of_worker

    def workers(self) -> list[str]:
        """List the workers that have leases."""
        return list(self._of_worker)

    def leased(self, kind: Literal["train", "eval"]) -> dict[str, int]:
        """Return how many minibatches of passes of that kind each worker has leases of."""
        found: dict[str, int] = {}
        for held in self._held.values():
            if self._passes[held.number].of.kind == kind:
                found[held.worker] = found.get(held.worker, 0) + sum(stop - start for start, stop in held.pieces)
        return found

    def tokens(self, worker: str) -> list[int]:
        """Return the worker's leases."""
        return list(self._of_worker.get(worker, ()))

    def held(self, token: int) -> tuple[Pass, str, list[Range]] | None:
        """Pass, worker and open ranges of a lease in force."""
        held = self._held.get(token)
        return (self._passes[held.number].of, held.worker, list(held.pieces)) if held else None

    # --- operations -------------------------------------------------------------------------------------------------

    def open_pass(self, of: Pass) -> list[Change]:
        if of.number in self._passes:
            raise ValueError(f"{of} is open already")
        self._add_pass(of)
        return [of]

    def lease(
        self, of: Pass, worker: str, max_minibatches: int, *, only_worker: bool = False
    ) -> tuple[Lease | None, list[Change]]:
        """Return the lowest minibatches of a pass that ``worker`` may have, at most ``max_minibatches`` (>= 1); None if there are none.

        A minibatch that failed once comes first and comes alone, and not to the worker it failed on unless that is the only one.
        """
        state = self._state[of]
        run = self._take(state, worker, max_minibatches, only_worker)
        if run is None:
            return None, []
        changes: list[Change] = []
        token = self._next_token
        self._next_token += 1
        if self._next_token > self._tokens_reserved:
            self._tokens_reserved = token + TOKENS_AT_A_TIME
            changes.append(TokensReserved(self._tokens_reserved))
        self._hold(_Held(token, worker, state.number, [run]))
        changes.append(Span(state.number, run[0], run[1], token, worker))
        return Lease(token, of.kind, of.index, run[0], run[1]), changes

    def consumed(self, token: int, ranges: Sequence[Range]) -> tuple[Consumed, list[Change]]:
        """Note that ``ranges`` of a lease are done. Saying it again changes nothing; what was never part of the lease is ignored."""
        held = self._held.get(token)
        if held is None:
            return self._consumed_late(token, ranges)
        state = self._passes[held.number]
        if len(held.pieces) == 1 and list(ranges) == held.pieces:
            claimed = held.pieces  # nearly always: the whole lease at once
        else:
            open_pieces = IntervalSet(held.pieces)
            claimed = _common(open_pieces, ranges)
            newly = sum(b - a for a, b in claimed)
            if state.of.kind == "eval" and newly != sum(max(0, b - a) for a, b in ranges):
                return Consumed(state.of, 0, False), []
        changes: list[Change] = []
        self._cut(state, held, claimed, changes)
        return Consumed(state.of, self._done(state, claimed, changes), True), changes

    def _consumed_late(self, token: int, ranges: Sequence[Range]) -> tuple[Consumed, list[Change]]:
        fenced = self._fenced.get(token)
        if fenced is None:
            return NOTHING_CONSUMED, []
        state = self._passes[fenced.pass_number]
        claimed = [
            gap
            for start, stop in _common(IntervalSet([(fenced.start, fenced.stop)]), ranges)
            for gap in state.done.missing(start, stop)
        ]
        changes: list[Change] = []
        state.todo.subtract(claimed)
        for held in list(state.held.values()):
            self._cut(state, held, claimed, changes)
        return Consumed(state.of, self._done(state, claimed, changes), True), changes

    def give_back(self, token: int) -> list[Change]:
        """Give back the rest of a lease: it is to do again."""
        held = self._held.get(token)
        return self._release(held) if held else []

    def expire(self, worker: str) -> list[Change]:
        """Expire the leases of a worker that is dead, or given up: what it had leased is to do again."""
        return [change for held in list(self._of_worker.get(worker, {}).values()) for change in self._release(held)]

    def failed(self, token: int, k: int, error: str) -> tuple[Failure | None, list[Change]]:
        """Note that minibatch ``k`` of a lease raised. The first time it is put aside, the second time it is quarantined; the rest of the
        lease stays leased. None when the lease does not hold ``k`` (any more): somebody else has it, or it is done."""
        held = self._held.get(token)
        if held is None or not any(a <= k < b for a, b in held.pieces):
            return None, []
        state = self._passes[held.number]
        error = error[-MAX_ERROR_LENGTH:]
        changes: list[Change] = []
        self._cut(state, held, [(k, k + 1)], changes)
        first = state.failures.get(k)
        if first is None:
            failure = state.aside[k] = Failure(held.number, k, held.worker, error)
        else:
            failure = msgspec.structs.replace(first, second_worker=held.worker, second_error=error)
            state.quarantined += 1
        state.failures[k] = failure
        changes.append(failure)
        return failure, changes

    # --- how ----------------------------------------------------------------------------------------------------------

    def _take(self, state: _PassState, worker: str, most: int, only_worker: bool) -> Range | None:
        for k in sorted(state.aside) if state.aside else ():
            if only_worker or state.aside[k].worker != worker:
                del state.aside[k]
                return k, k + 1
        lowest = state.todo.first()
        if lowest is None:
            return None
        start, stop = lowest[0], min(lowest[1], lowest[0] + most)
        if self._block and stop < lowest[1]:
            boundary = stop - stop % self._block
            if 2 * (boundary - start) >= most:
                stop = boundary
        state.todo.remove(start, stop)
        return start, stop

    def _add_pass(self, of: Pass) -> None:
        self._passes[of.number] = self._state[of] = _PassState(of)

    def _hold(self, held: _Held) -> None:
        self._held[held.token] = self._passes[held.number].held[held.token] = held
        self._of_worker.setdefault(held.worker, {})[held.token] = held

    def _drop(self, held: _Held) -> None:
        del self._held[held.token], self._passes[held.number].held[held.token]
        tokens = self._of_worker[held.worker]
        del tokens[held.token]
        if not tokens:
            del self._of_worker[held.worker]

    def _cut(self, state: _PassState, held: _Held, out: Sequence[Range], changes: list[Change]) -> None:
        """Take the ranges ``out`` from what is open of a lease; a lease with nothing open is dropped."""
        if held.pieces == out:
            for start, _ in out:
                changes.append(SpanGone(held.number, start))
            self._drop(held)
            return
        rest = IntervalSet(held.pieces)
        rest.subtract(out)
        pieces = list(rest)
        if pieces == held.pieces:
            return
        changes.extend(SpanGone(held.number, start) for start, _ in held.pieces)
        changes.extend(Span(held.number, start, stop, held.token, held.worker) for start, stop in pieces)
        held.pieces = pieces
        if not pieces:
            self._drop(held)

    def _done(self, state: _PassState, ranges: Sequence[Range], changes: list[Change]) -> int:
        """Mark ranges done that belong to nothing else any more. Returns how many minibatches these are."""
        count = 0
        for start, stop in ranges:
            count += stop - start
            low, high = state.done.add(start, stop)
            if high > stop:  # a done span began where this one ends: now they are one
                changes.append(SpanGone(state.number, stop))
            changes.append(Span(state.number, low, high))
            if state.failures:
                self._forget_failures(state, start, stop, changes)
        if count:
            self._forget_fenced_if_finished(state, changes)
        return count

    def _forget_failures(self, state: _PassState, start: int, stop: int, changes: list[Change]) -> None:
        for k in [k for k in state.failures if start <= k < stop]:
            state.quarantined -= state.failures.pop(k).quarantined
            state.aside.pop(k, None)
            changes.append(FailureGone(state.number, k))

    def _forget_fenced_if_finished(self, state: _PassState, changes: list[Change]) -> None:
        if not self._fenced or not state.finished or state.quarantined:
            return  # with something quarantined, a late report may still tell that it was consumed after all
        number = state.number
        tokens = [token for token, fenced in self._fenced.items() if fenced.pass_number == number]
        if tokens:
            for token in tokens:
                del self._fenced[token]
            changes.append(FencedGone(number))

    def _release(self, held: _Held) -> list[Change]:
        state = self._passes[held.number]
        changes: list[Change] = []
        if state.of.kind == "train":
            fenced = Fenced(held.token, held.number, held.pieces[0][0], held.pieces[-1][1])
            self._fenced[held.token] = fenced
            changes.append(fenced)
        for start, stop in held.pieces:
            changes.append(SpanGone(held.number, start))
            if start in state.failures:  # it was out alone, for its second try
                state.aside[start] = state.failures[start]
            else:
                state.todo.add(start, stop)
        self._drop(held)
        return changes

    # --- as data ------------------------------------------------------------------------------------------------------

    def data(self) -> LedgerData:
        states = [self._passes[number] for number in sorted(self._passes)]
        spans = [Span(s.number, start, stop) for s in states for start, stop in s.done]
        spans += [Span(h.number, a, b, h.token, h.worker) for h in self._held.values() for a, b in h.pieces]
        return LedgerData(
            passes=[state.of for state in states],
            spans=sorted(spans, key=lambda span: (span.pass_number, span.start)),
            failures=[state.failures[k] for state in states for k in sorted(state.failures)],
            fenced=[self._fenced[token] for token in sorted(self._fenced)],
            tokens_reserved=self._tokens_reserved,
        )

    def _load(self, data: LedgerData) -> None:
        for of in data.passes:
            self._add_pass(of)
        for span in data.spans:
            state = self._passes[span.pass_number]
            state.todo.remove(span.start, span.stop)
            if span.token == 0:
                state.done.add(span.start, span.stop)
            elif held := self._held.get(span.token):
                held.pieces.append((span.start, span.stop))
            else:
                self._hold(_Held(span.token, span.worker, span.pass_number, [(span.start, span.stop)]))
        for failure in data.failures:
            state, k = self._passes[failure.pass_number], failure.k
            state.failures[k] = failure
            if failure.quarantined:
                state.quarantined += 1
            elif k in state.todo:  # not out for its second try
                state.aside[k] = failure
            state.todo.remove(k, k + 1)
        self._fenced = {fenced.token: fenced for fenced in data.fenced}
        self._next_token = self._tokens_reserved = data.tokens_reserved
        self.validate()

    def validate(self) -> None:
        """Check the ledger. Raises ValueError when the states of a pass overlap or leave something out, or the ways to a lease disagree."""
        for state in self._passes.values():
            tiles = [*state.todo, *state.done, *((k, k + 1) for k in state.aside)]
            tiles += [(k, k + 1) for k, failure in state.failures.items() if failure.quarantined]
            tiles += [piece for held in state.held.values() for piece in held.pieces]
            at = 0
            for start, stop in sorted(tiles):
                if start != at or stop <= start:
                    raise ValueError(f"{state.of}: minibatches [{start}, {stop}) follow {at} in the ledger")
                at = stop
            if at != state.of.minibatches:
                raise ValueError(f"{state.of}: the ledger ends at minibatch {at} of {state.of.minibatches}")
            if state.quarantined != sum(failure.quarantined for failure in state.failures.values()):
                raise ValueError(f"{state.of}: quarantined minibatches are miscounted")
        by_pass = {token: held for state in self._passes.values() for token, held in state.held.items()}
        by_worker = {token: held for tokens in self._of_worker.values() for token, held in tokens.items()}
        if not self._held == by_pass == by_worker or any(not tokens for tokens in self._of_worker.values()):
            raise ValueError("leases by token, by pass and by worker differ")
        if any(token >= self._next_token for token in (*self._held, *self._fenced)):
            raise ValueError("a token is in use that has not been given out")


def _common(open_pieces: IntervalSet, ranges: Iterable[Range]) -> list[Range]:
    """Return what of ``ranges`` is in ``open_pieces``, each minibatch once."""
    return list(IntervalSet(piece for start, stop in ranges for piece in open_pieces.within(start, stop)))
