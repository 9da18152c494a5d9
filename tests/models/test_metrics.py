"""The mergeable AUC agrees with the exact one within half of the pairs of one bin, however samples are split."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.metrics import BINS, LIMIT, BinaryMetrics


def exact_auc(logits: np.ndarray, labels: np.ndarray) -> float:
    positive, negative = np.sort(logits[labels == 1]), np.sort(logits[labels == 0])
    below = np.searchsorted(negative, positive, "left").sum()
    not_above = np.searchsorted(negative, positive, "right").sum()
    return float(below + not_above) / 2 / (len(positive) * len(negative))


def error_bound(metrics: BinaryMetrics) -> float:
    """How far the AUC can be from that of the unbinned logits: half of the share of pairs within one bin."""
    negative, positive = metrics.counts.astype(np.float64)
    return float(positive @ negative / (positive.sum() * negative.sum()) / 2)


samples = st.lists(
    st.tuples(st.floats(-40, 40, width=32) | st.sampled_from([0.0, 0.1, -0.1]), st.booleans()), min_size=1, max_size=200
)


def of(pairs) -> BinaryMetrics:
    metrics = BinaryMetrics()
    if pairs:
        metrics.add([logit for logit, _ in pairs], [float(label) for _, label in pairs])
    return metrics


@settings(max_examples=80, deadline=None)
@given(samples)
def test_auc_is_within_its_bound_and_the_loss_is_exact(pairs):
    metrics = of(pairs)
    logits = np.array([logit for logit, _ in pairs])
    labels = np.array([int(label) for _, label in pairs])
    signed = np.where(labels == 1, -logits, logits)
    assert metrics.log_loss == pytest.approx(np.mean(np.maximum(signed, 0) + np.log1p(np.exp(-np.abs(signed)))))
    if 0 < labels.sum() < len(labels):
        assert abs(metrics.auc - exact_auc(logits, labels)) <= error_bound(metrics) + 1e-12
    else:
        assert metrics.auc is None


@settings(max_examples=50, deadline=None)
@given(samples, st.integers(0, 200))
def test_merged_parts_sent_as_bytes_equal_the_whole(pairs, cut):
    merged = BinaryMetrics.from_bytes(of(pairs[:cut]).to_bytes())
    merged.merge(BinaryMetrics.from_bytes(of(pairs[cut:]).to_bytes()))
    whole = of(pairs)
    assert np.array_equal(merged.counts, whole.counts)
    assert merged.samples == len(pairs) and merged.auc == whole.auc
    assert merged.log_loss == pytest.approx(whole.log_loss)


def test_binning_hardly_moves_the_auc_of_a_smooth_distribution():
    random = np.random.default_rng(0)
    labels = (random.random(50_000) < 0.25).astype(np.float32)
    logits = (random.normal(size=50_000) * 0.7 - 1 + labels).astype(np.float32)
    metrics = BinaryMetrics()
    metrics.add(logits.reshape(-1, 1), labels)
    assert error_bound(metrics) < 0.001
    assert metrics.auc == pytest.approx(exact_auc(logits, labels), abs=2e-5)
    assert metrics.counts[1].sum() == labels.sum()


def test_infinite_logits_land_in_the_outer_bins():
    metrics = BinaryMetrics()
    metrics.add([-math.inf, math.inf, LIMIT], [0, 1, 1])
    assert metrics.counts[0, 0] == 1 and metrics.counts[1, BINS - 1] == 2
    assert metrics.auc == 1.0


def test_a_nan_logit_is_not_hidden():
    metrics = of([(0.5, True), (-0.5, False)])
    metrics.add([math.nan], [1])
    again = BinaryMetrics.from_bytes(metrics.to_bytes())
    assert again.samples == 3 and again.auc is None and math.isnan(again.log_loss)


def test_empty_metrics_have_no_auc_and_no_loss():
    metrics = BinaryMetrics.from_bytes(BinaryMetrics().to_bytes())
    assert metrics.samples == 0 and metrics.log_loss is None and metrics.auc is None


def test_counts_beyond_32_bits_survive():
    metrics = of([(0.5, True), (-0.5, False)])
    metrics.counts *= 10_000_000_000
    assert BinaryMetrics.from_bytes(metrics.to_bytes()).samples == 20_000_000_000


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda tail: b"\x01\x04\x01\x00" + tail))
def test_bytes_that_are_no_metrics_are_refused(data):
    try:
        BinaryMetrics.from_bytes(data).to_bytes()
    except ValueError as error:
        assert "metrics" in str(error)


def test_cut_off_and_newer_bytes_are_refused():
    data = of([(0.5, True), (-0.5, False)]).to_bytes()
    for broken in (data[:-1], data + b"x", b"\x02" + data[1:], data[:3]):
        with pytest.raises(ValueError, match="metrics"):
            BinaryMetrics.from_bytes(broken)


def test_logits_and_labels_must_have_the_same_length():
    with pytest.raises(ValueError, match="2 logits but 1 labels"):
        BinaryMetrics().add([0.1, 0.2], [1])
