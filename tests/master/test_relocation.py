"""Parameter servers that a plan has on other hosts: they come there, full as these may be, and the job has never less than it needs."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.autoscale.autoscaler import (
    Autoscaler,
    Goal,
    NodeNow,
    ReplaceNode,
    ResizeNode,
    ScaleRole,
    SetNodeSize,
    Step,
    World,
)
from dlrover_lite.master.nodes.places import Places
from dlrover_lite.protocol.demands import DecisionOutcome
from dlrover_lite.protocol.hosts import HostNodes
from dlrover_lite.protocol.plans import Plan, RolePlan

ONE = Resources(1.0, GIB)
HOSTS = ("a", "b", "c")


class Nodes(NamedTuple):
    """Nodes of one core on a host."""

    workers: int
    servers: int


def plan_of(nodes: dict[str, Nodes]) -> Plan:
    workers, servers = (sum(each) for each in zip(*nodes.values(), strict=True))
    return Plan(ps=RolePlan(servers, ONE), worker=RolePlan(workers, ONE))


class Cluster:
    """Hosts with a scheduler that takes hosts for wishes: a node goes where it is wanted if there is room, else where there is any, else it
    waits. A server that is replaced leaves when the other one is up; a worker at once."""

    def __init__(self, cores: dict[str, int], nodes: dict[str, Nodes]) -> None:
        self.cores, self.plan, self.made, self.now = cores, plan_of(nodes), 0, 0.0
        self.nodes: dict[str, NodeNow] = {}
        self.wishes: dict[str, str] = {}
        self.asked: list[Step] = []
        self.done: list[DecisionOutcome] = []
        self.fewest = self.plan.ps.count
        self.state = Autoscaler(job="a", mode="on")
        for host, (workers, servers) in nodes.items():
            for role, count in (("worker", workers), ("ps", servers)):
                for _ in range(count):
                    self.launch(role, host)
        self.settle()

    def launch(self, role: str, host: str) -> None:
        name = f"{role}-{self.made}"
        self.made += 1
        self.nodes[name] = NodeNow(name, role, ONE, up=False)  # type: ignore[arg-type]
        self.wishes[name] = host

    def world(self) -> World:
        return World(self.plan, tuple(self.nodes.values()), samples=int(self.now))

    def room(self, host: str) -> int:
        return self.cores[host] - sum(node.host == host for node in self.nodes.values())

    def settle(self) -> None:
        """All that can happen happens: nodes find places, and those that leave are gone."""
        for _ in range(2 * len(self.nodes)):
            self.place()
            waiting = any(node.role == "ps" and not node.up for node in self.nodes.values())
            for node in list(self.nodes.values()):
                if node.leaving and not (node.role == "ps" and waiting):
                    del self.nodes[node.id]
            self.fewest = min(self.fewest, sum(node.role == "ps" and node.up for node in self.nodes.values()))

    def place(self) -> None:
        for node in list(self.nodes.values()):
            if not node.host:
                wish = self.wishes[node.id]
                having = [host for host in (wish, *self.cores) if host and self.room(host) > 0]
                if having:
                    self.nodes[node.id] = node._replace(host=having[0], up=True)

    def do(self, step: Step) -> None:
        self.asked.append(step)
        match step:
            case SetNodeSize() | ResizeNode():
                raise AssertionError("all nodes have the same size")
            case ScaleRole(role, count, on):
                staying = self.world().staying(role)
                for node in Places(on).leave_first(staying, staying)[: max(0, len(staying) - count)]:  # type: ignore[arg-type, type-var]
                    self.nodes[node.id] = self.nodes[node.id]._replace(leaving=True)
                for _ in range(count - len(staying)):
                    there = [node._replace(host=self.wishes[node.id]) for node in self.world().staying(role)]
                    self.launch(role, Places(on).next_host(there))  # type: ignore[arg-type]
                of = msgspec.structs.replace(getattr(self.plan, role), count=count)
                self.plan = msgspec.structs.replace(self.plan, **{role: of})
            case ReplaceNode(name, _, host):
                self.nodes[name] = self.nodes[name]._replace(leaving=True)
                self.launch(self.nodes[name].role, host)

    def follow(self, target: dict[str, Nodes]) -> None:
        placement = tuple(HostNodes(host, *of) for host, of in target.items() if any(of))
        goal = Goal(number=1, target=plan_of(target), placement=placement, what="because")
        self.state, _ = self.state.advised(goal, self.now, 0)
        for _ in range(200):
            self.now += 1.0
            found = self.state.turn(self.world(), self.now)
            self.state = found.state
            self.done += [found.done] if found.done else []
            if found.step is not None:
                assert self.world().calm, "a step is begun while another one is under way"
                self.do(found.step)
                self.state = self.state.answered("", self.now, self.world()).state
            self.settle()

    def on(self) -> dict[str, Nodes]:
        def count(host: str, role: str) -> int:
            return sum(node.host == host and node.role == role for node in self.nodes.values())

        return {host: Nodes(count(host, "worker"), count(host, "ps")) for host in self.cores}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, Nodes], dict[str, Nodes]]:
    """Draw cores of hosts, and nodes before and after that have a place there, one of each role at least."""
    cores = {host: draw(st.integers(1, 6)) for host in HOSTS[: draw(st.integers(2, 3))]}

    def nodes() -> dict[str, Nodes]:
        found = {}
        for host, count in cores.items():
            servers = draw(st.integers(0, count))
            found[host] = Nodes(draw(st.integers(0, count - servers)), servers)
        return found

    has_both = st.builds(nodes).filter(lambda each: all(map(sum, zip(*each.values(), strict=True))))
    return cores, draw(has_both), draw(has_both)


def test_servers_come_to_a_host_that_is_full_of_workers_and_these_to_where_servers_were() -> None:
    cluster = Cluster({"a": 8, "b": 8}, {"a": Nodes(5, 3), "b": Nodes(6, 2)})
    target = {"a": Nodes(3, 5), "b": Nodes(8, 0)}
    cluster.follow(target)
    assert cluster.on() == target
    on = {"a": 3, "b": 8}
    assert [step for step in cluster.asked if isinstance(step, ScaleRole)] == [
        ScaleRole("worker", 9, on),
        ScaleRole("worker", 11, on),
    ]
    assert sum(isinstance(step, ReplaceNode) for step in cluster.asked) == 2 and cluster.fewest == 5
    assert [one.state for one in cluster.done] == ["done"]


@pytest.mark.parametrize("workers", [4, 5, 6])
def test_servers_move_with_any_change_of_workers(workers: int) -> None:
    cluster = Cluster({"a": 6, "b": 6}, {"a": Nodes(4, 1), "b": Nodes(1, 1)})
    target = {"a": Nodes(4, 2), "b": Nodes(workers - 4, 0)}
    cluster.follow(target)
    assert cluster.on() == target and cluster.fewest == 2
    assert [one.state for one in cluster.done] == ["done"]


@given(clusters())
def test_any_plan_is_reached_with_servers_where_it_has_them(
    given_nodes: tuple[dict[str, int], dict[str, Nodes], dict[str, Nodes]],
) -> None:
    """Where one worker at least may stay, as the last one doesn't make room."""
    cores, before, after = given_nodes
    assume(any(min(before[host].workers, after[host].workers) for host in cores))
    cluster = Cluster(cores, before)
    cluster.follow(after)
    assert [of.servers for of in cluster.on().values()] == [of.servers for of in after.values()], cluster.asked
    assert [one.state for one in cluster.done] == ["done"], cluster.asked
    assert cluster.plan == plan_of(after) and cluster.world().calm
    assert cluster.fewest >= min(plan_of(before).ps.count, plan_of(after).ps.count)


def test_a_server_that_lands_elsewhere_is_not_moved_again_and_again() -> None:
    """Strangers have what was free where it is wanted."""
    cluster = Cluster({"a": 2, "b": 4}, {"a": Nodes(1, 0), "b": Nodes(1, 1)})
    cluster.cores["a"] = 1
    cluster.follow({"a": Nodes(1, 1), "b": Nodes(1, 0)})
    assert [type(step) for step in cluster.asked] == [ReplaceNode]
    assert cluster.on()["b"].servers == 1 and [one.state for one in cluster.done] == ["done"]
