"""What stands in for a kubelet does what tests rely on: pods run, end, are deleted, come back, find their files, and each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect
from dlrover_lite.core.decoding import convert
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.kubelet import Anything, Cluster, Pod, namespace, needs_root

pytestmark = [needs_cluster, needs_root]
_SECONDS = 30.0


@pytest.fixture
def cluster(api_server: ApiServer, tmp_path: Path) -> Iterator[Cluster]:
    file = str(api_server.kubeconfig(tmp_path / "config"))

    def calls_of(name: str) -> Calls:
        connection = connect(namespace=name, environment={"KUBECONFIG": file})
        return Calls(connection, clock=time.monotonic, sleep=time.sleep)

    with namespace(calls_of, tmp_path / "nodes") as found:
        yield found


def pod(name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "any", "command": command, **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "restartPolicy": "Never", **spec},
    }


def until(cluster: Cluster, done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _SECONDS
    while not done():
        assert time.monotonic() < end, (what, cluster.said)
        time.sleep(0.02)


def phase(cluster: Cluster, name: str) -> str:
    found = cluster.calls.find("Pod", name)
    return "" if found is None else str(found["status"].get("phase", ""))


def container_of(cluster: Cluster, name: str) -> dict[str, Any]:
    statuses = cluster.calls.get("Pod", name)["status"].get("containerStatuses") or [{}]
    found: dict[str, Any] = statuses[0]
    return found


@pytest.mark.parametrize(("code", "end"), [(0, "Succeeded"), (7, "Failed")])
def test_a_pod_runs_to_its_end_with_its_exit_code(cluster: Cluster, code: int, end: str) -> None:
    cluster.calls.create(pod("one", ["python", "-c", f"print('here'); raise SystemExit({code})"]))
    until(cluster, lambda: phase(cluster, "one") == end, end)
    assert container_of(cluster, "one")["state"]["terminated"]["exitCode"] == code
    assert "here" in cluster.output("one")


def test_a_deleted_pod_is_asked_to_end_and_is_then_gone(cluster: Cluster) -> None:
    says = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('asked')))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    cluster.calls.create(pod("one", ["python", "-c", says]))
    until(cluster, lambda: "up" in cluster.output("one"), "up")
    cluster.calls.delete("Pod", "one", propagation="Background")
    until(cluster, lambda: phase(cluster, "one") == "", "gone")
    assert "asked" in cluster.output("one")


def test_a_pod_finds_its_files_address_and_services(cluster: Cluster) -> None:
    cluster.calls.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}, "data": {"a": "text"}}
    )
    selector = {"selector": {"app": "one"}, "clusterIP": "None", "ports": [{"port": 7070}]}
    cluster.calls.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "peer"}, "spec": selector})
    says = (
        "import os, socket, time; from pathlib import Path\n"
        "print(Path('/files/a').read_text(), os.environ['IP'] == socket.gethostbyname('peer.' + os.environ['NS'] + '.svc'))\n"
        "Path('/scratch/x').write_text('')\n"
        "try: Path('/x').write_text('')\n"
        "except OSError as error: print(error.strerror)\n"
    )
    fields = {"IP": "status.podIP", "NS": "metadata.namespace"}
    container = {
        "env": [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()],
        "volumeMounts": [{"name": "files", "mountPath": "/files"}, {"name": "scratch", "mountPath": "/scratch"}],
    }
    volumes = [{"name": "files", "configMap": {"name": "files"}}, {"name": "scratch", "emptyDir": {}}]
    cluster.calls.create(pod("one", ["python", "-c", says], container=container, volumes=volumes))
    until(cluster, lambda: phase(cluster, "one") == "Succeeded", "its end")
    assert cluster.output("one").split("\n")[:2] == ["text True", "Read-only file system"]


def test_a_stateful_set_has_its_pod_again_and_none_when_scaled_to_zero(cluster: Cluster) -> None:
    template = pod("x", ["python", "-c", "import time; print('up', flush=True); time.sleep(60)"])
    template["spec"]["restartPolicy"] = "Always"
    labels = template["metadata"]["labels"]
    spec = {"replicas": 1, "serviceName": "", "selector": {"matchLabels": labels}}
    spec["template"] = {"metadata": {"labels": labels}, "spec": template["spec"] | {"terminationGracePeriodSeconds": 1}}
    made = cluster.calls.create(
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "job"}, "spec": spec}
    )
    owner = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "job", "uid": made["metadata"]["uid"]}]
    owned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": owner}}
    cluster.calls.create(owned)
    until(cluster, lambda: cluster.output("job-0").count("up") == 1, "the pod")
    cluster.calls.delete("Pod", "job-0", propagation="Background")
    until(cluster, lambda: cluster.output("job-0").count("up") == 2, "another pod")
    cluster.calls.patch("StatefulSet", "job", {"spec": {"replicas": 0}}, subresource="scale", how="merge")
    until(cluster, lambda: phase(cluster, "job-0") == "", "no pod")
    cluster.calls.delete("StatefulSet", "job", propagation="Background")
    until(cluster, lambda: cluster.calls.find("ConfigMap", "owned") is None, "what it owned gone")


def test_a_pod_that_is_deleted_before_it_has_a_node_takes_no_other_along(cluster: Cluster) -> None:
    made = cluster.calls.create(pod("one", ["true"]))
    cluster.pods["gone"] = Pod(convert({**made, "metadata": {**made["metadata"], "name": "gone"}}, Anything))
    until(cluster, lambda: any(line.startswith("gone: ") for line in cluster.said), "a refusal")
    cluster.calls.create(pod("other", ["true"]))
    until(cluster, lambda: phase(cluster, "other") == "Succeeded", "the end of the other")


def test_a_pod_with_no_room_or_no_image_says_why(cluster: Cluster) -> None:
    huge = {"resources": {"requests": {"cpu": "1000"}}}
    cluster.calls.create(pod("huge", ["true"], container=huge))
    cluster.missing_images.add("nowhere/x")
    cluster.calls.create(pod("missing", ["true"], container={"image": "nowhere/x"}))

    def told() -> bool:
        waiting = container_of(cluster, "missing").get("state", {}).get("waiting", {})
        conditions = cluster.calls.get("Pod", "huge")["status"].get("conditions") or [{}]
        return waiting.get("reason") == "ErrImagePull" and "Insufficient cpu" in conditions[0].get("message", "")

    until(cluster, told, "reasons")


def test_a_pod_acts_as_its_service_account(cluster: Cluster) -> None:
    cluster.calls.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}})
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "read"}, "rules": rules}
    cluster.calls.create(role)
    bound = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "read"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "read"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader"}],
    }
    cluster.calls.create(bound)
    says = (
        "import time\n"
        "from dlrover_lite.backends.k8s.api.calls import Calls\n"
        "from dlrover_lite.backends.k8s.api.connection import connect\n"
        "calls = Calls(connect(), clock=time.monotonic, sleep=time.sleep, patience_seconds=5)\n"
        "print(calls.find('ConfigMap', 'x'))\n"
        "try: calls.find('Secret', 'x')\n"
        "except Exception as error: print(error.status)\n"
    )
    cluster.calls.create(pod("one", ["python", "-c", says], serviceAccountName="reader"))
    until(cluster, lambda: phase(cluster, "one") in ("Succeeded", "Failed"), "its end")
    assert cluster.output("one").split() == ["None", "403"]


def test_a_pod_is_resized_in_place_or_told_why_not(cluster: Cluster) -> None:
    first, second, third = ({"requests": {"cpu": cores}, "limits": {"cpu": "4"}} for cores in ("1", "2", "3"))
    cluster.calls.create(pod("one", ["sleep", "60"], container={"resources": first}))
    until(cluster, lambda: phase(cluster, "one") == "Running", "running")

    def resize(resources: dict[str, Any]) -> None:
        change = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
        cluster.calls.patch("Pod", "one", change, subresource="resize")

    def refused() -> bool:
        conditions = cluster.calls.get("Pod", "one")["status"]["conditions"]
        return any(one.get("reason") == "Deferred" and one["message"] == "no room" for one in conditions)

    resize(second)
    until(cluster, lambda: container_of(cluster, "one")["resources"] == second, "resized")
    cluster.resize_refusal = ("Deferred", "no room")
    resize(third)
    until(cluster, refused, "refusal")
    assert container_of(cluster, "one")["resources"] == second
