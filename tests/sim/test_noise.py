"""Noise comes and goes over seconds, and neither adds to a rate nor takes from it."""

from __future__ import annotations

import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.backends.sim.clock import source_of_chance
from dlrover_lite.backends.sim.physics.noise import Noise, Wander

NOISE = Noise(variation=0.1, step_seconds=5.0, memory_seconds=20.0)


def factors(steps: int, seed: int = 0) -> list[float]:
    wander = Wander(NOISE, source_of_chance(seed, "noise"))
    return [wander.factor(NOISE.step_seconds * at + 1.0) for at in range(steps)]


def test_a_factor_holds_for_its_seconds() -> None:
    wander = Wander(NOISE, source_of_chance(0, "noise"))
    first = wander.factor(0.0)
    assert wander.factor(4.9) == first != wander.factor(5.0)


def test_what_is_asked_for_of_later_times_changes_nothing_of_earlier_ones() -> None:
    wander = Wander(NOISE, source_of_chance(0, "noise"))
    wander.own_time(200.0)
    assert [wander.factor(NOISE.step_seconds * at + 1.0) for at in range(8)] == factors(8)


@given(st.lists(st.floats(0.0, 300.0), min_size=1, max_size=8), st.integers(0, 20))
def test_its_own_clock_goes_by_the_factors(moments: list[float], seed: int) -> None:
    wander, by_hand = Wander(NOISE, source_of_chance(seed, "noise")), factors(62, seed)
    for now in moments:
        whole, rest = divmod(now, NOISE.step_seconds)
        expected = NOISE.step_seconds * sum(by_hand[: int(whole)]) + rest * by_hand[int(whole)]
        own = wander.own_time(now)
        assert math.isclose(own, expected, abs_tol=1e-9)
        assert math.isclose(wander.reaches(own, now + 1.0), now, abs_tol=1e-9)
        assert wander.reaches(own, now / 2) == now / 2


def test_times_that_are_left_out_change_nothing_of_later_ones() -> None:
    wander = Wander(NOISE, source_of_chance(0, "noise"))
    assert wander.factor(36.0) == factors(8)[-1]


def test_factors_are_as_the_noise_says() -> None:
    found = factors(20_000)
    logarithms = [math.log(one) for one in found]
    assert abs(statistics.fmean(found) - 1.0) < 0.01
    assert abs(statistics.stdev(logarithms) - NOISE.variation) < 0.01
    next_one = statistics.correlation(logarithms[:-1], logarithms[1:])
    assert abs(next_one - math.exp(-5.0 / 20.0)) < 0.03
