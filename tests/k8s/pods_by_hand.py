"""Pods of a real API server whose statuses a test writes, and agents that a test plays: no kubelet, no process."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.nodes.backend import KubeBackend
from dlrover_lite.backends.k8s.nodes.capacity import Bounds
from dlrover_lite.backends.k8s.objects.manifests import manifests
from dlrover_lite.backends.k8s.objects.names import NODE_PORT
from dlrover_lite.backends.k8s.objects.node_pod import PodSettings
from dlrover_lite.backends.keeper import protocol
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.nodes import HostUsage, NodeSpec, Observation, Observed, Readings, Usage
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.curve import JobKey
from tests.backends.support import until
from tests.k8s.proxy import Proxy

SMALL = Resources(1.0, 256 * MIB)
_namespaces, _addresses = itertools.count(), itertools.count(1)
_STOP_SECONDS = 30.0


class Agent:
    """Answers at an address of its own as the agent of a pod does; its nodes run until the test ends them."""

    def __init__(self, key: JobKey, silent: bool = False) -> None:
        self.address = f"127.{60 + os.getpid() % 60}.{os.getpid() // 60 % 250}.{next(_addresses)}"
        self.nodes: dict[str, Observed] = {}
        self.log = b""
        self.silent = silent
        self.may_answer = threading.Event()
        """Set, unless what it is asked has to wait."""
        self.may_answer.set()
        self.asked: list[str] = []
        self._version = 0
        self._lock = threading.Lock()
        self._connector = Connector(key)
        self._server = self._connector.server(f"tcp://{self.address}:{NODE_PORT}", protocol.KeeperRequests)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self, node: str, reason: Any = "Succeeded", code: int = 0) -> None:
        with self._lock:
            self.nodes[node] = Observed(self.nodes[node].started_at, time.time(), reason, code)
            self._version += 1

    def _run(self) -> None:
        while not self._stopped.is_set():
            for request in self._server.receive(0.02):
                self.asked.append(type(request.body).__name__)
                while not (self.may_answer.wait(0.02) or self._stopped.is_set()):
                    pass
                if not self.silent:
                    with self._lock:
                        self._server.reply(request, self._answer(request.body))

    def _answer(self, body: Any) -> Any:
        match body:
            case protocol.Launch(spec):
                if spec.id not in self.nodes:
                    self.nodes[spec.id] = Observed(time.time())
                    self._version += 1
            case protocol.Terminate(node):
                if self.nodes[node].ended_at is None:
                    self.nodes[node] = Observed(self.nodes[node].started_at, time.time(), "Killed", -15)
                    self._version += 1
            case protocol.Observe(after):
                return protocol.ObserveAnswer(
                    None if after == self._version else Observation(self._version, {**self.nodes})
                )
            case protocol.ReadAll():
                alive = [name for name, one in self.nodes.items() if one.ended_at is None]
                usages = {name: Usage(1.0, 100 * MIB, 100 * MIB) for name in alive}
                return protocol.AllAnswer(
                    Readings(usages, dict.fromkeys(alive, "host-a"), [HostUsage("host-a", 4.0, 1.0)])
                )
            case protocol.ReadLog(_, offset, most):
                return protocol.LogAnswer(self.log[offset : offset + most], len(self.log))
        return protocol.Acknowledged()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(_STOP_SECONDS)
        assert not self._thread.is_alive()
        self._server.close()
        self._connector.close()


class ByHand:
    """A namespace in which a backend makes pods, behind a proxy."""

    def __init__(self, proxy: Proxy, directory: Path, kubernetes: Kubernetes) -> None:
        namespace = f"by-hand-{os.getpid()}-{next(_namespaces)}"
        self.proxy, self.directory = proxy, directory
        self.admin = Calls(proxy.connection(namespace), clock=time.monotonic, sleep=time.sleep)
        self.said: list[str] = []
        self.key = JobKey.generate()
        self.agents: list[Agent] = []
        (directory / "logs").mkdir(parents=True)
        for one in manifests(namespace, create_namespace=True):
            self.admin.create(one)
        uid = "11111111-2222-3333-4444-555555555555"
        self.settings = PodSettings(job="ads-1", namespace=namespace, owner_uid=uid, kubernetes=kubernetes)
        self.host = f"{namespace}-host"
        self.admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.host}})
        sizes = {"cpu": "16", "memory": "64Gi", "pods": "2000"}
        status = {"capacity": sizes, "allocatable": sizes, "conditions": [{"type": "Ready", "status": "True"}]}
        self.admin.patch("Node", self.host, {"status": status}, subresource="status", how="merge")
        self.admin.patch("Node", self.host, {"spec": {"taints": None}}, how="merge")
        self._connector = Connector(self.key)
        self._backends: list[KubeBackend] = []
        self.backend = self.another()

    def another(self) -> KubeBackend:
        """A backend of another master."""
        found = KubeBackend(
            self.proxy.connection(self.settings.namespace),
            self.settings,
            Job(self.directory),
            connector=self._connector,
            say=self.said.append,
            bounds=Bounds(Resources(8.0, 1 << 34)),
            spares=SMALL,
        )
        self._backends.append(found)
        found.start()
        return found

    def launch(self, node: str, role: Any = "worker", **more: Any) -> None:
        self.backend.launch(NodeSpec(node, role, SMALL, "tcp://ads-1:7070", **more))

    def pods(self) -> list[str]:
        """List the pods that there are; those that are being deleted end now, as a kubelet would have them."""
        found = self.admin.list("Pod")["items"]
        for one in found:
            if "deletionTimestamp" in one["metadata"]:
                self.admin.delete("Pod", one["metadata"]["name"], propagation="Background", grace_seconds=0)
        return sorted(one["metadata"]["name"] for one in found)

    def status(self, pod: str, **status: Any) -> None:
        self.admin.patch("Pod", pod, {"status": status}, subresource="status", how="merge")

    def _bind(self, pod: str) -> None:
        """Give a pod a host, as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": self.host}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        path = f"/api/v1/namespaces/{self.settings.namespace}/pods/{pod}/binding"
        self.admin.connection.client.call_api(
            path, "POST", header_params={"Accept": "application/json"}, body=binding, _preload_content=False
        )

    def start(self, pod: str, silent: bool = False) -> Agent:
        """Have a pod run, with an agent in it, which answers from the first moment or, being silent, doesn't."""
        until(lambda: pod in self.pods(), f"{pod} to be made")
        agent = Agent(self.key, silent)
        self.agents.append(agent)
        self._bind(pod)
        self.run(pod, podIP=agent.address, podIPs=[{"ip": agent.address}])
        return agent

    def run(self, pod: str, **status: Any) -> None:
        """Say that a pod runs, with what it is to have, as a kubelet does."""
        resources = self.admin.get("Pod", pod)["spec"]["containers"][0]["resources"]
        one = {"name": "node", "image": "one", "imageID": "", "ready": True, "restartCount": 0, "resources": resources}
        self.status(pod, phase="Running", containerStatuses=[{**one, "state": {"running": {}}}], **status)

    def end(self, pod: str, phase: str = "Failed", **terminated: Any) -> None:
        ended = {"name": "node", "image": "one", "imageID": "", "ready": False, "restartCount": 0}
        state = {"terminated": {"exitCode": 1, **terminated}}
        self.status(pod, phase=phase, containerStatuses=[{**ended, "state": state}])

    def node(self, name: str) -> Observed:
        seen = self.backend.observe()
        assert seen is not None
        return seen.nodes[name]

    def becomes(self, name: str, what: Callable[[Observed], Any]) -> Observed:
        """Wait until a node is so."""
        until(lambda: what(self.node(name)), f"{name}, which is {self.node(name)}", 30.0)
        return self.node(name)

    def close(self) -> None:
        for backend in self._backends:
            backend.close()
        for agent in self.agents:
            agent.stop()
        self._connector.close()
        for pod in self.pods():
            self.admin.delete("Pod", pod, propagation="Background", grace_seconds=0)
        self.admin.delete("Node", self.host, propagation="Background")


@contextmanager
def pods_by_hand(proxy: Proxy, directory: Path, **settings: Any) -> Iterator[ByHand]:
    found = ByHand(proxy, directory, Kubernetes(image="example.org/one", **settings))
    try:
        yield found
    finally:
        found.close()
