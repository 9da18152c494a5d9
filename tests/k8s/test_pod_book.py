"""The book of pods: whatever happens in whichever order, each node runs once, ends once, and leaves no pod; and ends have reasons."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dlrover_lite.backends.k8s.nodes.pod_state import ANSWERS_SECONDS, CreatePod, DeletePod
from dlrover_lite.core.errors import BackendError, CantResize, ResizeUnderWay
from dlrover_lite.protocol.nodes import NodeSpec, Observed
from tests.k8s.book_world import LARGE, SMALL, World


class AnyOrder(RuleBasedStateMachine):
    """Everything that can happen, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.numbers = itertools.count()
        self.ends: dict[str, Observed] = {}
        self.refused: set[str] = set()

    @initialize(spares=st.integers(0, 2), cant_resize=st.sampled_from(["", "the server is too old"]))
    def begin(self, spares: int, cant_resize: str) -> None:
        self.world = World(cant_resize=cant_resize)
        self.spares = spares
        self.world.book.keep_spares(spares, SMALL)

    def _one_of(self, names: Any, number: int) -> str | None:
        found = sorted(names)
        return found[number % len(found)] if found else None

    @rule(role=st.sampled_from(["ps", "worker"]), large=st.booleans())
    def launch(self, role: Any, large: bool) -> None:
        name = f"{role}-{next(self.numbers)}"
        self.world.book.launch(NodeSpec(name, role, LARGE if large else SMALL, "tcp://m:1"), self.world.now)

    @rule(number=st.integers(0, 99), large=st.booleans())
    def follow(self, number: int, large: bool) -> None:
        nodes = self.world.book.nodes
        before = self._one_of([name for name, one in nodes.items() if one.ended and not one.followed_by], number)
        if before is not None:
            role = nodes[before].spec.role
            spec = NodeSpec(f"{role}-{next(self.numbers)}", role, LARGE if large else SMALL, "tcp://m:1", before)
            self.world.book.launch(spec, self.world.now)

    @rule(number=st.integers(0, 99), keep=st.booleans(), grace=st.sampled_from([0.0, 5.0]))
    def terminate(self, number: int, keep: bool, grace: float) -> None:
        if (name := self._one_of(self.world.book.nodes, number)) is not None:
            self.world.book.terminate(name, grace, keep_memory=keep, now=self.world.now, at=self.world.now)

    @rule(number=st.integers(0, 99), large=st.booleans())
    def resize(self, number: int, large: bool) -> None:
        if (name := self._one_of(self.world.book.nodes, number)) is not None:
            with suppress(BackendError):
                self.world.book.resize(name, LARGE if large else SMALL, used=0, now=self.world.now)

    @rule()
    def take(self) -> None:
        self.world.take()

    @rule(fate=st.sampled_from(["done", "done", "fails", "refused"]))
    def call(self, fate: str) -> None:
        self.world.call(fails=fate == "fails", refused=fate == "refused")

    @rule()
    def deliver(self) -> None:
        self.world.deliver()

    @rule()
    def relist(self) -> None:
        self.world.relist()

    @rule()
    def talk(self) -> None:
        self.world.talk()

    @rule(number=st.integers(0, 99))
    def start(self, number: int) -> None:
        if (name := self._one_of(self.world.pods, number)) is not None:
            self.world.start(name)

    @rule(number=st.integers(0, 99), what=st.sampled_from(["delete", "evict", "oom", "silence", "finish"]))
    def disturb(self, number: int, what: str) -> None:
        world = self.world
        name = self._one_of(world.pods, number)
        match what:
            case "finish":
                world.finish()
            case _ if name is None:
                pass
            case "delete":
                world.delete(name)
            case "evict":
                world.fail(name, "Error")
            case "oom":
                world.fail(name, "OOMKilled", 137)
            case "silence" if name in world.agents:
                world.agents[name].silent = True

    @rule(number=st.integers(0, 99), code=st.sampled_from([0, 3, -9]))
    def exit(self, number: int, code: int) -> None:
        running = {node: agent for agent in self.world.agents.values() for node in agent.nodes}
        if (node := self._one_of(running, number)) is not None:
            running[node].end(node, "Succeeded" if code == 0 else "Killed", code)

    @rule(seconds=st.sampled_from([1.0, 10.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def restart(self) -> None:
        self.world.restart()
        self.world.book.keep_spares(self.spares, SMALL)

    @invariant()
    def ends_are_final(self) -> None:
        for name, node in self.world.book.nodes.items():
            if name in self.ends:
                assert node.observed == self.ends[name]
            elif node.ended:
                self.ends[name] = node.observed

    @invariant()
    def nothing_starts_twice(self) -> None:
        assert all(count == 1 for count in self.world.started.values())
        assert all(count == 1 for name, count in self.world.created.items() if "-spare-" not in name)

    def teardown(self) -> None:
        world = self.world
        world.settle()
        running = {node for agent in world.agents.values() for node, one in agent.nodes.items() if one.ended_at is None}
        book = world.book
        assert running == {name for name, node in book.nodes.items() if not node.ended}, "nothing is lost"
        for name, node in book.nodes.items():
            assert not (node.asked_to_end and not node.ended), name
        needed = {node.pod for node in book.nodes.values() if not node.ended}
        kept = {node.pod for node in book.nodes.values() if node.ended and book.keeps(node)}
        for name in world.pods:
            assert name in needed | kept or book.pods[name].spare, "no pod without a node"
        assert sum(pod.spare for pod in book.pods.values()) >= self.spares
        for name in list(book.nodes):
            book.terminate(name, 0.0, keep_memory=False, now=world.now, at=world.now)
        world.settle()
        assert all(node.ended for node in book.nodes.values())
        book.remove_all(world.now)
        world.settle(5)
        assert not world.pods and not book.pods
        self.ends_are_final()
        self.nothing_starts_twice()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


# --- what a pod's end means -----------------------------------------------------------------------------------------


def ended(world: World, node: str = "worker-0") -> tuple[Any, Any, str]:
    one = world.node(node)
    return one.reason, one.exit_code, one.detail


def test_a_container_killed_for_memory_is_told_with_the_nodes_limit() -> None:
    world = World()
    world.fail(world.run("worker-0"), "OOMKilled", 137)
    world.settle(1)
    reason, code, detail = ended(world)
    assert (reason, code) == ("OOMKilled", -9)
    assert detail.startswith("over its memory limit of 256 MiB")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"reason": "Evicted", "message": "The node was low on resource: memory."}, "low on resource: memory"),
        ({"reason": "NodeLost", "message": "Node host-a is unresponsive"}, "host-a is unresponsive"),
        (
            {"conditions": [("PreemptionByScheduler", "preempted by batch/other")]},
            "higher priority: preempted by batch",
        ),
        ({"conditions": [("DeletionByTaintManager", "taint")]}, "its host host-a is lost"),
        ({"conditions": [("TerminationByKubelet", "shutdown")]}, "ended by its host host-a: shutdown"),
        ({"conditions": [("EvictionByEvictionAPI", "drained")]}, "evicted by request"),
    ],
)
def test_who_ends_a_pod_from_outside_is_named(status: dict[str, Any], words: str) -> None:
    world = World()
    pod = world.run("worker-0")
    if "conditions" in status:
        of = [
            {"type": "DisruptionTarget", "status": "True", "reason": r, "message": m} for r, m in status["conditions"]
        ]
        status = {"conditions": of}
    del world.agents[pod]
    world.change(pod, phase="Failed", containerStatuses=[], **status)
    world.settle(1)
    reason, _, detail = ended(world)
    assert reason == "Preempted" and words in detail


def test_a_pod_that_somebody_deletes_ends_its_node_as_preempted_whatever_the_agent_says() -> None:
    world = World()
    pod = world.run("worker-0")
    world.delete(pod)
    world.deliver()
    world.talk()
    reason, _, detail = ended(world)
    assert reason == "Preempted" and "deleted by somebody else" in detail
    world = World()
    world.remove(world.run("worker-0"))
    world.deliver()
    assert ended(world)[0] == "Preempted"


@pytest.mark.parametrize(
    ("code", "reason", "told"), [(137, "Killed", -9), (143, "Preempted", -15), (2, "Unknown", 2), (0, "Unknown", 0)]
)
def test_an_agents_exit_code_says_how_its_node_has_ended(code: int, reason: str, told: int) -> None:
    world = World()
    world.fail(world.run("worker-0"), "Error", code)
    world.settle(1)
    assert ended(world)[:2] == (reason, told)


def test_an_image_that_cant_be_pulled_ends_the_node_after_a_while_in_the_kubelets_words() -> None:
    world = World()
    world.book.launch(NodeSpec("worker-0", "worker", SMALL, ""), world.now)
    world.take()
    world.call()
    [name] = world.pods
    why = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}}}
    world.change(name, phase="Pending", containerStatuses=[why])
    while world.events:
        world.deliver()
    assert world.node("worker-0").detail == "pulling: ImagePullBackOff (example.org/dlrover-lite:1): manifest unknown"
    world.now += 100.0
    world.take()
    assert world.node("worker-0").ended_at is None and not world.calls
    world.now += 30.0
    world.take()
    reason, _, detail = ended(world)
    assert reason == "Unknown" and "ImagePullBackOff (example.org/dlrover-lite:1): manifest unknown" in detail
    assert [type(one) for one in world.calls] == [DeletePod]


def test_an_image_that_is_there_at_last_forgives_what_went_before() -> None:
    world = World()
    world.book.launch(NodeSpec("worker-0", "worker", SMALL, ""), world.now)
    world.take()
    world.call()
    [name] = world.pods
    world.change(name, containerStatuses=[{"state": {"waiting": {"reason": "ErrImagePull"}}}])
    world.change(name, containerStatuses=[{"state": {"waiting": {"reason": "ContainerCreating"}}}])
    world.settle(30)
    assert world.node("worker-0").ended_at is None


def test_the_schedulers_words_are_passed_on_and_end_nothing() -> None:
    world = World()
    world.book.launch(NodeSpec("worker-0", "worker", SMALL, ""), world.now)
    world.take()
    world.call()
    [name] = world.pods
    why = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes: 3 Insufficient cpu.",
    }
    world.change(name, phase="Pending", conditions=[why])
    while world.events:
        world.deliver()
    world.now += 3600
    world.take()
    words = "0/3 nodes: 3 Insufficient cpu."
    assert world.node("worker-0") == Observed(detail=f"pending: {words}", no_room=words)
    world.start(name)
    world.deliver()
    assert (world.node("worker-0").host, world.node("worker-0").no_room) == ("host-a", "")


def test_a_refusal_to_make_a_pod_ends_its_node_in_the_apis_words() -> None:
    world = World()
    world.book.launch(NodeSpec("worker-0", "worker", SMALL, ""), world.now)
    world.take()
    world.call(refused=True)
    assert ended(world) == ("Unknown", None, "no quota")


def test_an_agent_that_falls_silent_is_unknown_for_a_while_and_then_its_node_has_ended() -> None:
    world = World()
    pod = world.run("worker-0")
    world.agents[pod].silent = True
    for _ in range(40):
        world.talk()
        world.take()
    assert world.node("worker-0").detail.startswith("unknown: ")
    world.agents[pod].silent = False
    world.talk()
    assert world.node("worker-0") == Observed(1.0, host="host-a")
    world.agents[pod].silent = True
    for _ in range(200):
        world.talk()
        world.take()
    reason, _, detail = ended(world)
    assert reason == "Unknown" and "has not answered for 180 s" in detail
    assert [type(one) for one in world.calls] == [DeletePod]


def test_a_node_whose_agent_is_silent_ends_with_its_pod_when_it_is_to() -> None:
    world = World()
    pod = world.run("worker-0")
    world.agents[pod].silent = True
    world.book.terminate("worker-0", 3.0, keep_memory=False, now=world.now, at=world.now)
    for _ in range(8):
        world.talk()
        world.take()
        assert not world.calls
    world.talk()
    world.take()
    assert [one.grace_seconds for one in world.calls] == [1]
    world.call()
    world.finish()
    while world.events:
        world.deliver()
    assert ended(world)[0] == "Killed"


# --- which pod a node runs in ---------------------------------------------------------------------------------------


def test_a_follower_runs_where_its_predecessors_memory_is() -> None:
    world = World()
    pod = world.run("ps-0", "ps")
    world.agents[pod].end("ps-0", "Killed", -9)
    world.settle(30)  # however long the master takes
    assert world.run("ps-1", "ps", LARGE, follows="ps-0") == pod
    assert world.agents[pod].nodes["ps-1"].started_at is not None
    assert world.created.total() == 1
    assert world.book.pods[pod].view is not None and world.book.pods[pod].view.asked.cores == 2.0


def followed_after_a_restart() -> tuple[World, str]:
    """A parameter server has ended, and is followed by what another master wants, which hasn't heard of the agent yet."""
    pod = (world := World()).run("ps-0", "ps")
    world.agents[pod].end("ps-0", "UserError", 3)
    world.talk()
    world.restart()
    world.agents[pod].silent = True
    world.book.launch(NodeSpec("ps-1", "ps", SMALL, "", "ps-0"), world.now)
    return world, pod


def test_a_follower_runs_where_memory_is_though_another_master_hasnt_heard_of_that_pod_yet() -> None:
    world, pod = followed_after_a_restart()
    world.settle(2)
    assert world.book.nodes["ps-1"].pod == pod and world.started["ps-1"] == world.created.total() == 1


def test_a_follower_is_started_elsewhere_when_no_agent_answers_where_memory_was() -> None:
    world, pod = followed_after_a_restart()
    for _ in range(int(ANSWERS_SECONDS)):
        assert world.book.nodes["ps-1"].pod == pod
        world.talk()
        world.take()
    assert world.book.nodes["ps-1"].pod != pod
    world.settle(2)
    assert world.started["ps-1"] == 1 and list(world.pods) == [world.book.nodes["ps-1"].pod]


def test_a_follower_gets_a_new_pod_where_its_predecessors_is_gone() -> None:
    world = World()
    pod = world.run("ps-0", "ps")
    world.fail(pod, "OOMKilled", 137)
    world.settle(2)
    other = world.run("ps-1", "ps", LARGE, follows="ps-0")
    assert other != pod and world.node("ps-1").started_at is not None
    assert list(world.pods) == [other]
    assert world.told["ps-1"].follows == "ps-0", "or it would take itself for one that begins with nothing"


def test_a_follower_that_was_never_started_survives_the_loss_of_that_pod() -> None:
    world = World()
    pod = world.run("ps-0", "ps")
    world.agents[pod].end("ps-0", "Killed", -9)
    world.talk()
    world.book.launch(NodeSpec("ps-1", "ps", SMALL, "", "ps-0"), world.now)
    assert world.book.nodes["ps-1"].pod == pod
    world.fail(pod)
    world.settle(3)
    assert world.node("ps-1").started_at is not None and world.node("ps-1").ended_at is None


def test_a_worker_that_comes_soon_after_another_takes_its_pod() -> None:
    world = World()
    pod = world.run("worker-0")
    world.agents[pod].end("worker-0", "Killed", -9)
    world.talk()
    assert world.run("worker-1") == pod
    world.agents[pod].end("worker-1", "Killed", -9)
    world.settle(10)
    assert not world.pods


def test_a_node_takes_no_spare_pod_on_a_host_that_it_avoids() -> None:
    world = World()
    world.book.keep_spares(1, SMALL)
    world.settle(3)
    [spare] = world.pods
    assert world.run("worker-0", avoids=["host-a"]) != spare


def test_a_node_takes_a_spare_pod_and_another_spare_is_made() -> None:
    world = World()
    world.book.keep_spares(1, SMALL)
    world.settle(3)
    [spare] = world.pods
    assert world.run("ps-0", "ps", LARGE) == spare
    world.settle(10)
    assert len(world.pods) == 2 and world.book.pods[spare].nodes == ["ps-0"]


def test_a_node_waits_for_its_pod_to_have_grown_and_moves_where_it_may_not() -> None:
    world = World()
    world.book.keep_spares(1, SMALL)
    world.settle(3)
    [spare] = world.pods
    world.book.keep_spares(0, SMALL)
    world.book.launch(NodeSpec("ps-0", "ps", LARGE, ""), world.now)
    world.take()
    world.talk()
    assert world.started.total() == 0
    world.call(refused=True)
    world.settle(8)
    assert world.node("ps-0").started_at is not None and world.book.nodes["ps-0"].pod != spare
    assert spare not in world.pods


# --- resizing -------------------------------------------------------------------------------------------------------


def resized(world: World, resources: Any = LARGE) -> None:
    world.book.resize("worker-0", resources, used=100, now=world.now)


def test_a_resize_is_done_when_the_pods_status_says_so() -> None:
    world = World()
    pod = world.run("worker-0")
    with pytest.raises(ResizeUnderWay):
        resized(world)
    world.take()
    world.call()
    told = [{"state": {"running": {}}, "resources": {"limits": {"cpu": "1", "memory": "320Mi"}}}]
    world.change(pod, containerStatuses=told)
    while world.events:
        world.deliver()
    with pytest.raises(ResizeUnderWay):
        resized(world)
    told[0]["resources"] = {"limits": {"cpu": "2", "memory": "576Mi"}}
    world.change(pod, containerStatuses=told)
    while world.events:
        world.deliver()
    resized(world)
    assert world.book.nodes["worker-0"].observed.ended_at is None


@pytest.mark.parametrize("reason", ["Deferred", "Infeasible"])
def test_what_the_kubelet_says_of_a_resize_is_passed_on(reason: str) -> None:
    world = World()
    pod = world.run("worker-0")
    told = [{"state": {"running": {}}, "resources": {"limits": {"cpu": "1", "memory": "320Mi"}}}]
    world.change(pod, containerStatuses=told)
    with pytest.raises(ResizeUnderWay):
        resized(world)
    world.take()
    world.call()
    pending = {
        "type": "PodResizePending",
        "status": "True",
        "reason": reason,
        "message": "Node didn't have enough memory",
    }
    world.change(pod, conditions=[pending])
    while world.events:
        world.deliver()
    with pytest.raises(BackendError, match=f"{reason} on host-a: Node didn't have enough memory") as caught:
        resized(world)
    assert not isinstance(caught.value, ResizeUnderWay)
    assert isinstance(caught.value, CantResize) is (reason == "Infeasible")
    world.now += 60.0
    with pytest.raises(CantResize, match=reason):
        resized(world)


def test_a_resize_that_the_server_will_never_do_says_so() -> None:
    world = World()
    world.run("worker-0")
    for final in (False, True):
        world.now += 60.0
        with pytest.raises(ResizeUnderWay):
            resized(world)
        world.take()
        world.book.resize_failed(world.calls.popleft().pod, LARGE, "a right is missing", world.now, final=final)
        with pytest.raises(BackendError, match="a right is missing") as caught:
            resized(world)
        assert isinstance(caught.value, CantResize) is final


def test_a_shrink_that_is_refused_is_taken_back() -> None:
    world = World()
    world.run("worker-0", resources=LARGE)
    with pytest.raises(ResizeUnderWay):
        resized(world, SMALL)
    world.take()
    world.call(refused=True)
    with pytest.raises(BackendError, match="no right"):
        resized(world, SMALL)
    world.take()
    world.call()
    world.settle(2)
    [pod] = world.book.pods.values()
    assert pod.wanted == LARGE and not pod.resize_problem


def test_where_the_server_cant_resize_it_is_said() -> None:
    world = World(cant_resize="Kubernetes 1.30 can't")
    world.run("worker-0")
    resized(world, SMALL)
    with pytest.raises(CantResize, match=r"Kubernetes 1\.30 can't"):
        resized(world)


# --- another master -------------------------------------------------------------------------------------------------


def test_another_master_finds_what_runs_what_has_ended_and_what_is_gone() -> None:
    world = World()
    pods = {name: world.run(name, "ps") for name in ("ps-0", "ps-1", "ps-2")}
    world.agents[pods["ps-1"]].end("ps-1", "UserError", 3)
    world.settle(1)
    world.run("ps-3", "ps", follows="ps-1")
    before = dict(world.book.nodes)
    world.pods.pop(pods["ps-2"])
    world.restart()
    world.settle(3)
    assert world.node("ps-0") == before["ps-0"].observed and world.node("ps-1") == before["ps-1"].observed
    assert world.book.nodes["ps-3"].pod == pods["ps-1"] and world.node("ps-3") == before["ps-3"].observed
    assert ended(world, "ps-2")[0] == "Preempted" and "was gone when the master came back" in ended(world, "ps-2")[2]
    assert world.created.total() == 3


def test_another_master_without_any_records_knows_from_pods_and_agents_what_runs() -> None:
    world = World()
    pod = world.run("ps-0", "ps", LARGE)
    world.agents[pod].end("ps-0", "Killed", -9)
    world.settle(1)
    world.run("ps-1", "ps", LARGE, follows="ps-0")
    world.written.clear()
    world.calls.clear()
    world.book = world._new_book()
    world.relist()
    assert world.book.nodes["ps-0"].spec.master_endpoint == "tcp://ads-1:7070"
    world.settle(3)
    assert world.node("ps-0").reason == "Killed" and world.node("ps-1") == Observed(1.0, host="host-a")
    assert world.book.pods[pod].wanted == LARGE


def test_asking_again_changes_nothing() -> None:
    world = World()
    world.run("worker-0")
    seen = world.book.observe(None)
    assert seen is not None
    world.book.launch(world.book.nodes["worker-0"].spec, world.now)
    world.settle(3)
    assert world.book.observe(seen.version) is None and world.created.total() == 1


def test_a_node_that_was_asked_to_end_before_anything_was_done_makes_no_pod() -> None:
    world = World()
    world.book.launch(NodeSpec("worker-0", "worker", SMALL, ""), world.now)
    world.book.terminate("worker-0", 5.0, keep_memory=False, now=world.now, at=world.now)
    world.take()
    assert not world.calls and ended(world)[0] == "Killed"
    world.book.launch(NodeSpec("worker-1", "worker", SMALL, ""), world.now)
    world.take()
    assert [type(one) for one in world.calls] == [CreatePod]
    world.book.terminate("worker-1", 5.0, keep_memory=False, now=world.now, at=world.now)
    world.settle(2)
    assert not world.pods and world.started.total() == 0
