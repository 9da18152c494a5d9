"""When a share of ids that were never trained is far above what was seen before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.unknown_ids import (
    LEAST_DIFFERENCE,
    LEAST_SAMPLES,
    unknown_text,
    unusual_ids,
    usual_shares,
    warnings_of,
)

share = st.floats(0, 1)


def is_unusual(now: float, usual: float | None, samples: int = 10_000) -> bool:
    return bool(unusual_ids({"c": now}, {} if usual is None else {"c": usual}, samples=samples))


@pytest.mark.parametrize("usual", [None, 0.0, 0.001, 0.05, 0.2, 0.5, 0.8])
def test_ids_that_are_all_unknown_are_unusual(usual: float | None) -> None:
    assert is_unusual(1.0, usual)


@pytest.mark.parametrize(
    ("now", "usual"), [(0.3, 0.2), (0.09, 0.0), (0.02, 0.001), (1.0, 0.95), (0.99, 0.96), (0.5, None), (0.6, 0.3)]
)
def test_usual_changes_between_days_are_not_unusual(now: float, usual: float | None) -> None:
    assert not is_unusual(now, usual)


@pytest.mark.parametrize(("now", "usual"), [(0.35, 0.01), (0.42, 0.1), (0.75, 0.4), (0.51, None)])
def test_a_part_of_the_ids_in_another_spelling_is_unusual(now: float, usual: float | None) -> None:
    assert is_unusual(now, usual)


@given(share, share, share, st.none() | share)
def test_a_larger_share_of_unknown_ids_is_never_less_unusual(
    one: float, two: float, usual: float, none: float | None
) -> None:
    low, high = sorted((one, two))
    assert is_unusual(high, usual) >= is_unusual(low, usual)
    assert is_unusual(high, low) >= is_unusual(high, max(low, usual))
    assert not is_unusual(low, high)
    assert not is_unusual(min(1.0, usual + LEAST_DIFFERENCE * 0.99), usual)
    assert not is_unusual(high, none, samples=LEAST_SAMPLES - 1)


def test_an_unusual_evaluation_is_no_measure_for_the_next() -> None:
    shares = {"a": 0.02, "b": 1.0, "c": 1.0}
    unusual = unusual_ids(shares, {"a": 0.01, "b": 0.03}, samples=1000)
    assert unusual == {"b": 0.03, "c": None}
    assert usual_shares(shares, unusual) == {"a": 0.02, "b": 0.03}
    assert list(warnings_of(shares, unusual)) == [
        "100% of the ids evaluated in column 'b' were never trained, where 3% are usual: check that they are written as in training",
        "100% of the ids evaluated in column 'c' were never trained: check that they are written as in training",
    ]


def test_the_columns_with_the_largest_shares_are_named() -> None:
    shares = {"a": 0.0, "b": 0.0312, "c": 1.0, "d": 0.0001, "e": 0.99999}
    assert unknown_text(shares, 9) == "c 100%, e over 99.9%, b 3.12%, d under 0.1%, a 0%"
    assert unknown_text(shares, 3) == "c 100%, e over 99.9%, b 3.12%, 2 more at most under 0.1%"
    assert unknown_text({}, 3) == ""
