"""Jobs of a namespace of a cluster: each is a StatefulSet with what that owns, and a volume with the job's directory."""

from __future__ import annotations

import atexit
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect
from dlrover_lite.backends.k8s.api.problems import ApiProblem
from dlrover_lite.backends.k8s.jobs import submission
from dlrover_lite.backends.k8s.jobs.code_files import recipe_in_pod
from dlrover_lite.backends.k8s.jobs.files.job_copy import JobCopy, copy_files
from dlrover_lite.backends.k8s.jobs.files.remote_log import RemoteLog
from dlrover_lite.backends.k8s.jobs.job_pods import JobFiles, JobPods
from dlrover_lite.backends.k8s.jobs.job_state import (
    KILLED,
    JobSet,
    again_annotations,
    end_annotations,
    stop_annotations,
    summary_of,
)
from dlrover_lite.backends.k8s.jobs.job_watch import JobPod, JobWatch, why_not_up
from dlrover_lite.backends.k8s.jobs.known_clusters import ClusterName, KnownCluster
from dlrover_lite.backends.k8s.jobs.past_jobs import history_for
from dlrover_lite.backends.k8s.jobs.pod_history import PodHistory
from dlrover_lite.backends.k8s.jobs.pod_options import PodOptions, pod_options
from dlrover_lite.backends.k8s.nodes.api_thread import read_hosts
from dlrover_lite.backends.k8s.nodes.capacity import Bounds, bounds_of, capacity_of, left_by
from dlrover_lite.backends.k8s.objects.job import RUNTIME, STORAGE, claim_of
from dlrover_lite.backends.k8s.objects.names import APP, FILES_PORT, MASTER_PORT
from dlrover_lite.backends.k8s.objects.node_pod import AGENT_MEMORY
from dlrover_lite.checkpoint.file_service.client import FileClient, FilePart
from dlrover_lite.core.errors import BackendError, JobError
from dlrover_lite.core.progress import Steps, no_steps
from dlrover_lite.core.units import MOST_CORES, MOST_MEMORY, Resources
from dlrover_lite.jobs.backend import Address, JobSummary, Log, RunOptions, StopCause
from dlrover_lite.jobs.store import Beginning, Job, Result, match_id, short_id
from dlrover_lite.protocol.hosts import Host, total_of
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.curve import JobKey
from dlrover_lite.transport.endpoints import MASTER_ENDPOINT_FILE
from dlrover_lite.transport.frames import Reply

__all__ = ["KubeJobs", "connected"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_LIST_LABELS = {"app.kubernetes.io/name": APP, "app.kubernetes.io/component": "master"}
_KILL_GRACE_SECONDS = 1


class _Sets(msgspec.Struct):
    items: list[JobSet] = []


def connected(
    context: str = "", namespace: str = "", *, patience_seconds: float = 20.0, given: PodOptions | None = None
) -> KubeJobs:
    """Return the jobs of a namespace; empty: the kubeconfig's. Raises BackendError where none can be found here."""
    connection = connect(context, namespace)
    return KubeJobs(
        Calls(connection, clock=time.monotonic, sleep=time.sleep, patience_seconds=patience_seconds), given=given
    )


class KubeJobs:
    """``JobBackend`` of a namespace. ``given``: how the pods of jobs submitted here run; None: as fits the recipe. ``say`` is told what
    takes its time."""

    def __init__(
        self, calls: Calls, *, given: PodOptions | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.name = ClusterName(calls.connection.context, calls.namespace)
        self._calls, self._given, self._say = calls, given, say
        self._kept = KnownCluster(self.name)
        self._pods = JobPods(calls, self._kept)
        self._watches: dict[str, JobWatch] = {}
        self._tied: set[str] = set()
        """Jobs that end with this process."""

    @property
    def source(self) -> str:
        return str(self.name)

    # --- jobs -----------------------------------------------------------------------------------------------------------

    def capacity(self) -> list[Host]:
        return self._capacity(Kubernetes(), Bounds(otherwise=Resources(MOST_CORES, MOST_MEMORY)))

    def shares_cores(self) -> bool:
        return False  # each pod has its own

    def _capacity(self, settings: Kubernetes, bounds: Bounds) -> list[Host]:
        """Return what there is for a job, as far as whoever asks may look. Raises JobError where nothing says it."""
        with _job_errors():
            there = read_hosts(self._calls)
            if there.problem:
                raise BackendError(f"What the cluster has can't be read: {there.problem}", hint=there.hint)
            quota = left_by(there.quotas)
            return capacity_of(there.hosts, settings, bounds, quota=quota, agent_memory=AGENT_MEMORY)

    def _seen_by_user(self, recipe: Recipe) -> Resources:
        """Return what there is for a job of a recipe, as far as its user may see. Raises JobError where nothing says it."""
        return total_of(self._capacity(recipe.kubernetes or Kubernetes(), bounds_of(recipe.resources)))

    def dry_run(self, recipe: Recipe) -> None:
        with _job_errors():
            submission.check(self._wish(recipe, RunOptions(), None), self._calls, time.time())
        self._seen_by_user(recipe)

    def objects(self, recipe: Recipe, options: RunOptions) -> list[dict[str, Any]]:
        """Return the objects that a job of this recipe would be made of."""
        with _job_errors():
            wish = self._wish(recipe, options, None)
            wish = wish._replace(history=history_for(recipe, wish.options.keeper.brain, self._say))
            return submission.all_objects(wish, self._calls, time.time())

    def submit(
        self,
        recipe: Recipe,
        *,
        options: RunOptions,
        detached: bool = False,
        beginning: Beginning | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> str:
        wish = self._wish(recipe, options, beginning, seen=self._seen_by_user(recipe))
        wish = wish._replace(history=history_for(recipe, wish.options.keeper.brain, say))
        key = JobKey.parse(wish.key)
        with _job_errors():
            job = submission.create(wish, self._calls, time.time(), lambda job: self._kept.keep_key(job, key))
            try:
                submission.await_master(self._calls, job, say=say, detached=detached)
            except BaseException:  # also when interrupted: what was started must not go on unseen
                submission.remove(self._calls, job, claim=not wish.settings.volume_claim)
                self._kept.forget_key(job)
                raise
        self._raise_false_start(job)
        if not detached:
            self._tie(job)
        return job

    def resume(
        self,
        job: str,
        beginning: Beginning,
        *,
        options: RunOptions,
        detached: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        with _job_errors():
            one = self._known(job)
            if not summary_of(one, time.time()).over:
                raise JobError(f"{job} runs again already", hint=f"See: dlrover-lite status {job}")
            self._pods.end_reader(job)
            changes = {
                "metadata": {
                    "annotations": again_annotations(one, beginning),
                    "resourceVersion": one.metadata.resource_version,  # nobody else has it go on meanwhile
                },
                "spec": {"replicas": 1},
            }
            self._calls.patch("StatefulSet", job, changes, how="merge")
            submission.await_master(self._calls, job, say=say, detached=detached)
        self._raise_false_start(job)
        if not detached:
            self._tie(job)

    def list(self) -> Sequence[str]:
        return [one.id for one in self.summaries()]

    def summaries(self) -> Sequence[JobSummary]:
        """Return how all jobs are, the oldest first, by a single call."""
        with _job_errors():
            found: _Sets = self._calls.list("StatefulSet", _Sets, labels=_LIST_LABELS)
        now = time.time()
        return sorted((summary_of(one, now) for one in found.items), key=lambda one: (short_id(one.id), one.id))

    def remember(self) -> None:
        """Keep, for other processes, that there are jobs here. Raises JobError."""
        self._kept.note()

    def find(self, reference: str) -> str:
        return match_id(
            reference, self.list(), f"the namespace {self._calls.namespace} of {self.name.context or 'this cluster'}"
        )

    def state(self, job: str) -> JobSummary:
        with _job_errors():
            found = summary_of(self._known(job), time.time())
            if found.state != "starting":
                return found
            pod = self._calls.find("Pod", f"{job}-0", JobPod)
            return msgspec.structs.replace(found, waits_for=why_not_up(pod)[0] if pod is not None else "")

    def wait(self, job: str, timeout_seconds: float | None = None) -> bool:
        if self.state(job).over and job not in self._watches:
            return True
        watch = self._watches.get(job)
        if watch is None:
            watch = self._watches[job] = JobWatch(self._calls, job, pods=True, say=self._say)

        def nothing_runs() -> bool:
            one = watch.job_set
            ended = one is None or summary_of(one, time.time()).over
            return ended and all(pod.component == "reader" or pod.is_over for pod in watch.pods.values())

        if not watch.wait_for(nothing_runs, timeout_seconds):
            return False
        self._watches.pop(job, None)
        watch.stop()
        self._tied.discard(job)
        return True

    def stop(self, job: str, *, cause: StopCause = "request") -> bool:
        with _job_errors():
            one = self._known(job)
            if summary_of(one, time.time()).over:
                return False
            if one.is_wanted:
                changes = {"metadata": {"annotations": stop_annotations(cause)}, "spec": {"replicas": 0}}
                self._calls.patch("StatefulSet", job, changes, how="merge")
            return True

    def kill(self, job: str) -> bool:
        with _job_errors():
            one = self._known(job)
            if summary_of(one, time.time()).over:
                return False
            told = end_annotations(Result("stopped", time.time(), KILLED)) if one.result is None else {}
            changes = {"metadata": {"annotations": {**stop_annotations("kill"), **told}}, "spec": {"replicas": 0}}
            self._calls.patch("StatefulSet", job, changes, how="merge")
            self._pods.kill_all(job, _KILL_GRACE_SECONDS)
            return True

    def purge(self, job: str) -> None:
        """Remove all that is left of a job that is over, its storage with it. A claim that the recipe named stays."""
        with _job_errors():
            if not summary_of(self._known(job), time.time()).over:
                raise JobError(f"{job} still runs", hint=f"Stop it first: dlrover-lite stop {job}")
            settings = self._pods.recipe(job).kubernetes or Kubernetes()
            self._pods.end_reader(job)
            submission.remove(self._calls, job, claim=claim_of(settings, job) == job)
        self._kept.forget_key(job)

    # --- what they have written -----------------------------------------------------------------------------------------

    def files(self, job: str) -> Job:
        self._check_name(job)
        return JobCopy(
            job,
            self._kept.copy_of(job),
            home=Path(STORAGE, "jobs", job),
            fetch=lambda place: self._copy(job, place),
            files=self._files(job),
            recipe=lambda: self._recipe_of(job),
        )

    def _recipe_of(self, job: str) -> Recipe:
        with _job_errors():
            return self._pods.recipe(job)

    def fetch(self, job: str, directory: Path, steps: Steps = no_steps) -> int:
        """Copy all files of a job into a directory; return their number."""
        with _job_errors():
            self._known(job)
        files = self._files(job)
        entries = files.tree()
        copy_files(files, entries, directory, steps)
        return len(entries)

    def _copy(self, job: str, place: Path) -> None:
        """Copy the small files of a job, and have the copy say how it has ended."""
        with _job_errors():
            self._pods.copy(self._known(job), self._files(job), place)
        copy, told = Job(place), self.state(job).result
        if told is not None and told.state != "lost" and copy.result() is None:
            copy.write_result(told)
        elif told is None:  # it goes on
            (place / "result.json").unlink(missing_ok=True)

    def log_names(self, job: str) -> Sequence[str]:
        found = self._files(job).tree("logs") if self._has_files(job) else []
        return sorted(Path(entry.path).stem for entry in found if entry.path.endswith(".log"))

    def log(self, job: str, node: str, *, last_lines: int | None = None) -> Log:
        with _job_errors():
            self._known(job)
        Job(Path(job)).log(node)  # raises for a name that no node has
        files = self._files(job)

        def part(path: str, offset: int, most_bytes: int) -> FilePart:
            return files.part(path, offset, most_bytes) if self._has_files(job) else FilePart(memoryview(b""), offset)

        return RemoteLog(f"logs/{node}.log", part, last_lines=last_lines)

    def _files(self, job: str) -> JobFiles:
        def ask(request: msgspec.Struct, expected: type[Any], frames: Sequence[Any]) -> tuple[Any, Reply]:
            with _job_errors():
                return self._pods.ask(job, request, expected, frames)

        return JobFiles(ask)

    def _has_files(self, job: str) -> bool:
        """Return whether there is a pod with the job's files, or can be."""
        with _job_errors():
            return self._pods.endpoint(self._known(job), FILES_PORT) is not None

    @contextmanager
    def address(self, job: str) -> Iterator[Address | None]:
        if (known := self._trusted_master(job)) is not None:
            yield known
            return
        connector = None
        with _job_errors():
            one = self._known(job)
            listens = not summary_of(one, time.time()).over
            if listens:
                listens = self._pods.endpoint(one, FILES_PORT) is not None and _has_master(self._files(job))
            found = self._pods.endpoint(one, MASTER_PORT) if listens else None
            if found is not None:
                connector = self._pods.connector(one)
        yield None if found is None or connector is None else Address(found, connector)

    def _trusted_master(self, job: str) -> Address | None:
        """Return where its master was a moment ago, if its pod says that it still is: whoever watches a job asks every other second,
        which is to cost the API server nothing."""
        if self._pods.trusted(job, MASTER_PORT) is None:
            return None
        with _job_errors():
            listens = _has_master(self._files(job))
            found = self._pods.trusted(job, MASTER_PORT) if listens else None
        return None if found is None else Address(*found)

    def history(self, job: str) -> PodHistory:
        return PodHistory(lambda: self._files_address(job))

    def _files_address(self, job: str) -> Address:
        with _job_errors():
            one = self._known(job)
            endpoint = self._pods.endpoint(one, FILES_PORT)
            if endpoint is None:
                raise JobError(f"No pod of {job} runs so far that could be asked", hint="Ask again in a moment.")
            return Address(endpoint, self._pods.connector(one))

    # --- this process ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End what this process has for reaching jobs: watches, port-forwards, reader pods."""
        atexit.unregister(self.close)
        for job in list(self._tied):
            with suppress(JobError):
                self.stop(job)
        self._tied.clear()
        for watch in self._watches.values():
            watch.stop()
        self._watches.clear()
        self._pods.close()

    def _tie(self, job: str) -> None:
        self._tied.add(job)
        atexit.register(self.close)

    def _known(self, job: str) -> JobSet:
        """Return the StatefulSet of a job. Raises JobError where there is none, ApiProblem where that can't be told."""
        self._check_name(job)
        found: JobSet | None = self._calls.find("StatefulSet", job, JobSet)
        if found is None or found.metadata.labels.get("app.kubernetes.io/name") != APP:
            raise JobError(f"There is no job {job} in {self.name}", hint="All: dlrover-lite jobs")
        return found

    @staticmethod
    def _check_name(job: str) -> None:
        if _NAME.match(job) is None:
            raise JobError(f"No job is called {job!r}", hint="All: dlrover-lite jobs")

    def _wish(
        self, recipe: Recipe, options: RunOptions, beginning: Beginning | None, seen: Resources | None = None
    ) -> submission.Wish:
        settings = recipe.kubernetes
        if settings is None:
            raise JobError(
                "The recipe says `backend: local`: its job doesn't run in a cluster", hint="run --backend k8s"
            )
        if not settings.image:
            raise JobError("The recipe names no image for its pods", hint="backend.k8s.image, or: run --image REF")
        recipe_in_pod(recipe)
        chosen = pod_options(
            self._given,
            options,
            takes_checkpoints=recipe.checkpoint != "off",
            shares_brain=bool(settings.brain),
        )
        chosen = msgspec.structs.replace(chosen, seen_capacity=seen)
        return submission.Wish(recipe, settings, chosen, beginning, JobKey.generate().text())

    def _raise_false_start(self, job: str) -> None:
        """Raise JobError for a job whose master's keeper didn't come up: it is a failed one."""
        summary = self.state(job)
        if summary.started_at is None and summary.result is not None and summary.result.state == "failed":
            raise JobError(summary.result.message, hint=summary.result.hint)


def _has_master(files: FileClient) -> bool:
    """Return whether a master of the job listens."""
    return (
        files.part(f"{RUNTIME}/{MASTER_ENDPOINT_FILE}", 0, 0).is_there and not files.part("result.json", 0, 0).is_there
    )


@contextmanager
def _job_errors() -> Iterator[None]:
    """Make errors of the cluster those of a job: what commands expect."""
    try:
        yield
    except BackendError as error:
        conflict = isinstance(error, ApiProblem) and error.status == 409
        hint = "Somebody else has changed the job meanwhile: look at it again." if conflict else error.hint
        raise JobError(error.message, hint=hint) from error
