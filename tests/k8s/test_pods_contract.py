"""The Kubernetes backend keeps the contract of backends: with a real API server, agents and nodes, and pods that run as processes."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect
from dlrover_lite.backends.k8s.nodes.backend import KubeBackend
from dlrover_lite.backends.k8s.objects.node_pod import PodSettings
from dlrover_lite.backends.keeper.agent import OPTIONS_VARIABLE
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.jobs.store import Job
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.curve import JobKey
from tests.backends.contract import BackendContract, Scripted
from tests.backends.support import NODES, recipe, until
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.kubelet import Cluster, namespace, needs_root
from tests.k8s.pod_cgroups import available

pytestmark = [needs_cluster, needs_root]
JOB = "ads-1"
AGENT_MEMORY = 192 * MIB
"""What the agent and its template take beside a node's memory, at most."""


class Running:
    """A job's backends in a namespace whose pods run."""

    def __init__(self, cluster: Cluster, directory: Path, agent: dict[str, object]) -> None:
        self.cluster, self.directory, key = cluster, directory, JobKey.generate()
        (directory / "logs").mkdir(parents=True)
        self.said: list[str] = []
        self._connector = Connector(key)
        self._backends: list[KubeBackend] = []
        options = {
            "entries": {"worker": f"{NODES}:main", "ps": f"{NODES}:main"},
            "imports": {},
            "grace_seconds": 1.0,
            **agent,
        }
        kubernetes = Kubernetes(image="one", env={OPTIONS_VARIABLE: msgspec.json.encode(options).decode()})
        self.settings = PodSettings(
            job=JOB,
            namespace=cluster.calls.namespace,
            owner_uid="11111111-2222-3333-4444-555555555555",
            kubernetes=kubernetes,
            agent_memory=AGENT_MEMORY,
        )
        data = {"recipe.json": msgspec.json.encode(recipe()).decode()}
        for one in (
            {"kind": "ServiceAccount", "metadata": {"name": "dlrover-lite-node"}},
            {"kind": "ConfigMap", "metadata": {"name": JOB}, "data": data},
            {"kind": "Secret", "metadata": {"name": JOB}, "data": {"key": b64encode(key.text().encode()).decode()}},
        ):
            cluster.calls.create({"apiVersion": "v1", **one})

    def another(self) -> KubeBackend:
        found = KubeBackend(
            self.cluster.calls.connection,
            self.settings,
            Job(self.directory),
            connector=self._connector,
            say=self.said.append,
        )
        self._backends.append(found)
        found.start()
        return found

    def scripted(self) -> Scripted:
        backend = self.another()

        def output(node: str) -> str:
            if backend.book.nodes[node].ended:
                until(lambda: backend.logs.is_whole(node), f"the last lines of {node}")
            path = self.directory / "logs" / f"{node}.log"
            return path.read_text("utf-8", "replace") if path.exists() else ""

        def wait_for_output(node: str, text: str) -> None:
            until(lambda: text in output(node), f"{text!r} of {node}, of which was said {backend.book.nodes[node]}")
            pod = backend.book.nodes[node].pod
            enough = backend.measured[pod] + 2  # what it uses is known as of then
            until(lambda: backend.measured[pod] >= enough, f"what {node} uses")

        return Scripted(backend, wait_for_output, output, self.another, close=lambda: None)

    def close(self) -> None:
        self._backends[0].remove_pods(30.0)
        for backend in self._backends:
            backend.close()
        self._connector.close()


@contextmanager
def running(api_server: ApiServer, directory: Path, *, limits: bool, **agent: object) -> Iterator[Running]:
    file = str(api_server.kubeconfig(directory / "config"))

    def calls_of(name: str) -> Calls:
        connection = connect(namespace=name, environment={"KUBECONFIG": file})
        return Calls(connection, clock=time.monotonic, sleep=time.sleep)

    with namespace(calls_of, directory / "nodes", limits=limits) as cluster:
        found = Running(cluster, directory / "job", agent)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(scope="class")
def scripted(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    with running(api_server, tmp_path_factory.mktemp("pods"), limits=available()) as found:
        yield found.scripted()


class TestKubeBackend(BackendContract):
    limits_each_node = False
    counted_beside = 32 * MIB
    """What the agent takes doesn't count, up to a little that it takes later."""
    overlooked = 4 * MIB
    """Pages of files that the agent read count while they are in use, and no more once the kernel has set them aside."""

    def test_readings_have_each_pods_address(self, scripted: Scripted) -> None:
        nodes = [scripted.launch("stay"), scripted.launch("stay")]
        for node in nodes:
            until(lambda node=node: node in scripted.backend.readings().nodes, f"what {node} uses")
        addresses = scripted.backend.readings().addresses
        assert isinstance(scripted.backend, KubeBackend)
        for node in nodes:
            pod = scripted.backend.calls.get("Pod", scripted.backend.book.nodes[node].pod)
            assert addresses[node] == pod["status"]["podIP"]
            scripted.end(node)
        assert not scripted.backend.readings().addresses.keys() & set(nodes)


@pytest.fixture
def run(api_server: ApiServer, tmp_path: Path) -> Iterator[Callable[[], Scripted]]:
    with running(api_server, tmp_path, limits=available()) as found:
        yield found.scripted


def test_a_node_that_is_killed_for_memory_says_so_and_is_followed_in_a_larger_pod(run: Callable[[], Scripted]) -> None:
    if not available():
        pytest.skip("no control groups of version 1 can be made here")
    scripted = run()
    first = scripted.launch(f"allocate:{1024 * MIB}", "ps", memory=96 * MIB)
    ended = scripted.event(first, "exited")
    assert ended.reason == "OOMKilled" and "memory limit" in ended.detail
    second = scripted.launch(f"allocate:{512 * MIB},0.1", "ps", memory=1024 * MIB, follows=first)
    scripted.wait_for_output(second, "measured")
    assert isinstance(scripted.backend, KubeBackend)
    assert scripted.backend.book.nodes[second].pod == scripted.backend.book.nodes[first].pod
    assert scripted.backend.calls.counts["create pods"] == 1
    scripted.resize(second, Resources(2.0, 2048 * MIB))
    scripted.end(second)
