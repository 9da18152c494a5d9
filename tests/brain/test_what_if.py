"""What other plans would bring a job: bands, costs, what isn't known, and where there is no place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.explain.what_if import Asked, KnownJob, foresee
from dlrover_lite.brain.explain.what_if_data import Beyond, Measured, PlanForecast, Prices
from dlrover_lite.brain.models.fitted_model import model_data
from dlrover_lite.brain.models.held_out import HeldOut, held_out, run_band, scale_of
from dlrover_lite.brain.models.throughput import Fit, Prior, fit, predict
from dlrover_lite.brain.models.throughput_forms import Setting
from dlrover_lite.brain.planning.job_view import JobView, MeasuredPlan
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Candidate, MemoryNeed
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.profiles import Observation
from tests.brain.models import SMALL
from tests.brain.simulated import hosts

COSTS = {
    "worker_sample": 2e-5, "worker_minibatch": 1e-3, "worker_request": 8e-4, "ps_sample": 6e-6, "ps_request": 1e-3,
    "latency": 3e-3,
}  # fmt: skip
BATCH, FREE = 1024.0, 64.0
NEED = MemoryNeed(worker=GIB, ps=100 * MIB, tables=2 * GIB, tables_band=(GIB, GIB * 3 // 2, 2 * GIB))
MEASURED = (Candidate(1, 1, 1.0, 0.5), Candidate(2, 1, 1.0, 0.5), Candidate(4, 2, 1.0, 0.5))
HOST = Resources(32.0, 64 * GIB)
PLANS = st.builds(
    Candidate,
    st.integers(1, 20),
    st.integers(1, 6),
    st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    st.sampled_from([0.25, 0.5, 1.0]),
)


def setting_of(plan: Candidate) -> Setting:
    return Setting.even(
        workers=[plan.workers],
        ps=[plan.servers],
        worker_cores=plan.worker_cores,
        ps_cores=plan.ps_cores,
        batch_size=BATCH,
        free_cores=FREE,
    )


def seen(plan: Candidate, times: float = 1.0) -> Observation:
    """What would be measured of a job with these costs; ``times`` as fast."""
    rate = predict(fit([], prior=Prior(COSTS, exponent=6.0)), setting_of(plan)).samples_per_second[0]
    worker = BATCH * COSTS["worker_sample"] + COSTS["worker_minibatch"] + plan.servers * COSTS["worker_request"]
    return Observation(
        samples_per_second=times * float(rate),
        batch_size=BATCH,
        workers=plan.workers,
        worker_cores=plan.worker_cores,
        worker_speed=1.0,
        ps=plan.servers,
        ps_cores=plan.ps_cores,
        ps_speed=1.0,
        ps_share=1 / plan.servers,
        free_power=FREE,
        host_workers=1.0,
        host_ps=1.0,
        worker_cpu_seconds=worker,
        ps_cpu_seconds=BATCH * COSTS["ps_sample"] / plan.servers + COSTS["ps_request"],
    )


@cache
def fitted() -> Fit:
    return fit([seen(plan) for plan in MEASURED for _ in range(3)])


def known(**fields: Any) -> KnownJob:
    rates = {plan: seen(plan).samples_per_second for plan in MEASURED}
    bands = {plan: Band(rate, rate / 1.02, rate * 1.02) for plan, rate in rates.items()}
    now = MEASURED[-1]
    view = JobView(
        job="ads-1",
        bounds=SMALL,
        model=model_data(fitted(), batch_size=BATCH, free_cores={"a": FREE}),
        need=NEED,
        now=now,
        measured=bands[now],
        measured_before=tuple(MeasuredPlan(plan, bands[plan]) for plan in MEASURED[:-1]),
        scale_seconds=5.0,
    )
    settings: dict[str, Any] = {
        "view": view,
        "present": Asked(now, GIB, 2 * GIB),
        "runs": True,
        "samples": 1e9,
        "measured": Measured(9, 3, 0.01),
        "most": HOST,
        "hosts": hosts(a=HOST),
        "free_cores": dict.fromkeys("abcd", 8.0),
        "worker_peak": 600 * MIB,
    }
    return KnownJob(**{**settings, **fields})


def forecast(plan: Candidate, job: KnownJob | None = None, prices: Prices | None = None, **memory: int) -> PlanForecast:
    (found,) = foresee(job or known(), [Asked(plan, **memory)], prices or Prices()).plans
    return found


def width(band: Band) -> float:
    return math.log(band.upper / band.lower)


# --- bands ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(PLANS)
def test_bands_hold_what_is_expected_and_costs_are_what_nodes_are_given_for_that_time(plan: Candidate) -> None:
    one = forecast(plan, prices=Prices(0.5, 0.25))
    assert one.seconds is not None and one.core_hours is not None and one.gib_hours is not None
    assert one.money is not None
    bands = [one.samples_per_second, one.seconds, one.core_hours, one.gib_hours, one.money]
    assert all(0 < band.lower < band.expected < band.upper for band in bands)
    assert one.cores == pytest.approx(plan.workers * plan.worker_cores + plan.servers * plan.ps_cores)
    for seconds, cores, gib, money in zip(one.seconds, one.core_hours, one.gib_hours, one.money, strict=True):
        assert cores == pytest.approx(seconds * one.cores / 3600)
        assert gib == pytest.approx(seconds * one.memory / GIB / 3600)
        assert money == pytest.approx(0.5 * cores + 0.25 * gib)
    changed = 0.0 if plan == MEASURED[-1] else 5.0
    assert one.seconds.lower == pytest.approx(changed + 1e9 / one.samples_per_second.upper)
    assert one.seconds.upper == pytest.approx(changed + 1e9 / one.samples_per_second.lower)


@settings(max_examples=40)
@given(PLANS)
def test_what_is_saved_is_the_difference_from_the_present_plan(plan: Candidate) -> None:
    found = foresee(known(), [Asked(plan)])
    one = found.plans[0]
    assert found.present.seconds is not None and one.seconds is not None
    if plan == MEASURED[-1]:
        assert one.saves_seconds is None
        return
    assert one.saves_seconds is not None
    assert one.saves_seconds.expected == pytest.approx(found.present.seconds.expected - one.seconds.expected)
    assert one.saves_seconds.lower < one.saves_seconds.expected < one.saves_seconds.upper
    # it can't be surer than the plan is by itself
    alone = one.seconds.upper - one.seconds.lower
    assert one.saves_seconds.upper - one.saves_seconds.lower >= alone * (1 - 1e-9)


@settings(max_examples=30)
@given(PLANS, st.floats(1.5, 8.0), st.sampled_from(["workers", "ps", "worker_cores", "ps_cores"]))
def test_the_farther_a_plan_is_from_what_was_measured_the_wider_is_its_band(
    plan: Candidate, factor: float, axis: str
) -> None:
    asked = dict(zip(("workers", "ps", "worker_cores", "ps_cores"), plan.parts(), strict=True))[axis][0]
    widths = []
    for most in (asked, asked / factor, asked / factor**2):
        region = {**fitted().region, axis: (most / 2, most)}
        found = run_band(msgspec.structs.replace(fitted(), region=region), setting_of(plan))
        widths.append(float(found.high[0] / found.low[0]))
    assert widths[0] < widths[1] < widths[2]


def test_more_noise_makes_bands_wider() -> None:
    plan = Candidate(8, 2, 1.0, 0.5)
    steady, noisy = (
        fit([seen(one, times) for one in MEASURED for times in (1 - off, 1.0, 1 + off)]) for off in (0.01, 0.25)
    )
    near, far = (run_band(one, setting_of(plan)) for one in (steady, noisy))
    assert far.high[0] / far.low[0] > 1.1 * near.high[0] / near.low[0]


# --- plans held out -------------------------------------------------------------------------------------------------


def test_each_plan_is_predicted_from_the_others_alone() -> None:
    seen_of = [seen(plan) for plan in (*MEASURED, *MEASURED)]
    given_to: list[set[float]] = []

    def watched(those: Sequence[Observation]) -> Fit:
        given_to.append({one.workers for one in those})
        return fit(those)

    tested = held_out(seen_of, watched)
    assert sorted(map(sorted, given_to)) == [[1, 2], [1, 4], [2, 4]]
    assert all(abs(one.error) < one.sd for one in tested)
    assert sorted(abs(one.error) for one in tested)[1] < 0.01


def test_a_plan_that_the_others_foretell_badly_makes_bands_wider() -> None:
    off = [seen(plan, 2.0 if plan.workers == 2 else 1.0) for plan in MEASURED for _ in range(3)]
    tested = held_out(off, fit)
    assert max(one.error for one in tested) > 0.5
    plan = Candidate(8, 2, 1.0, 0.5)
    usual, wide = (forecast(plan, known(held_out=tuple(each))).samples_per_second for each in ((), tested))
    assert width(wide) > 1.2 * width(usual)
    assert wide.expected == usual.expected


def test_one_plan_alone_says_nothing_of_how_good_predictions_are() -> None:
    assert held_out([seen(MEASURED[0])] * 4, fit) == []
    assert held_out([], fit) == []


@given(st.lists(st.tuples(st.floats(-1.0, 1.0), st.floats(0.02, 0.5)), max_size=6), st.integers(0, 5))
def test_the_scale_of_bands_rises_with_each_error(drawn: list[tuple[float, float]], at: int) -> None:
    tested = [HeldOut(times * sd, sd) for times, sd in drawn]
    assert scale_of(tested) > 0
    if at < len(tested):
        farther = tested[at]._replace(error=2 * abs(tested[at].error) + 0.1 * tested[at].sd)
        worse = [*tested[:at], farther, *tested[at + 1 :]]
        assert scale_of(worse) > scale_of(tested)


# --- what is told ---------------------------------------------------------------------------------------------------


def test_a_plan_that_was_measured_is_as_it_was_measured() -> None:
    for plan in MEASURED:
        one = forecast(plan)
        rate = seen(plan).samples_per_second
        assert one.measured and one.samples_per_second == pytest.approx(Band(rate, rate / 1.02, rate * 1.02))
        noisy = forecast(plan, known(windows_sd=0.05)).samples_per_second
        assert noisy.expected == rate and width(noisy) > 2 * math.log(1.02**2)
    assert not forecast(Candidate(3, 1, 1.0, 0.5)).measured


def test_what_lies_outside_of_what_was_measured_is_named() -> None:
    assert forecast(Candidate(3, 1, 1.0, 0.5)).beyond == ()
    assert forecast(Candidate(16, 1, 1.0, 0.25)).beyond == (
        Beyond("workers", 16, 1, 4),
        Beyond("ps_cores", 0.25, 0.5, 0.5),
    )


def test_the_nearest_limit_comes_first() -> None:
    limits = forecast(Candidate(20, 1, 1.0, 0.25)).limits
    assert limits[0].name == "ps"
    assert [one.samples_per_second for one in limits] == sorted(one.samples_per_second for one in limits)
    assert forecast(Candidate(1, 4, 0.25, 1.0)).limits[0].name == "workers"


def test_memory_is_what_tables_need_or_what_is_asked_for() -> None:
    plan = Candidate(2, 2, 1.0, 0.5)
    one = forecast(plan)
    assert one.ps_memory == NEED.band(plan)
    assert one.worker_memory is not None and one.worker_memory.expected == 600 * MIB
    assert (one.worker_memory.limit, one.memory) == (GIB, 2 * GIB + 2 * NEED.per_ps(2))
    asked = forecast(plan, worker_memory=2 * GIB, ps_memory=GIB)
    assert asked.ps_memory is not None and asked.ps_memory.limit == GIB
    assert asked.ps_memory.expected == one.ps_memory.expected  # what is needed isn't what is given
    assert asked.memory == 6 * GIB
    assert one.gib_hours is not None and asked.gib_hours is not None
    assert asked.gib_hours.expected > one.gib_hours.expected
    assert forecast(plan, known(worker_peak=0)).worker_memory is None


def test_a_plan_is_as_fast_as_the_hosts_that_its_nodes_would_be_on() -> None:
    two = {"hosts": hosts(a=Resources(8.0, 16 * GIB), b=Resources(8.0, 16 * GIB))}
    view = known().view

    def rate(plan: Candidate, **speeds: float) -> float:
        job = known(view=msgspec.structs.replace(view, host_speeds=speeds), **two)
        return forecast(plan, job).samples_per_second.expected

    by_ps, by_workers = Candidate(3, 1, 1.0, 0.25), Candidate(2, 1, 0.5, 1.0)
    for plan in (by_ps, by_workers):
        assert rate(plan, a=1.5, b=0.6) > 1.4 * rate(plan)
        assert rate(plan, a=0.6, b=1.5) == rate(plan, a=1.5, b=0.6)  # wherever the fast one is
        assert rate(plan, a=1.0, b=1.0) == rate(plan)
    crowded = forecast(Candidate(4, 1, 1.0, 1.0), known(free_cores={"a": 1.0, "b": 1.0}, **two))
    assert crowded.limits[0].name == "host"


@pytest.mark.parametrize(
    ("plan", "fields", "says"),
    [
        (Candidate(40, 1, 1.0, 0.5), {}, "it needs 40.5 cores, and the job may have 32 cores"),
        (Candidate(2, 1, 1.0, 0.5), {"most": Resources(32.0, 3 * GIB)}, "it needs 4.1 GiB of memory, and"),
        (Candidate(2, 1, 5.0, 0.5), {"hosts": hosts(**dict.fromkeys("abcd", Resources(8.0, 16 * GIB)))}, ""),
        (
            Candidate(2, 1, 10.0, 0.5),
            {"hosts": hosts(**dict.fromkeys("abcd", Resources(8.0, 16 * GIB)))},
            "its nodes find no place on the 4 hosts, of which the largest has 8 cores and 16 GiB",
        ),
    ],
)
def test_a_plan_that_finds_no_place_is_refused(plan: Candidate, fields: dict[str, Any], says: str) -> None:
    refused = forecast(plan, known(**fields)).refused
    assert refused.startswith(says) if says else refused == ""


def test_without_a_number_of_samples_times_and_costs_are_not_known() -> None:
    one = forecast(Candidate(8, 2, 1.0, 0.5), known(samples=None), Prices(1.0, 1.0))
    assert (one.seconds, one.saves_seconds, one.core_hours, one.gib_hours, one.money) == (None,) * 5
    assert one.samples_per_second.expected > 0 and one.ps_memory is not None


def test_a_change_costs_time_while_a_job_runs_only() -> None:
    plan = Candidate(8, 2, 1.0, 0.5)
    runs, ended = (forecast(plan, known(runs=one)).seconds for one in (True, False))
    assert runs is not None and ended is not None
    assert runs.expected == pytest.approx(ended.expected + 5.0)
