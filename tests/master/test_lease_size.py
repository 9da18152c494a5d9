"""The rules for the size of a lease, and of a worker's measured speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.master.work.lease_size import LeasePolicy, WorkerRates, lease_size, updated_rate

rates = st.none() | st.floats(1e-3, 1e6)
policies = st.builds(
    LeasePolicy,
    lease_seconds=st.floats(0.1, 60),
    first_minibatches=st.integers(1, 10),
    largest_minibatches=st.integers(1, 1000),
)

DEFAULT = LeasePolicy()


def size(rate, *, total_rate=0.0, workers=1, remaining=10**6, policy=DEFAULT):
    return lease_size(rate, total_rate=total_rate, workers=workers, remaining=remaining, policy=policy)


@given(rates, st.floats(0, 1e6), st.integers(1, 100), st.integers(1, 10**7), policies)
def test_a_lease_is_at_most_half_a_share_and_at_least_one_minibatch(rate, total_rate, workers, remaining, policy):
    got = size(rate, total_rate=total_rate, workers=workers, remaining=remaining, policy=policy)
    assert 1 <= got <= max(1, min(remaining // (2 * workers), policy.largest_minibatches))
    if rate is not None:
        assert got <= max(1, rate * policy.lease_seconds)


def test_the_first_lease_is_small_and_later_ones_last_two_seconds():
    assert size(None) == 2
    assert size(70.0, total_rate=70.0) == 140
    assert size(7.0, total_rate=77.0, workers=2) == 14
    assert size(0.1, total_rate=77.0, workers=2) == 1


def test_near_the_end_a_slow_worker_gets_less_than_a_fast_one():
    at_the_end = {"total_rate": 110.0, "workers": 2, "remaining": 100}
    assert size(100.0, **at_the_end) == 25
    assert size(10.0, **at_the_end) == 4


@given(st.floats(0.1, 1000), st.floats(0.1, 1000), st.integers(1, 100))
def test_measured_speed_moves_towards_a_new_measurement_not_past_it(old, new, minibatches):
    got = updated_rate(old, minibatches, minibatches / new, 6.0)
    assert min(old, new) * (1 - 1e-9) <= got <= max(old, new) * (1 + 1e-9)


def test_a_long_measurement_weighs_more_than_a_short_one():
    assert updated_rate(None, 30, 3.0, 6.0) == 10
    assert 10 < updated_rate(10.0, 2, 0.1, 6.0) < 10.5
    assert 19 < updated_rate(10.0, 2000, 100.0, 6.0) < 20.0001


def test_a_measurement_of_no_time_is_no_error():
    assert updated_rate(None, 5, 0.0, 6.0) > 0


def test_speed_is_measured_from_the_grant_or_from_the_last_report():
    rates = WorkerRates(6.0)
    assert rates.total(3) == 0
    rates.granted("a", 100.0, idle=True)
    rates.reported("a", 20, 102.0)
    assert rates.rate("a") == 10
    rates.granted("a", 150.0, idle=True)
    rates.granted("a", 151.0, idle=False)
    rates.reported("a", 20, 152.0)
    assert rates.rate("a") == pytest.approx(10)
    rates.reported("a", 20, 154.0)
    assert rates.rate("a") == pytest.approx(10)


def test_total_speed_counts_unknown_workers_as_average_and_no_dead_ones():
    rates = WorkerRates(6.0)
    for worker, minibatches in (("a", 10), ("b", 30)):
        rates.granted(worker, 0.0, idle=True)
        rates.reported(worker, minibatches, 1.0)
    assert rates.total(2) == pytest.approx(40)
    assert rates.total(3) == pytest.approx(60)
    rates.forget("b")
    assert rates.rate("b") is None
    assert rates.total(1) == pytest.approx(10)


def test_a_report_without_a_known_start_measures_no_speed():
    rates = WorkerRates(6.0)
    rates.reported("a", 20, 102.0)
    assert rates.rate("a") is None
