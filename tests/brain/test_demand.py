"""What a job asks for, by its recipe."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.demands import Demand, autoscale_of, demand_of, within
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.plans import RolePlan, fixed
from dlrover_lite.recipe.schema import Export, Model, Recipe, ResourceLimits, RoleResources, SyntheticData, Training

MACHINE = Resources(8.0, 16 * GIB)
HERE = (Host("here", MACHINE),)
ONE = RoleResources(count=2, cores=0.5, memory=GIB)


def recipe(**sections: Any) -> Recipe:
    return Recipe(version=1, name="ads", model=Model(use="wide_deep"), data=SyntheticData(samples=100), **sections)


@pytest.mark.parametrize(
    ("total", "most"),
    [
        (None, MACHINE),
        (Resources(4.0, 4 * GIB), Resources(4.0, 4 * GIB)),
        (Resources(64.0, 4 * GIB), Resources(8.0, 4 * GIB)),
        (Resources(4.0, 64 * GIB), Resources(4.0, 16 * GIB)),
    ],
)
def test_demand_is_limited_to_the_machines_capacity(total: Resources | None, most: Resources) -> None:
    assert within(Demand(hosts=HERE, total=total)) == most


@pytest.mark.parametrize(
    ("wanted", "limits", "found"),
    [
        ("auto", ResourceLimits(), "on"),
        ("auto", ResourceLimits(ps=ONE), "on"),
        ("auto", ResourceLimits(worker=ONE), "on"),
        ("auto", ResourceLimits(ps=ONE, worker=ONE), "off"),
        ("on", ResourceLimits(ps=ONE, worker=ONE), "on"),
        ("suggest", ResourceLimits(), "suggest"),
        ("off", ResourceLimits(), "off"),
    ],
)
def test_autoscale_auto_is_off_when_the_recipe_fixes_all_resources(
    wanted: Any, limits: ResourceLimits, found: str
) -> None:
    assert autoscale_of(recipe(autoscale=wanted, resources=limits)) == found


@pytest.mark.parametrize("counted", [False, True])
def test_rows_count_updates_when_optimizer_state_is_exported(counted: bool) -> None:
    found = demand_of(recipe(export=Export(optimizer_state=counted)), HERE, samples=100)
    assert found.facts.counted == counted


def test_demand_counts_samples_over_all_epochs() -> None:
    limits = ResourceLimits(ps=ONE, total=Resources(4.0, 8 * GIB))
    found = demand_of(recipe(training=Training(epochs=3), resources=limits), HERE, samples=100)
    assert (found.total_samples, found.epoch_samples) == (300.0, 100.0)
    assert found.ps == RolePlan(2, Resources(0.5, GIB)) and found.worker is None
    assert (found.hosts, found.autoscale) == (HERE, "on")
    assert within(found) == Resources(4.0, 8 * GIB)


def test_several_hosts_are_limited_together() -> None:
    two = (Host("a", Resources(2.0, 4 * GIB)), Host("b", Resources(6.0, 2 * GIB)))
    assert within(Demand(hosts=two)) == Resources(8.0, 6 * GIB)
    assert within(Demand(hosts=two, total=Resources(7.0, 64 * GIB))) == Resources(7.0, 6 * GIB)


@pytest.mark.parametrize("decode", [msgspec.json.decode, msgspec.msgpack.decode])
def test_demand_of_a_master_of_the_version_before_has_one_host(decode: Any) -> None:
    told = {"capacity": {"cores": 8.0, "memory": 16 * GIB}, "total": None, "total_samples": 5.0, "checkpoints": True}
    encode = msgspec.json.encode if decode is msgspec.json.decode else msgspec.msgpack.encode
    found = decode(encode(told), type=Demand)
    assert found == Demand(hosts=(Host("", MACHINE),), total_samples=5.0, checkpoints=True)
    assert decode(encode(found), type=Demand) == found
    assert msgspec.structs.replace(found, autoscale="off").hosts == found.hosts


def test_a_role_left_open_has_no_fixed_plan() -> None:
    assert fixed(None) is None
