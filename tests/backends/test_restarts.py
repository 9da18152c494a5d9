"""How often, and when, a process that was killed is started again."""

from __future__ import annotations

from dlrover_lite.backends.keeper.restarts import Restarts


def test_restart_delays_grow_up_to_a_limit() -> None:
    restarts = Restarts(5, 3.0)
    delays = []
    for now in range(0, 50, 10):
        assert restarts.after_death(now)
        assert restarts.due_at is not None
        delays.append(restarts.due_at - now)
        assert restarts.take(restarts.due_at)
        assert restarts.due_at is None
    assert delays == [0, 0.5, 1, 2, 3]
    assert not restarts.after_death(60)
    assert restarts.due_at is None


def test_what_was_more_than_an_hour_ago_counts_no_more() -> None:
    restarts = Restarts(2, 3.0)
    assert [restarts.after_death(now) for now in (0, 1000, 2000, 3601, 3602, 4601)] == [
        True,
        True,
        False,
        True,
        False,
        True,
    ]
    assert Restarts(1, 3.0).after_death(0)


def test_a_restart_is_taken_once_and_not_before_it_is_due() -> None:
    restarts = Restarts(5, 3.0)
    assert not restarts.take(0)
    restarts.after_death(1)
    restarts.take(1)
    restarts.after_death(2)
    assert not restarts.take(2.4)
    assert restarts.take(2.5)
    assert not restarts.take(2.5)
