"""The inner loops of the synthetic generator."""

from __future__ import annotations

import math

import numpy as np

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.tables.hashing import mix64

__all__ = ["format_lines", "generate"]

_DENSE = 13
_CATEGORICAL = 26
_GOLDEN = 0x9E3779B97F4A7C15
# Draws of one sample, numbered: an id per categorical field, a count per dense one, then these.
_LABEL_DRAW, _CUT_DRAW = 64, 65
_EMPTY_COUNT = -2
_EMPTY_DENSE_SHARE, _EMPTY_CATEGORY_SHARE, _CUT_SHARE = 0.02, 0.01, 0.1
_PAIRS = 4

# How much a field's ids matter: a few fields a lot, the rest less and less, spread over the columns.
_WEIGHTS = np.zeros(_CATEGORICAL)
for _field in range(_CATEGORICAL):
    _WEIGHTS[_field * 7 % _CATEGORICAL] = 0.87**_field
_DENSE_WEIGHTS = np.array([0.5, -0.4, 0.3, -0.25, 0.2, -0.2, 0.15, -0.15, 0.1, -0.1, 0.1, -0.05, 0.05]) * 0.6


@kernel
def _unit(bits):  # type: ignore[no-untyped-def]
    """Return a number uniform in [0, 1) from the upper 53 bits."""
    return np.float64(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def _normal(bits):  # type: ignore[no-untyped-def]
    """Return a number that is about normal, mean 0, deviation 1, within 3.47: the sum of four 16-bit uniform numbers."""
    mask = np.uint64(0xFFFF)
    total = (
        (bits & mask) + ((bits >> np.uint64(16)) & mask) + ((bits >> np.uint64(32)) & mask) + (bits >> np.uint64(48))
    )
    return (np.float64(total) - 131070.0) * (1.7320508075688772 / 65536.0)


@kernel
def _draw(sample_key, number):  # type: ignore[no-untyped-def]
    return mix64(sample_key ^ (np.uint64(number + 1) * np.uint64(_GOLDEN)))


@kernel
def _rank(bits, cumulative, guide):  # type: ignore[no-untyped-def]
    """Return the rank (from 0) of the id that a draw stands for: the inverse of the cumulative distribution."""
    unit = _unit(bits)
    bucket = np.int64(bits >> np.uint64(48))
    low, high = guide[bucket], guide[bucket + 1]
    while low < high:
        middle = (low + high) >> 1
        if cumulative[middle] > unit:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _scramble(field, rank):  # type: ignore[no-untyped-def]
    """Return a field's rank as a 32-bit category, different for different ranks (a bijection of 32 bits)."""
    mask = np.uint64(0xFFFFFFFF)
    value = (np.uint64(rank) + np.uint64(field + 1) * np.uint64(0x9E3779B9)) & mask
    value ^= value >> np.uint64(16)
    value = (value * np.uint64(0x85EBCA6B)) & mask
    value ^= value >> np.uint64(13)
    value = (value * np.uint64(0xC2B2AE35)) & mask
    value ^= value >> np.uint64(16)
    return value


@kernel
def generate(numbers, salt, cumulative, guide, scale, offset, labels, dense, ids, counts, logits):  # type: ignore[no-untyped-def]
    """Fill labels [n], dense [n, 13], ids [26, n], counts [n, 13] and logits [n] for sample ``numbers`` [n]."""
    second = np.zeros(2 * _PAIRS)
    for i in range(numbers.shape[0]):
        key = mix64(salt + np.uint64(numbers[i]) * np.uint64(_GOLDEN))
        logit = 0.0
        cut = _unit(_draw(key, _CUT_DRAW)) < _CUT_SHARE  # the last two columns are empty together
        for field in range(_CATEGORICAL):
            bits = _draw(key, field)
            rank = _rank(bits, cumulative, guide)
            # The lowest bits say little about the rank: an independent draw of whether the field is empty.
            empty = np.float64(bits & np.uint64(0x7FF)) < _EMPTY_CATEGORY_SHARE * 2048.0
            if empty or (cut and field >= _CATEGORICAL - 2):
                ids[field, i] = np.uint64(0)
                if field < 2 * _PAIRS:
                    second[field] = 0.0
                continue
            category = _scramble(field, rank)
            ids[field, i] = category + np.uint64(1)
            # An id's effects belong to the teacher: they depend on the seed. Rare ids matter less.
            effect = mix64(salt ^ mix64((np.uint64(field + 1) << np.uint64(32)) | category))
            logit += _WEIGHTS[field] * _normal(effect) / math.sqrt(1.0 + rank / 500.0)
            if field < 2 * _PAIRS:
                second[field] = _normal(mix64(effect + np.uint64(_GOLDEN))) / math.sqrt(1.0 + rank / 500.0)
        for pair in range(_PAIRS):
            logit += 0.25 * second[2 * pair] * second[2 * pair + 1]
        for j in range(_DENSE):
            bits = _draw(key, _CATEGORICAL + j)
            if _unit(mix64(bits)) < _EMPTY_DENSE_SHARE:
                counts[i, j] = _EMPTY_COUNT
                dense[i, j] = 0.0
                continue
            count = np.int64(math.exp(1.5 + 1.2 * _normal(bits)))
            if j == 1:
                count -= 1  # as in Criteo's data, the second one can be -1
            feature = math.log1p(count) if count >= 0 else -math.log1p(-count)
            counts[i, j] = count
            dense[i, j] = feature
            logit += _DENSE_WEIGHTS[j] * (feature - 1.7)
        logit = logit * scale + offset
        logits[i] = logit
        labels[i] = 1.0 if _unit(_draw(key, _LABEL_DRAW)) < 1.0 / (1.0 + math.exp(-logit)) else 0.0


@kernel
def _append_integer(text, position, value):  # type: ignore[no-untyped-def]
    if value < 0:
        text[position] = 45
        position += 1
        value = -value
    digits = 1
    rest = value // 10
    while rest:
        digits += 1
        rest //= 10
    for k in range(digits):
        text[position + digits - 1 - k] = 48 + value % 10
        value //= 10
    return position + digits


@kernel
def format_lines(labels, counts, ids, text):  # type: ignore[no-untyped-def]
    """Write samples as lines of Criteo TSV into ``text`` (512 bytes a sample are enough); returns the bytes used."""
    position = 0
    for i in range(labels.shape[0]):
        text[position] = 49 if labels[i] > 0 else 48
        position += 1
        for j in range(_DENSE):
            text[position] = 9
            position += 1
            if counts[i, j] != _EMPTY_COUNT:
                position = _append_integer(text, position, counts[i, j])
        last = position
        for field in range(_CATEGORICAL):
            text[position] = 9
            position += 1
            if ids[field, i]:
                category = ids[field, i] - np.uint64(1)
                for k in range(8):
                    nibble = (category >> np.uint64(28 - 4 * k)) & np.uint64(15)
                    text[position] = nibble + np.uint64(48 if nibble < 10 else 87)
                    position += 1
                last = position
            elif field == 0:
                last = position  # a line keeps its first category, if only as an empty field
        position = last  # empty columns at the end are cut off, as in the published files
        text[position] = 10
        position += 1
    return position
