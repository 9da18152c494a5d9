"""How long a checkpoint held training up: the longest step meanwhile, over the usual one, of whichever worker had it."""

from __future__ import annotations

import pytest

from dlrover_lite.master.checkpoints.checkpoint_stalls import Stall, Steps


def trained(steps: Steps, node: str, since: float, until: float, *, longest: float = 0.012) -> None:
    """Reports twice a second, of a hundred steps a second."""
    at = since
    while at <= until + 1e-9:
        steps.worked(node, minibatches=50, longest=longest, now=at)
        at += 0.5


def test_stall_of_a_cut_is_the_longest_step_over_the_usual_one() -> None:
    steps = Steps()
    trained(steps, "worker-0", 0.0, 10.0)
    steps.begins(3, 10.1)
    trained(steps, "worker-0", 10.5, 11.0)
    steps.worked("worker-0", minibatches=40, longest=0.045, now=11.5)
    steps.ends(3, 11.7)
    assert steps.take(11.8) is None  # what came last isn't told yet
    steps.worked("worker-0", minibatches=50, longest=0.012, now=12.0)
    stall = steps.take(12.0)
    assert stall is not None
    assert stall == Stall(3, pytest.approx(0.035), pytest.approx(0.002))
    assert steps.take(12.1) is None


def test_a_step_reported_after_a_cut_counts_if_it_may_have_been_within() -> None:
    steps = Steps()
    trained(steps, "worker-0", 0.0, 10.0)
    steps.begins(1, 10.1)
    steps.ends(1, 10.3)
    steps.worked("worker-0", minibatches=30, longest=0.2, now=10.5)
    stall = steps.take(10.5)
    assert stall is not None and stall.seconds == pytest.approx(0.19)
    steps.worked("worker-0", minibatches=50, longest=0.9, now=11.0)
    assert steps.take(11.0) is None


def test_stall_of_a_cut_is_that_of_the_worker_that_waited_longest() -> None:
    steps = Steps()
    for node in ("worker-0", "worker-1"):
        trained(steps, node, 0.0, 5.0)
    steps.begins(1, 5.1)
    steps.worked("worker-0", minibatches=50, longest=0.015, now=5.5)
    steps.worked("worker-1", minibatches=50, longest=0.110, now=5.5)
    steps.ends(1, 5.6)
    steps.worked("worker-0", minibatches=50, longest=0.012, now=6.0)
    assert steps.take(6.0) is None
    steps.worked("worker-1", minibatches=50, longest=0.012, now=6.0)
    stall = steps.take(6.0)
    assert stall is not None and stall.seconds == pytest.approx(0.1)


def test_a_silent_worker_is_not_waited_for() -> None:
    steps = Steps()
    for node in ("worker-0", "worker-1"):
        trained(steps, node, 0.0, 5.0)
    steps.begins(1, 5.1)
    trained(steps, "worker-0", 5.5, 6.0)
    steps.ends(1, 6.1)
    trained(steps, "worker-0", 6.5, 9.0)
    assert steps.take(9.0) is None
    assert steps.take(9.2) is not None


def test_an_ended_worker_is_not_waited_for() -> None:
    steps = Steps()
    for node in ("worker-0", "worker-1"):
        trained(steps, node, 0.0, 5.0)
    steps.begins(1, 5.1)
    trained(steps, "worker-0", 5.5, 6.0)
    steps.ends(1, 6.1)
    steps.forget("worker-1")
    steps.worked("worker-0", minibatches=50, longest=0.012, now=6.5)
    assert steps.take(6.5) is not None


def test_a_cut_that_was_given_up_has_no_stall() -> None:
    steps = Steps()
    trained(steps, "worker-0", 0.0, 5.0)
    steps.begins(1, 5.1)
    steps.worked("worker-0", minibatches=50, longest=3.0, now=5.5)
    steps.gives_up()
    steps.ends(1, 5.6)
    trained(steps, "worker-0", 6.0, 12.0)
    assert steps.take(20.0) is None


def test_a_cut_without_training_has_no_stall() -> None:
    steps = Steps()
    steps.begins(1, 5.0)
    steps.ends(1, 6.0)
    assert steps.take(6.0) is None
    steps.begins(2, 7.0)
    trained(steps, "worker-0", 7.5, 8.0)
    steps.ends(2, 8.1)
    trained(steps, "worker-0", 8.5, 8.5)
    assert steps.take(9.0) is None  # nothing is known of what is usual


@pytest.mark.parametrize("longest", [-1.0, 0.0, float("nan"), float("inf")])
def test_senseless_step_times_are_ignored(longest: float) -> None:
    steps = Steps()
    trained(steps, "worker-0", 0.0, 5.0)
    steps.begins(1, 5.1)
    steps.worked("worker-0", minibatches=50, longest=longest, now=5.5)
    steps.ends(1, 5.6)
    steps.worked("worker-0", minibatches=50, longest=0.010, now=6.0)
    stall = steps.take(6.0)
    assert stall is not None and stall.seconds == 0.0
