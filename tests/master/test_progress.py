from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.master.work.progress import RATE_SECONDS, Evaluations, Progress
from dlrover_lite.protocol.messages import UnknownIds, WorkReport


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


def test_an_allowed_share_of_bad_lines_passes() -> None:
    seen = progress()
    seen.add_lines(lines(9_900, 100))
    assert seen.judge_bad_lines(at_end=True) is None
    seen.add_lines(lines(0, 1))
    assert seen.judge_bad_lines() is not None


def test_one_bad_line_fails_a_job_that_allows_none() -> None:
    seen = progress(share=0.0)
    seen.add_lines(lines(5_000, 0))
    assert seen.judge_bad_lines(at_end=True) is None
    seen.add_lines(lines(0, 1))
    assert seen.judge_bad_lines() is not None


def test_a_few_examples_of_bad_lines_are_kept() -> None:
    seen = progress()
    for i in range(10):
        seen.add_lines(lines(1, 1, f"line {i}"))
    assert seen.bad_examples == [f"line {i}" for i in range(5)]
    assert seen.bad_lines == 10


def test_sample_rates_are_those_of_the_last_seconds() -> None:
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


def test_staleness_is_unknown_before_any_report() -> None:
    assert progress().staleness_quantile(0.99) is None


def test_parts_of_an_evaluation_add_up() -> None:
    evaluations = Evaluations()
    evaluations.add(0, metrics(60, 2.0))
    evaluations.add(0, metrics(40, -1.0))
    evaluations.add(1, metrics(5))
    expected = metrics(60, 2.0)
    expected.merge(metrics(40, -1.0))
    result = evaluations.close(0, at_samples=777)
    assert (result.at_samples, result.samples, result.auc) == (777, 100, expected.auc)
    assert result.loss == pytest.approx(expected.log_loss)
    assert evaluations.results == [result]
    empty = evaluations.close(2, at_samples=800)  # nothing but bad lines
    assert (empty.samples, empty.auc) == (0, None)
    assert empty.loss is None


def unknown(column: str, count: int, rows: int = 0, table: str = "") -> UnknownIds:
    return UnknownIds(column, table or column, count, rows)


def test_unknown_ids_of_a_round_are_shares_of_its_samples() -> None:
    evaluations = Evaluations(1000)
    evaluations.add(0, metrics(150), [unknown("a", 30, 500), unknown("b", 0, 10)])
    evaluations.add(0, metrics(50), [unknown("a", 10, 520), unknown("b", 20, 12)])
    assert evaluations.close(0, at_samples=800).unknown_ids == {"a": 0.2, "b": 0.1}
    assert evaluations.usual_shares() == {"a": 0.2, "b": 0.1}
    assert evaluations.close(1, at_samples=900).unknown_ids == {}
    assert evaluations.usual_shares() == {"a": 0.2, "b": 0.1}, "one of nothing but bad lines says nothing"


def test_unknown_ids_of_the_first_round_are_compared_with_training() -> None:
    """Of which each new id has made a row."""
    rows = [unknown("a", 100, 900), unknown("b", 100, 30), unknown("c", 60, 500, "t"), unknown("d", 60, 500, "t")]
    for at_samples in (1000, 3000):  # in the first epoch, and in the third
        evaluations = Evaluations(1000)
        evaluations.add(0, metrics(100), rows)
        assert evaluations.close(0, at_samples=at_samples).unusual_ids == {"b": 0.03}
        assert evaluations.usual_shares() == {"a": 1.0, "b": 0.03, "c": 0.6, "d": 0.6}
    begun_with_rows = Evaluations(None)
    begun_with_rows.add(0, metrics(100), rows)
    assert begun_with_rows.close(0, at_samples=1000).unusual_ids == {"a": None, "b": None, "c": None, "d": None}
    nothing_trained = Evaluations(1000)
    nothing_trained.add(0, metrics(100), rows)
    assert nothing_trained.close(0, at_samples=0).unusual_ids["b"] is None


def test_unknown_ids_of_later_rounds_are_compared_with_the_last() -> None:
    evaluations = Evaluations(1000)
    for index, (count, unusual) in enumerate([(5, {}), (100, {"a": 0.05}), (100, {"a": 0.05}), (10, {}), (20, {})]):
        evaluations.add(index, metrics(100), [unknown("a", count, 100)])
        assert evaluations.close(index, at_samples=1000).unusual_ids == pytest.approx(unusual)


def test_a_round_is_restored_also_from_metrics_alone() -> None:
    first, second = Evaluations(1000), Evaluations(1000)
    second.restore(0, first.add(0, metrics(100), [unknown("a", 30, 77)]))
    second.add(0, metrics(100), [unknown("a", 10, 70)])
    assert second.close(0, at_samples=1000) == second.results[0]
    assert (second.results[0].samples, second.results[0].unknown_ids) == (200, {"a": 0.2})
    second.restore(1, metrics(7).to_bytes())  # as versions before unknown ids kept it
    assert (second.close(1, at_samples=1).samples, second.results[1].unknown_ids) == (7, {})
    with pytest.raises(ValueError, match="metrics"):
        second.restore(2, b"nothing of the kind, but long enough")
