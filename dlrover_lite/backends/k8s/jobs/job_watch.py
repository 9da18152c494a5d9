"""A job's StatefulSet and pods as they are now, followed by watches in threads of their own: nobody polls."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.watch import Change, Followed, Meta, Watch
from dlrover_lite.backends.k8s.jobs.job_state import JobSet
from dlrover_lite.backends.k8s.objects.names import job_labels

__all__ = ["JobPod", "JobWatch", "is_queued", "why_not_up"]

_HOPELESS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
)
"""Reasons for which a container waits that don't pass by themselves, or rarely."""


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _Container(msgspec.Struct, rename="camel"):
    state: _State = msgspec.field(default_factory=_State)
    last_state: _State = msgspec.field(default_factory=_State)


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: list[_Condition] = []
    container_statuses: list[_Container] = []


class JobPod(Followed):
    """A pod, as far as it matters whether its process runs, and where."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def component(self) -> str:
        return self.metadata.labels.get("app.kubernetes.io/component", "")

    @property
    def runs(self) -> bool:
        return self.status.phase == "Running" and self.metadata.deletion_timestamp is None

    @property
    def is_over(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


def is_queued(pod: JobPod) -> bool:
    """Whether somebody, as a queue of Kueue, holds a pod back until it is its turn: that may take hours, and nothing is wrong."""
    return any(one.type == "PodScheduled" and one.reason == "SchedulingGated" for one in pod.status.conditions)


def why_not_up(pod: JobPod) -> tuple[str, bool]:
    """Return why a pod doesn't run, in the words of the scheduler or the kubelet, and whether that hardly passes by itself; "" where
    nothing speaks against it."""
    name = pod.metadata.name
    for one in pod.status.container_statuses:
        if (waiting := one.state.waiting) is not None and waiting.reason in _HOPELESS:
            last = one.last_state.terminated
            code = f"; its process ended with exit code {last.exit_code}" if last is not None else ""
            return f"{name}: {waiting.reason}{f': {waiting.message}' if waiting.message else ''}{code}", True
    if pod.is_over:
        said = pod.status.message or pod.status.reason
        return f"{name} has ended before the job was up{f': {said}' if said else ''}", True
    if is_queued(pod):
        return f"{name} waits for its queue", False
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{name} can't be scheduled: {condition.message or condition.reason}", False
    return "", False


class JobWatch:
    """Follows one job until it is stopped. ``say`` is told of what keeps it from seeing anything new."""

    def __init__(
        self, calls: Calls, job: str, *, pods: bool = False, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.job_set: JobSet | None = None
        """The StatefulSet; None: there is none, or nothing is known so far."""
        self.pods: dict[str, JobPod] = {}
        self._seen: set[str] = set()
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        kinds: list[tuple[str, type[Followed], Callable[[Change[Followed]], None]]] = [
            ("StatefulSet", JobSet, self._take_set)
        ]
        if pods:
            kinds.append(("Pod", JobPod, self._take_pods))
        self._expected = {kind for kind, _, _ in kinds}
        self._watches = [
            (Watch(calls, kind, of, job_labels(job), wait=self._stopped.wait, say=say), take, kind)
            for kind, of, take in kinds
        ]
        self._threads = [
            threading.Thread(target=self._follow, args=one, name=f"watch-{job}", daemon=True) for one in self._watches
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, condition: Callable[[], bool], timeout_seconds: float | None) -> bool:
        """Wait until the condition holds of what is known, or the time is over; return whether it holds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._expected <= self._seen and condition(), timeout_seconds)

    def stop(self) -> None:
        self._stopped.set()
        for watch, _, _ in self._watches:
            watch.stop()
        for thread in self._threads:
            thread.join(10.0)

    def _follow(self, watch: Watch[Followed], take: Callable[[Change[Followed]], None], kind: str) -> None:
        for change in watch:
            with self._changed:
                take(change)
                self._seen.add(kind)
                self._changed.notify_all()

    def _take_set(self, change: Change[Followed]) -> None:
        if change.gone or change.whole:
            self.job_set = None
        for one in change.there:
            assert isinstance(one, JobSet)
            self.job_set = one

    def _take_pods(self, change: Change[Followed]) -> None:
        if change.whole:
            self.pods.clear()
        for one in change.gone:
            self.pods.pop(one.metadata.name, None)
        for one in change.there:
            assert isinstance(one, JobPod)
            self.pods[one.metadata.name] = one
