"""Makes the objects of a job, or none: whatever fails, what was made before is removed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.problems import ApiProblem
from dlrover_lite.backends.k8s.jobs.code_files import HISTORY, files_of
from dlrover_lite.backends.k8s.jobs.job_state import JobSet, new_annotations, summary_of
from dlrover_lite.backends.k8s.jobs.job_watch import JobWatch, is_queued, why_not_up
from dlrover_lite.backends.k8s.jobs.pod_options import PodOptions
from dlrover_lite.backends.k8s.objects.job import (
    JobObjects,
    access_mode,
    master_pod,
    owned_objects,
    stateful_set,
    volume_claim,
)
from dlrover_lite.core.errors import BackendError, DlroverLiteError, JobError
from dlrover_lite.jobs.store import Beginning, job_ids
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.schema import Recipe

__all__ = ["Wish", "all_objects", "await_master", "check", "create", "remove"]

UP_SECONDS = 600.0
"""Longest wait in seconds for a master's pod to come up: an image may be large, and a node pool may have to grow."""
UNSCHEDULABLE_SECONDS = 120.0
"""Seconds for which no node may have room for the master's pod."""
_MOST_IDS = 100
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class Wish(NamedTuple):
    """A job that is to be made."""

    recipe: Recipe
    settings: Kubernetes
    options: PodOptions
    beginning: Beginning | None
    key: str
    """The job's key, as text."""
    history: bytes = b""
    """What is known here of jobs like it (``brain.past_jobs``); nothing: nothing is, or it isn't needed."""

    def objects(self, job: str, calls: Calls, at: float, files: Iterable[str]) -> JobObjects:
        """Make what the objects of the job with this id are made from. ``files``: paths of what travels to its pods."""
        return JobObjects(
            job=job,
            namespace=calls.namespace,
            kubernetes=self.settings,
            name=self.recipe.name,
            access=access_mode(_provisioner(calls, self.settings)),
            annotations=new_annotations(at, self.beginning),
            files=tuple(files),
        )

    def files(self) -> dict[str, bytes]:
        """Return what travels to the job's pods. The history has a limit of its own: an object has room for it beside the code."""
        files = files_of(self.recipe, msgspec.json.encode(self.options))
        return {**files, HISTORY: self.history} if self.history else files


def all_objects(wish: Wish, calls: Calls, at: float) -> list[dict[str, Any]]:
    """Return all objects that a job would be made of, for people to look at: the key isn't one that a job ever gets."""
    files = wish.files()
    made = wish.objects(next(job_ids(wish.recipe.name, at)), calls, at, files)
    owned = owned_objects(made, "00000000-0000-0000-0000-000000000000", wish.key, files)
    claim = [] if wish.settings.volume_claim else [volume_claim(made)]
    return [stateful_set(made), *owned, *claim]


def check(wish: Wish, calls: Calls, at: float) -> None:
    """Have the cluster check the job's objects and its master's pod, with rights, quotas and policies; nothing is made. Raises
    BackendError."""
    files = wish.files()
    made = wish.objects(next(job_ids(wish.recipe.name, at)), calls, at, files)
    if wish.settings.volume_claim:
        calls.get("PersistentVolumeClaim", wish.settings.volume_claim)
    owner = "00000000-0000-0000-0000-000000000000"
    claim = [] if wish.settings.volume_claim else [volume_claim(made)]
    for one in (stateful_set(made), *owned_objects(made, owner, wish.key, files), *claim, master_pod(made)):
        calls.create(one, dry_run=True)


def create(wish: Wish, calls: Calls, at: float, keep_key: Callable[[str], None]) -> str:
    """Make all objects of a job, whose master is then started; return its id. ``keep_key`` is given the id before anything needs the key.

    Raises BackendError, and nothing is left.
    """
    files = wish.files()
    tries = job_ids(wish.recipe.name, at)
    for _ in range(_MOST_IDS):
        job = next(tries)
        made = wish.objects(job, calls, at, files)
        try:
            owner = calls.create(stateful_set(made))
        except ApiProblem as problem:
            if problem.reason == "AlreadyExists":
                continue
            raise
        try:
            keep_key(job)
            if not wish.settings.volume_claim:
                calls.create(volume_claim(made))
            for one in owned_objects(made, owner["metadata"]["uid"], wish.key, files):
                calls.create(one)
            calls.patch("StatefulSet", job, {"spec": {"replicas": 1}}, subresource="scale", how="merge")
        except BaseException as error:
            own_claim = not (isinstance(error, ApiProblem) and error.reason == "AlreadyExists")
            _undo(calls, job, claim=own_claim and not wish.settings.volume_claim)
            if isinstance(error, ApiProblem) and error.reason == "AlreadyExists":
                continue  # a volume of a job that was deleted: it isn't ours
            raise
        return job
    raise JobError(f"{_MOST_IDS} names of jobs are taken: {job} and those before it", hint="Try again in a moment.")


def remove(calls: Calls, job: str, *, claim: bool) -> None:
    """Remove a job's objects, and with ``claim`` its volume. What isn't there is passed over. Raises BackendError."""
    calls.delete("StatefulSet", job, propagation="Background")
    for kind in ("Secret", "ConfigMap", "Service"):
        calls.delete(kind, job, propagation="Background")
    if claim:
        calls.delete("PersistentVolumeClaim", job, propagation="Background")


def _undo(calls: Calls, job: str, *, claim: bool) -> None:
    """Remove what was made so far; each for itself, so that one that can't be removed doesn't keep the others."""
    kinds = ["StatefulSet", "Secret", "ConfigMap", "Service", *(["PersistentVolumeClaim"] if claim else [])]
    for kind in kinds:
        with suppress(BackendError):
            calls.delete(kind, job, propagation="Background")


def await_master(
    calls: Calls,
    job: str,
    *,
    say: Callable[[str], None],
    detached: bool = False,
    patience_seconds: float = UP_SECONDS,
) -> None:
    """Wait until the job's master is up, or the job has ended. That of a ``detached`` job isn't waited for while it waits for its queue,
    which may take hours. Raises JobError, in the words of whoever keeps it from starting."""
    watch = JobWatch(calls, job, pods=True)
    try:
        for why in _obstacles(watch, job, patience_seconds, say, detached=detached):
            raise JobError(f"{job} doesn't come up: {why}", hint=_advice(why))
    finally:
        watch.stop()


def _obstacles(
    watch: JobWatch, job: str, patience_seconds: float, say: Callable[[str], None], *, detached: bool
) -> Iterator[str]:
    """Follow a job until it is up, or left to its queue; yield what it can't be started for."""
    began, said, unscheduled_since = time.monotonic(), "", None
    master = f"{job}-0"

    def settled() -> bool:
        pod = watch.pods.get(master)
        return (
            _is_up(watch.job_set) or watch.job_set is None or (pod is not None and why_not_up(pod)[0] not in ("", said))
        )

    while True:
        if watch.wait_for(settled, 1.0) and watch.job_set is None:
            yield "its StatefulSet is gone"
        if _is_up(watch.job_set):
            return
        now, pod = time.monotonic(), watch.pods.get(master)
        why, hopeless = why_not_up(pod) if pod is not None else ("", False)
        if hopeless:
            yield why
        if why and why != said:
            said = why
            say(why)
        if pod is not None and is_queued(pod):
            if detached:
                return
            began, unscheduled_since = now, None
            continue
        unscheduled_since = (unscheduled_since or now) if why else None
        if unscheduled_since is not None and now - unscheduled_since > UNSCHEDULABLE_SECONDS:
            yield why
        if now - began > patience_seconds:
            yield f"its master wasn't up after {patience_seconds:g} s; its pod is {pod.status.phase if pod else 'not there'}"


def _is_up(one: JobSet | None) -> bool:
    if one is None:
        return False
    summary = summary_of(one, time.time())
    return summary.state != "starting"


def _advice(why: str) -> str:
    if "Image" in why:
        return "Is the image's name right (backend.k8s.image), and may the cluster pull it (image_pull_secrets)?"
    if "scheduled" in why:
        return "Free room in the cluster, or look at node_selector and tolerations: `kubectl get nodes` shows what there is."
    return "`dlrover-lite k8s check` looks at the namespace, and `kubectl get events` tells what happened there."


def _provisioner(calls: Calls, settings: Kubernetes) -> str:
    """Return what makes the job's volume; "" where that can't be told, as storage classes are in no namespace."""
    if settings.volume_claim:
        return ""
    try:
        listed = calls.list("StorageClass")["items"]
    except DlroverLiteError:
        return ""
    for one in listed:
        usual = one["metadata"].get("annotations", {}).get(_DEFAULT_CLASS) == "true"
        if one["metadata"]["name"] == settings.storage_class or (usual and not settings.storage_class):
            return str(one.get("provisioner", ""))
    return ""
