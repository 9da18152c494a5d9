"""What is kept of a job's profiles, and what is forgotten: its work may become another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlrover_lite.brain.planning.observed_job import MinibatchCost, last_shift, observe_job
from dlrover_lite.brain.planning.plan_grid import Candidate
from tests.brain.queueing import Costs
from tests.brain.simulated import Job

PLAN, OTHER = Candidate(2, 1, 1.0, 1.0), Candidate(2, 2, 1.0, 0.5)


def test_a_job_whose_work_has_changed_is_fitted_anew() -> None:
    """A PS's work is ten times as much: what was measured before, also with another plan, says nothing any more."""
    job = Job(OTHER, Costs(), seed=1)
    before = list(job.windows(4))
    job.plan = PLAN
    before += job.windows(8)
    usual = observe_job(before)
    assert usual is not None and usual.fit.observations == 12
    assert [one.plan for one in usual.measured_before] == [OTHER]
    job.costs = Costs(ps=0.08)
    two = observe_job([*before, *job.windows(2)])
    assert two is not None and two.fit.observations == 14, "that may be chance"
    now = observe_job([*before, *job.windows(4)])
    assert now is not None and now.fit.observations == 4
    assert now.measured_before == ()
    assert now.fit.coefficients["ps_sample"] > 5 * usual.fit.coefficients["ps_sample"]
    assert now.measured.expected < 0.5 * usual.measured.expected
    assert now.last_change is not None and now.last_change.left == OTHER, "it still is the last change"


def windows(work: NDArray[np.float64]) -> list[MinibatchCost]:
    return [MinibatchCost(2.0, float(of_worker), float(of_servers)) for of_worker, of_servers in work]


@given(st.integers(0, 1000), st.integers(0, 40))
def test_noise_and_a_busy_host_are_no_shift(seed: int, busy: int) -> None:
    random = np.random.default_rng(seed)
    work = np.exp(random.normal(0.0, 0.06, (60, 2)))
    work[busy : busy + 15] *= 1.3  # a neighbour that takes caches and clock
    assert last_shift(windows(work)) == 0


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize("factor", [0.3, 2.5])
@given(seed=st.integers(0, 1000), at=st.integers(3, 57))
def test_the_last_shift_is_found_wherever_it_is(role: int, factor: float, seed: int, at: int) -> None:
    work = np.exp(np.random.default_rng(seed).normal(0.0, 0.06, (60, 2)))
    work[at:, role] *= factor
    assert last_shift(windows(work)) == at


def test_what_isnt_known_is_no_shift() -> None:
    assert last_shift([]) == 0
    assert last_shift([MinibatchCost(1.0, 0.0, 1.0)] * 5 + [MinibatchCost(1.0, 2.0, 0.0)] * 5) == 0


def test_more_servers_are_no_shift() -> None:
    """Each costs something for every minibatch. A shift while there are more is found all the same."""
    few, many = [MinibatchCost(2.0, 0.02, 0.01)] * 5, [MinibatchCost(16.0, 0.035, 0.03)] * 5
    assert last_shift([*few, *many, *few, *many]) == 0
    assert last_shift([*few, *many, *few, *many, *[MinibatchCost(16.0, 0.035, 0.06)] * 3]) == 20
