"""Census jobs in pods, with an API that refuses, forgets and loses what it is asked, while pods are deleted and containers killed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite.backends.k8s.jobs.kube_jobs import KubeJobs
from dlrover_lite.backends.k8s.objects.manifests import manifests
from dlrover_lite.client.census import check
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.backend import RunOptions
from dlrover_lite.protocol.brain_mode import BrainMode
from dlrover_lite.protocol.questions import Status
from dlrover_lite.recipe.load import load_recipe
from tests.backends.support import PATIENCE_SECONDS, until
from tests.chaos.extent import LONG, SEEDS
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.kubelet import Cluster, namespace, needs_root
from tests.k8s.proxy import Proxy, RandomFaults
from tests.repository.sources import ROOT

pytestmark = [needs_cluster, needs_root]
FAULTY = 0.2
"""Share of requests that are disturbed."""
SLOW_SECONDS = 0.05
"""Seconds by which each minibatch takes longer at first."""
OWNED = ("Secret", "ConfigMap", "Service", "Pod")


class Disturbed:
    """A census in a cluster whose API, as the job and who has submitted it reach it, does badly."""

    def __init__(self, cluster: Cluster, proxy: Proxy, jobs: KubeJobs, rng: random.Random) -> None:
        self.cluster, self.jobs, self.rng = cluster, jobs, rng
        self._gate = cluster.directory / "gate"
        """Workers are slow until there is a file in it: the job doesn't end before it has come to harm."""
        self._gate.mkdir()
        self.harm: Counter[str] = Counter()
        self.job, self.samples = "", 0
        self._proxy = proxy
        self._stopped = threading.Event()
        self._cutter = threading.Thread(target=self._cut_watches, args=(random.Random(rng.random()),))

    def start(self, brain: BrainMode, **settings: Any) -> None:
        changes = {
            "backend": "k8s",
            "backend.k8s.image": "any",
            "backend.k8s.env": {"DLROVER_LITE_FAILPOINTS": f"worker.push.computed=slow:{SLOW_SECONDS}@/gate/open"},
            "backend.k8s.volumes": [{"name": "gate", "hostPath": {"path": str(self._gate)}}],
            "backend.k8s.volume_mounts": [{"name": "gate", "mountPath": "/gate"}],
            "model.options.dense_values": 10_000,
        }
        given = {name.replace("__", "."): value for name, value in settings.items()}
        recipe = load_recipe(ROOT / "recipes" / "census.yaml", {**changes, **given})
        self.samples = given["data.samples"] * given["training.epochs"]
        self._cutter.start()
        self.job = self.jobs.submit(recipe, options=RunOptions(brain=brain), detached=True)

    def _cut_watches(self, rng: random.Random) -> None:
        while not self._stopped.wait(rng.uniform(0.1, 2.0)):
            self.harm["cut watch"] += self._proxy.cut_watches()

    def close(self) -> None:
        self._stopped.set()
        if self._cutter.is_alive():
            self._cutter.join()

    # --- what is done to it ---------------------------------------------------------------------------------------------

    def delete_pod(self, component: str) -> None:
        """Delete a pod that runs, as people and node pools do."""
        name = self.rng.choice(self._running(component))
        self.cluster.calls.delete("Pod", name, propagation="Background")
        self.harm[f"delete pod of {component}"] += 1

    def kill_container(self, component: str) -> None:
        self.cluster.kill_container(self.rng.choice(self._running(component)))
        self.harm[f"kill container of {component}"] += 1

    def lose_master(self) -> None:
        before = self.jobs.state(self.job).started_at
        self.delete_pod("master")
        until(lambda: self.jobs.state(self.job).started_at != before, "another master")

    def lose_parameters(self) -> None:
        """Have a parameter server's memory go with its pod, once there is a checkpoint to go back to."""
        generations: list[int] = []

        def is_checkpointed(status: Status) -> bool:
            generations.append(status.generation)
            return status.checkpoints is not None and status.checkpoints.newest is not None

        self.until(is_checkpointed, "a checkpoint")
        self.rng.choice([self.delete_pod, self.kill_container])("ps")
        self.until(lambda status: status.generation > generations[-1], "parameters of a checkpoint")

    def _running(self, component: str) -> list[str]:
        """List the pods of a component that run, and aren't being deleted; there is one sooner or later."""

        def find() -> list[str]:
            labels = {"app.kubernetes.io/instance": self.job, "app.kubernetes.io/component": component}
            assert not self.jobs.state(self.job).over, self.told()
            found = self.cluster.calls.list("Pod", labels=labels)["items"]
            running = [one["metadata"] for one in found if one.get("status", {}).get("phase") == "Running"]
            return sorted(meta["name"] for meta in running if "deletionTimestamp" not in meta)

        return list(until(find, f"a pod of {component}"))

    # --- how it is --------------------------------------------------------------------------------------------------------

    def until(self, holds: Callable[[Status], bool], what: str) -> None:
        """Wait until something holds of the job's status; it mustn't end before."""

        def look() -> bool:
            try:
                return holds(JobHandle(self.job, self.jobs).status())
            except JobError:  # its master is just coming back
                assert not self.jobs.state(self.job).over, f"the job ended before {what}: {self.told()}"
                return False

        until(look, what)

    def trains(self) -> None:
        """Wait until it has trained more than so far."""
        before: list[int] = []

        def more(status: Status) -> bool:
            before.append(status.samples)
            return status.samples > before[0] or (status.samples > 0 and len(before) == 1)

        self.until(more, "more samples")

    def told(self) -> str:
        return f"{self.jobs.state(self.job)}\n{self.cluster.output(f'{self.job}-0')[-3000:]}"

    def ends_exact(self) -> None:
        """Let it train to its end: every sample counts once, and no pod is left but who reads its files."""
        (self._gate / "open").touch()
        assert self.jobs.wait(self.job, 3 * PATIENCE_SECONDS), self.told()
        summary = self.jobs.state(self.job)
        assert summary.state == "succeeded", self.told()
        assert summary.result is not None and summary.result.status is not None
        assert summary.result.status["samples"] == self.samples
        report = check(self.jobs.files(self.job))
        assert report.exact, report
        assert set(self.there("Pod")) <= {f"{self.job}-reader"}

    def leaves_its_claim_alone(self) -> None:
        """See that all else goes with its StatefulSet."""
        self.cluster.calls.delete("StatefulSet", self.job, propagation="Background")
        until(lambda: not any(map(self.there, OWNED)), "what it owned to be gone")
        assert self.there("PersistentVolumeClaim") == [self.job]

    def there(self, kind: str) -> list[str]:
        found = [one["metadata"] for one in self.cluster.calls.list(kind)["items"]]
        return [meta["name"] for meta in found if "deletionTimestamp" not in meta]


@contextmanager
def disturbed(api_server: ApiServer, directory: Path, seed: int) -> Iterator[Disturbed]:
    print(f"CHAOS_SEED={seed}")
    rng = random.Random(seed)
    proxy = Proxy(api_server, tls=True)
    try:
        with namespace(
            lambda name: api_server.calls(directory, "admin", name), directory / "nodes", api_url=proxy.url
        ) as cluster:
            for one in manifests(cluster.calls.namespace, users=["ann"]):
                cluster.calls.create(one)
            jobs = KubeJobs(api_server.calls(directory, "ann", cluster.calls.namespace, proxy.url))
            proxy.draw = draw = RandomFaults(random.Random(rng.random()), FAULTY)
            found = Disturbed(cluster, proxy, jobs, rng)
            try:
                yield found
            finally:
                found.harm += draw.done
                found.close()
                proxy.draw = lambda method, path: None
                if found.job and found.there("StatefulSet"):
                    jobs.kill(found.job)
                jobs.close()
                print("\n".join(f"{count:>4} x {what}" for what, count in sorted(found.harm.items())))
    finally:
        proxy.stop()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_a_census_is_exact_though_the_api_fails_and_a_workers_pod_is_deleted(
    api_server: ApiServer, tmp_path: Path, seed: int
) -> None:
    with disturbed(api_server, tmp_path, seed) as census:
        census.start("daemon", data__samples=16_384, training__epochs=8)
        census.trains()
        census.delete_pod("worker")
        census.ends_exact()
        names = census.jobs.log_names(census.job)
        assert "master" in names and any(name.startswith("worker-") for name in names), names
        census.leaves_its_claim_alone()
    assert any("409" in what or "429" in what or "500" in what for what in census.harm), census.harm


@pytest.mark.skipif(not LONG, reason="takes minutes: make chaos")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_census_is_exact_whatever_pod_is_lost(api_server: ApiServer, tmp_path: Path, seed: int) -> None:
    with disturbed(api_server, tmp_path, seed) as census:
        census.start("off", data__samples=131_072, training__epochs=16, checkpoint__every_seconds=2)
        losses: list[Callable[[], None]] = [
            lambda: census.delete_pod("worker"),
            lambda: census.kill_container("worker"),
            census.lose_master,
            census.lose_parameters,
        ]
        census.rng.shuffle(losses)
        for lose in losses:
            census.trains()
            lose()
        census.ends_exact()
        census.leaves_its_claim_alone()
