"""The brain's numbers: each says why it is what it is, the page has them all, and the sweep varies one at a time."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from dlrover_lite.brain.planning import plan_values
from dlrover_lite.brain.planning.job_view import Policy
from tests.repository.sources import ROOT


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("_numbers")


@pytest.fixture
def sensitivity(numbers: ModuleType) -> ModuleType:
    return importlib.import_module("sensitivity")


def flat(policy: msgspec.Struct, at: str = "") -> dict[str, object]:
    """All fields by their path."""
    found: dict[str, object] = {}
    for name in policy.__struct_fields__:
        value = getattr(policy, name)
        found |= flat(value, f"{at}{name}.") if isinstance(value, msgspec.Struct) else {f"{at}{name}": value}
    return found


def test_every_number_says_what_it_is(numbers: ModuleType) -> None:
    fields, others = list(numbers.policy_fields()), list(numbers.module_numbers())
    assert {one.path.split(".")[0] for one in fields} == {"planning", "health", "start", "observation", "tracking"}
    assert len(fields) > 90 and len(others) > 60
    assert len({one.path for one in [*fields, *others]}) == len(fields) + len(others)
    assert [one.path for one in [*fields, *others] if len(one.doc) < 10] == []


def test_the_page_is_up_to_date_with_policies_and_ranges(numbers: ModuleType) -> None:
    assert numbers.PAGE.read_text("utf-8") == numbers.page(numbers.read_ranges())


def test_a_range_of_another_value_is_not_told(numbers: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    measured = {"planning.rho": (1.0, Policy().rho, 2.0), "planning.tie_share": (0.0, 0.5, 1.0)}
    numbers.write_ranges(numbers.Ranges("0000001", measured), path)
    text = numbers.page(numbers.read_ranges(path))
    assert "`bench/sensitivity.py` at `0000001`" in text
    assert "| 1 to 2 |" in next(line for line in text.splitlines() if line.startswith(f"| `rho` | {Policy().rho} |"))
    assert "| not measured |" in next(line for line in text.splitlines() if line.startswith("| `tie_share` |"))


def test_the_sweep_replaces_one_number_and_puts_it_back(sensitivity: ModuleType) -> None:
    every = sensitivity.every_number()
    assert len({one.full_name for one in every}) == len(every)
    before = flat(sensitivity.USUAL)
    for one in (one for one in every if one.is_field):
        with one.replaced(one.value * 2) as policies:
            assert flat(policies) == before | {one.full_name: one.value * 2}
    small = next(one for one in every if one.full_name == "planning.plan_values._SMALL")
    with small.replaced(0.25) as policies:
        assert plan_values._SMALL == 0.25 and policies == sensitivity.USUAL
    assert small.value == plan_values._SMALL


def test_a_number_is_moved_until_something_changes(sensitivity: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    one = sensitivity.Constant("planning", "rho", 2.0, is_field=True)
    reached = {"4 cores, end": 1.0}
    usual = sensitivity.Usual(range(2), {}, reached, reached, {"4 cores, end": 0.0})
    of_value = {2.0: 1.0, 1.5: 1.0, 1.0: 1.01, 2.0 * 4 / 3: 0.95}
    monkeypatch.setattr(
        sensitivity, "outcomes", lambda _, __, policies: {"4 cores, end": of_value[policies.planning.rho]}
    )
    found = sensitivity.range_of(one, usual)
    assert (found.low, found.value, found.high) == (1.0, 2.0, 2.0)
    assert list(found.near.values()) == [-0.05] and not found.far
