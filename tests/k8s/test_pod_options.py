"""What a workstation tells a job's pods has nothing of the workstation's own."""

from __future__ import annotations

import sys

import msgspec
import pytest

from dlrover_lite.backends.k8s.jobs.master_backend import scratch_size_of
from dlrover_lite.backends.k8s.jobs.pod_options import pod_options
from dlrover_lite.backends.k8s.objects.job import JobObjects, master_pod, reader_pod
from dlrover_lite.backends.k8s.objects.node_pod import PodSettings, node_pod
from dlrover_lite.core.files.paths import state_directory
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.jobs.backend import RunOptions
from dlrover_lite.protocol.brain_mode import BrainMode
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.load import parse_recipe


@pytest.mark.parametrize(
    ("wanted", "shares", "found"),
    [("daemon", True, "daemon"), ("daemon", False, "embedded"), ("embedded", True, "embedded"), ("off", True, "off")],
)
def test_a_brain_is_in_the_masters_process_unless_the_job_shares_one(
    wanted: BrainMode, shares: bool, found: BrainMode
) -> None:
    made = pod_options(None, RunOptions(wanted), takes_checkpoints=False, shares_brain=shares)
    assert made.keeper.brain == found


@pytest.mark.parametrize("takes_checkpoints", [False, True])
def test_options_for_pods_name_no_file_of_this_machine(takes_checkpoints: bool) -> None:
    text = msgspec.json.encode(pod_options(None, RunOptions(), takes_checkpoints=takes_checkpoints)).decode()
    for own in (sys.executable, sys.prefix, str(state_directory())):
        assert own not in text


@pytest.mark.parametrize(("group", "found"), [(65532, 65532), (7, 7), (0, None)])
def test_a_volume_is_given_to_the_group_of_the_recipe_or_of_the_namespace(group: int, found: int | None) -> None:
    made = JobObjects(job="clicks-1", namespace="ads", kubernetes=Kubernetes(image="x", fs_group=group))
    for pod in (master_pod(made), reader_pod(made)):
        security = pod["spec"]["securityContext"]
        assert security.get("fsGroup") == found and security["runAsNonRoot"]
        assert ("fsGroupChangePolicy" in security) == (found is not None)


@pytest.mark.parametrize(("resources", "found"), [("{total: {cores: 8, memory: 20GiB}}", 41 * GIB), ("", 0)])
def test_a_worker_may_write_a_model_that_fills_what_the_job_may_use(resources: str, found: int) -> None:
    text = "version: 1\nname: clicks\nmodel: dcn\ndata: {format: synthetic, samples: 1000}\n"
    recipe = parse_recipe(text + (f"resources: {resources}\n" if resources else ""))
    size = scratch_size_of(recipe.resources)
    assert size == found
    settings = PodSettings(
        job="clicks-1", namespace="ads", owner_uid="u", kubernetes=Kubernetes(image="x"), scratch_size=size
    )
    pod = node_pod(
        settings, NodeSpec("worker-0", "worker", Resources(1, GIB), ""), "clicks-1-worker-0", Resources(1, GIB)
    )
    (scratch,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "scratch"]
    assert scratch["emptyDir"] == ({"sizeLimit": str(found)} if found else {})
