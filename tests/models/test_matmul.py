"""The faster library multiplies matrices only where it is as exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dlrover_lite.models import matmul
from dlrover_lite.models.matmul import is_intel, onednn, use_onednn


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def other_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "is_intel", lambda: False)


@pytest.mark.parametrize("shape", [(1024, 442, 256), (256, 128, 1), (96, 27, 27)])
def test_matmul_products_with_onednn_are_as_exact_as_before(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    exact = left.double() @ right.double()
    before = float((left @ right - exact).abs().max())
    use_onednn()
    assert float((left @ right - exact).abs().max()) < 10 * before


def test_onednn_is_not_used_if_it_rounds_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_product", lambda left, right: left.bfloat16().float() @ right.bfloat16().float())
    assert not use_onednn()
    assert torch.get_float32_matmul_precision() == "highest"


def test_onednn_is_used_if_its_products_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_is_exact", lambda *_: True)
    assert use_onednn()
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("chosen", ["high", "medium"])
def test_a_matmul_precision_set_by_the_user_stays(chosen: str) -> None:
    torch.set_float32_matmul_precision(chosen)
    assert not use_onednn()
    assert torch.get_float32_matmul_precision() == chosen


def test_matmul_precision_stays_on_intel_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(matmul, "is_intel", lambda: True)
    assert not use_onednn()
    assert torch.get_float32_matmul_precision() == "highest"
    cpuinfo = tmp_path / "cpuinfo"
    for vendor, intel in (("GenuineIntel", True), ("AuthenticAMD", False)):
        cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
        assert is_intel(cpuinfo) is intel
    assert not is_intel(tmp_path / "missing")


def test_choosing_matmul_leaves_random_numbers_untouched() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    use_onednn()
    assert torch.equal(torch.rand(4), expected)


def test_matmul_precision_is_restored_after_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_is_exact", lambda *_: True)
    with onednn() as used:
        assert used and torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == "highest"
