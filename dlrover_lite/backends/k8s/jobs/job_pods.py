"""The pods that a job is reached by: its master's while it runs, and a reader of its volume once it is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.exec import read_by_exec
from dlrover_lite.backends.k8s.api.problems import ApiProblem
from dlrover_lite.backends.k8s.jobs.files.job_copy import CODE, MODEL, copy_files
from dlrover_lite.backends.k8s.jobs.job_state import JobSet, summary_of
from dlrover_lite.backends.k8s.jobs.job_watch import JobPod, JobWatch, why_not_up
from dlrover_lite.backends.k8s.jobs.known_clusters import KnownCluster
from dlrover_lite.backends.k8s.jobs.pod_endpoints import PodEndpoints
from dlrover_lite.backends.k8s.objects.config_map_keys import path_of
from dlrover_lite.backends.k8s.objects.job import RUNTIME, JobObjects, reader_pod
from dlrover_lite.backends.k8s.objects.names import FILES_PORT, job_labels
from dlrover_lite.backends.k8s.objects.node_pod import KEY_FILES
from dlrover_lite.checkpoint.file_service.client import FileClient, FilesUnreachable
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BackendError, JobError
from dlrover_lite.core.files.durable import make_private, write_whole
from dlrover_lite.protocol.file_messages import FileEntry
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.curve import JobKey
from dlrover_lite.transport.frames import Reply

__all__ = ["JobFiles", "JobPods"]

A = TypeVar("A")

_READER_SECONDS = 180.0
_DEADLINE_SECONDS = 20.0
_FRESH_SECONDS = 2.0
"""Seconds for which a pod is taken to be where it was."""
_EXEC_SECONDS = 20.0
_TRUSTED_SECONDS = 30.0
"""Seconds for which a pod is asked for files without looking whether it is still the one."""
_MASTER_SECONDS = 60.0
"""Longest wait in seconds for a master's pod that is just being replaced, or for the end of its job to be told."""
_LEFT = ("checkpoints/", f"{MODEL}/", f"{RUNTIME}/")
"""Directories that aren't copied when somebody looks into a job."""


class _Pods(msgspec.Struct):
    items: list[JobPod] = []


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


class JobFiles(FileClient):
    """``FileClient`` of a job, wherever its files are. For several threads."""

    def __init__(self, ask: Callable[[msgspec.Struct, type[Any], Sequence[Any]], tuple[Any, Reply]]) -> None:
        self._ask_job = ask

    def ask(self, request: msgspec.Struct, expected: type[A], frames: Sequence[Any] = ()) -> tuple[A, Reply]:
        return self._ask_job(request, expected, frames)

    def close(self) -> None:
        pass


class JobPods:
    """For several threads."""

    def __init__(self, calls: Calls, kept: KnownCluster) -> None:
        self._calls, self._kept = calls, kept
        self._endpoints = PodEndpoints(calls)
        self._lock = threading.RLock()
        self._connectors: dict[str, Connector] = {}
        self._free: dict[str, list[tuple[str, FileClient]]] = {}
        """Connections that nobody uses now, by job, each with the uid of its pod."""
        self._seen: dict[str, tuple[float, JobPod]] = {}
        self._readers: set[str] = set()

    def close(self) -> None:
        """Close connections, and end the readers that were started here."""
        with self._lock:
            for free in self._free.values():
                for _, client in free:
                    client.close()
            self._free.clear()
            for connector in self._connectors.values():
                connector.close()
            self._connectors.clear()
            self._endpoints.close()
            for job in list(self._readers):
                with suppress(BackendError):  # it ends by itself when nobody asks it any more
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
        with self._lock:
            pod = self._pod(one)
            return None if pod is None else self._endpoints.endpoint(pod, port)

    def trusted(self, job: str, port: int) -> tuple[str, Connector] | None:
        """Return where a port of the pod with the job's files was a moment ago, without a call of the API; None: that isn't known. Whoever
        gets no answer there is to look anew."""
        with self._lock:
            at, pod = self._seen.get(job, (0.0, None))
            connector = self._connectors.get(job)
            if pod is None or connector is None or time.monotonic() - at >= _TRUSTED_SECONDS:
                return None
            return self._endpoints.endpoint(pod, port), connector

    def ask(self, job: str, request: msgspec.Struct, expected: type[A], frames: Sequence[Any] = ()) -> tuple[A, Reply]:
        """Ask whoever has the job's files; another pod, if the one that has them ends meanwhile, as a master's does with its job. Raises
        JobError where they can't be reached."""
        for is_last in (False, True):
            pod = self._files_pod(job)
            client = self._client(job, pod)
            try:
                answer = client.ask(request, expected, frames)
            except FilesUnreachable:
                client.close()
                self._forget(job, pod)
                if is_last:
                    raise
                continue
            except BaseException:
                client.close()
                raise
            with self._lock:
                self._free.setdefault(job, []).append((pod.metadata.uid, client))
            return answer
        raise AssertionError("the last attempt returns or raises")

    def _files_pod(self, job: str) -> JobPod:
        """Return the pod that serves the job's files; waits for it."""
        with self._lock:
            at, known = self._seen.get(job, (0.0, None))
            if known is not None and time.monotonic() - at < _TRUSTED_SECONDS:
                return known
            found = self._pod(self._job_set(job))
            if found is None:
                self._await_pod(job)
                found = self._pod(self._job_set(job))
            if found is None:
                raise JobError(
                    f"No pod has the files of {job} now: its master is just coming up",
                    hint=f"See: kubectl describe pod {job}-0",
                )
            return found

    def _forget(self, job: str, pod: JobPod) -> None:
        """Look anew for the pod with the job's files, if it was this one."""
        with self._lock:
            known = self._seen.get(job)
            if known is not None and known[1].metadata.uid == pod.metadata.uid:
                del self._seen[job]

    def _job_set(self, job: str) -> JobSet:
        found: JobSet = self._calls.get("StatefulSet", job, JobSet)
        return found

    def _await_pod(self, job: str) -> None:
        """Wait until the job has a master's pod that runs, or is over."""
        watch = JobWatch(self._calls, job, pods=True)

        def settled() -> bool:
            one, pod = watch.job_set, watch.pods.get(f"{job}-0")
            over = one is None or summary_of(one, time.time()).over
            return over or (pod is not None and pod.runs and bool(pod.status.pod_ip))

        try:
            watch.wait_for(settled, _MASTER_SECONDS)
        finally:
            watch.stop()

    def _client(self, job: str, pod: JobPod) -> FileClient:
        """Return a connection to the pod that nobody else uses."""
        with self._lock:
            free = self._free.get(job, [])
            while free:
                uid, client = free.pop()
                if uid == pod.metadata.uid:
                    return client
                client.close()
            return FileClient(
                self._endpoints.endpoint(pod, FILES_PORT),
                self._connectors.get(job) or self.connector(self._job_set(job)),
                peer="the pod with the job's files",
                has_ended=lambda: self._is_gone(pod),
                deadline_seconds=_DEADLINE_SECONDS,
            )

    def copy(self, one: JobSet, files: FileClient, directory: Path) -> None:
        """Copy a job's files, but for checkpoints and the model, and its code."""
        has_files = self.endpoint(one, FILES_PORT) is not None
        self._copy_config(one.job, directory, ".py" if has_files else ("recipe.json", "recipe.yaml", ".py"))
        if has_files:
            entries = [entry for entry in files.tree() if not entry.path.startswith(_LEFT)]
            copy_files(files, sorted(entries, key=_order), directory)

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

    def _is_gone(self, pod: JobPod) -> bool:
        found: JobPod | None = self._calls.find("Pod", pod.metadata.name, JobPod)
        return found is None or found.metadata.uid != pod.metadata.uid or found.is_over

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

    def _copy_config(self, job: str, directory: Path, endings: str | tuple[str, ...]) -> None:
        """Copy what is known whether or not a pod has the job's files: recipe and code."""
        for key, text in self._config(job).items():
            name = path_of(key)
            if name.endswith(endings):
                target = directory / CODE / name if name.endswith(".py") else directory / name
                make_private(target.parent)
                write_whole(target, text.encode(), sync=False)


def _order(entry: FileEntry) -> tuple[bool, str]:
    """Return the order in which files are copied: what says that something is complete comes last."""
    return entry.path.endswith(("manifest.json", "result.json")), entry.path


def _is_settled(pod: JobPod | None) -> bool:
    return pod is None or bool(pod.runs and pod.status.pod_ip) or why_not_up(pod)[1]
