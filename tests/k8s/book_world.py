"""A cluster without anything real, for the book of pods: pods as data, agents as lists of nodes, and all that comes late or gets lost."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from dlrover_lite.backends.k8s.nodes.event_log import NodeEvent
from dlrover_lite.backends.k8s.nodes.pod_book import PodBook
from dlrover_lite.backends.k8s.nodes.pod_state import CreatePod, DeletePod, Order, ResizePod
from dlrover_lite.backends.k8s.objects.node_pod import PodSettings, node_pod, resize_patch
from dlrover_lite.backends.k8s.objects.pod_view import PodView
from dlrover_lite.backends.keeper import protocol
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.protocol.nodes import NodeSpec, Observation, Observed
from dlrover_lite.recipe.kubernetes import Kubernetes

SETTINGS = PodSettings(
    job="ads-1",
    namespace="team",
    owner_uid="11111111-0000-0000-0000-000000000000",
    kubernetes=Kubernetes(image="example.org/dlrover-lite:1"),
    agent_memory=64 * MIB,
)
SMALL, LARGE = Resources(1.0, 256 * MIB), Resources(2.0, 512 * MIB)


@dataclass
class Agent:
    """What runs in a pod."""

    version: int = 0
    nodes: dict[str, Observed] = field(default_factory=dict)
    silent: bool = False

    def end(self, node: str, reason: str, code: int) -> None:
        before = self.nodes[node]
        if before.ended_at is None:
            self.nodes[node] = Observed(before.started_at, 2.0, reason, code)  # type: ignore[arg-type]
            self.version += 1


@dataclass
class World:
    """``step`` does one thing of those that are under way."""

    created: Counter[str] = field(default_factory=Counter)
    started: Counter[str] = field(default_factory=Counter)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    events: deque[tuple[str, PodView]] = field(default_factory=deque)
    written: list[NodeEvent] = field(default_factory=list)
    now: float = 100.0
    cant_resize: str = ""
    patience_seconds: float = 60.0

    def __post_init__(self) -> None:
        self._uids = itertools.count(1)
        self.calls: deque[Any] = deque()
        self.told: dict[str, NodeSpec] = {}
        """Each node as its agent was told to start it."""
        self.book = self._new_book()
        self.relist()

    def _new_book(self) -> PodBook:
        return PodBook(
            "ads-1",
            agent_memory=SETTINGS.agent_memory,
            cant_resize=self.cant_resize,
            patience_seconds=self.patience_seconds,
        )

    # --- the API --------------------------------------------------------------------------------------------------------

    def view(self, name: str) -> PodView:
        return convert(self.pods[name], PodView)

    def change(self, name: str, **status: Any) -> None:
        pod = self.pods[name]
        self.pods[name] = {**pod, "status": {**pod.get("status", {}), **status}}
        self.events.append(("seen", self.view(name)))

    def remove(self, name: str) -> None:
        view = self.view(name)
        del self.pods[name]
        self.agents.pop(name, None)
        self.events.append(("gone", view))

    def take(self) -> None:
        """Have the book say what is to be done: written down first."""
        actions = self.book.take(self.now, self.now)
        self.written += self.book.unwritten
        self.book.unwritten.clear()
        self.calls += actions

    def call(self, *, fails: bool = False, refused: bool = False) -> None:
        """Make the oldest call that is to be made."""
        if not self.calls:
            return
        match self.calls.popleft():
            case CreatePod(name, spec, resources, spare):
                if refused or fails:
                    self.book.create_failed(name, "no quota", final=refused, now=self.now, at=self.now)
                    return
                assert name not in self.pods
                self.created[name] += 1
                made = node_pod(SETTINGS, spec, name, resources, spare=spare)
                made["metadata"]["uid"] = f"uid-{next(self._uids)}"
                self.pods[name] = made
                self.events.append(("seen", self.view(name)))
                self.book.created(name, made["metadata"]["uid"], self.now)
            case DeletePod(name, uid, _):
                if fails:
                    self.book.delete_failed(name, self.now)
                elif name in self.pods and self.pods[name]["metadata"]["uid"] == uid:
                    self.delete(name)
            case ResizePod(name, resources):
                if refused or fails or name not in self.pods:
                    self.book.resize_failed(name, resources, "no right", self.now)
                    return
                change = resize_patch(SETTINGS, resources)["spec"]["containers"][0]["resources"]
                self.pods[name]["spec"]["containers"][0]["resources"] = change
                self.events.append(("seen", self.view(name)))
                self.book.resized(name, resources)

    def delete(self, name: str) -> None:
        """Have a pod deleted: its agent ends its nodes, and it is gone a moment later (``finish``)."""
        self.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        for node in self.agents[name].nodes if name in self.agents else ():
            self.agents[name].end(node, "Killed", -15)
        self.events.append(("seen", self.view(name)))

    def relist(self) -> None:
        self.events.clear()
        self.book.listed([self.view(name) for name in self.pods], now=self.now, at=self.now)

    def deliver(self) -> None:
        """Deliver the oldest change of a pod."""
        if self.events:
            kind, view = self.events.popleft()
            tell = self.book.seen if kind == "seen" else self.book.gone
            tell(view, now=self.now, at=self.now)

    # --- pods -----------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a pod's container, and its agent."""
        if name in self.pods and name not in self.agents and not self.is_over(name):
            self.agents[name] = Agent()
            self.pods[name]["spec"]["nodeName"] = "host-a"
            self.change(name, phase="Running", podIP="10.0.0.1", containerStatuses=[{"state": {"running": {}}}])

    def is_over(self, name: str) -> bool:
        pod = self.pods[name]
        return "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") in ("Failed", "Succeeded")

    def fail(self, name: str, reason: str = "", code: int = 1, **status: Any) -> None:
        """Have a pod's container end."""
        if name in self.pods and not self.is_over(name):
            self.agents.pop(name, None)
            ended = {"state": {"terminated": {"exitCode": code, "reason": reason}}}
            self.change(name, phase="Failed", containerStatuses=[ended], **status)

    def finish(self) -> None:
        """Remove the pods that are deleted."""
        for name in [name for name, pod in self.pods.items() if "deletionTimestamp" in pod["metadata"]]:
            self.remove(name)

    # --- agents ---------------------------------------------------------------------------------------------------------

    def talk(self) -> None:
        """Have all agents asked once."""
        for pod in list(self.book.running()):
            agent = self.agents.get(pod.name)
            if agent is None or agent.silent:
                self.book.silent(pod.name, 1.0)
                continue
            self.book.heard(pod.name)
            for order in self.book.orders(pod.name):
                self._tell(pod.name, agent, order)
            told = Observation(agent.version, dict(agent.nodes))
            self.book.observed(pod.name, told, now=self.now, at=self.now)

    def _tell(self, pod: str, agent: Agent, order: Order) -> None:
        match order:
            case protocol.Launch(spec):
                assert not spec.host and spec.follows == self.book.nodes[spec.id].spec.follows
                self.told[spec.id] = spec
                if spec.id not in agent.nodes:
                    assert all(one.ended_at is not None for one in agent.nodes.values()), "one node at a time"
                    self.started[spec.id] += 1
                    agent.nodes[spec.id] = Observed(1.0)
                    agent.version += 1
            case protocol.Terminate(node, _, _):
                if node not in agent.nodes:
                    self.book.refused(pod, order, "never launched", now=self.now, at=self.now)
                    return
                agent.end(node, "Killed", -15)
        self.book.acknowledged(pod, order)

    # --- the master -----------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Have another master begin: it has what was written down, and the list of pods."""
        self.take()  # what was wanted is durable with the master, which asks again
        wanted = [node.spec for node in self.book.nodes.values()]
        self.calls.clear()
        self.book = self._new_book()
        self.book.restore(self.written)
        self.relist()
        for spec in wanted:
            self.book.launch(spec, self.now)

    def settle(self, rounds: int = 60) -> None:
        """Let everything that is under way come to its end, with time passing."""
        for _ in range(rounds):
            self.now += 10.0
            for agent in self.agents.values():
                agent.silent = False
            self.take()
            while self.calls:
                self.call()
            for name in list(self.pods):
                self.start(name)
            while self.events:
                self.deliver()
            self.talk()
            self.take()
            while self.calls:
                self.call()
            self.finish()
            while self.events:
                self.deliver()
        self.relist()

    def node(self, name: str) -> Observed:
        return self.book.nodes[name].observed

    def run(self, name: str, role: str = "worker", resources: Resources = SMALL, **more: Any) -> str:
        """Launch a node and let it run. Return its pod."""
        self.book.launch(NodeSpec(name, role, resources, "tcp://ads-1:7070", **more), self.now)  # type: ignore[arg-type]
        self.settle(2)
        return self.book.nodes[name].pod
