"""Copying a few values of 4 bytes at a time, as kernels do it with a row."""

from __future__ import annotations

import numpy as np

from dlrover_lite.core.kernels.compile import copy_1, copy_4, copy_16, kernel

__all__ = ["copy_values"]

_U0 = np.uint64(0)
_FOUR, _FOURS, _LINE, _LINES = (np.uint64(number) for number in (4, 8, 16, 32))


@kernel
def copy_values(target, to, source, at, n):  # type: ignore[no-untyped-def]
    """Copy n values of 4 bytes, from one array to another, or within one if they are so far apart: some of them perhaps twice, which takes
    less than a loop."""
    if n >= _LINE:
        if n > _LINES:
            for j in range(_LINE, n - _LINE, _LINE):
                copy_16(target, to + j, source, at + j)
        copy_16(target, to, source, at)
        copy_16(target, to + n - _LINE, source, at + n - _LINE)
    elif n >= _FOUR:
        if n > _FOURS:
            for j in range(_FOUR, n - _FOUR, _FOUR):
                copy_4(target, to + j, source, at + j)
        copy_4(target, to, source, at)
        copy_4(target, to + n - _FOUR, source, at + n - _FOUR)
    else:
        for j in range(_U0, n):
            copy_1(target, to + j, source, at + j)
