"""Hosts that are too small for all nodes of a job: a scheduler places its pods, and a master copes. Nothing runs in the pods."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect
from dlrover_lite.backends.k8s.nodes.backend import KubeBackend
from dlrover_lite.backends.k8s.objects.node_pod import PodSettings
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.jobs.store import Job
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.job_state_store import JobStateStore
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.nodes.reconciler import Reconciler
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.shards import ShardPlan, ShardService
from dlrover_lite.protocol.hosts import total_of
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.schema import Health
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.curve import JobKey
from tests.backends.support import until
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.kubelet import Cluster, namespace, needs_root

pytestmark = [needs_cluster, needs_root]
IMAGE = "example.org/none"
"""Pods of it are placed, and never start."""
SERVER, WORKER = Resources(2.0, 64 * MIB), Resources(1.0, 64 * MIB)
PLAN = Plan(RolePlan(1, SERVER), RolePlan(2, WORKER))
HASTE = 4.0
"""How many of the master's seconds pass in one."""


@pytest.fixture
def cluster(api_server: ApiServer, tmp_path: Path) -> Iterator[Cluster]:
    def calls_of(name: str) -> Calls:
        file = api_server.kubeconfig(tmp_path / "config")
        connection = connect(namespace=name, environment={"KUBECONFIG": str(file)})
        return Calls(connection, clock=time.monotonic, sleep=time.sleep)

    host = {"host-a": (4.0, 1 << 34)}
    with namespace(calls_of, tmp_path / "nodes", hosts=host, missing_images={IMAGE}) as found:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "dlrover-lite-node"}}
        found.calls.create(account)
        yield found


class Master:
    """The part of a master that looks after nodes, as far as a commit of its ledger."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster, self._connector = cluster, Connector(JobKey.generate())
        settings = PodSettings(
            job="ads-1",
            namespace=cluster.calls.namespace,
            owner_uid="11111111-2222-3333-4444-555555555555",
            kubernetes=Kubernetes(image=IMAGE),
        )
        (directory / "logs").mkdir(parents=True)
        self.backend = KubeBackend(
            cluster.calls.connection, settings, Job(directory), connector=self._connector, say=print
        )
        self.backend.start()
        self._store = LedgerStore(directory / "ledger.sqlite")
        self._facts = JobStateStore(self._store, time.time)
        self.told: list[str] = []
        story = EventLog(lambda _: None, time.time, say=self.told.append)
        shards = ShardService(self._store, ShardPlan(samples=40, batch_size=4, epochs=1), story=story)
        self.reconciler = Reconciler(
            Fleet(PLAN, total_of(self.backend.capacity())),
            self.backend,
            "tcp://ads-1:7070",
            msgspec.structs.replace(Health(), heartbeat_seconds=3600.0),
            story,
            ParameterServers(self._facts, shards, story, time.time),
            self._facts,
            on_gone=lambda _: None,
            on_failure=lambda failure: pytest.fail(failure.message),
            on_refusal=lambda error: pytest.fail(error.message),
            work_is_left=lambda: True,
            clock=lambda: HASTE * time.monotonic(),
        )
        self.reconciler.begin()

    def turn(self) -> None:
        self.reconciler.turn()
        while effects := self._settled():
            for effect in effects:
                effect()

    def _settled(self) -> list:  # type: ignore[type-arg]
        self._facts.commit()
        return self._facts.take_effects()

    def pods(self) -> dict[str, str]:
        """Return the host of each pod, after one more turn."""
        self.turn()
        found = self.cluster.calls.list("Pod")["items"]
        return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in found}

    def close(self) -> None:
        self.backend.remove_pods(30.0)
        self.backend.close()
        self._connector.close()
        self._store.close()


@pytest.fixture
def master(cluster: Cluster, tmp_path: Path) -> Iterator[Master]:
    """A master on a host with a core for somebody else."""
    other = {"name": "one", "image": IMAGE, "resources": {"requests": {"cpu": "1"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}, "spec": {"containers": [other]}}
    cluster.calls.create(pod)
    until(lambda: cluster.calls.get("Pod", "other")["spec"].get("nodeName"), "the other's place")
    found = Master(cluster, tmp_path / "job")
    yield found
    found.close()


def test_a_server_that_has_lost_its_place_to_a_worker_gets_it_back(master: Master, cluster: Cluster) -> None:
    host = cluster.node_name("host-a")
    before = {"other": host, "ads-1-ps-0": host, "ads-1-worker-0": host, "ads-1-worker-1": ""}
    until(lambda: master.pods() == before, "a worker that finds no room")
    cluster.calls.delete("Pod", "ads-1-ps-0", propagation="Background", grace_seconds=0)
    taken = {"other": host, "ads-1-worker-0": host, "ads-1-worker-1": host, "ads-1-ps-1": ""}
    until(lambda: master.pods() == taken, "the worker to take the place")
    back = {"other": host, "ads-1-worker-0": host, "ads-1-ps-1": host}
    until(lambda: master.pods() == back, "the server to get it back")
    [told] = [line for line in master.told if "gives its room" in line]
    assert told.startswith("worker-1: gives its room to ps-1: 0/1 nodes are available")
    master.reconciler.hello("ps-1", "tcp://here")
    end = time.monotonic() + 20.0 / HASTE  # hosts are looked at within
    while time.monotonic() < end:
        assert master.pods() == back, "what isn't there isn't asked for again"
    assert total_of(master.backend.capacity()).cores == 3.0
