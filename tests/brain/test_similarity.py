"""Jobs like this one, and what they tell of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.brain.models.similarity import (
    JobFeatures,
    Neighbour,
    distance,
    neighbours,
    pooled_prior,
    smoothed_plan,
)
from dlrover_lite.brain.models.throughput import Fit
from dlrover_lite.brain.models.throughput_forms import Engine

JOB = JobFeatures("dcn", 26, 416, 1024, 10**7, "adagrad", "ada", "ctr-daily")
COSTS = {
    "worker_sample": 2e-5,
    "worker_minibatch": 1e-3,
    "worker_request": 5e-4,
    "ps_sample": 5e-6,
    "ps_request": 1e-3,
    "latency": 2e-3,
}

jobs = st.builds(
    JobFeatures,
    model=st.sampled_from(["dcn", "dlrm", ""]),
    tables=st.integers(0, 1000),
    dims=st.integers(0, 10_000),
    batch_size=st.integers(1, 65_536),
    rows=st.integers(0, 10**9),
    optimizer=st.sampled_from(["adagrad", "adam"]),
    owner=st.sampled_from(["ada", "bob", ""]),
    name=st.sampled_from(["ctr-daily", "ctr-hourly", "ads", ""]),
)


def past(factor: float = 1.0, *, observations: int = 20, **changes: object) -> Fit:
    fit = Fit(
        "bottleneck",
        {name: value * factor for name, value in COSTS.items()},
        6.0,
        Engine(),
        observations,
        0.02,
        0.04,
        10.0,
        [],
    )
    return msgspec.structs.replace(fit, **changes)


def like(**changes: object) -> JobFeatures:
    return msgspec.structs.replace(JOB, **changes)


@given(jobs, jobs)
def test_a_distance_is_symmetric_and_at_most_1(one: JobFeatures, other: JobFeatures) -> None:
    assert distance(one, one) == 0
    assert distance(one, other) == pytest.approx(distance(other, one))
    assert 0 <= distance(one, other) <= 1


def test_distance_of_jobs_grows_with_batch_size_model_and_name() -> None:
    assert (
        distance(JOB, like(batch_size=2048))
        < distance(JOB, like(batch_size=16_384))
        < distance(JOB, like(model="dlrm"))
    )
    assert distance(JOB, like(name="ctr-hourly")) < distance(JOB, like(name="ads"))
    assert distance(JOB, like(owner="")) == 0  # unknown isn't different
    assert distance(JOB, like(tables=10**9)) == distance(JOB, like(tables=10**8)), "ranges are fixed"


def test_near_jobs_are_found_the_nearest_first() -> None:
    history = [
        ("far", like(model="dlrm", tables=3, owner="bob", name="x"), past()),
        ("near", like(batch_size=4096), past()),
        ("same", JOB, past()),
        ("unmeasured", JOB, past(observations=0)),
    ]
    assert [n.job for n in neighbours(JOB, history)] == ["same", "near"]
    assert [n.job for n in neighbours(JOB, history, most=1)] == ["same"]
    assert pooled_prior(neighbours(JOB, history[:1])) is None


def test_coefficients_are_pooled_by_nearness() -> None:
    prior = pooled_prior([Neighbour("a", 0.0, past(1.0)), Neighbour("b", 0.2, past(4.0))])
    assert prior is not None
    assert COSTS["ps_sample"] < prior.coefficients["ps_sample"] < 1.5 * COSTS["ps_sample"]
    assert prior.exponent == pytest.approx(6.0)
    assert prior.noise == pytest.approx(0.04)


def test_unlike_or_unequal_neighbours_are_trusted_less() -> None:
    def trust(*near: tuple[float, float]) -> float:
        prior = pooled_prior([Neighbour(str(i), d, past(factor)) for i, (d, factor) in enumerate(near)])
        assert prior is not None
        return prior.relative_sd

    assert trust((0.0, 1.0)) < trust((0.2, 1.0))
    assert trust((0.1, 1.0), (0.1, 1.0)) < trust((0.1, 1.0), (0.1, 3.0))


def test_what_was_seen_of_any_past_job_was_seen() -> None:
    first, second = {"workers": (2.0, 4.0), "ps": (1.0, 1.0)}, {"workers": (3.0, 8.0), "ps": (1.0, 2.0)}
    near = [Neighbour("a", 0.0, past(region=first)), Neighbour("b", 0.1, past(region=second))]
    prior = pooled_prior([*near, Neighbour("unknown", 0.0, past())])
    assert prior is not None
    assert prior.region == {"workers": (2.0, 8.0), "ps": (1.0, 2.0)}


def test_costs_a_past_job_could_not_measure_come_from_others() -> None:
    blind = past(50.0, unseen=["latency"])
    prior = pooled_prior([Neighbour("blind", 0.0, blind), Neighbour("seeing", 0.0, past(1.0))])
    assert prior is not None
    assert prior.coefficients["latency"] < 2 * COSTS["latency"]
    assert prior.coefficients["ps_request"] > 5 * COSTS["ps_request"]


def test_what_only_some_past_jobs_have_measured_comes_from_these() -> None:
    """How fast samples are read, and hosts are connected; and that says nothing of how sure all else is."""
    first = past(
        1.0, coefficients={**COSTS, "source_sample": 1e-5, "network_byte": 1e-9}, engine=Engine(sample_bytes=1600.0)
    )
    other = past(1.0, coefficients={**COSTS, "source_sample": 9e-5})
    prior = pooled_prior([Neighbour("a", 0.0, first), Neighbour("b", 0.0, other), Neighbour("c", 0.0, past(1.0))])
    assert prior is not None
    assert prior.coefficients["source_sample"] == pytest.approx(3e-5)
    assert prior.coefficients["network_byte"] == pytest.approx(1e-9)
    assert prior.sample_bytes == pytest.approx(1600.0)
    assert "reader_sample" not in prior.coefficients
    alone = pooled_prior([Neighbour("c", 0.0, past(1.0))])
    assert alone is not None and alone.coefficients.keys() == COSTS.keys()
    assert prior.relative_sd == pytest.approx(alone.relative_sd)


def test_plans_smoothed_as_in_the_paper() -> None:
    assert smoothed_plan([[4, 1.0], [2, 2.0], [1, 4.0]], smoothing=0.5) == [2.0, 2.75]
    with pytest.raises(ValueError, match="no plans"):
        smoothed_plan([])
