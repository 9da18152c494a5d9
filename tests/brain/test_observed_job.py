"""What is kept of a job's profiles, and what is forgotten: its work may become another."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlrover_lite.brain.planning.observed_job import observe_job
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.planning.work_shift import MinibatchCost, last_shift, suspected_shift
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


def test_a_model_is_kept_while_windows_say_little() -> None:
    job, seen, before, fitted = Job(PLAN, Costs(), seed=1), [], None, []
    for number in range(1, 19):
        seen += job.windows(1)
        found = observe_job(seen, before=before)
        assert found is not None
        if before is None or found.fit is not before.fit:
            fitted.append(number)
        before = found
    assert fitted == [1, 2, 4, 8, 12, 16]
    job.costs = Costs(worker=1.25 * Costs().worker)
    found = observe_job([*seen, *job.windows(1)], before=before)
    assert found is not None and before is not None and found.fit is not before.fit, "it is slower than it was"
    job.costs, job.plan = Costs(), OTHER
    found = observe_job([*seen, *job.windows(1)], before=before)
    assert found is not None and found.fit is not before.fit, "of this plan nothing was measured"


def first_since(costs: list[MinibatchCost]) -> int:
    """Position of the first window since the last shift; 0: there was none."""
    found = last_shift(costs)
    return 0 if found is None else found.first


def windows(work: NDArray[np.float64]) -> list[MinibatchCost]:
    return [MinibatchCost(2.0, float(of_worker), float(of_servers)) for of_worker, of_servers in work]


def test_noise_and_a_busy_host_are_hardly_ever_a_shift() -> None:
    """Three windows in a row may each be a fifth off by chance. Of all 41,041 such cases with the first 1,001 seeds five are taken for a
    shift: those of one seed in which the host gets busy shortly before its 28th window."""
    found = []
    for seed in range(600):
        random, busy = np.random.default_rng(seed), seed % 41
        work = np.exp(random.normal(0.0, 0.06, (60, 2)))
        work[busy : busy + 15] *= 1.3  # a neighbour that takes caches and clock
        if first_since(windows(work)):
            found.append(seed)
    assert len(found) <= 1


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize("factor", [0.3, 2.5])
@given(seed=st.integers(0, 1000), at=st.integers(3, 57))
def test_the_last_shift_is_found_wherever_it_is(role: int, factor: float, seed: int, at: int) -> None:
    work = np.exp(np.random.default_rng(seed).normal(0.0, 0.06, (60, 2)))
    work[at:, role] *= factor
    assert first_since(windows(work)) == at


def test_what_isnt_known_is_no_shift() -> None:
    assert first_since([]) == 0
    assert first_since([MinibatchCost(1.0, 0.0, 1.0)] * 5 + [MinibatchCost(1.0, 2.0, 0.0)] * 5) == 0


def test_more_servers_are_no_shift() -> None:
    """Each costs something for every minibatch. A shift while there are more is found all the same."""
    few, many = [MinibatchCost(2.0, 0.02, 0.01)] * 5, [MinibatchCost(16.0, 0.035, 0.03)] * 5
    assert first_since([*few, *many, *few, *many]) == 0
    assert first_since([*few, *many, *few, *many, *[MinibatchCost(16.0, 0.035, 0.06)] * 3]) == 20


def test_a_shift_together_with_a_change_of_the_plan_is_found_where_it_is_beyond_doubt() -> None:
    """What comes with each PS may be all that a minibatch costs: four times as many may cost four times as much, and no more."""
    before = [MinibatchCost(2.0, 0.02, 0.01)] * 5
    assert first_since([*before, *[MinibatchCost(8.0, 0.02, 0.039)] * 5]) == 0
    found = last_shift([*before, *[MinibatchCost(8.0, 0.02, 0.1)] * 5])
    assert found is not None and (found.first, found.role) == (5, "ps")
    assert found.times == pytest.approx(2.5), "at the least"
    less = last_shift([*[MinibatchCost(8.0, 0.02, 0.04)] * 5, *[MinibatchCost(2.0, 0.02, 0.005)] * 5])
    assert less is not None and less.times == pytest.approx(0.5)
    assert first_since([*[MinibatchCost(8.0, 0.02, 0.04)] * 5, *[MinibatchCost(2.0, 0.02, 0.011)] * 5]) == 0


def test_it_is_known_since_when_and_by_how_much_work_has_changed() -> None:
    job = Job(PLAN, Costs(), seed=1)
    before = list(job.windows(6))
    at = job.at
    job.costs = Costs(ps=0.08, ps_request=0.012)
    found = observe_job([*before, *job.windows(4)])
    assert found is not None and found.shift is not None
    assert (found.shift.at, found.shift.windows, found.shift.role) == (at, 4, "ps")
    assert found.shift.times == pytest.approx(10.0, rel=0.15)
    assert observe_job(before).shift is None  # type: ignore[union-attr]


def test_how_costs_are_made_up_is_remembered_over_a_shift() -> None:
    """Four windows of one plan can't tell what comes with each PS from the rest; those before could."""
    job = Job(PLAN, Costs(), seed=1)
    before = []
    for servers in (1, 2, 3):
        job.plan = Candidate(2, servers, 1.0, 0.5)
        before += job.windows(4)
    job.costs = Costs(ps=0.08, ps_request=0.012)
    found = observe_job([*before, *job.windows(4)])
    usual = observe_job(before)
    assert found is not None and usual is not None and found.fit.observations == 4
    for name in ("ps_sample", "ps_request"):
        assert found.fit.coefficients[name] == pytest.approx(10 * usual.fit.coefficients[name], rel=0.3)
    assert found.fit.coefficients["worker_sample"] == pytest.approx(usual.fit.coefficients["worker_sample"], rel=0.3)


def test_plans_of_long_ago_are_remembered_however_long_the_present_one_lasts() -> None:
    """Until the job's work changes: else it would try them again and again."""
    job = Job(OTHER, Costs(), seed=1)
    seen = list(job.windows(4))
    job.plan = PLAN
    seen += job.windows(100)
    found = observe_job(seen)
    assert found is not None
    assert [one.plan for one in found.measured_before] == [OTHER]
    assert found.fit.region["ps"] == (1.0, 2.0), "the model is fitted to them, too"
    assert found.fit.observations == 20


def test_one_window_is_measured_less_surely_than_many() -> None:
    job = Job(PLAN, Costs(), seed=1)
    one = observe_job(job.windows(1))
    many = observe_job(job.windows(12))
    assert one is not None and many is not None
    assert one.measured.upper / one.measured.lower > 1.05 > many.measured.upper / many.measured.lower


def test_the_computing_threads_share_is_measured() -> None:
    job = Job(PLAN, Costs(), seed=1)

    def observed(share: float | None, cores: float = 1.0) -> float:
        windows = []
        for window in job.windows(2):
            workers = tuple(
                msgspec.structs.replace(
                    use,
                    cores=cores,
                    phase_cpu_seconds={} if share is None else {"compute": share * use.cpu_seconds, "read": 0.01},
                )
                for use in window.workers
            )
            windows.append(msgspec.structs.replace(window, workers=workers))
        found = observe_job(windows)
        assert found is not None
        return found.fit.engine.compute_share

    assert observed(None) == 0.8
    assert observed(0.93) == pytest.approx(0.93)
    assert observed(0.1) == 0.6, "the others hold the interpreter's lock, too"
    assert observed(0.5, cores=2.0) == 0.8, "of several threads only one is measured"


def test_one_window_that_is_unlike_those_before_is_suspected() -> None:
    usual = [MinibatchCost(2.0, 0.02, 0.01)] * 5
    assert suspected_shift(usual) is None
    for count in (1, 2):
        found = suspected_shift([*usual, *[MinibatchCost(2.0, 0.02, 0.1)] * count])
        assert found is not None and (found.first, found.role, found.times) == (5, "ps", pytest.approx(10.0))
    assert suspected_shift([*usual, MinibatchCost(2.0, 0.02, 0.1), usual[0]]) is None, "it is over"
    assert suspected_shift([]) is None and suspected_shift(usual[:1]) is None


def test_nothing_is_suspected_once_it_is_known() -> None:
    job = Job(PLAN, Costs(), seed=1)
    seen = list(job.windows(6))
    job.costs = Costs(ps=0.08)
    known = []
    for _ in range(4):
        seen += job.windows(1)
        found = observe_job(seen)
        assert found is not None
        known.append((found.suspected is not None, found.shift is not None))
    assert known == [(True, False), (True, False), (False, True), (False, True)]
