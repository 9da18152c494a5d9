"""The pod of a node is taken by a real API server with restricted pods, as it was meant, and can be resized there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect
from dlrover_lite.backends.k8s.objects.manifests import manifests
from dlrover_lite.backends.k8s.objects.node_pod import PodSettings, node_pod, pod_name, resize_patch
from dlrover_lite.backends.k8s.objects.quantities import read_quantity, write_cores
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.kubernetes import Kubernetes
from tests.k8s.cluster import ApiServer, needs_cluster

_numbers = itertools.count()
WISHES = Kubernetes(
    image="example.org/dlrover-lite:1",
    image_pull_policy="IfNotPresent",
    image_pull_secrets=["registry"],
    python_path=["/models", "/more"],
    env={"AWS_REGION": "here", "TMPDIR": "/elsewhere"},
    volumes=[{"name": "data", "emptyDir": {}}],
    volume_mounts=[{"name": "data", "mountPath": "/data"}],
    node_selector={"pool": "training"},
    tolerations=[{"key": "training", "operator": "Exists", "effect": "NoSchedule"}],
    queue="team",
)


def settings_of(namespace: str, kubernetes: Kubernetes) -> PodSettings:
    uid = "11111111-2222-3333-4444-555555555555"
    return PodSettings(job="ads-1", namespace=namespace, owner_uid=uid, kubernetes=kubernetes, name="ads")


@pytest.fixture
def calls(api_server: ApiServer, tmp_path: Path) -> Iterator[Calls]:
    """Calls in a namespace of the manifests, with restricted pods."""
    namespace = f"node-pod-{next(_numbers)}"
    file = api_server.kubeconfig(tmp_path / "config", namespace=namespace)
    found = Calls(connect(environment={"KUBECONFIG": str(file)}), clock=lambda: 0.0, sleep=lambda _: None)
    for one in manifests(namespace, create_namespace=True):
        found.create(one)
    yield found
    for pod in found.list("Pod")["items"]:
        found.delete("Pod", pod["metadata"]["name"], propagation="Background", grace_seconds=0)


@needs_cluster
def test_a_restricted_namespace_admits_it_with_all_that_the_recipe_wishes(calls: Calls) -> None:
    settings = settings_of(calls.namespace, WISHES)
    spec = NodeSpec(
        "ps-0", "ps", Resources(1.5, 512 * MIB), "tcp://ads-1.team.svc:7070", host="host-a", avoids=["host-b"]
    )
    made = calls.create(node_pod(settings, spec, "ads-1-ps-0", spec.resources))
    container, labels = made["spec"]["containers"][0], made["metadata"]["labels"]
    assert made["status"]["qosClass"] == "Burstable"
    assert (labels["app.kubernetes.io/component"], labels["kueue.x-k8s.io/queue-name"]) == ("ps", "team")
    assert made["metadata"]["annotations"]["dlrover-lite.io/node"] == "ps-0"
    assert msgspec.json.decode(made["metadata"]["annotations"]["dlrover-lite.io/spec"], type=NodeSpec) == spec
    [owner] = made["metadata"]["ownerReferences"]
    assert owner["kind"] == "StatefulSet" and not {"controller", "blockOwnerDeletion"} & owner.keys()
    assert made["spec"]["automountServiceAccountToken"] is False and made["spec"]["restartPolicy"] == "Never"
    environment = {one["name"]: one for one in container["env"]}
    assert len(environment) == len(container["env"]), "each variable once"
    assert environment["PYTHONPATH"]["value"] == "/models:/more" and environment["TMPDIR"]["value"] == "/elsewhere"
    assert environment["DLROVER_LITE_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert environment["DLROVER_LITE_AGENT_ROLE"]["value"] == "ps"
    wishes = made["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    terms = [one["preference"]["matchFields"][0] for one in wishes]
    assert [(term["operator"], term["values"]) for term in terms] == [("In", ["host-a"]), ("NotIn", ["host-b"])]
    [spread] = made["spec"]["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


@needs_cluster
@pytest.mark.parametrize("cores", [0.01, 1.0, 2.0])
def test_a_resize_leaves_its_quality_of_service_as_it_was(calls: Calls, cores: float) -> None:
    settings = settings_of(calls.namespace, Kubernetes(image="example.org/one"))
    spec = NodeSpec("worker-0", "worker", Resources(cores, 64 * MIB), "")
    made = calls.create(node_pod(settings, spec, "ads-1-worker-0", spec.resources))
    assert made["status"]["qosClass"] == "Burstable" and "affinity" not in made["spec"]
    patch = resize_patch(settings, Resources(4.0, 256 * MIB))
    changed = calls.patch("Pod", "ads-1-worker-0", patch, subresource="resize")
    limits = changed["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "4", "memory": str(256 * MIB)}


@needs_cluster
def test_a_spare_waits_for_no_node_in_particular(calls: Calls) -> None:
    settings = settings_of(calls.namespace, Kubernetes(image="example.org/one"))
    spec = NodeSpec("spare", "worker", Resources(1.0, 64 * MIB), "")
    made = calls.create(node_pod(settings, spec, "ads-1-spare-1", spec.resources, spare=True))
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == "spare"
    assert "dlrover-lite.io/node" not in made["metadata"].get("annotations", {})
    names = [one["name"] for one in made["spec"]["containers"][0]["env"]]
    assert "DLROVER_LITE_AGENT_ROLE" not in names, "it may be given nodes of any role"


@pytest.mark.parametrize("node", ["Worker_1", "ps.1", "w" * 27, "ps-"])
def test_each_node_has_a_pod_name_of_its_own_that_the_api_takes(node: str) -> None:
    for job in ("ads-1", "a" * 60):
        name = pod_name(job, node)
        assert len(name) <= 63 and name == name.lower() and name[-1].isalnum()
        assert name != pod_name(job, node.lower().replace("_", "-").replace(".", "-") + "x")
    assert pod_name("ads-1", "ps-0") == "ads-1-ps-0"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("500m", 0.5), ("2", 2), ("1.5Gi", 1.5 * 2**30), ("128974848", 128974848), ("129e6", 129e6), ("2n", 2e-9)],
        *[(f"3{letter}", 3 * 1000**power) for power, letter in enumerate("kMGTPE", start=1)],
        *[(f"1149532{letter}i", 1149532 * 1024**power) for power, letter in enumerate("KMGTPE", start=1)],
    ],
)
def test_quantities_are_read_as_kubernetes_means_them(text: str, value: float) -> None:
    assert read_quantity(text) == value


@pytest.mark.parametrize("text", ["", "one", "1 Gi", "1Q", "--1"])
def test_what_is_no_quantity_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        read_quantity(text)


def test_cores_are_written_in_thousandths_and_leave_room_for_a_request_below() -> None:
    assert [write_cores(one) for one in (0.0001, 0.01, 1.0, 1.2345)] == ["2m", "10m", "1000m", "1234m"]
