"""Which library multiplies the matrices of a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["is_intel", "onednn", "use_onednn"]

_LARGEST_ERROR = 1e-5
"""Maximum relative error of a product of positive numbers: float32 stays well below, factors rounded to bfloat16 go well above."""
_SHAPES = ((256, 512, 128), (64, 64, 64))
"""Rows, inner size and columns of the products that are tried."""
_CPUINFO = Path("/proc/cpuinfo")


def use_onednn() -> bool:
    """Have torch multiply float32 matrices with oneDNN from now on, where that is faster and as exact; say whether it does.

    By itself torch takes MKL, which uses AVX-512 on Intel's processors only, so that products on others take twice as long. torch has one
    setting for oneDNN, "medium", which also allows it to round factors to bfloat16; it does so only on processors with instructions
    for that. So products are tried. A setting that isn't torch's default stays as it is.
    """
    if torch.get_float32_matmul_precision() != "highest" or is_intel():
        return False
    torch.set_float32_matmul_precision("medium")
    if all(_is_exact(*shape) for shape in _SHAPES):
        return True
    torch.set_float32_matmul_precision("highest")
    return False


@contextmanager
def onednn() -> Iterator[bool]:
    """Multiply matrices as in a worker within the context; give whether that is with oneDNN."""
    before = torch.get_float32_matmul_precision()
    try:
        yield use_onednn()
    finally:
        torch.set_float32_matmul_precision(before)


def is_intel(cpuinfo: Path = _CPUINFO) -> bool:
    """Say whether this machine's processors are Intel's; False where that can't be read."""
    try:
        return "GenuineIntel" in cpuinfo.read_text(errors="replace")
    except OSError:
        return False


def _is_exact(rows: int, inner: int, columns: int) -> bool:
    """Say whether products of these sizes are as exact as float32 is, in each layout that forward and backward use."""
    random = torch.Generator().manual_seed(0)
    left, right = torch.rand(rows, inner, generator=random), torch.rand(inner, columns, generator=random)
    exact = left.double() @ right.double()
    found = (
        _product(left, right),
        _product(left, right.t().contiguous().t()),
        _product(left.t().contiguous().t(), right),
        torch.bmm(left.expand(4, -1, -1), right.expand(4, -1, -1))[0],
    )
    return all(float(((one - exact) / exact).abs().max()) < _LARGEST_ERROR for one in found)


def _product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right
