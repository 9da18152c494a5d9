"""Stands in for what a cluster has beside its API server: nodes that run pods as processes, the scheduler, the controller of StatefulSets,
the garbage collector of what is owned, and names of services.

A pod's command runs below a root of its own (``pod_root``), with its environment, volumes, service account's token, and an address of its
own on loopback. Images are this Python environment, whatever they are called, but those of ``missing_images``. As root on Linux only.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.problems import ApiProblem, Unreachable, explained
from dlrover_lite.backends.k8s.api.watch import Change, Meta, Watch
from tests.k8s.exec_server import ExecServer
from tests.k8s.pod_cgroups import PodGroups
from tests.k8s.quantities import bytes_of, cores_of
from tests.k8s.volume_files import decoded, with_compiled_kernels, write_files

REPOSITORY = Path(__file__).parents[2]
_addresses = itertools.count(os.getpid() * 250)

needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="pods as processes need root: they have mount namespaces"
)


class FullMeta(Meta, rename="camel"):
    namespace: str = ""
    owner_references: list[dict[str, Any]] = msgspec.field(default_factory=list)
    deletion_grace_period_seconds: int | None = None


class Anything(msgspec.Struct):
    metadata: FullMeta = msgspec.field(default_factory=FullMeta)
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass
class Pod:
    """A pod that was seen, and what runs of it."""

    seen: Anything
    host: str = ""
    address: str = ""
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    ended: bool = False
    kill_at: float | None = None
    grace: float = 0.0
    groups: PodGroups | None = None
    pulls: bool = False
    told: dict[str, Any] = field(default_factory=dict)
    """Status of its container, as last told."""

    @property
    def name(self) -> str:
        return self.seen.metadata.name

    @property
    def container(self) -> dict[str, Any]:
        containers: list[dict[str, Any]] = self.seen.spec["containers"]
        return containers[0]


@dataclass
class Cluster:
    """One namespace of a cluster. Change its fields while it runs to see how somebody copes."""

    calls: Calls
    """Calls of a user who may do anything, in the namespace."""
    directory: Path
    api_url: str = ""
    """URL by which pods reach the API server; empty: its own."""
    hosts: dict[str, tuple[float, int]] = field(
        default_factory=lambda: {"host-a": (64.0, 1 << 38), "host-b": (64.0, 1 << 38)}
    )
    """Cores and bytes of memory of each node."""
    missing_images: set[str] = field(default_factory=set)
    unschedulable: str = ""
    """What the scheduler says of all pods; empty: it finds a node for each that has room."""
    resize_refusal: tuple[str, str] = ("", "")
    """What nodes say to a pod's resize, and why: "Deferred" or "Infeasible"; empty: they do it."""
    user: int | None = None
    """User that containers run as; None: root."""
    limits: bool = False
    """Pods are in control groups of their own."""

    def __post_init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.sets: dict[str, Anything] = {}
        self.services: dict[str, Anything] = {}
        self._events: queue.Queue[Callable[[], None]] = queue.Queue()
        self._stopped = threading.Event()
        self._watches: list[Watch[Anything]] = []
        self._threads: list[threading.Thread] = []
        self._hosts_file = self.directory / "hosts"
        self.said: list[str] = []

    # --- running --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_hosts()
        self.exec = ExecServer(self.directory, self._first_process)
        for host, (cores, memory) in self.hosts.items():
            self._make_node(host, cores, memory)
        for kind, take in (("Pod", self._pods), ("StatefulSet", self._sets), ("Service", self._services)):
            watch = Watch(self.calls, kind, Anything, {}, wait=self._stopped.wait, say=self.said.append)
            self._watches.append(watch)
            self._spawn(self._follow, watch, take)
        self._spawn(self._run)

    def _spawn(self, run: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _follow(self, watch: Watch[Anything], take: Callable[[Change[Anything]], None]) -> None:
        for change in watch:
            self._events.put(lambda change=change: take(change))  # type: ignore[misc]

    def _run(self) -> None:
        while not self._stopped.is_set():
            with suppress(queue.Empty):
                self._events.get(timeout=0.1)()
            for pod in list(self.pods.values()):
                try:
                    self._look_after(pod)
                except (ApiProblem, Unreachable) as problem:
                    self.said.append(f"{pod.name}: {problem.message}")

    def stop(self) -> None:
        self._stopped.set()
        for watch in self._watches:
            watch.stop()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        for pod in self.pods.values():
            self._end(pod)
        self.exec.stop()
        for host in self.hosts:
            self.calls.delete("Node", self.node_name(host), propagation="Background")

    def node_name(self, host: str) -> str:
        """Return the name of a node: nodes have no namespace, and other tests may have some."""
        return f"{self.calls.namespace}-{host}"

    def _make_node(self, host: str, cores: float, memory: int) -> None:
        name = self.node_name(host)
        sizes = {"cpu": f"{cores:g}", "memory": str(memory), "pods": "2000"}
        labels = {"kubernetes.io/hostname": name}
        self.calls.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": sizes, "allocatable": sizes, "conditions": [ready]}
        status["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": self.exec.port}}
        self.calls.patch("Node", name, {"status": status}, subresource="status", how="merge")
        self.calls.patch("Node", name, {"spec": {"taints": None}}, how="merge")

    # --- what a test does -------------------------------------------------------------------------------------------------

    def output(self, pod: str) -> str:
        """Return what the pods of this name have printed."""
        files = sorted(self.directory.glob(f"pods/{pod}.*/output"), key=lambda path: path.stat().st_mtime)
        return "".join(path.read_text("utf-8", "replace") for path in files)

    def kill_container(self, pod: str) -> None:
        """Kill the pod's container, as a kernel would that has no memory left."""
        process = self.pods[pod].process
        assert process is not None
        process.kill()

    def _first_process(self, pod: str) -> int | None:
        """Return the process id of a container's first process, once it has its root."""
        process = self.pods[pod].process if pod in self.pods else None
        with suppress(OSError, ValueError):  # it has ended meanwhile, or has just begun
            pid = 0 if process is None else int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
            return pid if pid and Path(f"/proc/{pid}/root").readlink() != Path("/") else None
        return None

    # --- pods -------------------------------------------------------------------------------------------------------------

    def _pods(self, change: Change[Anything]) -> None:
        names = {one.metadata.name for one in change.there}
        gone = [name for name in self.pods if name not in names] if change.whole else []
        for name in [*gone, *(one.metadata.name for one in change.gone)]:
            if (pod := self.pods.pop(name, None)) is not None:
                self._end(pod)
                self._write_hosts()
        for one in change.there:
            known = self.pods.get(one.metadata.name)
            if known is not None and known.seen.metadata.uid == one.metadata.uid:
                known.seen = one
                if known.process is not None and known.told.get("resources") != known.container.get("resources", {}):
                    self._resized(known)
            else:
                if known is not None:
                    self._end(known)
                self.pods[one.metadata.name] = Pod(one)
        for owner in list(self.sets.values()):
            self._reconcile(owner)

    def _look_after(self, pod: Pod) -> None:
        if pod.seen.metadata.deletion_timestamp is not None:
            self._delete(pod)
        elif pod.ended:
            return
        elif not pod.host:
            self._schedule(pod)
        elif pod.process is None:
            self._launch(pod)
        elif (code := pod.process.poll()) is not None:
            self._container_ended(pod, code)

    def _schedule(self, pod: Pod) -> None:
        if pod.seen.spec.get("nodeName"):
            pod.host = next(host for host in self.hosts if self.node_name(host) == pod.seen.spec["nodeName"])
            return
        host, why = self._place(pod)
        if host:
            name = self.node_name(host)
            target = {"apiVersion": "v1", "kind": "Node", "name": name}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name}, "target": target}
            self._post(f"pods/{pod.name}/binding", binding)
            pod.host = host
        elif not any(one.get("message") == why for one in pod.seen.status.get("conditions", [])):
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
            self._status(pod, phase="Pending", conditions=[condition])

    def _place(self, pod: Pod) -> tuple[str, str]:
        """Return a node with room for the pod, or why there is none."""
        if self.unschedulable:
            return "", self.unschedulable
        cores, memory = _requests(pod)
        fits = []
        for host, (all_cores, all_memory) in self.hosts.items():
            others = [_requests(one) for one in self.pods.values() if one.host == host and not one.ended]
            if (
                sum(one[0] for one in others) + cores <= all_cores
                and sum(one[1] for one in others) + memory <= all_memory
            ):
                fits.append((len(others), host))
        wanted = json.dumps(pod.seen.spec.get("affinity", {}))
        preferred = [one for one in fits if self.node_name(one[1]) in wanted]
        if found := min(preferred or fits, default=None):
            return found[1], ""
        return "", f"0/{len(self.hosts)} nodes are available: {len(self.hosts)} Insufficient cpu or memory."

    def _launch(self, pod: Pod) -> None:
        image = pod.container["image"]
        if image in self.missing_images:
            if not pod.pulls:
                pod.pulls = True
                why = f'failed to pull image "{image}": not found'
                self._container(pod, {"waiting": {"reason": "ErrImagePull", "message": why}}, phase="Pending")
            return
        pod.address = pod.address or _another_address()
        directory = self.directory / "pods" / f"{pod.name}.{pod.seen.metadata.uid}"
        try:
            description = self._description(pod, directory)
        except (ApiProblem, KeyError) as problem:
            why = {"waiting": {"reason": "CreateContainerConfigError", "message": str(problem)}}
            self._container(pod, why, phase="Pending")
            return
        file = directory / "container.json"
        file.write_text(json.dumps(description))
        with (directory / "output").open("ab") as output:
            command = [sys.executable, "-P", str(Path(__file__).with_name("pod_root.py")), str(file)]
            pod.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._write_hosts()
        self._container(pod, {"running": {"startedAt": _now()}}, phase="Running", ready=True)

    def _container_ended(self, pod: Pod, code: int) -> None:
        oom = pod.groups is not None and pod.groups.killed()
        code = 128 - code if code < 0 else code
        reason = "OOMKilled" if oom else "Completed" if code == 0 else "Error"
        ended = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": _now()}}
        restart = pod.seen.spec.get("restartPolicy", "Always")
        if restart == "Always" or (restart == "OnFailure" and code):
            pod.restarts += 1
            pod.process = None
            self._container(pod, {"waiting": {"reason": "CrashLoopBackOff"}}, phase="Running", last=ended)
            return
        pod.ended = True
        self._container(pod, ended, phase="Failed" if code else "Succeeded")

    def _delete(self, pod: Pod) -> None:
        """End a pod that is being deleted, and say so."""
        grace = pod.seen.metadata.deletion_grace_period_seconds
        if pod.process is not None and pod.process.poll() is None:
            now = time.monotonic()
            patience = 30 if grace is None else grace
            if pod.kill_at is None:
                pod.kill_at, pod.grace = now + patience, patience
                pod.process.send_signal(signal.SIGTERM)
            elif patience < pod.grace:  # deleted again, with less grace
                pod.kill_at, pod.grace = min(pod.kill_at, now + patience), patience
            elif now < pod.kill_at:
                return
            else:
                pod.process.kill()
                pod.process.wait()
        if pod.process is None or pod.process.poll() is not None:
            self._end(pod)
            uid = pod.seen.metadata.uid
            self.calls.delete("Pod", pod.name, propagation="Background", grace_seconds=0, uid=uid)
            pod.kill_at = time.monotonic() + 3600  # deleted: its end will be seen

    def _end(self, pod: Pod) -> None:
        if pod.process is not None and pod.process.poll() is None:
            pod.process.kill()
            pod.process.wait()
        if pod.groups is not None:
            pod.groups.remove()
            pod.groups = None

    # --- containers -------------------------------------------------------------------------------------------------------

    def _description(self, pod: Pod, directory: Path) -> dict[str, Any]:
        container, spec = pod.container, pod.seen.spec
        volumes = {one["name"]: self._volume(pod, one, directory) for one in spec.get("volumes", [])}
        mounts = [(place, place, True) for place in (str(REPOSITORY), sys.base_prefix, sys.prefix)]
        for one in container.get("volumeMounts", []):
            source = volumes[one["name"]] / one.get("subPath", "")
            mounts.append((str(source), one["mountPath"], bool(one.get("readOnly"))))
        root = directory / "root"
        root.mkdir(parents=True, exist_ok=True)
        if self.limits:
            pod.groups = pod.groups or PodGroups(f"{self.calls.namespace}-{pod.name}")
            self._limit(pod)
        return {
            "root": str(root),
            "mounts": mounts,
            "hosts": str(self._hosts_file),
            "directory": container.get("workingDir", "/"),
            "user": self.user,
            "cgroups": [] if pod.groups is None else pod.groups.paths,
            "command": [
                # all pods share the addresses of this machine
                word.replace("tcp://*:", f"tcp://{pod.address}:")
                for word in [*container.get("command", []), *container.get("args", [])]
            ],
            "environment": self._environment(pod),
        }

    def _environment(self, pod: Pod) -> dict[str, str]:
        server = self.api_url or self.calls.connection.server
        host, _, port = server.partition("://")[2].partition(":")
        found = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
        }
        fields = {
            "metadata.name": pod.name,
            "metadata.namespace": self.calls.namespace,
            "metadata.uid": pod.seen.metadata.uid,
            "status.podIP": pod.address,
            "spec.nodeName": self.node_name(pod.host),
        }
        for one in pod.container.get("env", []):
            source = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            found[one["name"]] = fields[source] if source else one.get("value", "")
        if "DLROVER_LITE_LISTEN" in found:
            found["DLROVER_LITE_LISTEN"] = pod.address  # all pods share the addresses of this machine
        return found

    def _volume(self, pod: Pod, volume: dict[str, Any], directory: Path) -> Path:
        place = directory / "volumes" / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        if "configMap" in volume:
            found = self.calls.get("ConfigMap", volume["configMap"]["name"])
            write_files(
                place, {name: text.encode() for name, text in found.get("data", {}).items()}, volume["configMap"]
            )
            write_files(place, decoded(found.get("binaryData", {})), volume["configMap"])
        elif "secret" in volume:
            found = self.calls.get("Secret", volume["secret"]["secretName"])
            write_files(place, decoded(found.get("data", {})), volume["secret"])
        elif "persistentVolumeClaim" in volume:
            place = self._claim(volume["persistentVolumeClaim"]["claimName"])
        elif "hostPath" in volume:
            place = Path(volume["hostPath"]["path"])
        elif any("serviceAccountToken" in one for one in volume.get("projected", {}).get("sources", [])):
            place = self._token(pod, directory)  # as the API server adds it
        elif "emptyDir" not in volume:
            raise KeyError(f"volumes of {', '.join(sorted(volume))} can't be had here")
        elif volume["name"] == "scratch":
            with_compiled_kernels(place)
        return place

    def _claim(self, name: str) -> Path:
        found = self.calls.get("PersistentVolumeClaim", name)
        if found.get("status", {}).get("phase") != "Bound":
            bound = {"status": {"phase": "Bound"}}
            self.calls.patch("PersistentVolumeClaim", name, bound, subresource="status", how="merge")
        place = self.directory / "claims" / found["metadata"]["uid"]
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        return place

    def _token(self, pod: Pod, directory: Path) -> Path:
        """Return a directory with the token of the pod's service account."""
        account = pod.seen.spec.get("serviceAccountName") or "default"
        wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        token = self._post(f"serviceaccounts/{account}/token", wish)["status"]["token"]
        authority = self.calls.connection.client.configuration.ssl_ca_cert
        place = directory / "token"
        place.mkdir(parents=True, exist_ok=True)
        (place / "token").write_text(token)
        (place / "namespace").write_text(self.calls.namespace)
        shutil.copyfile(authority, place / "ca.crt")
        return place

    # --- statuses ---------------------------------------------------------------------------------------------------------

    def _container(
        self, pod: Pod, state: dict[str, Any], *, phase: str, ready: bool = False, last: dict[str, Any] | None = None
    ) -> None:
        one = {
            "name": pod.container["name"],
            "image": pod.container["image"],
            "imageID": "",
            "ready": ready,
            "restartCount": pod.restarts,
            "state": state,
            "lastState": last or {},
            "resources": pod.container.get("resources", {}),
        }
        pod.told = one
        scheduled = {"type": "PodScheduled", "status": "True"}
        conditions = [scheduled, {"type": "Ready", "status": str(ready)}]
        addresses = (
            {"podIP": pod.address, "podIPs": [{"ip": pod.address}], "hostIP": "127.0.0.1"} if pod.address else {}
        )
        self._status(pod, phase=phase, containerStatuses=[one], conditions=conditions, startTime=_now(), **addresses)

    def _resized(self, pod: Pod) -> None:
        """Do what a resize asks for, and say so; or refuse it."""
        reason, message = self.resize_refusal
        pending = {"type": "PodResizePending", "status": "True", "reason": reason, "message": message}
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
        if reason:
            if not any(one.get("reason") == reason for one in pod.seen.status.get("conditions", [])):
                self._status(pod, conditions=[*conditions, pending])
            return
        if pod.groups is not None:
            self._limit(pod)
        pod.told = {**pod.told, "resources": pod.container.get("resources", {})}
        self._status(pod, containerStatuses=[pod.told], conditions=conditions)

    def _limit(self, pod: Pod) -> None:
        """Apply the limits that the pod's spec says."""
        assert pod.groups is not None
        limits = pod.container.get("resources", {}).get("limits", {})
        pod.groups.limit(cores_of(limits.get("cpu", "0")), bytes_of(limits.get("memory", "0")))

    def _status(self, pod: Pod, **changes: Any) -> None:
        with suppress(ApiProblem):  # it has gone meanwhile
            self.calls.patch("Pod", pod.name, {"status": changes}, subresource="status", how="merge")

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Post to the API. Raises ApiProblem and Unreachable, as ``Calls`` does: what it is about may have been deleted meanwhile."""
        url, accepted = f"/api/v1/namespaces/{self.calls.namespace}/{path}", {"Accept": "application/json"}
        options: dict[str, Any] = {
            "auth_settings": ["BearerToken"],
            "_preload_content": False,
            "_return_http_data_only": True,
        }
        try:
            answer = self.calls.connection.client.call_api(url, "POST", header_params=accepted, body=body, **options)
        except (ApiException, HTTPError, OSError) as error:
            raise explained(error, f"post to {path}", self.calls.connection.server) from error
        found: dict[str, Any] = json.loads(answer.data)
        return found

    # --- controllers ------------------------------------------------------------------------------------------------------

    def _sets(self, change: Change[Anything]) -> None:
        names = {one.metadata.name for one in change.there}
        gone = [one for name, one in self.sets.items() if name not in names] if change.whole else []
        for one in [*gone, *change.gone]:
            self.sets.pop(one.metadata.name, None)
            self._collect(one.metadata.uid)
        for one in change.there:
            self.sets[one.metadata.name] = one
            self._reconcile(one)

    def _reconcile(self, owner: Anything) -> None:
        """Have a StatefulSet's only pod, or none."""
        meta, name = owner.metadata, f"{owner.metadata.name}-0"
        pod = self.pods.get(name)
        wanted = owner.spec.get("replicas", 1) > 0 and meta.deletion_timestamp is None
        if wanted and pod is None:
            template = owner.spec["template"]
            reference = {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": meta.name,
                "uid": meta.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
            metadata = {**template["metadata"], "name": name, "ownerReferences": [reference]}
            spec = {**template["spec"], "hostname": name, "subdomain": owner.spec.get("serviceName", "")}
            with suppress(ApiProblem):  # another look has made it
                self.calls.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        elif not wanted and pod is not None and pod.seen.metadata.deletion_timestamp is None:
            self.calls.delete("Pod", name, propagation="Background")
        replicas = int(pod is not None)
        if owner.status.get("replicas", 0) != replicas:
            status = {"status": {"replicas": replicas, "readyReplicas": replicas}}
            owner.status["replicas"] = replicas
            with suppress(ApiProblem):
                self.calls.patch("StatefulSet", meta.name, status, subresource="status", how="merge")

    def _collect(self, uid: str) -> None:
        """Delete what a StatefulSet has owned."""
        for kind in ("Pod", "Service", "Secret", "ConfigMap", "PersistentVolumeClaim"):
            for one in self.calls.list(kind)["items"]:
                if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences", [])):
                    self.calls.delete(kind, one["metadata"]["name"], propagation="Background")

    def _services(self, change: Change[Anything]) -> None:
        if change.whole:
            self.services.clear()
        for one in change.gone:
            self.services.pop(one.metadata.name, None)
        self.services |= {one.metadata.name: one for one in change.there}
        self._write_hosts()

    def _write_hosts(self) -> None:
        """Give the names of services to all containers: the same file is mounted in each."""
        lines = ["127.0.0.1 localhost"]
        for name, service in self.services.items():
            selector = service.spec.get("selector", {}).items()
            for pod in self.pods.values():
                if selector and pod.address and not pod.ended and selector <= pod.seen.metadata.labels.items():
                    full = f"{name}.{self.calls.namespace}"
                    lines.append(
                        f"{pod.address} {full}.svc.cluster.local {full}.svc {full} {name} {pod.name}.{full}.svc"
                    )
        self._hosts_file.write_text("\n".join(lines) + "\n")


def _another_address() -> str:
    """Return an address on loopback that no other pod has, nor probably one of another process's."""
    number = next(_addresses)
    return f"127.{64 + number // 62500 % 64}.{number // 250 % 250}.{2 + number % 250}"


def _requests(pod: Pod) -> tuple[float, int]:
    requests = pod.container.get("resources", {}).get("requests", {})
    return cores_of(requests.get("cpu", "0")), bytes_of(requests.get("memory", "0"))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def namespace(calls_of: Callable[[str], Calls], directory: Path, **fields: Any) -> Iterator[Cluster]:
    """Make a namespace with its default service account, and have what is in it run. ``calls_of``: calls in a namespace."""
    name = f"test-{secrets.token_hex(4)}"
    calls = calls_of(name)
    calls.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    calls.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    cluster = Cluster(calls, directory, **fields)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
