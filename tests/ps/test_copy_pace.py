"""The pace of a move's copying."""

from __future__ import annotations

from dlrover_lite.ps.migration.copy_pace import HIGH, LOW, REST_LEAST, REST_MOST, CopyPace, KeptSpeed


def test_copying_rests_longer_while_training_is_slowed_up_to_a_limit() -> None:
    pace, rests = CopyPace(), []
    for _ in range(20):
        pace.look(LOW - 0.01)
        rests.append(pace.rest)
    assert rests == sorted(rests)
    assert rests[0] > REST_LEAST
    assert rests[-1] == REST_MOST


def test_copying_goes_faster_when_training_has_its_speed_again() -> None:
    pace = CopyPace()
    for _ in range(20):
        pace.look(0.1)
    for _ in range(20):
        pace.look(HIGH + 0.01)
    assert pace.rest == REST_LEAST


def test_copy_pace_stays_between_both_limits_and_without_a_speed() -> None:
    pace = CopyPace()
    pace.look(0.5)
    rest = pace.rest
    for kept in (0.0, LOW + 0.01, HIGH - 0.01):
        pace.look(kept)
    assert pace.rest == rest > REST_LEAST


def test_training_keeps_four_fifths_of_its_speed_while_copying() -> None:
    """A model of two cores that are all in use: copying takes a part of them, and training has the rest."""
    pace, kept = CopyPace(), []
    for _ in range(60):
        speed = 1 - 0.45 / (1 + pace.rest)
        pace.look(speed)
        kept.append(speed)
    assert min(kept[5:]) >= 0.8
    assert pace.rest < REST_MOST


def test_kept_speed_is_told_each_second_over_that_before_the_move() -> None:
    kept = KeptSpeed(200.0, answered=1_000, now=50.0)
    assert kept.look(1_090, 50.9) == 0.0  # too early
    assert kept.look(1_100, 51.0) == 0.5
    assert kept.look(1_400, 51.5) == 0.0
    assert kept.look(1_500, 53.0) == 1.0


def test_kept_speed_is_bounded_without_training_before_the_move() -> None:
    assert KeptSpeed(0.0, answered=0, now=0.0).look(100, 2.0) == 0.0
    assert KeptSpeed(1e-300, answered=0, now=0.0).look(100, 2.0) <= 10
