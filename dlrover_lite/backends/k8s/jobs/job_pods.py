"""The pods that a job is reached by: its master's while it runs, and a reader of its volume once it is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.exec import read_by_exec
from dlrover_lite.backends.k8s.api.problems import ApiProblem
from dlrover_lite.backends.k8s.jobs.files.job_copy import copy_files
from dlrover_lite.backends.k8s.jobs.job_state import JobSet, summary_of
from dlrover_lite.backends.k8s.jobs.job_watch import JobPod, JobWatch, why_not_up
from dlrover_lite.backends.k8s.jobs.known_clusters import KnownCluster
from dlrover_lite.backends.k8s.jobs.reach import Reach
from dlrover_lite.backends.k8s.objects.job import JobObjects, reader_pod
from dlrover_lite.backends.k8s.objects.names import FILES_PORT, job_labels
from dlrover_lite.backends.k8s.objects.node_pod import KEY_FILES
from dlrover_lite.checkpoint.file_service.client import FileClient
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.units import MIB
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.file_messages import FileEntry
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.curve import JobKey

__all__ = ["JobPods"]

_READER_SECONDS = 180.0
_DEADLINE_SECONDS = 20.0
_FRESH_SECONDS = 2.0
"""Seconds for which a pod is taken to be where it was."""
_MOST_COPIED_BYTES = 64 * MIB
"""Size of a job's directory up to which all of it is copied when somebody looks into it."""
_EXEC_SECONDS = 20.0
_LARGE = ("checkpoints/", "export/")


class _Pods(msgspec.Struct):
    items: list[JobPod] = []


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


class JobPods:
    """For several threads, one at a time for each job's files."""

    def __init__(self, calls: Calls, kept: KnownCluster) -> None:
        self._calls, self._kept = calls, kept
        self._reach = Reach(calls)
        self._lock = threading.RLock()
        self._connectors: dict[str, Connector] = {}
        self._clients: dict[str, FileClient] = {}
        self._seen: dict[str, tuple[float, JobPod]] = {}
        self._readers: set[str] = set()

    def close(self) -> None:
        """Close connections, and end the readers that were started here."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
            for connector in self._connectors.values():
                connector.close()
            self._connectors.clear()
            self._reach.close()
            for job in list(self._readers):
                self._calls.delete("Pod", f"{job}-reader", propagation="Background", grace_seconds=1)
            self._readers.clear()

    def connector(self, one: JobSet) -> Connector:
        """Return what makes clients with the job's key: the one kept here; of a job that was submitted elsewhere the one that its pod has.
        Raises JobError where neither can be had, ApiProblem for who mayn't read it."""
        with self._lock:
            if one.job not in self._connectors:
                self._connectors[one.job] = Connector(self._kept.key(one.job) or self._key_in_pod(one))
            return self._connectors[one.job]

    def _key_in_pod(self, one: JobSet) -> JobKey:
        """Read the key where the job's pod has it, and keep it."""
        pod = self._pod(one)
        if pod is None:
            raise JobError(
                f"The key of {one.job} isn't known here, and no pod of the job runs that has it",
                hint="It was submitted from another machine: ask again when its pod runs.",
            )
        command = ["cat", f"{KEY_FILES}/key"]
        told = read_by_exec(
            self._calls.connection, pod.metadata.name, pod.component, command, timeout_seconds=_EXEC_SECONDS
        )
        key = JobKey.parse(told.decode("ascii", "replace"), f"{KEY_FILES}/key of {pod.metadata.name}")
        self._kept.keep_key(one.job, key)
        return key

    def endpoint(self, one: JobSet, port: int) -> str | None:
        """Return where a port of the pod with the job's files is; None: there is no such pod so far."""
        pod = self._pod(one)
        return None if pod is None else self._reach.endpoint(pod, port)

    @contextmanager
    def files(self, one: JobSet) -> Iterator[FileClient | None]:
        """Give the job's files; None while no pod has them. Raises JobError where they can't be reached."""
        with self._lock:
            endpoint = self.endpoint(one, FILES_PORT)
            if endpoint is None:
                yield None
                return
            client = self._clients.get(endpoint)
            if client is None:
                client = self._clients[endpoint] = FileClient(
                    endpoint,
                    self.connector(one),
                    peer="the pod with the job's files",
                    has_ended=lambda: self._is_gone(one.job),
                    deadline_seconds=_DEADLINE_SECONDS,
                )
            try:
                yield client
            except JobError:  # another pod may have come in its place
                self._seen.pop(one.job, None)
                self._clients.pop(endpoint, client).close()
                raise

    def copy(self, job: str, files: FileClient | None, directory: Path, *, whole: bool) -> int:
        """Copy a job's files; without ``whole`` not those of large checkpoints and models. Return how many there are."""
        if files is None:
            self._copy_recipe(job, directory)
            return 1
        entries = files.tree()
        size = sum(entry.size for entry in entries)
        if not whole and size > _MOST_COPIED_BYTES:
            entries = [entry for entry in entries if not entry.path.startswith(_LARGE) or entry.size < MIB]
        copy_files(files, iter(sorted(entries, key=_order)), directory)
        return len(entries)

    def recipe(self, job: str) -> Recipe:
        """Return the recipe as the job's pods have it. Raises ApiProblem, JobError."""
        return from_json(self._config(job).get("recipe.json", "null"), Recipe)

    def kill_all(self, job: str, grace_seconds: int) -> None:
        for pod in self._all(job):
            if pod.component != "reader":
                self._calls.delete("Pod", pod.metadata.name, propagation="Background", grace_seconds=grace_seconds)

    def end_reader(self, job: str) -> None:
        """End the reader of a job, and wait until its volume is free."""
        self._seen.pop(job, None)
        self._readers.discard(job)
        if not self._calls.delete("Pod", f"{job}-reader", propagation="Background", grace_seconds=1):
            return
        watch = JobWatch(self._calls, job, pods=True)
        try:
            if not watch.wait_for(lambda: f"{job}-reader" not in watch.pods, _READER_SECONDS):
                raise JobError(f"The reader pod of {job} doesn't end", hint=f"kubectl describe pod {job}-reader")
        finally:
            watch.stop()

    # --- pods -----------------------------------------------------------------------------------------------------------

    def _pod(self, one: JobSet) -> JobPod | None:
        now = time.monotonic()
        at, known = self._seen.get(one.job, (0.0, None))
        if known is not None and now - at < _FRESH_SECONDS:
            return known
        over = summary_of(one, time.time()).over
        found = self._reader(one) if over else self._master(one)
        if found is not None:
            self._seen[one.job] = (time.monotonic(), found)
        return found

    def _master(self, one: JobSet) -> JobPod | None:
        found: JobPod | None = self._calls.find("Pod", f"{one.job}-0", JobPod)
        return found if found is not None and found.status.phase == "Running" and found.status.pod_ip else None

    def _is_gone(self, job: str) -> bool:
        known = self._seen.get(job)
        found = None if known is None else self._calls.find("Pod", known[1].metadata.name, JobPod)
        return found is None or known is None or found.metadata.uid != known[1].metadata.uid or found.is_over

    def _reader(self, one: JobSet) -> JobPod:
        """Return a pod that serves the files of a job that is over; it is started if there is none."""
        name = f"{one.job}-reader"
        found: JobPod | None = self._calls.find("Pod", name, JobPod)
        if found is not None and (found.is_over or found.metadata.deletion_timestamp is not None):
            self.end_reader(one.job)
            found = None
        if found is None:
            self._start_reader(one)
        watch = JobWatch(self._calls, one.job, pods=True)
        try:
            watch.wait_for(lambda: _is_settled(watch.pods.get(name)), _READER_SECONDS)
            pod = watch.pods.get(name)
        finally:
            watch.stop()
        if pod is None or not pod.runs:
            why = why_not_up(pod)[0] if pod is not None else f"{name} is gone"
            raise JobError(
                f"The files of {one.job} can't be read: {why or f'{name} was not up after {_READER_SECONDS:g} s'}",
                hint=f"kubectl describe pod {name}",
            )
        return pod

    def _start_reader(self, one: JobSet) -> None:
        recipe = self.recipe(one.job)
        made = JobObjects(
            job=one.job,
            namespace=self._calls.namespace,
            kubernetes=recipe.kubernetes or Kubernetes(),
            name=recipe.name,
        )
        pod = reader_pod(made)
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": one.job, "uid": one.metadata.uid}
        pod["metadata"]["ownerReferences"] = [owner]
        try:
            self._calls.create(pod)
            self._readers.add(one.job)
        except ApiProblem as problem:
            if problem.reason != "AlreadyExists":  # somebody else reads it, too
                raise

    def _all(self, job: str) -> list[JobPod]:
        found: _Pods = self._calls.list("Pod", _Pods, labels=job_labels(job))
        return found.items

    # --- without a pod --------------------------------------------------------------------------------------------------

    def _config(self, job: str) -> dict[str, str]:
        found: _ConfigMap = self._calls.get("ConfigMap", job, _ConfigMap)
        return found.data

    def _copy_recipe(self, job: str, directory: Path) -> None:
        """Copy what is known before any pod has the job's files."""
        files = self._config(job)
        copy = Job(directory)
        for name in ("recipe.json", "recipe.yaml"):
            copy.directory.mkdir(parents=True, exist_ok=True)
            (copy.directory / name).write_text(files.get(name, ""), encoding="utf-8")


def _order(entry: FileEntry) -> tuple[bool, str]:
    """Return the order in which files are copied: what says that something is complete comes last."""
    return entry.path.endswith(("manifest.json", "result.json")), entry.path


def _is_settled(pod: JobPod | None) -> bool:
    return pod is None or bool(pod.runs and pod.status.pod_ip) or why_not_up(pod)[1]
