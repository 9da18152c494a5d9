"""Jobs of this machine and of clusters in one list, and found by one reference."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.jobs import submission
from dlrover_lite.backends.k8s.jobs.job_state import end_annotations, running_annotations
from dlrover_lite.backends.k8s.jobs.known_clusters import ClusterName, KnownCluster
from dlrover_lite.backends.k8s.jobs.kube_jobs import KubeJobs
from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.cli.main import main
from dlrover_lite.client import job_sources
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.store import Result
from tests.backends.support import recipe
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.proxy import Proxy
from tests.k8s.test_job_objects import Namespace, wish


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


@pytest.fixture
def namespace(api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    """A namespace with ann's kubeconfig as this process's."""
    found = Namespace(api_server, tmp_path)
    file = api_server.kubeconfig(tmp_path / "config", user="ann", namespace=found.name)
    monkeypatch.setenv("KUBECONFIG", str(file))
    job_sources._connected.cache_clear()
    yield found
    job_sources._connected.cache_clear()


def submitted(namespace: Namespace, *, ended: bool = False) -> str:
    """A job in the cluster, as if its master had told how it is."""
    calls = namespace.calls("ann")
    known = KnownCluster(ClusterName("test", namespace.name))
    job = submission.create(wish(), calls, time.time(), lambda _: known.note())
    told = running_annotations(time.time())
    if ended:
        told |= end_annotations(Result("succeeded", time.time() + 60, status={"samples": 77, "auc": 0.75}))
    changes = {"metadata": {"annotations": told}}
    namespace.admin.patch("StatefulSet", job, changes, subresource="status", how="merge")
    if ended:
        calls.patch("StatefulSet", job, {"spec": {"replicas": 0}}, subresource="scale", how="merge")
        status = {"status": {"replicas": 0, "observedGeneration": 9}}
        namespace.admin.patch("StatefulSet", job, status, subresource="status", how="merge")
    return job


@needs_cluster
def test_a_list_has_both_with_their_sources(namespace: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    runs, ended = submitted(namespace), submitted(namespace, ended=True)
    here = create_job(recipe("local"))
    assert main(["jobs", "--json"]) == 0
    listed = {job["id"]: job for job in json.loads(capsys.readouterr().out)["jobs"]}
    where = f"test/{namespace.name}"
    assert {job: one["source"] for job, one in listed.items()} == {runs: where, ended: where, here.id: "local"}
    assert (listed[runs]["state"], listed[ended]["state"]) == ("running", "succeeded")
    assert (listed[ended]["samples"], listed[ended]["auc"]) == (77, 0.75)
    assert main(["jobs"]) == 0
    assert where in capsys.readouterr().out


@needs_cluster
def test_a_list_of_any_number_of_jobs_is_one_call(namespace: Namespace, api_server: ApiServer) -> None:
    jobs = [submitted(namespace) for _ in range(3)]
    proxy = Proxy(api_server, "ann")
    try:
        backend = KubeJobs(Calls(proxy.connection(namespace.name), clock=time.monotonic, sleep=lambda _: None))
        assert [one.id for one in backend.summaries()] == jobs
        assert len(proxy.requests) == 1
    finally:
        proxy.stop()


@needs_cluster
def test_a_cluster_is_known_once_its_jobs_were_listed_here(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = submitted(namespace)
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "another"))

    def listed(*more: str) -> list[str]:
        assert main(["jobs", "--json", *more]) == 0
        return [job["id"] for job in json.loads(capsys.readouterr().out)["jobs"]]

    assert listed() == []
    assert listed("--namespace", namespace.name) == listed() == [there]
    assert main(["jobs", "--context", "gone"]) == 1
    assert "has no context gone" in capsys.readouterr().err
    assert listed() == [there]


@needs_cluster
def test_a_reference_finds_jobs_of_clusters_too_and_the_newest_of_all(namespace: Namespace) -> None:
    here = create_job(recipe("local"))
    there = submitted(namespace)
    assert (JobHandle.find(there).source, JobHandle.find(there[:-1]).id) == (f"test/{namespace.name}", there)
    assert (JobHandle.find(here.id).source, JobHandle.find("last").id) == ("local", there)
    with pytest.raises(JobError, match=there):
        JobHandle.find(f"{there}x")


def test_a_cluster_that_cant_be_reached_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    job_sources._connected.cache_clear()
    KnownCluster(ClusterName("old", "ads")).note()
    here = create_job(recipe("local"))
    assert main(["jobs", "--json"]) == 0
    out = capsys.readouterr()
    assert [job["id"] for job in json.loads(out.out)["jobs"]] == [here.id]
    (line,) = out.err.strip().splitlines()
    assert line.startswith("The jobs of old/ads aren't known: No cluster is known here")
    assert JobHandle.find("last").id == here.id
    with pytest.raises(JobError) as caught:
        JobHandle.find("elsewhere")
    assert "old/ads" in caught.value.hint
