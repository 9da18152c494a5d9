"""Fitted models as decisions use them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.brain.models.fitted_model import Bottleneck, load_model, model_data
from dlrover_lite.brain.models.throughput import Prior, fit
from dlrover_lite.brain.models.throughput_forms import ADDITIVE, BOTTLENECK
from dlrover_lite.brain.planning.job_view import ModelData
from dlrover_lite.brain.planning.pareto import SeparableModel, exact_front
from dlrover_lite.brain.planning.plan_grid import Bounds, even_sizes, lattice_of
from dlrover_lite.core.errors import HistoryError

COSTS = {
    "worker_sample": 1e-5, "worker_minibatch": 1e-3, "worker_request": 1e-3, "ps_sample": 4e-6, "ps_request": 5e-4,
    "latency": 5e-3,
}  # fmt: skip
MEASURED = {"reader_sample": 4e-5, "source_sample": 1e-5, "network_byte": 8e-9}
ADDED = {"gradient": 1e-5, "update": 1e-3, "synchronise": 1e-3, "embed": 1e-6, "constant": 5e-3}
LATTICE = lattice_of(Bounds(max_workers=8, max_servers=4, worker_sizes=even_sizes(2, 4), ps_sizes=even_sizes(2, 4)))


def a_fit(exponent=6.0):
    return fit([], prior=Prior(COSTS, exponent=exponent))


@pytest.mark.parametrize("exponent", [1.5, 6.0, 20.0, 2.3])
def test_the_sides_rank_plans_as_predictions_do(exponent):
    model = load_model(model_data(a_fit(exponent), batch_size=1024, free_cores={"a": 4.0}))
    assert isinstance(model, SeparableModel)
    found = model.sides(LATTICE.servers.astype(float), LATTICE.worker_sizes, LATTICE.ps_cores)
    of_worker = found.of_worker[:, LATTICE.size_of_side] * LATTICE.workers ** -float(found.power)
    first = of_worker + found.fixed[:, None]
    seconds = ((first[:, :, None] + found.of_ps[:, None, :]) ** (1 / exponent)).ravel()
    rate, lower, upper = model.predict(*LATTICE.parts(np.arange(len(LATTICE))))
    assert seconds * rate == pytest.approx(1024.0)
    assert (lower < rate).all() and (rate < upper).all()


@given(
    st.tuples(*[st.sampled_from([0.0, 0.1, 1.0, 10.0])] * 3),
    st.floats(1.0, 12.0),
    st.integers(1, 20),
    st.floats(0.3, 3.0),
    st.sampled_from([64, 1024, 8192]),
    st.lists(st.tuples(st.floats(0.3, 3.0), st.floats(0.3, 3.0)), max_size=4),
)
def test_sides_and_rows_are_the_same_for_any_circumstances(parts, exponent, hosts, speed, batch, speeds):
    """What is searched by sides is what is predicted, whichever limits the fit knows of."""
    more = {name: part * cost for (name, cost), part in zip(MEASURED.items(), parts, strict=True) if part}
    fitted = fit([], prior=Prior({**COSTS, **more}, exponent=exponent, sample_bytes=1664.0))
    assert fitted.coefficients.keys() == {*COSTS, *more}
    free = {f"host-{at}": 6.0 for at in range(hosts)}
    of_workers, of_ps = zip(*speeds, strict=True) if speeds else ((), ())
    model = load_model(
        model_data(fitted, batch_size=batch, free_cores=free, speed=speed, worker_speeds=of_workers, ps_speeds=of_ps)
    )
    found = model.sides(LATTICE.servers.astype(float), LATTICE.worker_sizes, LATTICE.ps_cores)
    of_worker = found.of_worker[:, LATTICE.size_of_side] * LATTICE.workers ** -float(found.power)
    first = of_worker + found.fixed[:, None]
    seconds = ((first[:, :, None] + found.of_ps[:, None, :]) ** (1 / exponent)).ravel()
    assert seconds * model.predict(*LATTICE.parts(np.arange(len(LATTICE))))[0] == pytest.approx(batch)


def test_ps_on_fast_hosts_hold_up_less_and_more_of_them_are_on_slow_ones():
    """Three PS of which the third is on a host of half the speed: what they limit follows their mean."""
    costs = {
        "worker_sample": 1e-9,
        "worker_minibatch": 0,
        "worker_request": 0,
        "ps_sample": 4e-5,
        "ps_request": 0,
        "latency": 0,
    }
    fitted = fit([], prior=Prior(costs, exponent=12.0))
    speeds = {"worker_speeds": (1.0, 1.0, 1.0), "ps_speeds": (1.5, 1.5, 1.0)}
    usual, unlike = (
        load_model(model_data(fitted, batch_size=1024, free_cores={"a": 99.0, "b": 99.0}, **more))
        for more in ({}, speeds)
    )
    plans = np.full(4, 8.0), np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4), np.full(4, 0.5)
    assert unlike.predict(*plans)[0] / usual.predict(*plans)[0] == pytest.approx([1.5, 1.5, 1.0, 1.0], rel=0.01)


def test_a_form_without_sides_is_looked_at_point_by_point():
    fitted = fit([], form=ADDITIVE, prior=Prior(ADDED))
    model = load_model(model_data(fitted, batch_size=1024, free_cores={"a": 4.0}))
    assert not isinstance(model, SeparableModel)
    front = exact_front(LATTICE, model, most_cores=4.0)
    assert front is not None
    rates = model.predict(*LATTICE.parts(np.arange(len(LATTICE))))[0]
    cores = np.array([LATTICE.candidate(at).cores for at in range(len(LATTICE))])
    assert front.throughput.max() == pytest.approx(rates[cores <= 4.0].max())


def test_stored_models_predict_the_same_again():
    data = model_data(a_fit(), batch_size=1024, free_cores={"a": 6.0, "b": 2.0})
    again = load_model(msgspec.json.decode(msgspec.json.encode(data), type=ModelData))
    assert isinstance(again, Bottleneck)
    assert again == load_model(data)
    assert (again.free_cores, again.hosts) == (4.0, 2.0)
    parts = LATTICE.parts(np.arange(5))
    assert again.extrapolated(*parts).all()  # nothing has been measured


@pytest.mark.parametrize("data", [ModelData("fit-0", {}), ModelData("fit-1", {"fit": {"form": BOTTLENECK.name}})])
def test_stored_models_of_other_versions_are_refused(data):
    with pytest.raises(HistoryError, match="throughput model"):
        load_model(data)
