"""Log loss and AUC that can be added up over minibatches and workers, in a fixed amount of memory."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["BINS", "LIMIT", "BinaryMetrics"]

BINS = 8192
LIMIT = 12.0
"""Logits are counted in ``BINS`` equal bins over [-LIMIT, LIMIT]; beyond it, in the first and the last."""

_HEADER = struct.Struct("<BBHHQd")
_VERSION = 1


class BinaryMetrics:
    """Sum of log loss, and a histogram of the logits of positive and of negative samples.

    Samples in one bin count as ties, so that the AUC is exact to half of the share of pairs within one bin: within 0.0002 of the exact
    one for any smooth distribution of logits. Counts are exact and don't depend on the order of adding and merging.
    """

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros((2, BINS), np.int64)
        """[2, bins]: counts of negative and of positive samples."""
        self.nans = 0
        """Number of samples whose logit is NaN: they are in no bin, and there is no loss nor AUC then."""
        self.loss_sum = 0.0

    def add(self, logits: ArrayLike, labels: ArrayLike) -> None:
        """Add samples: logits [n] or [n, 1], labels [n] of 0 and 1 (above 0.5 is positive).

        Raises ValueError when the lengths differ.
        """
        x = np.asarray(logits, np.float64).reshape(-1)
        y = np.asarray(labels).reshape(-1) > 0.5
        if len(x) != len(y):
            raise ValueError(f"{len(x)} logits but {len(y)} labels")
        usable = ~np.isnan(x)
        if not usable.all():
            self.nans += int(len(x) - usable.sum())
            x, y = x[usable], y[usable]
        bins = np.clip((x + LIMIT) * (BINS / (2 * LIMIT)), 0, BINS - 1).astype(np.int64)
        self.counts += np.bincount(bins + y * BINS, minlength=2 * BINS).reshape(2, BINS)
        self.loss_sum += float(np.logaddexp(0.0, np.where(y, -x, x)).sum())

    def merge(self, other: BinaryMetrics) -> None:
        """Add all samples of ``other``."""
        self.counts += other.counts
        self.nans += other.nans
        self.loss_sum += other.loss_sum

    @property
    def samples(self) -> int:
        return int(self.counts.sum()) + self.nans

    @property
    def log_loss(self) -> float | None:
        """Mean binary cross-entropy; None without samples, NaN when a logit was NaN."""
        if not self.samples:
            return None
        return float("nan") if self.nans else self.loss_sum / self.samples

    @property
    def auc(self) -> float | None:
        """Chance that a positive sample's logit is above a negative's, ties counting half; None with one class only
        or when a logit was NaN."""
        pairs = self._pairs()
        if not pairs:
            return None
        negative, positive = self.counts.astype(np.float64)
        below = np.cumsum(negative) - negative
        return float(positive @ (below + negative / 2) / pairs)

    def _pairs(self) -> float:
        negatives, positives = self.counts.sum(1)
        return 0.0 if self.nans else float(negatives) * float(positives)

    def to_bytes(self) -> bytes:
        """Encode in compact form: used bins only, so at most about 6 bytes a sample and 48 KiB to 144 KiB in all."""
        parts = []
        wide = 8 if self.counts.max() > 0xFFFFFFFF else 4
        used = [np.flatnonzero(row) for row in self.counts]
        parts.append(_HEADER.pack(_VERSION, wide, len(used[0]), len(used[1]), self.nans, self.loss_sum))
        for at, row in zip(used, self.counts, strict=True):
            parts += [at.astype("<u2").tobytes(), row[at].astype(f"<u{wide}").tobytes()]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> BinaryMetrics:
        """Decode the metrics that ``to_bytes`` was called on. Raises ValueError for anything else."""
        if len(data) < _HEADER.size:
            raise ValueError(f"metrics cut off at {len(data)} bytes")
        version, wide, *lengths, nans, loss_sum = _HEADER.unpack_from(data)
        if version != _VERSION or wide not in (4, 8):
            raise ValueError(f"metrics of version {version}, width {wide}; this is version {_VERSION}")
        if max(lengths) > BINS or len(data) != _HEADER.size + sum(lengths) * (2 + wide):
            raise ValueError(f"metrics of {len(data)} bytes, which don't match their header")
        metrics = cls()
        metrics.nans, metrics.loss_sum = int(nans), float(loss_sum)
        offset = _HEADER.size
        for row, length in zip(metrics.counts, lengths, strict=True):
            at = np.frombuffer(data, "<u2", length, offset)
            if length and at.max() >= BINS:
                raise ValueError(f"metrics with a bin {at.max()} of {BINS}")
            row[at] = np.frombuffer(data, f"<u{wide}", length, offset + 2 * length)
            offset += length * (2 + wide)
        return metrics
