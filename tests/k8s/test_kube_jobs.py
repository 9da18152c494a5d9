"""Jobs of a cluster: a real API server, pods as processes, and somebody who has no rights but those of users."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.backends.k8s.jobs.job_state import end_annotations
from dlrover_lite.backends.k8s.jobs.kube_jobs import KubeJobs
from dlrover_lite.backends.k8s.jobs.pod_options import PodOptions
from dlrover_lite.backends.k8s.objects.manifests import manifests
from dlrover_lite.backends.k8s.objects.names import component_labels
from dlrover_lite.backends.keeper.options import AgentOptions, KeeperOptions
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.history import FileHistory
from dlrover_lite.brain.store.records import FitRecord, JobEntry
from dlrover_lite.cli.main import main
from dlrover_lite.client import job_sources
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.files.durable import make_private
from dlrover_lite.core.files.paths import brain_database
from dlrover_lite.core.units import GIB
from dlrover_lite.jobs.backend import RunOptions
from dlrover_lite.jobs.store import Result
from dlrover_lite.protocol.features import features_of
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.schema import Cluster as InCluster
from dlrover_lite.recipe.schema import JobCeiling, Recipe
from tests.backends.job_contract import JobBackendContract, ScriptedJobs, lines_of
from tests.backends.support import NODES, PATIENCE_SECONDS, recipe, until
from tests.backends.test_local_jobs import MASTERS
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.kubelet import Cluster, namespace, needs_root

pytestmark = [needs_cluster, needs_root]
ROOT = Path(__file__).parents[2]
MASTER = ROOT / "tests" / "backends" / "scripted_master.py"


@pytest.fixture
def cluster(api_server: ApiServer, tmp_path: Path) -> Iterator[Cluster]:
    """A namespace where ann may run jobs."""
    with namespace(lambda name: api_server.calls(tmp_path, "admin", name), tmp_path / "nodes") as found:
        for one in manifests(found.calls.namespace, users=["ann"]):
            found.calls.create(one)
        yield found


@pytest.fixture
def backend_for(cluster: Cluster, api_server: ApiServer, tmp_path: Path) -> Iterator[Callable[[str], KubeJobs]]:
    made: list[KubeJobs] = []

    def backend(behaviour: str) -> KubeJobs:
        arguments = MASTERS.get(behaviour, (behaviour,))
        keeper = KeeperOptions(
            master=[sys.executable, str(MASTER), *arguments], node_grace_seconds=0.3, master_grace_seconds=1000
        )
        entry = f"{NODES}:main"
        agent = AgentOptions(entries={"worker": entry, "ps": entry}, imports={})
        given = PodOptions(keeper=keeper, agent=msgspec.json.encode(agent).decode())
        made.append(KubeJobs(api_server.calls(tmp_path, "ann", cluster.calls.namespace), given=given))
        return made[-1]

    yield backend
    for one in made:
        one.close()


def in_cluster(one: Recipe) -> Recipe:
    total = JobCeiling(cores=8.0, memory=8 * GIB)  # ann may not read nodes
    resources = msgspec.structs.replace(one.resources, total=one.resources.total or total)
    return msgspec.structs.replace(one, backend=InCluster(k8s=Kubernetes(image="any")), resources=resources)


class KubeScripted(ScriptedJobs):
    def submit(self, behaviour: str, name: str = "scripted") -> str:
        job = self.backend_for(behaviour).submit(in_cluster(recipe(name)), options=RunOptions(), detached=True)
        self.submitted.append(job)
        return job


@pytest.fixture
def scripted(backend_for: Callable[[str], KubeJobs], cluster: Cluster) -> ScriptedJobs:
    def lose(job: str) -> None:
        cluster.calls.patch("StatefulSet", job, {"spec": {"replicas": 0}}, subresource="scale", how="merge")
        cluster.kill_container(f"{job}-0")
        cluster.calls.delete("Pod", f"{job}-0", propagation="Background", grace_seconds=0)

    return KubeScripted(backend_for, kill_master=lambda job: cluster.kill_container(f"{job}-0"), lose=lose)


class TestKubeJobs(JobBackendContract):
    def test_a_dry_run_starts_and_stores_nothing(self, jobs: ScriptedJobs) -> None:
        before = jobs.backend.list()
        for _ in range(2):
            jobs.backend.dry_run(in_cluster(recipe()))
        assert jobs.backend.list() == before


def test_a_job_is_refused_before_anything_is_made_where_nothing_says_how_much_there_is(
    backend_for: Callable[[str], KubeJobs], cluster: Cluster
) -> None:
    backend = backend_for("idle")
    open_recipe = msgspec.structs.replace(recipe(), backend=InCluster(k8s=Kubernetes(image="any")))
    for refused in (backend.dry_run, lambda one: backend.submit(one, options=RunOptions())):
        with pytest.raises(JobError, match="isn't known") as caught:
            refused(open_recipe)
        assert "resources: {total:" in caught.value.hint
    kinds = ("StatefulSet", "Secret", "ConfigMap", "PersistentVolumeClaim")
    assert not any(cluster.calls.list(kind)["items"] for kind in kinds)


def test_the_brain_of_a_job_begins_with_what_is_known_here_of_past_jobs(
    scripted: ScriptedJobs, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    one = in_cluster(recipe())
    make_private(brain_database().parent)
    with ConfigStore(brain_database()) as store:
        features = msgspec.to_builtins(features_of(one, rows=1000))
        past = JobEntry(id="past-1", name="past", state="succeeded", created_at=1.0, ended_at=2.0, features=features)
        store.put_job(past)
        store.add_fit(FitRecord(job="past-1", at=2.0, kind="bottleneck", error=0.0, windows=1, data={}))
        store.commit()
    job = scripted.backend_for("idle").submit(one, options=RunOptions(brain="daemon"), detached=True)
    scripted.submitted.append(job)
    (claim,) = cluster.calls.list("PersistentVolumeClaim")["items"]
    storage = cluster.directory / "claims" / claim["metadata"]["uid"]
    with closing(FileHistory(storage / "home" / "state" / "brain" / "brain.sqlite")) as history:
        assert [(one.id, one.source) for one in queries.jobs(history)] == [("past-1", "workstation")]


def test_a_masters_pod_that_is_deleted_comes_back_with_its_job(scripted: ScriptedJobs, cluster: Cluster) -> None:
    job = scripted.submit("idle")
    scripted.wait_for_line(job, "master", "master is up")
    first = scripted.backend.state(job)
    pod = cluster.calls.get("Pod", f"{job}-0")["metadata"]["uid"]
    cluster.calls.delete("Pod", f"{job}-0", propagation="Background")

    def is_back() -> bool:
        found = cluster.calls.find("Pod", f"{job}-0")
        return found is not None and found["metadata"]["uid"] != pod

    until(is_back, "another pod")

    def masters() -> int:
        return sum("master is up" in line for line in lines_of(scripted.backend.log(job, "master")))

    until(lambda: masters() == 2, "its master")
    again = scripted.backend.state(job)
    assert (again.state, again.started_at) == ("running", first.started_at), "the job began when it began"
    scripted.backend.stop(job)
    ended = scripted.ended(job)
    assert (ended.state, ended.created_at) == ("stopped", first.created_at)


def test_a_masters_pod_that_is_deleted_at_the_end_of_its_job_leaves_no_pods(
    scripted: ScriptedJobs, cluster: Cluster
) -> None:
    """It had told how the job ended, and not yet removed the others."""
    job = scripted.submit("idle")
    scripted.wait_for_line(job, "master", "master is up")
    node: dict[str, Any] = {
        "kind": "Pod",
        "metadata": {"name": f"{job}-worker-0", "labels": component_labels(job, "worker")},
        "spec": {"containers": [{"name": "node", "image": "any", "command": ["sleep", "1000"]}]},
    }
    cluster.calls.create(node)
    told = {"metadata": {"annotations": end_annotations(Result("succeeded", time.time()))}}
    cluster.calls.patch("StatefulSet", job, told, how="merge")
    cluster.kill_container(f"{job}-0")
    cluster.calls.delete("Pod", f"{job}-0", propagation="Background", grace_seconds=0)
    assert scripted.ended(job).state == "succeeded"
    assert cluster.calls.find("Pod", f"{job}-worker-0") is None


@pytest.mark.parametrize("why", ["image", "room"])
def test_what_cant_be_started_says_why_and_leaves_nothing(
    backend_for: Callable[[str], KubeJobs], cluster: Cluster, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("dlrover_lite.backends.k8s.jobs.submission.UNSCHEDULABLE_SECONDS", 0.5)
    if why == "image":
        cluster.missing_images.add("any")
    else:
        cluster.unschedulable = "0/3 nodes are available: 3 Insufficient memory."
    expected = {"image": 'failed to pull image "any"', "room": "3 Insufficient memory"}[why]
    with pytest.raises(JobError, match=expected) as caught:
        backend_for("idle").submit(in_cluster(recipe()), options=RunOptions())
    assert caught.value.hint
    for kind in ("StatefulSet", "Secret", "ConfigMap", "Service", "PersistentVolumeClaim"):
        left = [one["metadata"] for one in cluster.calls.list(kind)["items"]]
        assert [one["name"] for one in left if "deletionTimestamp" not in one] == [], kind


def test_what_a_starting_job_waits_for_is_said_until_it_is_there(
    backend_for: Callable[[str], KubeJobs], cluster: Cluster
) -> None:
    cluster.unschedulable = why = "0/3 nodes are available: 3 Insufficient cpu."
    backend, said = backend_for("idle"), list[str]()
    with ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(backend.submit, in_cluster(recipe()), options=RunOptions(), say=said.append)
        until(lambda: said, "a word of what it waits for")
        assert why in said[0]
        (job,) = backend.list()
        assert why in backend.state(job).waits_for
        assert JobHandle(job, backend).status().message == backend.state(job).waits_for
        cluster.unschedulable = ""
        assert submitted.result(60) == job
    assert (backend.state(job).waits_for, len(said)) == ("", 1)
    backend.kill(job)


def test_a_purged_job_leaves_nothing(scripted: ScriptedJobs, cluster: Cluster) -> None:
    job = scripted.submit("succeed")
    backend = scripted.backend
    assert isinstance(backend, KubeJobs)
    scripted.ended(job)
    backend.purge(job)
    for kind in ("StatefulSet", "Secret", "ConfigMap", "Service", "Pod", "PersistentVolumeClaim"):
        left = [one["metadata"] for one in cluster.calls.list(kind)["items"]]
        assert [one["name"] for one in left if "deletionTimestamp" not in one] == [], kind
    with pytest.raises(JobError, match="no job"):
        backend.state(job)
    scripted.submitted.clear()


CENSUS = {
    "backend": "k8s",
    "backend.k8s.image": "any",
    "data.samples": 16_384,
    "training.epochs": 2,
    "model.options.dense_values": 10_000,
}


@pytest.mark.timeout(600)
def test_commands_run_watch_and_remove_a_job_of_a_cluster(
    cluster: Cluster,
    api_server: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = api_server.kubeconfig(tmp_path / "config", user="ann", namespace=cluster.calls.namespace)
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setenv("DLROVER_LITE_BRAIN", "daemon")
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    job_sources._connected.cache_clear()

    def command(*arguments: str, code: int = 0) -> str:
        assert main(list(arguments)) == code, capsys.readouterr()
        return capsys.readouterr().out

    def command_fails(*arguments: str) -> str:
        assert main(list(arguments)) == 1
        return capsys.readouterr().err

    epochs = 16
    chosen = {**CENSUS, "training.epochs": epochs}
    settings = [word for key, value in chosen.items() if "backend" not in key for word in ("--set", f"{key}={value}")]
    recipe_file = str(ROOT / "recipes" / "census.yaml")
    start = ["run", recipe_file, "--backend", "k8s", "--image", "any", *settings]
    try:
        assert "kind: StatefulSet" in command(*start, "--dry-run")
        job = json.loads(command(*start, "--detach", "--json"))["job"]
        until(
            lambda: json.loads(command("status", job, "--json"))["samples"] > 0, "first samples", 3 * PATIENCE_SECONDS
        )
        assert f"{job} is suspended after " in command("suspend", job)
        listed = {one["id"]: one["state"] for one in json.loads(command("jobs", "--json"))["jobs"]}
        assert listed[job] == "suspended"
        left = {pod["metadata"]["name"] for pod in cluster.calls.list("Pod")["items"]}
        assert left <= {f"{job}-reader"}

        found = json.loads(command("checkpoints", job, "--json"))
        assert found["url"] == f"/storage/jobs/{job}/checkpoints"
        newest = str(found["checkpoints"][-1]["number"])
        assert json.loads(command("checkpoint", "verify", job, "--cut", newest, "--json"))["whole"]
        command("export", "--from", f"{job}:{newest}", "--to", str(tmp_path / "model of a checkpoint"))
        assert (tmp_path / "model of a checkpoint" / "model.json").is_file()
        assert "another job doesn't see" in command_fails("run", "--from", job)

        ran = json.loads(command("run", "--resume", job, "--json"))
        assert (ran["state"], ran["samples"]) == ("succeeded", epochs * 16_384)
        assert json.loads(command("status", job, "--json"))["state"] == "succeeded"
        told = json.loads(command("history", job, "--json"))
        assert (told["source"], told["state"], told["samples"]) == (
            f"test/{cluster.calls.namespace}",
            "succeeded",
            epochs * 16_384,
        )
        assert told["plans"] and told["events"]
        assert "worker-0" in command("logs", job, "--node", "worker-0")
        assert json.loads(command("census", "check", job, "--json"))["exact"]
        command("export", job, "--to", str(tmp_path / "model"))
        assert (tmp_path / "model" / "model.json").is_file()
        command("fetch", job, "--to", str(tmp_path / "copy"))
        assert (tmp_path / "copy" / "export" / "model.json").is_file()
        assert "Nothing is left" in command("stop", job, "--purge")
        assert job not in command("jobs", "--json")
        assert json.loads(command("history", job, "--json"))["events"] == told["events"]  # what was copied stays
    finally:
        job_sources.cluster_jobs(Kubernetes()).close()
        job_sources._connected.cache_clear()
