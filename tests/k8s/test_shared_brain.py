"""A brain that the jobs of a namespace share: taken by a restricted namespace, reached over TCP with its key, lost and found again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ruamel.yaml import YAML

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.jobs.kube_jobs import KubeJobs
from dlrover_lite.backends.k8s.jobs.pod_options import PodOptions
from dlrover_lite.backends.k8s.objects.brain import brain_objects
from dlrover_lite.backends.k8s.objects.names import BRAIN
from dlrover_lite.backends.keeper.options import AgentOptions
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.history import FileHistory
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.cli.main import main
from dlrover_lite.core.errors import BrainError
from dlrover_lite.jobs.backend import RunOptions
from dlrover_lite.master.autoscale import brain_link
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master_process.remote_brain import RemoteBrain
from dlrover_lite.protocol.brain_messages import BrainReplies, BrainStatusRequest
from dlrover_lite.recipe.load import load_recipe
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE
from dlrover_lite.transport.curve import JobKey
from dlrover_lite.transport.polling import wait_for_messages
from tests.backends.support import PATIENCE_SECONDS, until
from tests.brain.service_rig import profile, registration
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.kubelet import Cluster, needs_root
from tests.k8s.test_kube_jobs import CENSUS, ROOT, cluster

__all__ = ["cluster"]

SERVE = [sys.executable, "-P", "-m", "dlrover_lite", "brain", "serve", "--port"]


# --- what is applied --------------------------------------------------------------------------------------------------------


def test_a_brain_without_an_image_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["k8s", "manifests", "--brain"]) == 2
    assert "--image" in capsys.readouterr().err


def test_its_key_is_in_no_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["k8s", "manifests", "--namespace", "ads", "--brain", "--image", "x"]) == 0
    printed = capsys.readouterr()
    kinds = [one["kind"] for one in YAML(typ="safe").load_all(printed.out)]
    assert kinds[-3:] == ["PersistentVolumeClaim", "Service", "Deployment"] and "Secret" not in kinds
    assert f"kubectl create secret generic {BRAIN} --namespace ads" in printed.err


@pytest.mark.parametrize("group", [65532, 7, 0])
def test_its_volume_is_given_to_the_group_that_is_said(capsys: pytest.CaptureFixture[str], group: int) -> None:
    said = ["--fs-group", str(group)] if group != 65532 else []
    assert main(["k8s", "manifests", "--brain", "--image", "x", *said]) == 0
    *_, deployment = YAML(typ="safe").load_all(capsys.readouterr().out)
    assert deployment["spec"]["template"]["spec"]["securityContext"].get("fsGroup", 0) == group


@needs_cluster
def test_a_restricted_namespace_takes_it(
    api_server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = api_server.calls(tmp_path, "admin", "shared-brain")
    assert main(["k8s", "manifests", "-n", "shared-brain", "--create-namespace", "--brain", "--image", "x"]) == 0
    for one in YAML(typ="safe").load_all(capsys.readouterr().out):
        admin.create(one)
    deployment = admin.get("Deployment", BRAIN)
    assert deployment["spec"]["strategy"]["type"] == "Recreate" and deployment["spec"]["replicas"] == 1
    admin.create(pod_of(deployment), dry_run=True)  # refused where the restricted level isn't kept


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    """Make the pod that a Deployment's controller makes."""
    template = deployment["spec"]["template"]
    metadata = {**template["metadata"], "name": f"{deployment['metadata']['name']}-0"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


# --- a brain over TCP -------------------------------------------------------------------------------------------------------


class Brain:
    """A brain as a process that listens over TCP, with a key and a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.key_file = directory / "key"
        self.key_file.write_text(JobKey.generate().text() + "\n")
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.database = directory / "home" / "state" / "brain" / "brain.sqlite"
        self._environment = {
            **os.environ,
            "DLROVER_LITE_HOME": str(directory / "home"),
            "DLROVER_LITE_LISTEN": "127.0.0.1",
            KEY_FILE_VARIABLE: str(self.key_file),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([*SERVE, str(self.port)], env=self._environment)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        return self._process.wait(PATIENCE_SECONDS)

    def answers(self) -> bool:
        command = [sys.executable, "-P", "-m", "dlrover_lite.brain_server.probe"]
        return subprocess.run(command, check=False, env=self._environment, capture_output=True).returncode == 0

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.end()


@pytest.fixture
def brain(tmp_path: Path) -> Iterator[Brain]:
    one = Brain(tmp_path)
    yield one
    one.close()


def entries(database: Path) -> dict[str, JobEntry]:
    if not database.exists():
        return {}
    with closing(FileHistory(database)) as history:
        return {one.id: one for one in queries.jobs(history)}


def test_a_lost_brain_is_told_of_and_found_again_with_what_it_missed(
    brain: Brain, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AGAIN_SECONDS", "BEAT_SECONDS"):
        monkeypatch.setattr(brain_link, name, 0.1)
    monkeypatch.setattr(brain_link, "LOST_SECONDS", 1.0)
    remote, said = RemoteBrain(f"tcp://127.0.0.1:{brain.port}", brain.key_file), list[str]()
    told = msgspec.structs.replace(registration(), directory="")
    link = BrainLink(told, remote.find, remote, said.append, time.monotonic, time.time)

    def becomes(done: Any) -> None:
        def serves() -> bool:
            link._serve()
            if isinstance(link.client, Client):
                wait_for_messages([link.client.socket], 0.05)
            return bool(done())

        until(serves, f"{link.state}, {said}", PATIENCE_SECONDS)

    try:
        becomes(lambda: said)  # as none runs yet
        assert "there is no brain" in link.trouble
        brain.start()
        becomes(lambda: link.state == "open" and not link.trouble)
        brain.end(signal.SIGKILL)
        becomes(lambda: "the brain is lost" in link.trouble)
        link.keep(profile(30.0))
        brain.start()
        becomes(lambda: not link.trouble and not link.unsent)
        assert said[-1] == "the brain is there"
        with closing(FileHistory(brain.database)) as history:
            assert [one.at for one in queries.profiles(history, "ads-1")] == [30.0]
        assert brain.answers()
        assert brain.end() == 0 and not brain.answers()
    finally:
        link.close()
        remote.close()


def test_whoever_has_another_key_is_told_nothing(brain: Brain, tmp_path: Path) -> None:
    brain.start()
    until(brain.answers, "the brain")
    other = tmp_path / "other"
    other.write_text(JobKey.generate().text())
    with closing(RemoteBrain(f"tcp://127.0.0.1:{brain.port}", other)) as stranger:
        client = stranger.client(stranger.find(), BrainReplies)
        client.send(BrainStatusRequest())
        assert client.receive(1.0) is None
        client.close()


def test_a_key_may_come_later_and_change(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with closing(RemoteBrain("tcp://127.0.0.1:1", file)) as remote:
        with pytest.raises(BrainError, match="its key can't be read"):
            remote.find()
        file.write_text("no key")
        with pytest.raises(BrainError, match="64 hexadecimal digits"):
            remote.find()
        file.write_text(JobKey.generate().text())
        assert remote.find() == "tcp://127.0.0.1:1"


# --- in pods ----------------------------------------------------------------------------------------------------------------


@needs_cluster
@needs_root
def test_a_job_in_pods_finds_the_brain_that_it_shares_again(
    cluster: Cluster, api_server: ApiServer, tmp_path: Path
) -> None:
    calls = cluster.calls
    deployment = make_brain(calls)
    calls.create(pod_of(deployment))
    entry = "tests.k8s.idle_nodes:main"
    agent = AgentOptions(entries={"worker": entry, "ps": entry}, imports={})
    given = PodOptions(agent=msgspec.json.encode(agent).decode())
    jobs = KubeJobs(api_server.calls(tmp_path, "ann", calls.namespace), given=given)
    recipe = load_recipe(ROOT / "recipes" / "census.yaml", {**CENSUS, "backend.k8s.brain": BRAIN})
    job = jobs.submit(recipe, options=RunOptions(brain="daemon"), detached=True)
    (claim,) = [one for one in calls.list("PersistentVolumeClaim")["items"] if one["metadata"]["name"] == BRAIN]
    database = cluster.directory / "claims" / claim["metadata"]["uid"] / "home" / "state" / "brain" / "brain.sqlite"

    def registered(times: int) -> bool:
        return cluster.output(f"{BRAIN}-0").count(f"{job} is registered") == times

    try:
        until(lambda: registered(1), "the brain to hear of the job")
        assert entries(database)[job].state == "running" and not entries(database)[job].directory
        calls.delete("Pod", f"{BRAIN}-0", propagation="Background", grace_seconds=0)
        until(lambda: calls.find("Pod", f"{BRAIN}-0") is None, "the brain to be gone")
        assert jobs.state(job).state == "running"
        calls.create(pod_of(deployment))
        until(lambda: registered(2), "the job to find its brain again")
        jobs.stop(job)
        until(lambda: entries(database)[job].state == "stopped", "the brain to hear of the job's end")
    finally:
        jobs.kill(job)
        jobs.close()


def make_brain(calls: Calls) -> dict[str, Any]:
    """Make what a brain needs, and return its Deployment, which nobody here looks after."""
    claim, service, deployment = brain_objects(calls.namespace, "any")
    calls.create(claim)
    calls.create(service)
    metadata = {"name": BRAIN, "namespace": calls.namespace}
    secret = {"stringData": {"key": JobKey.generate().text()}}
    calls.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, **secret})
    return deployment
