"""The first process of a master's pod (``python -P -m dlrover_lite.backends.k8s.jobs.master_pod``).

It makes the job's directory on its volume, or takes it up; starts the keeper, which runs the master and starts it again; tells the cluster
how the job is; and at its end removes its pods, and has itself removed. A pod that is deleted while the job is wanted leaves everything as
it is: the next one goes on. SIGTERM means either: what the StatefulSet says decides.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect
from dlrover_lite.backends.k8s.api.problems import ApiProblem, Unreachable
from dlrover_lite.backends.k8s.jobs.code_files import HISTORY
from dlrover_lite.backends.k8s.jobs.job_state import JobSet, end_annotations, running_annotations
from dlrover_lite.backends.k8s.jobs.job_watch import JobPod
from dlrover_lite.backends.k8s.jobs.past_jobs import take_up_history
from dlrover_lite.backends.k8s.jobs.pod_options import PodOptions
from dlrover_lite.backends.k8s.objects.job import RUNTIME, STORAGE
from dlrover_lite.backends.k8s.objects.job_events import job_event
from dlrover_lite.backends.k8s.objects.names import FILES_PORT, MASTER_PORT, job_labels
from dlrover_lite.backends.k8s.objects.node_pod import JOB_FILES
from dlrover_lite.backends.keeper.options import KeeperOptions, KeeperReady
from dlrover_lite.backends.keeper.restarts import Restarts
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BackendError, JobError
from dlrover_lite.core.files.durable import open_private
from dlrover_lite.core.processes.log import log, log_to
from dlrover_lite.jobs.store import Job, Result, take_up_job, this_process
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE
from dlrover_lite.transport.endpoints import tcp_address

__all__ = ["MasterPod", "Surroundings", "keeper_options", "take_up"]

_POLL_SECONDS = 1.0
_MOST_KEEPERS = 10
"""How often within an hour a keeper that was killed, with no result of its job, is started again."""
_NODE_GRACE_SECONDS = 5
_WRITABLE = ("checkpoints", "export")
"""Directories of the job that its nodes write to."""
_PODS_SECONDS = 120.0
"""Seconds to wait for the job's pods to be gone."""
_STOP_SIGNALS: dict[str, signal.Signals] = {
    "request": signal.SIGTERM,
    "terminal closed": signal.SIGHUP,
    "suspend": signal.SIGUSR1,
    "kill": signal.SIGQUIT,
}

End = Literal["over", "moves"]
"""Why the pod ends: the job is over, or goes on in another pod."""


class Surroundings(msgspec.Struct, frozen=True):
    """What the pod's environment says of it."""

    job: str
    pod: str
    listen: str
    """Address that its servers listen at: all that the pod has, as a port-forward comes to loopback."""
    namespace: str

    @classmethod
    def of_this_process(cls) -> Surroundings:
        names = ("JOB", "POD", "LISTEN", "NAMESPACE")
        return cls(*(os.environ[f"DLROVER_LITE_{name}"] for name in names))


class _Pods(msgspec.Struct):
    items: list[JobPod] = []


def keeper_options(options: PodOptions, around: Surroundings) -> KeeperOptions:
    """Return how the keeper runs the master: alone, at the pod's addresses, of which nodes know one by the Service's name."""
    return msgspec.structs.replace(
        options.keeper,
        runs_nodes=False,
        transport="tcp",
        listen=f"{tcp_address(around.listen)}:{MASTER_PORT}",
        advertised=f"tcp://{around.job}.{around.namespace}.svc:{MASTER_PORT}",
        runtime=f"{STORAGE}/jobs/{around.job}/{RUNTIME}",  # commands look there for whether a master listens
    )


def take_up(directory: Path, recipe: Recipe, job_set: JobSet) -> Job:
    """Return the job with its directory as this attempt goes on with it, which is made if it isn't there. Raises JobError."""
    is_new = not (directory / "job.json").exists()
    job = take_up_job(directory, recipe, created_at=job_set.created_at)
    noted = directory / "attempt"
    last = 0 if is_new or not noted.exists() else int(noted.read_text() or 0)
    begins = job_set.beginning
    if last < job_set.attempt:
        if job_set.attempt > 1 and begins is not None:
            job.start_again(begins, launcher=this_process(), detached=True, is_over=lambda: True)
        elif begins is not None:
            job.write_beginning(begins)
        noted.write_text(str(job_set.attempt))
    key = os.environ.get(KEY_FILE_VARIABLE, "")
    if key and not job.key_file.exists():
        job.key_file.unlink(missing_ok=True)
        job.key_file.symlink_to(key)  # it stays in the job's Secret
    return job


class MasterPod:
    def __init__(self, calls: Calls, around: Surroundings, told: Callable[[float], bool]) -> None:
        """``told`` waits for so many seconds for the pod to be ended; returns whether it is."""
        self._calls, self._around, self._told = calls, around, told
        self._restarts = Restarts(_MOST_KEEPERS, 0.0)
        self._moves = False
        """The job goes on in another pod."""
        self._said: set[str] = set()

    def run(self) -> End:
        """Run the job to its end, or until this pod has to go."""
        job_set = self._job_set()
        if job_set.result is not None:
            log("The job is over already")
            self._remove_pods()
            self._scale_down()
            return "over"
        options = from_json(Path(JOB_FILES, "options.json").read_bytes(), PodOptions)
        recipe = from_json(Path(JOB_FILES, "recipe.json").read_bytes(), Recipe)
        job = take_up(Path(STORAGE, "jobs", self._around.job), recipe, job_set)
        take_up_history(Path(JOB_FILES, HISTORY))
        stop_serving = threading.Event()
        serving = threading.Thread(target=self._keep_file_service, args=(job, stop_serving), name="file-service")
        serving.start()
        try:
            if job.result() is None and self._keep(job, options, job_set) == "moves":
                return "moves"
            self._finish(job)
            self._told(_PODS_SECONDS)  # the files are served until the pod is deleted
            return "over"
        finally:
            stop_serving.set()
            serving.join()

    # --- the keeper -----------------------------------------------------------------------------------------------------

    def _keep(self, job: Job, options: PodOptions, job_set: JobSet) -> End:
        """Run keepers until one has brought the job to its end."""
        while True:
            keeper = self._start_keeper(job, options)
            if keeper is not None:
                if not job_set.is_wanted:  # it was stopped before anybody listened
                    keeper.send_signal(_STOP_SIGNALS[job_set.stop])
                if self._stay(keeper, job.record().started_at or time.time()) == "moves":
                    return "moves"
            if job.result() is not None:
                return "over"
            if keeper is None or not self._restarts.after_death(time.monotonic()):
                message = f"the job's keeper ended without a result:\n{job.last_log_lines('keeper')}"
                job.write_result(Result("failed", time.time(), message, f"Its log: {job.log('keeper')}"))
                return "over"
            log("The keeper was killed: it is started again")

    def _start_keeper(self, job: Job, options: PodOptions) -> subprocess.Popen[bytes] | None:
        """Start a keeper, and wait until it is up. None: it isn't, and has left a result."""
        ready, ready_end = os.pipe()
        chosen = msgspec.json.encode(keeper_options(options, self._around)).decode()
        command = [sys.executable, "-P", "-m", "dlrover_lite.backends.keeper.keeper", str(job.directory)]
        command += ["--options", chosen, "--ready", str(ready_end)]
        with os.fdopen(open_private(job.log("keeper"), os.O_WRONLY | os.O_APPEND), "ab") as output:
            keeper = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[ready_end]
            )
        os.close(ready_end)
        with os.fdopen(ready, "rb") as pipe:
            said = pipe.read()
        told = from_json(said, KeeperReady) if said else KeeperReady("the keeper ended before it was up")
        if not told.error:
            return keeper
        log(told.error)
        keeper.wait()
        return None

    def _stay(self, keeper: subprocess.Popen[bytes], started_at: float) -> End:
        """Stay with a keeper until it has ended, whether or not the API answers. SIGTERM is passed on where the job is to end, by the
        signal for that."""
        running = running_annotations(started_at)
        told, asked = self._try(lambda: self._annotate(running)), False
        while keeper.poll() is None:
            told = told or self._try(lambda: self._annotate(running))
            if not self._told(_POLL_SECONDS):
                continue
            asked = asked or self._try(lambda: self._ask_to_end(keeper))
            with suppress(subprocess.TimeoutExpired):
                keeper.wait(_POLL_SECONDS)
        return "moves" if self._moves else "over"

    def _ask_to_end(self, keeper: subprocess.Popen[bytes]) -> None:
        """Have a keeper end its job, or just end where the job goes on in another pod. Raises BackendError where that can't be told."""
        job_set = self._job_set()
        if job_set.is_wanted:
            log("This pod is ended, and the job isn't: it goes on in another one")
            self._moves = True
            keeper.kill()
        else:
            log(f"The job is to end: {job_set.stop}")
            keeper.send_signal(_STOP_SIGNALS[job_set.stop])

    def _try(self, do: Callable[[], None]) -> bool:
        """Do something that the API may refuse, or not answer, for now; return whether it is done. Each reason is told once."""
        try:
            do()
        except BackendError as problem:
            if problem.message not in self._said:
                self._said.add(problem.message)
                log(f"Trying again: {problem.message}")
            return False
        return True

    # --- the end --------------------------------------------------------------------------------------------------------

    def _finish(self, job: Job) -> None:
        """Tell how the job has ended, remove its pods, and have this pod removed. (It is told first: while pods end, somebody asks.)"""
        result = job.result()
        assert result is not None
        log(f"The job has ended: {result.state} {result.message}")
        if self._job_set().result is None:
            self._annotate(end_annotations(result))
        self._remove_pods()
        self._tell(result)
        self._scale_down()

    def _remove_pods(self) -> None:
        """Delete the job's other pods, and wait until they are gone."""
        end = time.monotonic() + _PODS_SECONDS
        while others := [pod for pod in self._pods() if pod.component not in ("master", "reader")]:
            for pod in others:
                if pod.metadata.deletion_timestamp is None:
                    name = pod.metadata.name
                    self._calls.delete("Pod", name, propagation="Background", grace_seconds=_NODE_GRACE_SECONDS)
            if time.monotonic() > end:
                log(f"Pods that don't end: {', '.join(pod.metadata.name for pod in others)}")
                return
            time.sleep(0.2)

    def _pods(self) -> list[JobPod]:
        found: _Pods = self._calls.list("Pod", _Pods, labels=job_labels(self._around.job))
        return found.items

    def _scale_down(self) -> None:
        self._calls.patch("StatefulSet", self._around.job, {"spec": {"replicas": 0}}, subresource="scale", how="merge")

    def _tell(self, result: Result) -> None:
        """Write an event on the StatefulSet, for `kubectl describe`."""
        event = job_event(
            self._around.job,
            self._around.namespace,
            self._job_set().metadata.uid,
            reason=result.state.capitalize(),
            message=result.message or f"the job has {result.state}",
            at=time.time(),
            warns=result.state not in ("succeeded", "stopped", "suspended"),
        )
        try:
            self._calls.create(event)
        except BackendError as problem:  # an optional right
            log(f"No event is written: {problem.message}")

    # --- the cluster ----------------------------------------------------------------------------------------------------

    def _job_set(self) -> JobSet:
        found: JobSet = self._calls.get("StatefulSet", self._around.job, JobSet)
        return found

    def _annotate(self, annotations: dict[str, str]) -> None:
        """Change the annotations of the StatefulSet, by the right to its status: not to what its pods are."""
        changes = {"metadata": {"annotations": annotations}}
        self._calls.patch("StatefulSet", self._around.job, changes, subresource="status", how="merge")

    def _keep_file_service(self, job: Job, stop: threading.Event) -> None:
        """Keep up the process by which nodes write checkpoints and models to the job's directory, and commands read it."""
        served = [str(job.directory), f"{tcp_address(self._around.listen)}:{FILES_PORT}", "--writable", *_WRITABLE]
        command = [sys.executable, "-P", "-m", "dlrover_lite.backends.k8s.jobs.files.server", *served]
        while not stop.is_set():
            with os.fdopen(open_private(job.log("files"), os.O_WRONLY | os.O_APPEND), "ab") as output:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            while process.poll() is None and not stop.wait(_POLL_SECONDS):
                pass
            if process.poll() is None:
                process.terminate()
            process.wait()


def main() -> int:
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    log_to("stderr")
    for name in ("TMPDIR", "HOME"):
        Path(os.environ.get(name, "/tmp")).mkdir(parents=True, exist_ok=True)
    calls = Calls(connect(), clock=time.monotonic, sleep=time.sleep, patience_seconds=60.0)
    while True:
        try:
            end = MasterPod(calls, Surroundings.of_this_process(), ending.wait).run()
            log("The job is over" if end == "over" else "The job goes on in another pod")
            return 0
        except (ApiProblem, Unreachable, JobError) as error:
            log(str(error))
            if ending.wait(5.0):
                return 1


if __name__ == "__main__":
    sys.exit(main())
