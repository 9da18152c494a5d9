"""The objects of a job are taken by a real API server from somebody with no rights but those of users; what fails leaves nothing."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect
from dlrover_lite.backends.k8s.jobs import past_jobs, submission
from dlrover_lite.backends.k8s.jobs.code_files import mounted_files
from dlrover_lite.backends.k8s.jobs.job_pods import JobPods
from dlrover_lite.backends.k8s.jobs.known_clusters import ClusterName, KnownCluster
from dlrover_lite.backends.k8s.jobs.kube_jobs import KubeJobs
from dlrover_lite.backends.k8s.jobs.pod_options import PodOptions
from dlrover_lite.backends.k8s.objects.config_map_keys import key_of, path_of
from dlrover_lite.backends.k8s.objects.job import (
    JobObjects,
    access_mode,
    master_pod,
    owned_objects,
    reader_pod,
    stateful_set,
)
from dlrover_lite.backends.k8s.objects.manifests import as_yaml, manifests
from dlrover_lite.backends.k8s.objects.node_pod import PodSettings, node_pod
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import FitRecord, JobEntry
from dlrover_lite.core.errors import BackendError, DlroverLiteError, JobError, RecipeError
from dlrover_lite.core.files.paths import brain_database
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs.backend import RunOptions
from dlrover_lite.protocol.features import features_of
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.curve import JobKey
from tests.backends.support import until
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.proxy import Fault, Proxy
from tests.k8s.volume_files import write_files

KINDS = ("StatefulSet", "Secret", "ConfigMap", "Service", "PersistentVolumeClaim")
_numbers = itertools.count()


def recipe(more: str = "", backend: str = "{k8s: {image: example.org/x}}") -> Recipe:
    data = "data: {format: synthetic, samples: 1000}\n"
    return parse_recipe(f"version: 1\nname: clicks\nmodel: dcn\n{data}backend: {backend}\n{more}")


def wish(one: Recipe | None = None) -> submission.Wish:
    one = one or recipe()
    assert one.kubernetes is not None
    return submission.Wish(one, one.kubernetes, PodOptions(), None, JobKey.generate().text())


class Namespace:
    def __init__(self, server: ApiServer, directory: Path) -> None:
        self.name = f"objects-{next(_numbers)}"
        self._server, self._directory = server, directory
        self.admin = self.calls("admin")
        for one in YAML(typ="safe").load_all(as_yaml(manifests(self.name, users=["ann"], create_namespace=True))):
            self.admin.create(one)

    def calls(self, user: str, **more: Any) -> Calls:
        file = self._server.kubeconfig(self._directory / f"{user}-{self.name}", user=user, namespace=self.name, **more)
        return Calls(connect(environment={"KUBECONFIG": str(file)}), clock=time.monotonic, sleep=lambda _: None)

    def objects(self) -> dict[str, list[str]]:
        """Names of what is there, and isn't being deleted: volumes have a finalizer that a controller removes."""
        found = {kind: [one["metadata"] for one in self.admin.list(kind)["items"]] for kind in KINDS}
        names = {kind: [one["name"] for one in all_ if "deletionTimestamp" not in one] for kind, all_ in found.items()}
        return {kind: some for kind, some in names.items() if some}


@pytest.fixture
def namespace(api_server: ApiServer, tmp_path: Path) -> Namespace:
    return Namespace(api_server, tmp_path)


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[Proxy]:
    one = Proxy(api_server, "ann")
    yield one
    one.stop()


@needs_cluster
@pytest.mark.parametrize(
    "backend",
    [
        "{k8s: {image: x}}",
        "{k8s: {image: x, image_pull_policy: Never, image_pull_secrets: [a], python_path: [/code], env: {A: b}, storage_class: fast, "
        "brain: dlrover-lite-brain, node_selector: {disk: ssd}, tolerations: [{operator: Exists}], "
        "volumes: [{name: d, emptyDir: {}}], volume_mounts: [{name: d, mountPath: /data}]}}",
    ],
)
def test_a_restricted_namespace_takes_them_from_somebody_with_the_rights_of_users(
    namespace: Namespace, backend: str
) -> None:
    one = recipe(backend=backend)
    submission.check(wish(one), namespace.calls("ann"), time.time())
    assert one.kubernetes is not None
    made = JobObjects(job="clicks-1", namespace=namespace.name, kubernetes=one.kubernetes, name=one.name)
    namespace.calls("ann").create(reader_pod(made), dry_run=True)
    assert namespace.objects() == {}


@needs_cluster
def test_all_is_there_before_its_master_is_started(namespace: Namespace, proxy: Proxy) -> None:
    calls = Calls(proxy.connection(namespace.name), clock=time.monotonic, sleep=lambda _: None)
    kept: list[str] = []
    job = submission.create(wish(), calls, time.time(), kept.append)
    assert kept == [job]
    assert namespace.objects() == {kind: [job] for kind in KINDS}
    one = namespace.admin.get("StatefulSet", job)
    assert one["spec"]["replicas"] == 1
    for kind in ("Secret", "ConfigMap", "Service"):
        (owner,) = namespace.admin.get(kind, job)["metadata"]["ownerReferences"]
        assert owner["uid"] == one["metadata"]["uid"] and "controller" not in owner
    assert "ownerReferences" not in namespace.admin.get("PersistentVolumeClaim", job)["metadata"]
    changes = [line for line in proxy.requests if not line.startswith("GET")]
    assert changes[0].endswith("/statefulsets") and changes[-1].endswith("/scale")
    submission.remove(calls, job, claim=True)
    assert namespace.objects() == {}


@needs_cluster
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "persistentvolumeclaims"),
        ("POST", "secrets"),
        ("POST", "configmaps"),
        ("POST", "services"),
        ("PATCH", "scale"),
    ],
)
def test_whatever_is_refused_nothing_is_left(namespace: Namespace, proxy: Proxy, method: str, path: str) -> None:
    calls = Calls(proxy.connection(namespace.name), clock=time.monotonic, sleep=lambda _: None)
    proxy.faults.append(Fault(method, path, status=403, reason="Forbidden"))
    with pytest.raises(BackendError, match="the test says Forbidden"):
        submission.create(wish(), calls, time.time(), lambda _: None)
    assert namespace.objects() == {}


@needs_cluster
def test_answers_that_are_lost_keep_no_job_from_being_made(namespace: Namespace, proxy: Proxy) -> None:
    """Though users may not read all that they make."""
    calls = Calls(proxy.connection(namespace.name), clock=time.monotonic, sleep=lambda _: None)
    paths = ("statefulsets", "persistentvolumeclaims", "secrets", "configmaps", "services")
    proxy.faults.extend(Fault("POST", path, loses_answer=True) for path in paths)
    job = submission.create(wish(), calls, time.time(), lambda _: None)
    assert not proxy.faults
    assert namespace.objects() == {kind: [job] for kind in KINDS}


@needs_cluster
def test_a_volume_of_a_job_that_is_gone_is_never_taken(namespace: Namespace) -> None:
    calls, at = namespace.calls("ann"), time.time()
    first = submission.create(wish(), calls, at, lambda _: None)
    submission.remove(calls, first, claim=False)
    second = submission.create(wish(), calls, at, lambda _: None)
    assert second != first
    assert namespace.objects()["PersistentVolumeClaim"] == sorted([first, second])
    assert namespace.objects()["StatefulSet"] == [second]


@needs_cluster
def test_two_jobs_of_one_moment_are_two(namespace: Namespace) -> None:
    calls, at = namespace.calls("ann"), time.time()
    jobs = {submission.create(wish(), calls, at, lambda _: None) for _ in range(2)}
    assert sorted(jobs) == namespace.objects()["StatefulSet"]


def refused(jobs: KubeJobs, one: Recipe | None = None) -> DlroverLiteError:
    """Submit a job; return why that isn't possible."""
    with pytest.raises(DlroverLiteError) as caught:
        jobs.dry_run(one or recipe())
    assert "\n" not in caught.value.message and caught.value.hint
    return caught.value


@needs_cluster
def test_a_missing_right_is_named_before_anything_is_made(namespace: Namespace) -> None:
    namespace.admin.delete("RoleBinding", "dlrover-lite-user", propagation="Background")
    error = refused(KubeJobs(namespace.calls("ann")))
    assert isinstance(error, JobError) and "k8s manifests" in error.hint
    assert namespace.objects() == {}


@needs_cluster
def test_a_quota_that_is_used_up_is_named_before_anything_is_made(namespace: Namespace) -> None:
    hard = {"pods": "0"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": hard}}
    namespace.admin.create(quota)
    status = {"status": {"hard": hard, "used": {"pods": "0"}}}
    namespace.admin.patch("ResourceQuota", "few", status, subresource="status", how="merge")
    error = refused(KubeJobs(namespace.calls("ann")))
    assert "exceeded quota" in error.message and "few" in error.hint
    assert namespace.objects() == {}


@needs_cluster
def test_a_token_that_is_over_and_a_namespace_that_isnt_there_are_told_apart(namespace: Namespace) -> None:
    assert "log in again" in refused(KubeJobs(namespace.calls("ann", token="over"))).hint
    admin = namespace.calls("admin")
    elsewhere = Calls(admin.connection._replace(namespace="nowhere"), clock=time.monotonic, sleep=lambda _: None)
    error = refused(KubeJobs(elsewhere))
    assert "nowhere" in error.message and "namespace" in error.hint


@needs_cluster
def test_a_claim_that_isnt_there_is_named(namespace: Namespace) -> None:
    one = recipe(backend="{k8s: {image: x, volume_claim: mine}}")
    error = refused(KubeJobs(namespace.calls("ann")), one)
    assert "mine" in error.message


def test_without_a_cluster_or_an_image_it_is_said_how_to_have_one(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="no kubeconfig") as caught:
        connect(environment={"KUBECONFIG": str(tmp_path / "none")})
    assert "KUBECONFIG" in caught.value.hint
    with pytest.raises(RecipeError, match=r"backend\.k8s\.image: missing"):
        recipe(backend="k8s")


def test_code_beside_the_model_goes_along_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("class Net: pass\n")
    (tmp_path / "layers.py").write_text("x = 1\n")
    text = (
        "version: 1\nname: a\nmodel: net.py:Net\ndata: {format: synthetic, samples: 10}\nbackend: {k8s: {image: x}}\n"
    )
    one = parse_recipe(text, directory=tmp_path)
    files = wish(one).files()
    assert {"net.py", "layers.py", "recipe.json", "options.json"} <= files.keys()
    assert b'"directory":"/dlrover-lite/job"' in files["recipe.json"]
    (tmp_path / "layers.py").write_text("# " + "x" * (900 << 10))
    with pytest.raises(RecipeError, match="python_path"):
        wish(one).files()


def with_packages(directory: Path) -> Recipe:
    """A recipe whose model imports from packages beside it, among which there is much else."""
    code = {
        "net.py": "from layers.deep.cross import WIDTH\n\n\nclass Net:\n    width = WIDTH\n",
        "layers/__init__.py": "",
        "layers/deep/__init__.py": "",
        "layers/deep/cross.py": "WIDTH = 7\n",
        "layers/data.csv": "1",
        "layers/plain/other.py": "no package",
        "venv/lib/any.py": "no package",
        ".git/__init__.py": "",
    }
    for name, text in code.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (directory / "layers" / "again").symlink_to(directory / "layers")
    text = (
        "version: 1\nname: a\nmodel: net.py:Net\ndata: {format: synthetic, samples: 10}\nbackend: {k8s: {image: x}}\n"
    )
    return parse_recipe(text, directory=directory)


def test_packages_beside_the_model_go_along_and_are_imported_where_they_come_to_lie(tmp_path: Path) -> None:
    one = with_packages(tmp_path / "here")
    files = wish(one).files()
    code = {"net.py", "layers/__init__.py", "layers/deep/__init__.py", "layers/deep/cross.py"}
    assert {name for name in files if name.endswith(".py")} == code
    made = JobObjects(job="a-1", namespace="ads", kubernetes=Kubernetes(image="x"), files=tuple(files))
    (config,) = [object_ for object_ in owned_objects(made, "u", "k", files) if object_["kind"] == "ConfigMap"]
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in config["data"])
    [volume, *_] = master_pod(made)["spec"]["volumes"]
    place = tmp_path / "pod"
    write_files(place, {name: text.encode() for name, text in config["data"].items()}, volume["configMap"])
    assert mounted_files(place) == tuple(sorted(files))
    command = ["-c", "from net import Net; print(Net.width)"]
    assert subprocess.check_output([sys.executable, *command], cwd=place).strip() == b"7"
    settings = PodSettings(job="a-1", namespace="ads", owner_uid="u", kubernetes=made.kubernetes, files=made.files)
    pod = node_pod(
        settings, NodeSpec("worker-0", "worker", Resources(1.0, 1 << 30), ""), "a-1-worker-0", Resources(1, 1)
    )
    assert pod["spec"]["volumes"][0] == volume


@given(st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True), min_size=1, max_size=5))
def test_a_files_key_tells_its_path(parts: list[str]) -> None:
    path = "/".join(parts) + ".py"
    assert path_of(key_of(path)) == path


@given(st.text("./ab", min_size=1))
def test_no_key_leads_out_of_a_directory(key: str) -> None:
    key = key.replace("/", "")
    path = PurePosixPath(path_of(key))
    assert ".." not in path.parts or path_of(key) == key  # which the API takes for no key


@needs_cluster
def test_a_cluster_takes_packages_and_gives_them_back(namespace: Namespace, tmp_path: Path) -> None:
    one = with_packages(tmp_path / "here")
    calls = namespace.calls("ann")
    submission.check(wish(one), calls, time.time())
    job = submission.create(wish(one), calls, time.time(), lambda _: None)
    JobPods(calls, KnownCluster(ClusterName("any", namespace.name)))._copy_config(job, tmp_path / "copy", ".py")
    copied = tmp_path / "copy" / "code"
    assert (copied / "layers" / "deep" / "cross.py").read_text() == "WIDTH = 7\n"


@pytest.mark.parametrize(
    ("provisioner", "mode"),
    [("ebs.csi.aws.com", "ReadWriteOncePod"), ("csi.vsphere.vmware.com", "ReadWriteOncePod")]
    + [(name, "ReadWriteOnce") for name in ("kubernetes.io/aws-ebs", "rancher.io/local-path", "", "physics")],
)
def test_only_drivers_that_can_see_to_it_are_asked_for_a_single_pod(provisioner: str, mode: str) -> None:
    assert access_mode(provisioner) == mode


@needs_cluster
def test_a_dry_run_shows_every_object_and_makes_none(namespace: Namespace) -> None:
    jobs = KubeJobs(namespace.calls("ann"))
    shown = jobs.objects(recipe(), RunOptions())
    assert sorted(one["kind"] for one in shown) == sorted(KINDS)
    assert list(YAML(typ="safe").load_all(as_yaml(shown))) == shown
    assert namespace.objects() == {}


def test_each_pod_names_its_queue_and_the_stateful_set_doesnt() -> None:
    """A StatefulSet that Kueue manages may not be scaled; its pod, like all others, is one of Kueue's plain pods."""
    made = JobObjects(job="clicks-1", namespace="ads", kubernetes=Kubernetes(image="x", queue="people"))
    label, found = "kueue.x-k8s.io/queue-name", stateful_set(made)
    for pod in (found["spec"]["template"], reader_pod(made)):
        assert pod["metadata"]["labels"][label] == "people"
    assert label not in found["metadata"]["labels"] and label not in found["spec"]["selector"]["matchLabels"]


def queued(namespace: Namespace, calls: Calls) -> str:
    """Make a job whose master's pod waits for its queue."""
    job = submission.create(wish(), calls, time.time(), lambda _: None)
    pod = master_pod(JobObjects(job=job, namespace=namespace.name, kubernetes=Kubernetes(image="x")))
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]  # as Kueue's webhook does
    namespace.admin.create(pod)
    return job


@needs_cluster
def test_a_detached_job_that_waits_for_its_queue_isnt_waited_for(namespace: Namespace) -> None:
    calls, said = namespace.calls("ann"), list[str]()
    job = queued(namespace, calls)
    submission.await_master(calls, job, say=said.append, detached=True)
    assert said == [f"{job}-0 waits for its queue"]
    assert KubeJobs(calls).state(job).waits_for == said[0]


@needs_cluster
def test_a_master_that_waits_for_its_queue_is_waited_for(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "UNSCHEDULABLE_SECONDS", 0.0)
    calls, said = namespace.calls("ann"), list[str]()
    job = queued(namespace, calls)
    with ThreadPoolExecutor(1) as thread:
        waits = thread.submit(submission.await_master, calls, job, say=said.append, patience_seconds=0.0)
        until(lambda: said, "what is said of it")
        namespace.admin.delete("StatefulSet", job, propagation="Background")
        with pytest.raises(JobError, match="its StatefulSet is gone"):  # and not: can't be scheduled
            waits.result(60.0)
    assert said == [f"{job}-0 waits for its queue"]


def test_what_is_known_of_past_jobs_goes_along_with_a_job_that_has_its_own_brain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "here"))
    one = recipe()
    assert past_jobs.history_for(one, "embedded", pytest.fail) == b""
    brain_database().parent.mkdir(parents=True)
    with ConfigStore(brain_database()) as store:
        features = msgspec.to_builtins(features_of(one, rows=1000, owner="ann"))
        store.put_job(
            JobEntry(id="clicks-0", name="clicks", state="succeeded", created_at=1.0, ended_at=2.0, features=features)
        )
        store.add_fit(FitRecord(job="clicks-0", at=2.0, kind="bottleneck", error=0.0, windows=1, data={}))
        store.commit()
    assert past_jobs.history_for(one, "daemon", pytest.fail) == past_jobs.history_for(one, "off", pytest.fail) == b""
    packed = past_jobs.history_for(one, "embedded", pytest.fail)
    assert wish(one)._replace(history=packed).files()["history.json"] == packed
    assert "history.json" not in wish(one).files()

    brought = tmp_path / "history.json"
    brought.write_bytes(packed)
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "pod"))
    for _ in range(2):
        past_jobs.take_up_history(brought)
    with ConfigStore(brain_database()) as store:
        assert [(job.id, fit.windows) for job, fit in queries.fitted_jobs(store, "bottleneck")] == [("clicks-0", 1)]


def test_a_history_that_cant_be_used_keeps_no_job_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path))
    brain_database().parent.mkdir(parents=True)
    brain_database().write_text("no database, but long enough to be looked at as if it were one" * 100)
    said = list[str]()
    assert past_jobs.history_for(recipe(), "embedded", said.append) == b""
    assert "begins without" in said[0] and "can't be read" in said[0]
    (tmp_path / "history.json").write_text("[]")
    past_jobs.take_up_history(tmp_path / "history.json")
    past_jobs.take_up_history(tmp_path / "none")


@pytest.mark.parametrize("brain", ["dlrover-lite-brain", ""])
def test_who_serves_files_reaches_a_brain_that_jobs_share(brain: str) -> None:
    made = JobObjects(job="clicks-1", namespace="ads", kubernetes=Kubernetes(image="x", brain=brain))
    for pod in (master_pod(made), reader_pod(made)):
        (container,) = pod["spec"]["containers"]
        environment = {one["name"]: one.get("value") for one in container["env"]}
        address = f"tcp://{brain}.ads.svc:7074" if brain else None
        assert environment.get("DLROVER_LITE_BRAIN_ADDRESS") == address
        assert any(one["name"] == "brain" for one in pod["spec"]["volumes"]) == bool(brain)
