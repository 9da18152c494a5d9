"""What the workers' reports add up to: rates, loss, AUC, evaluations, staleness, bad lines."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

import msgspec

from dlrover_lite.core.decoding import from_msgpack
from dlrover_lite.core.errors import DataError
from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.core.unknown_ids import unusual_ids, usual_shares
from dlrover_lite.master.checkpoints.checkpoint_stalls import Steps
from dlrover_lite.protocol.messages import UnknownIds, WorkReport
from dlrover_lite.protocol.questions import EvaluationResult
from dlrover_lite.transport.frames import MalformedMessage

__all__ = ["Counters", "Evaluations", "Progress", "finite", "metrics_of"]

RATE_SECONDS = 10.0
_LINES_TO_JUDGE = 1000


class Counters(msgspec.Struct, frozen=True):
    """What of ``Progress`` outlives its process."""

    good_lines: int
    bad_lines: int
    bad_examples: list[str]
    staleness: dict[int, int]


class Progress:
    """The progress of training. ``now`` is seconds of a steady clock, handed in."""

    def __init__(self, *, window_samples: int, max_bad_share: float, began: float) -> None:
        self.began = began
        self.bad_lines = 0
        self.bad_examples: list[str] = []
        self.staleness: Counter[int] = Counter()
        self._good_lines = 0
        self._max_bad_share = max_bad_share
        self._window_samples = window_samples
        self._recent = BinaryMetrics()
        self._before = BinaryMetrics()
        self._rates: dict[str, _Rate] = {}
        self._rate = _Rate()
        self.steps = Steps()

    def add(self, node: str, report: WorkReport, metrics: BinaryMetrics | None, *, now: float) -> None:
        """Add a worker's report about training, and the metrics in it."""
        if metrics is not None:
            if self._recent.samples >= self._window_samples:
                self._before, self._recent = self._recent, BinaryMetrics()
            self._recent.merge(metrics)
        self.staleness.update(report.staleness)
        self._rates.setdefault(node, _Rate()).add(report.samples, now)
        self._rate.add(report.samples, now)
        self.steps.worked(node, minibatches=report.minibatches, longest=report.longest_step_seconds, now=now)

    def add_lines(self, report: WorkReport) -> None:
        """Add the lines that were read, for training or evaluation."""
        self._good_lines += report.samples
        self.bad_lines += report.bad_lines
        self.bad_examples = (self.bad_examples + report.bad_examples)[:5]

    def judge_bad_lines(self, *, at_end: bool = False) -> DataError | None:
        """Return the error to fail with when too large a share of the lines read so far is bad."""
        read = self._good_lines + self.bad_lines
        if not self.bad_lines or (read < _LINES_TO_JUDGE and not at_end):
            return None
        if self.bad_lines <= self._max_bad_share * read:
            return None
        return DataError(
            f"{self.bad_lines} of {read} lines read are bad, more than the share of {self._max_bad_share:g} allowed:\n"
            + "\n".join(f"  {example}" for example in self.bad_examples),
            hint="Mend the data, check data.format and the columns, or allow more with data.max_bad_share.",
        )

    def counters(self) -> Counters:
        return Counters(self._good_lines, self.bad_lines, self.bad_examples, dict(self.staleness))

    def restore(self, counters: Counters) -> None:
        self._good_lines, self.bad_lines = counters.good_lines, counters.bad_lines
        self.bad_examples, self.staleness = list(counters.bad_examples), Counter(counters.staleness)

    def forget(self, node: str) -> None:
        self._rates.pop(node, None)
        self.steps.forget(node)

    def rate(self, *, now: float) -> float:
        """Return the samples/s of the whole job over the last seconds."""
        return self._rate.value(now)

    def node_rate(self, node: str, *, now: float) -> float:
        return self._rates[node].value(now) if node in self._rates else 0.0

    def recent(self) -> BinaryMetrics:
        """Return the metrics of the last samples trained on, predicted before the update."""
        both = BinaryMetrics()
        both.merge(self._before)
        both.merge(self._recent)
        return both

    def staleness_quantile(self, share: float) -> int | None:
        """Return the smallest staleness that at least ``share`` of all minibatches stay within."""
        total = sum(self.staleness.values())
        seen = 0
        for value in sorted(self.staleness):
            seen += self.staleness[value]
            if seen >= share * total:
                return value
        return None


class _Rate:
    """Samples/s over the last RATE_SECONDS."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, samples: int, now: float) -> None:
        self._points.append((now, samples))
        self._sum += samples
        self._trim(now)

    def value(self, now: float) -> float:
        self._trim(now)
        if len(self._points) < 2:
            return 0.0
        began, first = self._points[0]
        # what the first report tells of happened before it
        return (self._sum - first) / max(now - began, 1e-3) if now - began > 0.2 else 0.0

    def _trim(self, now: float) -> None:
        while self._points and now - self._points[0][0] > RATE_SECONDS:
            self._sum -= self._points.popleft()[1]


class _RoundState(msgspec.Struct, frozen=True, array_like=True):
    """An evaluation round as it is kept with the ledger."""

    metrics: bytes
    unknown_ids: list[UnknownIds]


class _Round:
    """What an evaluation round adds up to so far."""

    def __init__(self) -> None:
        self.metrics = BinaryMetrics()
        self.unknown: dict[str, UnknownIds] = {}
        """Unknown ids by column."""

    def add(self, metrics: BinaryMetrics | None, unknown: Iterable[UnknownIds]) -> None:
        if metrics is not None:
            self.metrics.merge(metrics)
        for one in unknown:
            before = self.unknown.get(one.column)
            self.unknown[one.column] = one if before is None else before.plus(one)

    def shares(self) -> dict[str, float]:
        """Return the share of the ids that had never been trained, by column."""
        samples = self.metrics.samples
        return {column: min(1.0, one.unknown / samples) for column, one in self.unknown.items()} if samples else {}

    def fresh_shares(self, samples: int) -> dict[str, float]:
        """Return the largest share of the ids that can have been new when first trained on, by column, in so many samples of the first
        epoch, since each new one has made a row. Rows made while the evaluation went on count too, and those that columns with the same
        table have made."""
        if not samples:
            return {}
        return {column: min(1.0, one.table_rows / samples) for column, one in self.unknown.items()}


class Evaluations:
    """Metrics of evaluation rounds, and the results of those that are through."""

    def __init__(self, epoch_samples: int | None = None) -> None:
        """Begin without rounds. ``epoch_samples``: number of samples in an epoch; None: tables had rows before the first one, which say
        nothing about it."""
        self._open: dict[int, _Round] = {}
        self._epoch_samples = epoch_samples
        self.results: list[EvaluationResult] = []

    def add(self, index: int, metrics: BinaryMetrics | None, unknown: Iterable[UnknownIds] = ()) -> bytes:
        """Add a shard's metrics to round ``index``; returns the round's whole state, to be kept with the ledger."""
        total = self._open.setdefault(index, _Round())
        total.add(metrics, unknown)
        return msgspec.msgpack.encode(_RoundState(total.metrics.to_bytes(), list(total.unknown.values())))

    def restore(self, index: int, state: bytes) -> None:
        """Go on with what ``add`` has returned for this round, also in versions before that of unknown ids: metrics alone."""
        total = self._open[index] = _Round()
        try:
            kept = from_msgpack(state, _RoundState)
        except msgspec.MsgspecError:
            kept = _RoundState(state, [])
        total.add(BinaryMetrics.from_bytes(kept.metrics), kept.unknown_ids)

    def close(self, index: int, *, at_samples: int) -> EvaluationResult:
        """End round ``index``, which began after this many samples; the result."""
        total = self._open.pop(index, None) or _Round()
        metrics, shares = total.metrics, total.shares()
        usual = {} if self._epoch_samples is None else total.fresh_shares(min(at_samples, self._epoch_samples))
        usual |= self.usual_shares()
        unusual = unusual_ids(shares, usual, samples=metrics.samples)
        loss = metrics.log_loss
        result = EvaluationResult(at_samples, metrics.samples, finite(loss), metrics.auc, shares, unusual)
        self.results.append(result)
        return result

    def usual_shares(self) -> dict[str, float]:
        """Return the share of unknown ids by column, to compare another evaluation with; empty before the first."""
        last = next((result for result in reversed(self.results) if result.unknown_ids), None)
        return {} if last is None else usual_shares(last.unknown_ids, last.unusual_ids)


def finite(value: float | None) -> float | None:
    """Return ``value``; None for one that isn't finite."""
    return value if value is not None and math.isfinite(value) else None


def metrics_of(report: WorkReport | None) -> BinaryMetrics | None:
    """Return the metrics of a report, if there are any. Raises MalformedMessage: nothing of the report has been applied then."""
    try:
        return BinaryMetrics.from_bytes(report.metrics) if report and report.metrics else None
    except ValueError as error:
        raise MalformedMessage(str(error)) from error
