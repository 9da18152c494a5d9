"""Options that are kept are those that would be found anew, whatever has changed since."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.models.fitted_model import load_model, model_data
from dlrover_lite.brain.models.throughput import Prior, fit
from dlrover_lite.brain.planning.job_view import JobView, MeasuredPlan, ModelData, Policy
from dlrover_lite.brain.planning.kept_options import KeptOptions
from dlrover_lite.brain.planning.pareto import Band, ThroughputModel
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, MemoryNeed
from dlrover_lite.brain.planning.plan_values import Options, options_of
from dlrover_lite.core.units import GIB, Resources
from tests.brain.simulated import hosts

COSTS = {"worker_sample": 4e-5, "worker_minibatch": 1e-3, "worker_request": 2e-4, "ps_sample": 6e-6}
BOUNDS = Bounds(max_workers=8, max_servers=4, worker_sizes=(0.5, 1.0, 2.0), ps_sizes=(0.5, 1.0))
CAPACITY = Resources(12.0, 32 * GIB)
BAND = Band(10_000.0, 9_000.0, 11_000.0)


def model(times: float, free: float = 12.0) -> ModelData:
    costs = {name: cost * times for name, cost in {**COSTS, "ps_request": 2e-4, "latency": 2e-2}.items()}
    return model_data(fit([], prior=Prior(costs, exponent=4.0)), batch_size=512, free_cores={"a": free})


VIEW = JobView(
    job="j",
    bounds=BOUNDS,
    model=model(1.0),
    need=MemoryNeed(worker=GIB, ps=GIB // 4, tables=4 * GIB),
    now=Candidate(2, 1, 1.0, 0.5),
    measured=BAND,
    remaining_samples=1e8,
    scale_seconds=4.0,
)
CHANGES: list[dict[str, Any]] = [
    {"model": model(1.3)},
    {"model": model(1.0, free=5.0)},
    {"bounds": msgspec.structs.replace(BOUNDS, max_workers=6)},
    {"need": MemoryNeed(worker=GIB, ps=GIB // 4, tables=5 * GIB)},
    {"need": MemoryNeed(worker=8 * GIB, ps=GIB // 4, tables=4 * GIB)},
    {"now": Candidate(3, 1, 1.0, 0.5)},
    {"now": None, "measured": None},
    {"measured": Band(12_000.0, 9_000.0, 13_000.0)},
    {"measured_before": (MeasuredPlan(Candidate(3, 2, 1.0, 0.5), BAND),)},
    {"remaining_samples": 5e7},
    {"scale_seconds": 8.0},
    {"priority": 2.0},
    {"doubt": 2.0},
    {"most": Resources(5.0, 16 * GIB)},
    {"declined": (Candidate(3, 1, 1.0, 0.5),)},
    {"ran_seconds": 60.0},
    {"waited_seconds": 60.0},
    {"explored_seconds": 5.0},
]


def data(one: Options | None) -> object:
    if one is None:
        return None
    return [part.tolist() if hasattr(part, "tolist") else repr(part) for part in (*one.points, *one)]


class Loads:
    """Counts what is loaded."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, its: ModelData) -> ThroughputModel:
        self.count += 1
        return load_model(its)


@pytest.mark.parametrize("change", CHANGES, ids=",".join)
def test_a_changed_view_has_the_options_that_it_has_anew(change: dict[str, Any]) -> None:
    kept, policy = KeptOptions(), Policy()
    changed = msgspec.structs.replace(VIEW, **change)
    for view in (VIEW, changed, VIEW):
        anew = options_of(view, load_model(view.model), CAPACITY, policy)
        assert data(kept.of(view, load_model, CAPACITY, policy, ())) == data(anew)


@pytest.mark.parametrize(
    ("capacity", "policy", "there"),
    [
        (Resources(7.0, 32 * GIB), Policy(), ()),
        (CAPACITY, Policy(horizon_seconds=60.0, rho=0.5), ()),
        (CAPACITY, Policy(), hosts(a=Resources(8.0, 16 * GIB), b=Resources(4.0, 16 * GIB))),
    ],
    ids=["capacity", "policy", "hosts"],
)
def test_other_circumstances_have_the_options_of_these(capacity: Resources, policy: Policy, there: Any) -> None:
    kept = KeptOptions()
    for these in ((CAPACITY, Policy(), ()), (capacity, policy, there), (CAPACITY, Policy(), ())):
        assert data(kept.of(VIEW, load_model, *these)) == data(options_of(VIEW, load_model(VIEW.model), *these))


def test_what_tells_nothing_new_is_found_once() -> None:
    kept, loads = KeptOptions(), Loads()
    first = kept.of(VIEW, loads, CAPACITY, Policy(), ())
    later = kept.of(msgspec.structs.replace(VIEW, ran_seconds=30.0), loads, CAPACITY, Policy(), ())
    assert first is not None and later is not None
    assert later.gain is first.gain and later.view.ran_seconds == 30.0
    measured = kept.of(msgspec.structs.replace(VIEW, measured=None), loads, CAPACITY, Policy(), ())
    assert measured is not None and measured.points.milli is first.points.milli
    assert loads.count == 1
    kept.keep(["another"])
    kept.of(VIEW, loads, CAPACITY, Policy(), ())
    assert loads.count == 2
