"""Generated samples in the Criteo layout whose best reachable AUC is known: Zipf ids, labels drawn by a teacher.

Every value is a function of (seed, sample number, field), so any sample can be made without the others. The teacher's
logit adds up an effect of each id, a linear one of the dense features, and products for a few pairs of fields; it is
scaled so that about a quarter of the labels are 1 and that its own probabilities reach an AUC of about 0.80.
Training samples are 0..samples - 1, evaluation samples follow. ``write_tsv`` writes the same samples as Criteo TSV.
"""

from __future__ import annotations

import gzip
import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DataError
from dlrover_lite.data.base import CRITEO_SCHEMA, Batch, checked_numbers
from dlrover_lite.data.files import Progress, atomic_file, is_disk_full
from dlrover_lite.recipe.id_kinds import FileIds, SeenColumn
from dlrover_lite.recipe.schema import SyntheticData

__all__ = ["SyntheticDataset", "best_auc", "write_tsv"]

POSITIVE_SHARE = 0.25
BEST_AUC = 0.80
_MOST_IDS = 100_000_000  # 800 MB of table
_GUIDE_BITS = 16
_CALIBRATION_SAMPLES = 8192
_CHUNK = 8192
_LONGEST_LINE = 512
_AUC_BINS = 1 << 20


class _Teacher(NamedTuple):
    """What the kernels need: the seed's salt, the ids' distribution, and scale and offset of the logit."""

    salt: np.uint64
    cumulative: NDArray[np.float64]
    """Probability [ids per field] of this rank or a more frequent one."""
    guide: NDArray[np.int64]
    """First rank [2^16 + 1] that a uniform number with these leading bits can have."""
    scale: float
    offset: float


class SyntheticDataset:
    """Samples ``first`` .. ``first + samples - 1`` as numbers 0 .. ``samples - 1``. See ``base.Dataset``.

    What generates them is made, and its kernels are imported, when the first one is read: a master never does.
    """

    schema = CRITEO_SCHEMA
    remote = False

    def __init__(self, data: SyntheticData, *, first: int, samples: int) -> None:
        _check_ids(data.ids_per_field)
        self.samples = samples
        self._data = data
        self._first = first

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        numbers = checked_numbers(numbers, self.samples)
        labels, dense, ids, _, _ = _generate(self._labels_by, numbers + self._first)
        return Batch(labels, dense, ids, [])

    @cached_property
    def _labels_by(self) -> _Teacher:
        return _teacher(self._data.ids_per_field, self._data.zipf_exponent, self._data.seed)

    def expect(self, ranges: Sequence[range]) -> None:
        pass

    def look_at_ids(self) -> list[FileIds]:
        return [FileIds("", {name: SeenColumn("integer", "synthetic") for name in self.schema.categorical})]

    def close(self) -> None:
        pass


def best_auc(data: SyntheticData, start: int | None = None, stop: int | None = None) -> float:
    """Compute the AUC that the teacher's own probabilities reach on samples [start, stop); no model can be expected to do better.

    By default on the evaluation samples, or where there are none on the training samples. NaN without both labels.
    """
    if start is None or stop is None:
        start, stop = data.samples, data.samples + data.eval_samples
        if not data.eval_samples:
            start, stop = 0, data.samples
    tally = _AucTally()
    teacher = _teacher(data.ids_per_field, data.zipf_exponent, data.seed)
    for numbers in _chunks(start, stop):
        labels, _, _, _, logits = _generate(teacher, numbers)
        tally.add(labels, logits)
    return tally.value()


def write_tsv(path: Path, spec: SyntheticData, samples: int, gz: bool, progress: Progress | None = None) -> float:
    """Write samples 0..samples - 1 as Criteo TSV, whole or not at all; returns their best reachable AUC.

    The Criteo reader reads them back as exactly what ``SyntheticDataset`` gives. ``progress(what, done, total)`` counts
    samples. Raises DataError when the file can't be written.
    """
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no file, and isn't replaced by one", hint="Choose another name.")
    from dlrover_lite.data.kernels.synthetic import format_lines

    teacher = _teacher(spec.ids_per_field, spec.zipf_exponent, spec.seed)
    tally = _AucTally()
    text = np.empty(_CHUNK * _LONGEST_LINE, np.uint8)
    try:
        with ExitStack() as stack:
            file: IO[bytes] = stack.enter_context(atomic_file(path))
            if gz:
                packed = gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=3, mtime=0)
                file = cast(IO[bytes], stack.enter_context(packed))
            for numbers in _chunks(0, samples):
                labels, _, ids, counts, logits = _generate(teacher, numbers)
                tally.add(labels, logits)
                file.write(text[: format_lines(labels, counts, ids, text)].tobytes())
                if progress:
                    progress(f"writing {path.name}", int(numbers[-1]) + 1, samples)
    except OSError as error:
        if is_disk_full(error):
            raise DataError(f"the disk is full: {path} was not written", hint="Free some space.") from error
        raise DataError(
            f"{path} can't be written: {error.strerror or error}", hint="Check the directory and its permissions."
        ) from error
    return tally.value()


class _AucTally:
    """AUC of logits against labels, from counts in 2^20 bins (the error is far below what a sample can show)."""

    def __init__(self) -> None:
        self._counts = np.zeros((2, _AUC_BINS), np.int64)

    def add(self, labels: NDArray[np.float32], logits: NDArray[np.float64]) -> None:
        bins = (_sigmoid(logits) * (_AUC_BINS - 1)).astype(np.int64)
        for label in (0, 1):
            found, times = np.unique(bins[labels == label], return_counts=True)
            self._counts[label, found] += times

    def value(self) -> float:
        negatives, positives = self._counts
        pairs = int(negatives.sum()) * int(positives.sum())
        if not pairs:
            return math.nan
        below = np.cumsum(negatives) - negatives / 2
        return float((positives * below).sum() / pairs)


def _chunks(start: int, stop: int) -> Iterator[NDArray[np.int64]]:
    for first in range(start, stop, _CHUNK):
        yield np.arange(first, min(first + _CHUNK, stop), dtype=np.int64)


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-logits))


def _generate(
    teacher: _Teacher, numbers: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint64], NDArray[np.int64], NDArray[np.float64]]:
    """Generate (labels, dense, ids as in ``Batch``; counts int64 [n, 13] behind the dense features, -2 for empty; logits [n])."""
    from dlrover_lite.data.kernels.synthetic import generate

    count = len(numbers)
    labels = np.empty(count, np.float32)
    dense = np.empty((count, len(CRITEO_SCHEMA.dense)), np.float32)
    ids = np.empty((len(CRITEO_SCHEMA.categorical), count), np.uint64)
    counts = np.empty((count, len(CRITEO_SCHEMA.dense)), np.int64)
    logits = np.empty(count, np.float64)
    generate(numbers, *teacher, labels, dense, ids, counts, logits)
    return labels, dense, ids, counts, logits


def _check_ids(ids_per_field: int) -> None:
    if ids_per_field > _MOST_IDS:
        raise DataError(
            f"{ids_per_field:,} ids per field are more than the generator's table holds",
            hint=f"Use at most {_MOST_IDS:,}.",
        )


@lru_cache(maxsize=2)
def _teacher(ids_per_field: int, zipf_exponent: float, seed: int) -> _Teacher:
    _check_ids(ids_per_field)
    cumulative = np.cumsum(np.arange(1, ids_per_field + 1, dtype=np.float64) ** -zipf_exponent)
    cumulative /= cumulative[-1]
    guide = np.searchsorted(cumulative, np.arange((1 << _GUIDE_BITS) + 1) / (1 << _GUIDE_BITS), side="right")
    guide = np.minimum(guide, ids_per_field - 1).astype(np.int64)
    salt = np.uint64(int.from_bytes(hashlib.blake2b(f"synthetic/{seed}".encode(), digest_size=8).digest(), "little"))
    raw = _Teacher(salt, cumulative, guide, 1.0, 0.0)
    # Samples that no recipe can ask for, so that the teacher depends on none of those it labels.
    scale, offset = _calibrate(_generate(raw, -1 - np.arange(_CALIBRATION_SAMPLES))[4])
    return raw._replace(scale=scale, offset=offset)


def _calibrate(raw: NDArray[np.float64]) -> tuple[float, float]:
    """Scale and offset for raw logits that give the wanted share of positives and AUC.

    Rounded, so that the last bits of another machine's exp() don't matter.
    """
    ordered = np.sort(raw - raw.mean())
    low, high = 0.0, 20.0 / max(float(ordered.std()), 1e-6)
    for _ in range(20):
        scale = (low + high) / 2
        if _expected_auc(ordered * scale + _offset(ordered * scale)) < BEST_AUC:
            low = scale
        else:
            high = scale
    scale = round(scale, 3)
    return scale, round(_offset(ordered * scale) - scale * float(raw.mean()), 3)


def _offset(logits: NDArray[np.float64]) -> float:
    low, high = -30.0, 30.0
    for _ in range(25):
        middle = (low + high) / 2
        if _sigmoid(logits + middle).mean() < POSITIVE_SHARE:
            low = middle
        else:
            high = middle
    return middle


def _expected_auc(ordered_logits: NDArray[np.float64]) -> float:
    """Compute the AUC to be expected of probabilities that are true, given as ascending logits."""
    positive = _sigmoid(ordered_logits)
    negative = 1.0 - positive
    below = np.cumsum(negative) - negative / 2
    return float((positive * below).sum() / (positive.sum() * negative.sum()))
