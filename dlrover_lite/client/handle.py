"""Starting a job and holding on to it, from Python, a notebook or the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from dlrover_lite.brain_server.brain_process import begin
from dlrover_lite.client import job_sources, scaling
from dlrover_lite.core.errors import JobError, RemoteError, UsageError, WireError
from dlrover_lite.jobs import events, final_status, profiles
from dlrover_lite.jobs.backend import JobBackend, JobSummary, Log, RunOptions
from dlrover_lite.jobs.store import Beginning, Job, Result, State
from dlrover_lite.protocol import messages, questions
from dlrover_lite.protocol.brain_mode import brain_mode
from dlrover_lite.protocol.hosts import Host, total_of
from dlrover_lite.recipe.schema import Recipe

if TYPE_CHECKING:
    from dlrover_lite.client.resuming import Chosen
    from dlrover_lite.core.units import Resources
    from dlrover_lite.jobs.profiles import Gap
    from dlrover_lite.protocol.profiles import Profile

__all__ = [
    "JobHandle",
    "go_on",
    "job_backend",
    "launch",
    "list_jobs",
    "resolve",
    "resume",
    "run",
    "these_hosts",
    "this_machine",
]

_ANSWER_DEADLINE_SECONDS = 20.0
"""Seconds to wait for the master's answer: a master that was killed is back before, on a slow machine too."""
_POLL_SECONDS = 0.1
_NO_SLOTS = "there are no slots to move"

A = TypeVar("A")
Recipes = str | Path | Mapping[str, Any] | Recipe
"""Types that a recipe may be given as: a file, a mapping, or itself."""
Autoscaling = Literal["status", "pause", "resume", "accept", "reject"]


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(recipe: Recipes, *, wait: bool = False, detach: bool = False, **overrides: Any) -> JobHandle:
    """Start a job and return once it is up, or with ``wait`` once it has ended.

    ``recipe`` is a file, a mapping or a ``Recipe``; overrides are dotted (``**{"training.epochs": 2}``) or nested
    (``training={"epochs": 2}``). The job stops when this interpreter ends, unless it is detached.
    Raises RecipeError for a recipe that can't be run, JobError when the job can't be started.
    """
    handle = launch(resolve(recipe, overrides), detach=detach)
    if wait:
        handle.wait()
    return handle


def resolve(recipe: Recipes, overrides: Mapping[str, Any]) -> Recipe:
    """Return a recipe as a job on this machine gets it, with every default filled in; ``run`` says what the arguments may be.

    Raises RecipeError.
    """
    from dlrover_lite.recipe.load import load_recipe, parse_recipe, resolved_yaml

    changes = dict(dotted(overrides))
    if isinstance(recipe, str | Path):
        return load_recipe(recipe, changes, machine=this_machine())
    plain = resolved_yaml(recipe) if isinstance(recipe, Recipe) else recipe
    return parse_recipe(plain, overrides=changes, machine=this_machine())


def dotted(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in overrides.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def job_backend(recipe: Recipe | None = None) -> JobBackend:
    """Return what runs jobs of a recipe; None: those of this machine. Raises BackendError for a cluster that can't be found."""
    if recipe is not None and recipe.kubernetes is not None:
        return job_sources.cluster_jobs(recipe.kubernetes)
    return job_sources.local_jobs()


def these_hosts() -> list[Host]:
    """Return the hosts that the nodes of jobs which are started here may run on."""
    return job_backend().capacity()


def this_machine() -> Resources:
    """Return the cores and memory that jobs can have here."""
    return total_of(these_hosts())


class JobHandle:
    """One job, started here or found again. Works in notebooks: no signal handlers, no threads, no event loop."""

    def __init__(self, job: str, backend: JobBackend | None = None) -> None:
        """``job``: its id, whole. ``backend``: what runs the job; None: this machine."""
        self.id = job
        self._backend = job_backend() if backend is None else backend
        self._has_answered = False
        """Whether its master has."""

    @classmethod
    def find(cls, reference: str = "last") -> JobHandle:
        """Return a handle on the job with this id, unique start of one, or the newest; it need not have been started here, and may be in
        a cluster that jobs were submitted to from here."""
        return cls(*job_sources.find(reference))

    @property
    def backend(self) -> JobBackend:
        """What runs the job."""
        return self._backend

    @property
    def source(self) -> str:
        """Name of where the job is, as lists of jobs have it."""
        return self._backend.source

    @cached_property
    def job(self) -> Job:
        """The job's files, as they can be read from here."""
        return self._backend.files(self.id)

    @property
    def directory(self) -> Path:
        return self.job.directory

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}: {self.state()}>"

    def state(self) -> State:
        return self.known().state

    def known(self) -> JobSummary:
        """Return what is known of the job without asking its master. Raises JobError when that can't be found out."""
        return self._backend.state(self.id)

    def result(self) -> Result | None:
        """Return how the job ended, and in ``hint`` what it can go on from now; None while it runs."""
        from dlrover_lite.jobs import endings

        return endings.ended(self.job, self.known())

    def logs(self) -> dict[str, Path]:
        """Log files by process: ``keeper``, ``master``, ``template`` and the nodes' ids."""
        return {path.stem: path for path in sorted(self.job.logs.glob("*.log"))}

    def log_names(self) -> Sequence[str]:
        """List whose logs can be read: as ``logs``, wherever they are."""
        return self._backend.log_names(self.id)

    def log(self, process: str, *, last_lines: int | None = None) -> Log:
        """Return the log of a process, read as it grows; at most so many of the lines there are, the last."""
        return self._backend.log(self.id, process, last_lines=last_lines)

    def wait(self, timeout: float | None = None, *, progress: bool | None = None) -> Result:
        """Wait until the job has ended and nothing of it runs any more. A failed job is a result too, not an exception.

        ``timeout`` is in seconds; raises TimeoutError after it (the job goes on). ``progress``: show on stderr how it gets on, a line that
        is redrawn; None: in a terminal and in a notebook only.
        """
        from dlrover_lite.client.progress_line import ProgressLine, follow, redraws

        if progress or (progress is None and redraws(sys.stderr)):
            return follow(self, ProgressLine(sys.stderr), timeout)
        if not self._backend.wait(self.id, timeout):
            raise TimeoutError(f"{self.id} still runs after {timeout:g} s")
        result = self.result()
        if result is None:
            raise JobError(f"{self.id} has been started again meanwhile", hint=f"See: dlrover-lite status {self.id}")
        return result

    def stop(self, *, kill: bool = False, now: bool = False) -> bool:
        """Ask the job to stop cleanly, after a last checkpoint; with ``now`` without one, and with ``kill`` at once. Returns immediately:
        ``wait`` waits for the end.

        Returns whether there was something to tell: not in the first moments of a job, when it is to be asked again, nor after its end.
        """
        if kill:
            return self._backend.kill(self.id)
        return (now and self._stop_now()) or self._backend.stop(self.id)

    def suspend(self) -> bool:
        """Have the job end to go on later (``resume``): once a checkpoint is durable, and after a last one. Returns immediately then:
        ``wait`` waits for the end.

        Returns as ``stop``. Raises JobError, and the job goes on, when it takes no checkpoints, or they can't be written.
        """
        if self.job.recipe.checkpoint == "off":
            raise JobError(
                f"{self.id} can't be suspended: its recipe says `checkpoint: off`, and what it has learned would be gone",
                hint=f"To end it all the same: dlrover-lite stop {self.id}",
            )
        self.checkpoint()
        return self._backend.stop(self.id, cause="suspend")

    def _stop_now(self) -> bool:
        """Return whether there was a master to tell."""
        try:
            return self._ask_master(questions.StopRequest(now=True), messages.Ack) is not None
        except JobError:
            return False

    def checkpoint(self, *, wait: bool = True) -> int:
        """Take a checkpoint of all that is trained by now; its number. With ``wait``, return when it is durable; without, at once: it, or
        the next one that is complete, will hold it all.

        Raises JobError when the job has ended, takes none, or the checkpoint can't be written (it is tried again, though).
        """
        nothing = "there is nothing to take a checkpoint of"
        number = self._wish(questions.CheckpointRequest(), questions.CheckpointPromise, nothing).number

        def is_complete() -> bool:
            status = self._status()
            return status is not None and final_status.has_checkpoint(status, number)

        while wait and not is_complete():
            try:
                result = self.wait(_POLL_SECONDS, progress=False)
            except TimeoutError:
                continue
            if not is_complete():
                raise JobError(f"{self.id} has ended ({result.state}) before checkpoint {number} was complete")
            break
        return number

    def hang_up(self) -> None:
        """Stop the job as ``stop`` does, for the reason that the terminal of the command that started it was closed."""
        self._backend.stop(self.id, cause="terminal closed")

    def status(self) -> questions.Status:
        """Return what the job is doing, from its master; once it has ended, how it was at the end.

        Raises JobError when the master doesn't answer.
        """
        if (found := self._status()) is None:
            raise JobError(
                f"The master of {self.id} has just ended: it is started again, or the job is over in a moment"
            )
        return found

    def _status(self) -> questions.Status | None:
        """Return the status of the job; None while there is no master, though one has answered before. Raises as ``status``."""
        from dlrover_lite.jobs import endings

        def last() -> questions.Status | None:
            return endings.last_status(self.job, self.known())

        if (ended := last()) is not None:
            self._has_answered = False  # it may go on with another master
            return ended
        try:
            status = self.ask_status()
        except JobError:
            if (ended := last()) is not None:  # it has just ended
                return ended
            if self.job.status() is not None:
                raise
            status = None  # a new master has its first word when it has opened the data, and indexed it
        if status is not None:
            self._has_answered = True
            return status
        if (ended := last()) is not None:
            return ended
        return None if self._has_answered else final_status.starting(self.job, self.known().waits_for)

    def ask_status(self) -> questions.Status | None:
        """Ask its master what the job is doing; None while none listens. Raises JobError when it doesn't answer."""
        return self._ask_master(questions.StatusRequest(), questions.Status)

    def scale(self, *, workers: int | None = None, ps: int | None = None) -> list[str]:
        """Have so many nodes of a role from now on; None leaves a role as it is. Returns what follows from it, in words; nothing when
        there are that many already.

        Raises UsageError for numbers that can't be, JobError when the job has ended, has no master yet, or refuses.
        """
        scaling.check(workers, ps)
        wish = questions.ScaleRequest(workers, ps)
        return self._wish(wish, questions.Scaled, lambda last: scaling.has_ended(self.job, last, workers, ps)).actions

    def move(self, slots: Iterable[int] | str | None = None, to: str = "", *, source: str | None = None) -> list[str]:
        """Move slots to the PS ``to`` while training goes on: numbers, a text like "0-99,200", or with ``source`` all that PS has.
        Returns what follows from it, in words; nothing when they are there already.

        Raises UsageError for slots or a PS that can't be, JobError when the job has ended, has no slot map yet, or refuses.
        """
        from dlrover_lite.core.slot_sets import pack

        if (slots is None) == (source is None):
            raise UsageError("Which slots? Name either the slots, or the parameter server that has them")
        members = scaling.slot_set(slots) if slots is not None else scaling.slots_of(self.slot_map(), source or "")
        return self._wish(questions.MoveRequest(pack(members), to), questions.Scaled, _NO_SLOTS).actions

    def cancel_moves(self) -> list[str]:
        """Cancel the moves of slots that aren't committed, and what they were for; returns what follows from it, in words.

        Raises JobError as ``move``.
        """
        return self._wish(questions.CancelMovesRequest(), questions.Scaled, _NO_SLOTS).actions

    def drain(self, node: str, *, replace: bool = False) -> list[str]:
        """End a node in good order: a PS once its slots have moved to others, with ``replace`` when a new one is there; a worker
        after its minibatch. Returns what follows from it, in words; nothing when it is about to leave already.

        Raises UsageError for a node that can't be, JobError when the job has ended, or refuses.
        """
        return self._wish(questions.DrainRequest(node, replace), questions.Scaled, "there is no node to drain").actions

    def kill(self, node: str) -> list[str]:
        """End a node at once; another one takes its place. No sample is lost by it, or counts twice: what a worker hasn't finished others
        do again, and what a PS holds is found in memory. Returns what follows from it, in words; nothing when it is being killed already.

        Raises as ``drain``.
        """
        return self._wish(questions.KillRequest(node), questions.Scaled, "there is no node to kill").actions

    def resize(self, node: str, *, cores: float | None = None, memory: int | str | None = None) -> list[str]:
        """Change the limits of one node while it runs: cores, and memory in bytes or as "2GiB"; None leaves either as it is. Returns what
        follows from it, in words; nothing when it has that already. One that takes its place later is as large as the plan says.

        Raises UsageError for a node or limits that can't be, JobError when the job has ended, has no master yet, or refuses.
        """
        wish = questions.ResizeRequest(node, *scaling.limits(cores, memory))
        return self._wish(wish, questions.Scaled, "there is no node to resize").actions

    def autoscale(self, what: Autoscaling = "status", *, decision: int | None = None) -> questions.AutoscaleStatus:
        """Hold what the brain decides for this job, or let it go on; accept or reject what it suggests, only if that is ``decision``. How
        that stands then.

        Raises JobError when the job has ended, has no master yet, or there is nothing to accept or reject, or it doesn't fit any more.
        """
        return self._wish(
            questions.AutoscaleRequest(what, decision), questions.AutoscaleStatus, "there is no plan to change"
        )

    def slots(self, hottest: int = 10) -> questions.SlotsReport:
        """Return what is measured of parameter servers and their slots, and the ``hottest`` slots, those that keep a PS the busiest first.

        Raises JobError when the job has ended, or there is no slot map yet.
        """
        report = self._wish(questions.SlotsRequest(hottest), questions.SlotsReport, "there are no slots to measure")
        if not report.slot_map_version:
            raise self._no_map()
        return report

    def profiles(self, *, on_damage: Callable[[str], None] = lambda _: None) -> Sequence[Profile | Gap]:
        """Return what was measured of its nodes, an interval after the other, whether or not it runs. ``on_damage`` is told what can't be
        read.

        Raises JobError when the file can't be read."""
        return profiles.read(self.directory, on_damage)

    def slot_map(self, *, is_there: bool = False) -> messages.Topology:
        """Ask which PS owns which slots now; ``is_there``: its master has just told that there is a map. Raises JobError when the job has
        ended, or there is no map yet."""
        if not is_there and self.state() == "running" and not self.status().slot_map_version:
            raise self._no_map()
        return self._wish(messages.TopologyRequest(""), messages.Topology, _NO_SLOTS)

    def _no_map(self) -> JobError:
        return JobError(f"{self.id} has no slot map yet: its parameter servers are starting; ask again in a moment")

    def _wish(self, wish: msgspec.Struct, answer: type[A], ended: str | Callable[[questions.Status], JobError]) -> A:
        """Ask the master of a job that runs; ``ended`` is what to say of one that doesn't any more ("there is no node to drain"), or makes
        the error."""
        try:
            told = self._ask_master(wish, answer)
            if told is None:
                raise JobError(f"{self.id} has no master yet: it is just starting; ask again in a moment")
            return told
        except JobError:
            if self._has_ended():
                last = self.status()
                raise (scaling.too_late(self.job, last, ended) if isinstance(ended, str) else ended(last)) from None
            raise

    def story(self, subject: str = "", *, on_damage: Callable[[str], None] = lambda _: None) -> questions.Story:
        """Return what has happened to a node (``worker-1``, ``master``), to minibatches (``0/17``, ``0/100-200``, ``eval:0/5``), or ("")
        everything that is kept: from the master, or where there is none any more from the job's directory; ``on_damage`` is told what
        couldn't be read there.

        Raises UsageError for a subject that can't be or never was, naming the nearest ones; JobError when the master doesn't answer.
        """
        subject = str(events.parse_subject(subject))
        if self.job.result() is None:
            try:
                told = self._ask_master(questions.StoryRequest(subject), questions.Story)
            except JobError:
                if not self._has_ended():
                    raise
                told = None
            if told is not None:
                return told
        nodes = [node.id for node in self.status().nodes]
        return events.find(events.read(self.directory, on_damage), subject, nodes=nodes)

    def _has_ended(self) -> bool:
        """Return whether there will never be a master again."""
        return self.state() not in ("starting", "running")

    def _ask_master(self, question: msgspec.Struct, answer: type[A]) -> A | None:
        """Ask the master; None where there is none, or not yet. Raises JobError when the master doesn't answer, or can't do it; UsageError
        when what it was asked for can't be."""
        from dlrover_lite.transport.frames import UNUSABLE

        try:
            with self._backend.address(self.id) as address:
                if address is None:
                    return None
                client = address.connector.client(address.endpoint, messages.MasterReplies, peer="the master")
                try:
                    body = client.call(
                        question, deadline_seconds=_ANSWER_DEADLINE_SECONDS, has_ended=self._has_ended
                    ).body
                finally:
                    client.close()
        except RemoteError as error:
            if error.code == UNUSABLE:
                raise UsageError(error.message, hint=error.hint) from error
            raise JobError(error.message, hint=error.hint) from error
        except WireError as error:
            message = f"The master of {self.id} did not answer: {error.message}"
            raise JobError(message, hint=f"Its log: {self.job.log('master')}") from error
        if not isinstance(body, answer):
            raise JobError(f"The master of {self.id} answered with {type(body).__name__}")
        return body


def list_jobs() -> list[JobHandle]:
    """Find all jobs of this machine, the oldest first, whether or not they run."""
    backend = job_backend()
    return [JobHandle(job, backend) for job in backend.list()]


def launch(
    recipe: Recipe,
    *,
    detach: bool = False,
    options: RunOptions | None = None,
    beginning: Beginning | None = None,
    backend: JobBackend | None = None,
    say: Callable[[str], None] = _to_stderr,
) -> JobHandle:
    """Start a job of a resolved recipe, in a session of its own (the terminal's ctrl-C doesn't reach it); with the cut it begins with.
    ``options``: None: as the environment says. ``say`` is told if the brain has to be started for it, and what it
    waits for.

    Raises JobError, with its last words, when it doesn't come up.
    """
    backend = job_backend(recipe) if backend is None else backend
    options = options or RunOptions(brain_mode())
    backend.dry_run(recipe)  # before anything is started for it
    if recipe.kubernetes is None:  # else its brain is in the cluster
        begin(options.brain, say)
    job = backend.submit(recipe, options=options, detached=detach, beginning=beginning, say=say)
    return JobHandle(job, backend)


def resume(
    reference: str = "last",
    *,
    cut: int | None = None,
    detach: bool = False,
    options: RunOptions | None = None,
    backend: JobBackend | None = None,
) -> JobHandle:
    """Go on with a job that has ended before it was done, from its newest checkpoint that can be used, or ``cut``.

    Raises JobError when it can't go on: it runs, has succeeded, has no checkpoint, or its data are others now.
    """
    from dlrover_lite.client import resuming

    found = JobHandle.find(reference)
    chosen = resuming.chosen_for(found.job, cut)
    return go_on(found.job, chosen, detach=detach, options=options, backend=backend or found.backend)


def go_on(
    job: Job,
    chosen: Chosen,
    *,
    detach: bool = False,
    options: RunOptions | None = None,
    backend: JobBackend | None = None,
    say: Callable[[str], None] = _to_stderr,
) -> JobHandle:
    """Go on with a job that has ended, from this checkpoint. ``options`` and ``say`` as of ``launch``. Raises JobError."""
    from dlrover_lite.client import resuming

    backend = job_backend() if backend is None else backend
    options = options or RunOptions(brain_mode())
    backend.dry_run(job.recipe)
    if job.recipe.kubernetes is None:
        begin(options.brain, say)
    backend.resume(job.id, resuming.next_beginning(job, chosen, options), options=options, detached=detach, say=say)
    return JobHandle(job.id, backend)
