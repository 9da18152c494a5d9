"""What a job may use in a cluster: of hosts, quotas and the recipe's ceiling what each leaves, and nothing that its pods can't have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.backends.k8s.nodes.capacity import (
    Bounds,
    HostView,
    QuotaView,
    bounds_of,
    capacity_of,
    left_by,
    most_by,
    shared_room_of,
)
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.hosts import Host, SharedRoom, total_of
from dlrover_lite.recipe.kubernetes import Kubernetes, NodePool
from dlrover_lite.recipe.schema import JobCeiling, ResourceLimits, RoleResources

ANY = Kubernetes(image="one")
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def host(name: str, cores: str = "8", memory: str = "16Gi", **spec: Any) -> HostView:
    labels = {"pool": name[0]}
    ready = {"type": "Ready", "status": str(spec.pop("ready", True))}
    status = {"allocatable": {"cpu": cores, "memory": memory}, "conditions": [ready]}
    return convert({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}, HostView)


def quota(hard: dict[str, str], used: dict[str, str]) -> QuotaView:
    return convert({"status": {"hard": hard, "used": used}}, QuotaView)


def test_hosts_that_pods_cant_be_on_count_for_nothing() -> None:
    hosts = [
        host("a-1"),
        host("a-2", unschedulable=True),
        host("a-3", ready=False),
        host("a-4", taints=[TAINT]),
        host("a-5", taints=[{**TAINT, "effect": "PreferNoSchedule"}]),
        host("b-1"),
    ]
    chosen = Kubernetes(image="one", node_selector={"pool": "a"})
    assert [one.name for one in capacity_of(hosts, chosen, Bounds())] == ["a-1", "a-5"]


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_what_the_recipe_tolerates_keeps_no_pod_away(toleration: dict[str, Any], tolerated: bool) -> None:
    settings = Kubernetes(image="one", tolerations=[toleration])
    assert bool(capacity_of([host("a", taints=[TAINT])], settings, Bounds())) is tolerated


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=6),
    st.floats(0.5, 200.0),
    st.integers(1, 400),
)
def test_no_host_has_more_than_it_has_and_all_together_no_more_than_the_limit(
    sizes: list[int], cores: float, gib: int
) -> None:
    hosts = [host(f"a-{number}", str(size), f"{2 * size}Gi") for number, size in enumerate(sizes)]
    found = capacity_of(hosts, ANY, Bounds(Resources(cores, gib * GIB)))
    by_name = {one.metadata.name: one.resources for one in hosts}
    for one in found:
        assert one.resources == one.resources.within(by_name[one.name]) and one.resources.cores > 0
    total = total_of(found)
    assert total.cores <= cores + 1e-6 and total.memory <= gib * GIB
    assert found[0].resources == by_name[found[0].name].within(Resources(cores, gib * GIB)), (
        "the largest node still fits"
    )


def test_without_the_right_to_read_nodes_limits_are_all_that_is_known() -> None:
    ceiling, quota = Bounds(Resources(4.0, 8 * GIB)), Resources(100.0, GIB)
    assert capacity_of(None, ANY, ceiling, quota=quota) == [Host("", Resources(4.0, GIB))]
    assert capacity_of(None, ANY, ceiling, found_room=Resources(3.0, 9 * GIB)) == [Host("", Resources(3.0, 8 * GIB))]
    for known in (None, Resources(4.0, 1 << 53)):
        with pytest.raises(BackendError, match="isn't known") as caught:
            capacity_of(None, ANY, Bounds(), quota=known)
        assert "resources: {total:" in caught.value.hint


def test_what_was_seen_before_counts_where_nothing_else_says_what_there_is() -> None:
    seen = Resources(6.0, 6 * GIB)
    assert capacity_of(None, ANY, Bounds(otherwise=seen)) == [Host("", seen)]
    assert capacity_of(None, ANY, Bounds(otherwise=seen), quota=Resources(8.0, 8 * GIB)) == [
        Host("", Resources(8.0, 8 * GIB))
    ]
    assert capacity_of([host("a")], ANY, Bounds(otherwise=seen)) == [Host("a", Resources(8.0, 16 * GIB))]


def test_a_recipe_says_how_much_its_job_may_have() -> None:
    ps, worker = RoleResources(count=1, cores=2.0, memory=GIB), RoleResources(count=3, cores=1.0, memory=GIB)
    seen, more = Resources(9.0, 9 * GIB), Resources(20.0, 16 * GIB)
    assert bounds_of(ResourceLimits(ps=ps), seen) == Bounds(None, seen, None)
    assert bounds_of(ResourceLimits(ps=ps, worker=worker)) == Bounds(None, more, 4), "there is room to scale by hand"
    total = JobCeiling(cores=1.0, memory=GIB)
    assert bounds_of(ResourceLimits(total=total)) == Bounds(total)


AGENT = GIB // 2


def test_agents_take_their_part_of_hosts_and_quotas_and_none_of_the_ceiling() -> None:
    hosts = [host("a", "8", "16Gi")]
    assert capacity_of(hosts, ANY, Bounds(), agent_memory=AGENT) == [Host("a", Resources(8.0, 16 * GIB - 9 * AGENT))]
    fixed = Bounds(nodes=3)
    assert capacity_of(hosts, ANY, fixed, agent_memory=AGENT) == [Host("a", Resources(8.0, 16 * GIB - 3 * AGENT))]
    ceiling, quota = Bounds(Resources(4.0, 8 * GIB)), Resources(100.0, 9 * GIB)
    assert capacity_of(hosts, ANY, ceiling, agent_memory=AGENT)[0].resources == ceiling.ceiling
    found = capacity_of(None, ANY, ceiling, quota=quota, agent_memory=AGENT)
    assert found == [Host("", Resources(4.0, 9 * GIB - 5 * AGENT))]


@given(
    st.floats(1.0, 64.0), st.integers(2, 256), st.lists(st.tuples(st.floats(1.0, 8.0), st.integers(1, 16)), max_size=80)
)
def test_a_plan_within_the_capacity_fits_with_its_agents(
    cores: float, gib: int, nodes: list[tuple[float, int]]
) -> None:
    [there] = capacity_of([host("a", str(cores), f"{gib}Gi")], ANY, Bounds(), agent_memory=AGENT)
    plan = Resources(0.0, 0)
    count = 0
    for its_cores, half_gib in nodes:
        more = Resources(plan.cores + its_cores, plan.memory + half_gib * AGENT)
        if more == more.within(there.resources):
            plan, count = more, count + 1
    assert plan.memory + count * AGENT <= gib * GIB


def test_nodes_that_the_cluster_would_start_count_behind_those_that_are_there() -> None:
    pool = NodePool(labels={"pool": "a"}, most=4, cores=6.0, memory=12 * GIB)
    growing = Kubernetes(image="one", node_pools=[pool])
    hosts = [host("a-1", "4"), host("a-2", ready=False), host("b-1", "2")]
    found = capacity_of(hosts, growing, Bounds(), agent_memory=AGENT)
    names = ["a-1", "b-1", "to-come-0-2", "to-come-0-3"]
    assert [one.name for one in found] == names, "those of the pool that are there, ready or not, don't come again"
    assert found[-1].resources == Resources(6.0, 12 * GIB - 7 * AGENT), "an agent for each core, and one"
    assert capacity_of(hosts, growing, Bounds(Resources(9.0, 100 * GIB)))[-1] == Host(
        "to-come-0-2", Resources(3.0, 12 * GIB)
    )
    assert {one.name for one in shared_room_of(hosts, growing, Bounds()).hosts} == set(names)
    everywhere = Kubernetes(image="one", node_pools=[NodePool(most=2, cores=6.0, memory=GIB)])
    assert [one.name for one in capacity_of([host("a"), host("b"), host("c")], everywhere, Bounds())] == ["a", "b", "c"]
    seen = Bounds(otherwise=Resources(1.0, GIB))
    assert capacity_of(None, growing, seen) == [Host("", Resources(24.0, 48 * GIB))], "hosts that may not be read"


def test_quotas_leave_what_others_dont_use() -> None:
    own = Resources(2.0, 4 * GIB)
    tight = quota({"limits.cpu": "10", "requests.memory": "32Gi"}, {"limits.cpu": "7500m", "requests.memory": "12Gi"})
    wide = quota({"cpu": "100", "pods": "5"}, {"cpu": "50"})
    assert left_by([tight, wide], own) == Resources(4.5, 24 * GIB)
    assert left_by([], own) is None and left_by([quota({"pods": "5"}, {})], own) is None
    assert left_by([quota({"limits.cpu": "1"}, {"limits.cpu": "3"})], own) == Resources(2.0, 1 << 53), "over it already"


def test_what_all_jobs_may_use_has_no_limit_of_a_single_one() -> None:
    ceiling, there = Bounds(Resources(1.0, GIB)), [host("b"), host("a", "4"), host("c", ready=False)]
    quotas = [quota({"limits.cpu": "10", "limits.memory": "40Gi"}, {"limits.cpu": "7"}), quota({"cpu": "9"}, {})]
    most = most_by(quotas)
    assert most == Resources(9.0, 40 * GIB) and most_by([quota({"pods": "5"}, {})]) is None
    found = shared_room_of(there, ANY, ceiling, quota=left_by(quotas), most=most)
    assert found.hosts == (Host("a", Resources(4.0, 16 * GIB)), Host("b", Resources(8.0, 16 * GIB)))
    assert (found.most, found.left) == (most, Resources(3.0, 40 * GIB))
    full = shared_room_of(None, ANY, ceiling, quota=left_by(quotas), most=most, found_room=Resources(2.0, 50 * GIB))
    assert (full.hosts, full.left) == ((), Resources(2.0, 40 * GIB))
    assert shared_room_of(None, ANY, ceiling) == SharedRoom()
