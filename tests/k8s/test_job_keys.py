"""A job is reached from machines that it wasn't submitted from: its pod has its key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.exec import read_by_exec
from dlrover_lite.backends.k8s.jobs.kube_jobs import KubeJobs
from dlrover_lite.core.errors import BackendError, JobError
from dlrover_lite.jobs.backend import RunOptions
from tests.backends.support import recipe, until
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.kubelet import Cluster, needs_root
from tests.k8s.test_kube_jobs import backend_for, cluster, in_cluster  # noqa: F401 - fixtures

pytestmark = [needs_cluster, needs_root]


@pytest.fixture
def job(backend_for: Callable[[str], KubeJobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:  # noqa: F811
    """A job that was submitted from another machine: this one has a home of its own."""
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "there"))
    found = backend_for("idle").submit(in_cluster(recipe()), options=RunOptions(), detached=True)
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "here"))
    yield found
    backend_for("idle").kill(found)


@pytest.fixture
def ann(cluster: Cluster, api_server: ApiServer, tmp_path: Path) -> Calls:  # noqa: F811
    return api_server.calls(tmp_path, "ann", cluster.calls.namespace)


def key_files(home: Path) -> list[bytes]:
    return [file.read_bytes() for file in home.glob("**/keys/*")]


def test_a_key_that_isnt_here_is_read_in_the_jobs_pod_and_kept(
    job: str,
    ann: Calls,
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    jobs = KubeJobs(ann)
    try:
        assert "master" in jobs.log_names(job)
        assert key_files(tmp_path / "here") == key_files(tmp_path / "there") != []
        again = KubeJobs(ann)
        assert "master" in again.log_names(job)
        again.close()
        assert len(cluster.exec.commands) == 1
    finally:
        jobs.close()


def test_who_maynt_run_commands_in_pods_is_told_which_right_is_missing(job: str, ann: Calls, cluster: Cluster) -> None:  # noqa: F811
    rules = cluster.calls.get("Role", "dlrover-lite-user")["rules"]
    left = [one for one in rules if "pods/exec" not in one["resources"]]
    assert len(left) < len(rules)
    cluster.calls.patch("Role", "dlrover-lite-user", {"rules": left}, how="merge")
    jobs = KubeJobs(ann)
    with pytest.raises(JobError, match="pods/exec") as caught:
        jobs.log_names(job)
    assert "lacks the right" in caught.value.hint
    jobs.close()


def test_without_a_pod_to_ask_that_is_said(job: str, ann: Calls, cluster: Cluster) -> None:  # noqa: F811
    cluster.unschedulable = "0/3 nodes are available"
    cluster.calls.delete("Pod", f"{job}-0", propagation="Background", grace_seconds=0)
    jobs = KubeJobs(ann)

    def status_of(pod: str) -> str:
        found = cluster.calls.find("Pod", pod)
        return "" if found is None else str(found["status"].get("phase"))

    until(lambda: status_of(f"{job}-0") == "Pending", "a pod that finds no node")
    with pytest.raises(JobError, match="no pod of the job runs") as caught:
        jobs._pods.connector(jobs._known(job))
    assert "when its pod runs" in caught.value.hint
    jobs.close()


def test_a_command_that_fails_says_what_it_has_said(job: str, ann: Calls) -> None:
    with pytest.raises(BackendError, match="No such file"):
        read_by_exec(ann.connection, f"{job}-0", "master", ["cat", "/nothing"], timeout_seconds=20)
