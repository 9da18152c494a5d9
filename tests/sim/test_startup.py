"""What starts take, by phase, and that chance is used the same way whatever happens."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from dlrover_lite.backends.sim.physics.startup import CLUSTER, WORKSTATION, Startup

STEADY = replace(CLUSTER, variation=0.0)


def test_an_image_is_pulled_where_it_is_not_yet() -> None:
    first, next_one = (STEADY.draw(random.Random(0), pulled=pulled) for pulled in (False, True))
    assert first.pulling == pytest.approx(STEADY.image_bytes / STEADY.pulled_bytes_per_second)
    assert first.seconds - next_one.seconds == pytest.approx(first.pulling)


def test_rows_that_are_taken_up_or_restored_take_time_in_proportion() -> None:
    """98.7 million rows of 14.6 GB: 4.7 s to take up, 32 s to restore."""
    none = STEADY.draw(random.Random(0)).joining
    assert STEADY.draw(random.Random(0), left_rows=98.7e6).joining - none == pytest.approx(4.7, abs=0.1)
    assert STEADY.draw(random.Random(0), restored_bytes=14.6e9).joining - none == pytest.approx(32, abs=0.5)


@pytest.mark.parametrize("startup", [WORKSTATION, CLUSTER])
def test_chance_leaves_the_median_where_it_is(startup: Startup) -> None:
    chance = random.Random(3)
    drawn = [startup.draw(chance).starting for _ in range(2000)]
    assert statistics.median(drawn) == pytest.approx(startup.starting_seconds, rel=0.05)
    assert min(drawn) > 0 and len(set(drawn)) == len(drawn)


def test_what_follows_a_start_does_not_depend_on_it() -> None:
    """So that another policy meets the same failures."""
    one, other = random.Random(5), random.Random(5)
    CLUSTER.draw(one, pulled=False, restored_bytes=1e9)
    WORKSTATION.draw(other)
    assert one.random() == other.random()
