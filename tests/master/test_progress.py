from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.master.progress import RATE_SECONDS, Evaluations, Progress
from dlrover_lite.metrics import BinaryMetrics
from dlrover_lite.wire.messages import WorkReport


def progress(*, window: int = 1000, share: float = 0.01) -> Progress:
    return Progress(window_samples=window, max_bad_share=share, began=0.0)


def metrics(samples: int, logit: float = 1.0) -> BinaryMetrics:
    found = BinaryMetrics()
    found.add(np.full(samples, logit), np.arange(samples) % 2)
    return found


def lines(good: int, bad: int, *examples: str) -> WorkReport:
    return WorkReport(samples=good, bad_lines=bad, bad_examples=list(examples))


def test_bad_lines_are_judged_when_enough_was_read() -> None:
    seen = progress()
    seen.add_lines(lines(900, 99, "a.csv:7: label is 2"))
    assert seen.judge_bad_lines() is None
    assert seen.judge_bad_lines(at_end=True) is not None
    seen.add_lines(lines(0, 1))
    error = seen.judge_bad_lines()
    assert error is not None
    assert "100 of 1000 lines read are bad, more than the share of 0.01" in error.message
    assert "a.csv:7: label is 2" in error.message
    assert "max_bad_share" in error.hint


def test_a_share_that_is_allowed() -> None:
    seen = progress()
    seen.add_lines(lines(9_900, 100))
    assert seen.judge_bad_lines(at_end=True) is None
    seen.add_lines(lines(0, 1))
    assert seen.judge_bad_lines() is not None


def test_no_share_at_all() -> None:
    seen = progress(share=0.0)
    seen.add_lines(lines(5_000, 0))
    assert seen.judge_bad_lines(at_end=True) is None
    seen.add_lines(lines(0, 1))
    assert seen.judge_bad_lines() is not None


def test_a_few_examples_are_kept() -> None:
    seen = progress()
    for i in range(10):
        seen.add_lines(lines(1, 1, f"line {i}"))
    assert seen.bad_examples == [f"line {i}" for i in range(5)]
    assert seen.bad_lines == 10


def test_rates_are_those_of_the_last_seconds() -> None:
    seen = progress()
    assert seen.rate(now=0.0) == 0.0
    for second in range(1, 31):
        seen.add("worker-0", WorkReport(samples=100), None, now=float(second))
        seen.add("worker-1", WorkReport(samples=300), None, now=second + 0.5)
    assert seen.node_rate("worker-0", now=30.5) == pytest.approx(100, rel=0.1)
    assert seen.node_rate("worker-1", now=30.5) == pytest.approx(300, rel=0.1)
    assert seen.rate(now=30.5) == pytest.approx(400, rel=0.1)
    assert seen.node_rate("worker-9", now=30.5) == 0.0
    assert seen.rate(now=30.5 + RATE_SECONDS / 2) == pytest.approx(200, rel=0.2)  # nothing has come since
    assert seen.rate(now=31 + RATE_SECONDS) == 0.0
    seen.forget("worker-1")
    assert seen.node_rate("worker-1", now=30.5) == 0.0


def test_recent_metrics_cover_one_to_two_windows() -> None:
    seen = progress(window=1000)
    for i in range(50):
        seen.add("w", WorkReport(samples=100), metrics(100, logit=float(i)), now=float(i))
        samples = seen.recent().samples
        assert samples == 100 * (i + 1) if i < 10 else 1000 <= samples <= 2000
    assert progress().recent().auc is None


@given(st.dictionaries(st.integers(0, 50), st.integers(1, 20), min_size=1), st.floats(0.01, 1))
def test_staleness_quantiles(counts: dict[int, int], share: float) -> None:
    seen = progress()
    for value, count in counts.items():
        seen.add("w", WorkReport(staleness={value: count}), None, now=0.0)
    everything = sorted(value for value, count in counts.items() for _ in range(count))
    quantile = seen.staleness_quantile(share)
    assert quantile in counts
    assert sum(value <= quantile for value in everything) >= share * len(everything) - 1e-9
    assert sum(value < quantile for value in everything) < share * len(everything) + 1e-9
    assert seen.staleness_quantile(1.0) == max(counts)


def test_no_staleness_yet() -> None:
    assert progress().staleness_quantile(0.99) is None


def test_evaluations_add_up_and_close() -> None:
    evaluations = Evaluations()
    evaluations.add(0, metrics(60, 2.0))
    kept = evaluations.add(0, metrics(40, -1.0))
    evaluations.add(1, metrics(5))
    assert BinaryMetrics.from_bytes(kept).samples == 100
    expected = metrics(60, 2.0)
    expected.merge(metrics(40, -1.0))
    result = evaluations.close(0, at_samples=777)
    assert (result.at_samples, result.samples, result.auc) == (777, 100, expected.auc)
    assert result.loss == pytest.approx(expected.log_loss)
    assert evaluations.results == [result]
    empty = evaluations.close(2, at_samples=800)  # nothing but bad lines
    assert (empty.samples, empty.auc) == (0, None)
    assert empty.loss is None
