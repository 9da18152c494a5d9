"""Starting a job and holding on to it, from Python, a notebook or the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from dlrover_lite.backends.local.launching import Started, check_process_limits, environment, start
from dlrover_lite.backends.local.leftovers import sweep
from dlrover_lite.backends.local.options import KeeperOptions
from dlrover_lite.backends.local.systemd_scope import scoped
from dlrover_lite.brain_server.brain_process import begin
from dlrover_lite.core.errors import JobError, RemoteError, UsageError, WireError
from dlrover_lite.core.processes import send_signal, wait_for_end
from dlrover_lite.jobs.store import Beginning, Job, JobRecord, Result, State, find_job
from dlrover_lite.jobs.store import list_jobs as stored_jobs
from dlrover_lite.protocol.brain_mode import BrainMode, brain_mode
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.endpoints import TransportKind

if TYPE_CHECKING:
    from dlrover_lite.client.resuming import Chosen
    from dlrover_lite.core.slots import SlotSet
    from dlrover_lite.core.units import Resources
    from dlrover_lite.jobs.profiles import Gap
    from dlrover_lite.protocol.hosts import Host
    from dlrover_lite.protocol.messages import AutoscaleStatus, SlotsReport, Status, Story, Topology
    from dlrover_lite.protocol.nodes import Enforcement
    from dlrover_lite.protocol.plans import Plan
    from dlrover_lite.protocol.profiles import Profile

__all__ = [
    "JobHandle",
    "enforcement",
    "go_on",
    "launch",
    "list_jobs",
    "planned",
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
_GRACE_WITH_CHECKPOINT_SECONDS = 90.0
"""Seconds that a master gets which is to stop: it takes a last checkpoint, for at most a minute, then ends its nodes."""

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
    from dlrover_lite.recipe.load import resolved_yaml

    resolved = resolve(recipe, overrides)
    handle = launch(resolved, resolved_yaml(resolved), detach=detach)
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


def this_machine() -> Resources:
    """Return the cores and memory that jobs can have here."""
    from dlrover_lite.backends.local.machine import machine_resources

    return machine_resources()


def these_hosts() -> list[Host]:
    """Return the hosts that the nodes of jobs which are started here may run on: this machine."""
    from dlrover_lite.backends.local.machine import this_host

    return [this_host()]


def planned(recipe: Recipe) -> Plan:
    """Return the nodes that a job of this recipe would get on this machine."""
    from dlrover_lite.protocol.plans import initial_plan

    return initial_plan(recipe.resources, these_hosts())


def enforcement() -> Enforcement:
    """Return how limits would be enforced on a job that is started now.

    Raises JobError when that can't be found out.
    """
    from dlrover_lite.protocol.nodes import Enforcement

    command = scoped([sys.executable, "-P", "-m", "dlrover_lite.backends.local.limits"])
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment(), check=False)
    try:
        return msgspec.json.decode(done.stdout, type=Enforcement)
    except msgspec.MsgspecError as error:
        said = done.stderr.decode(errors="replace").strip()
        raise JobError(f"Can't find out how limits are enforced here (exit code {done.returncode}): {said}") from error


class JobHandle:
    """One job, started here or found again. Works in notebooks: no signal handlers, no threads, no event loop."""

    def __init__(self, job: Job, started: Started | None = None) -> None:
        self.job = job
        self._started = started

    @classmethod
    def find(cls, reference: str = "last") -> JobHandle:
        """Return a handle on the job with this id, unique start of one, or the newest; it need not have been started here."""
        return cls(find_job(reference))

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def directory(self) -> Path:
        return self.job.directory

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}: {self.state()}>"

    def state(self) -> State:
        self._reap()
        return self.job.state()

    def result(self) -> Result | None:
        """Return how the job ended, and in ``hint`` what it can go on from now; None while it runs."""
        from dlrover_lite.jobs import endings

        return endings.ended(self.job)

    def logs(self) -> dict[str, Path]:
        """Log files by process: ``keeper``, ``master``, ``template`` and the nodes' ids."""
        return {path.stem: path for path in sorted(self.job.logs.glob("*.log"))}

    def wait(self, timeout: float | None = None, *, progress: bool | None = None) -> Result:
        """Wait until the job has ended and nothing of it runs any more. A failed job is a result too, not an exception.

        ``timeout`` is in seconds; raises TimeoutError after it (the job goes on). ``progress``: show on stderr how it gets on, a line that
        is redrawn; None: in a terminal and in a notebook only.
        """
        from dlrover_lite.client.progress_line import ProgressLine, follow, redraws

        if progress or (progress is None and redraws(sys.stderr)):
            return follow(self, ProgressLine(sys.stderr), timeout)
        record = self.job.record()
        runner = record.keeper or record.launcher
        if not wait_for_end(runner, timeout):
            raise TimeoutError(f"{self.id} still runs after {timeout:g} s")
        self._reap()
        from dlrover_lite.jobs import endings, final_status

        result = self.job.result()
        if result is None:
            sweep()
            result = final_status.lost(self.job)
        return endings.explained(self.job, result)

    def stop(self, *, kill: bool = False, now: bool = False) -> None:
        """Ask the job to stop cleanly, after a last checkpoint; with ``now`` without one, and with ``kill`` at once. Returns immediately:
        ``wait`` waits for the end."""
        if now and not kill and self._stop_now():
            return
        keeper = self.job.record().keeper
        if keeper is not None:
            send_signal(keeper, signal.SIGQUIT if kill else signal.SIGTERM)

    def _stop_now(self) -> bool:
        """Return whether there was a master to tell."""
        from dlrover_lite.protocol.messages import Ack, StopRequest

        record = self.job.record()
        if not self._has_master(record):
            return False
        try:
            self._ask_master(record, StopRequest(now=True), Ack)
        except JobError:
            return False
        return True

    def checkpoint(self, *, wait: bool = True) -> int:
        """Take a checkpoint of all that is trained by now; its number. With ``wait``, return when it is durable; without, at once: it, or
        the next one that is complete, will hold it all.

        Raises JobError when the job has ended, takes none, or the checkpoint can't be written (it is tried again, though).
        """
        from dlrover_lite.jobs import final_status
        from dlrover_lite.protocol.messages import CheckpointPromise, CheckpointRequest

        nothing = "there is nothing to take a checkpoint of"
        number = self._wish(CheckpointRequest(), CheckpointPromise, nothing).number
        while wait and not final_status.has_checkpoint(self.status(), number):
            try:
                result = self.wait(_POLL_SECONDS, progress=False)
            except TimeoutError:
                continue
            if not final_status.has_checkpoint(self.status(), number):
                raise JobError(f"{self.id} has ended ({result.state}) before checkpoint {number} was complete")
            break
        return number

    def hang_up(self) -> None:
        """Stop the job as ``stop`` does, for the reason that the terminal of the command that started it was closed."""
        keeper = self.job.record().keeper
        if keeper is not None:
            send_signal(keeper, signal.SIGHUP)

    def status(self) -> Status:
        """Return what the job is doing, from its master; once it has ended, how it was at the end.

        Raises JobError when the master doesn't answer.
        """
        from dlrover_lite.jobs import endings, final_status
        from dlrover_lite.protocol.messages import Status, StatusRequest

        record = self.job.record()
        if (last := endings.last_status(self.job)) is not None:
            return last
        if not self._has_master(record):
            last = endings.last_status(self.job)  # it may have ended meanwhile
            return final_status.starting(self.job) if last is None else last
        try:
            return self._ask_master(record, StatusRequest(), Status)
        except JobError:
            if (last := endings.last_status(self.job)) is not None:  # it has just ended
                return last
            if self.job.status() is None:  # a new master has its first word when it has opened the data, and indexed it
                return final_status.starting(self.job)
            raise

    def scale(self, *, workers: int | None = None, ps: int | None = None) -> list[str]:
        """Have so many nodes of a role from now on; None leaves a role as it is. Returns what follows from it, in words; nothing when
        there are that many already.

        Raises UsageError for numbers that can't be, JobError when the job has ended, has no master yet, or refuses.
        """
        from dlrover_lite.client import scaling
        from dlrover_lite.protocol.messages import Scaled, ScaleRequest

        scaling.check(workers, ps)
        wish = ScaleRequest(workers, ps)
        return self._wish(wish, Scaled, lambda last: scaling.has_ended(self.job, last, workers, ps)).actions

    def move(self, slots: Iterable[int] | str | None = None, to: str = "", *, source: str | None = None) -> list[str]:
        """Move slots to the PS ``to`` while training goes on: numbers, a text like "0-99,200", or with ``source`` all that PS has.
        Returns what follows from it, in words; nothing when they are there already.

        Raises UsageError for slots or a PS that can't be, JobError when the job has ended, has no slot map yet, or refuses.
        """
        from dlrover_lite.client import scaling
        from dlrover_lite.core.slots import pack
        from dlrover_lite.protocol.messages import MoveRequest, Scaled

        if (slots is None) == (source is None):
            raise UsageError("Which slots? Name either the slots, or the parameter server that has them")
        members = scaling.slot_set(slots) if slots is not None else self._slots_of(source or "")
        return self._wish(MoveRequest(pack(members), to), Scaled, _NO_SLOTS).actions

    def cancel_moves(self) -> list[str]:
        """Cancel the moves of slots that aren't committed, and what they were for; returns what follows from it, in words.

        Raises JobError as ``move``.
        """
        from dlrover_lite.protocol.messages import CancelMovesRequest, Scaled

        return self._wish(CancelMovesRequest(), Scaled, _NO_SLOTS).actions

    def drain(self, node: str, *, replace: bool = False) -> list[str]:
        """End a node in good order: a PS once its slots have moved to others, with ``replace`` when a new one is there; a worker
        after its minibatch. Returns what follows from it, in words; nothing when it is about to leave already.

        Raises UsageError for a node that can't be, JobError when the job has ended, or refuses.
        """
        from dlrover_lite.protocol.messages import DrainRequest, Scaled

        return self._wish(DrainRequest(node, replace), Scaled, "there is no node to drain").actions

    def kill(self, node: str) -> list[str]:
        """End a node at once; another one takes its place. No sample is lost by it, or counts twice: what a worker hasn't finished others
        do again, and what a PS holds is found in memory. Returns what follows from it, in words; nothing when it is being killed already.

        Raises as ``drain``.
        """
        from dlrover_lite.protocol.messages import KillRequest, Scaled

        return self._wish(KillRequest(node), Scaled, "there is no node to kill").actions

    def resize(self, node: str, *, cores: float | None = None, memory: int | str | None = None) -> list[str]:
        """Change the limits of one node while it runs: cores, and memory in bytes or as "2GiB"; None leaves either as it is. Returns what
        follows from it, in words; nothing when it has that already. One that takes its place later is as large as the plan says.

        Raises UsageError for a node or limits that can't be, JobError when the job has ended, has no master yet, or refuses.
        """
        from dlrover_lite.client import scaling
        from dlrover_lite.protocol.messages import ResizeRequest, Scaled

        wish = ResizeRequest(node, *scaling.limits(cores, memory))
        return self._wish(wish, Scaled, "there is no node to resize").actions

    def autoscale(self, what: Autoscaling = "status", *, decision: int | None = None) -> AutoscaleStatus:
        """Hold what the brain decides for this job, or let it go on; accept or reject what it suggests, only if that is ``decision``. How
        that stands then.

        Raises JobError when the job has ended, has no master yet, or there is nothing to accept or reject, or it doesn't fit any more.
        """
        from dlrover_lite.protocol.messages import AutoscaleRequest, AutoscaleStatus

        return self._wish(AutoscaleRequest(what, decision), AutoscaleStatus, "there is no plan to change")

    def slots(self, hottest: int = 10) -> SlotsReport:
        """Return what is measured of parameter servers and their slots, and the ``hottest`` slots, those that keep a PS the busiest first.

        Raises JobError when the job has ended, or there is no slot map yet.
        """
        from dlrover_lite.protocol.messages import SlotsReport, SlotsRequest

        report = self._wish(SlotsRequest(hottest), SlotsReport, "there are no slots to measure")
        if not report.slot_map_version:
            raise self._no_map()
        return report

    def profiles(self, *, on_damage: Callable[[str], None] = lambda _: None) -> Sequence[Profile | Gap]:
        """Return what was measured of its nodes, an interval after the other, whether or not it runs. ``on_damage`` is told what can't be
        read.

        Raises JobError when the file can't be read."""
        from dlrover_lite.jobs import profiles

        return profiles.read(self.directory, on_damage)

    def slot_map(self) -> Topology:
        """Ask which PS owns which slots now. Raises JobError when the job has ended, or there is no map yet."""
        from dlrover_lite.protocol.messages import Topology, TopologyRequest

        if self.state() == "running" and not self.status().slot_map_version:
            raise self._no_map()
        return self._wish(TopologyRequest(""), Topology, _NO_SLOTS)

    def _no_map(self) -> JobError:
        return JobError(f"{self.id} has no slot map yet: its parameter servers are starting; ask again in a moment")

    def _slots_of(self, node: str) -> SlotSet:
        """Return the slots of a PS. Raises UsageError for one that has none."""
        from dlrover_lite.client import scaling

        return scaling.slots_of(self.slot_map(), node)

    def _wish(self, wish: msgspec.Struct, answer: type[A], ended: str | Callable[[Status], JobError]) -> A:
        """Ask the master of a job that runs; ``ended`` is what to say of one that doesn't any more ("there is no node to drain"), or makes
        the error."""
        from dlrover_lite.client import scaling

        record = self.job.record()
        try:
            if not self._has_master(record):
                raise JobError(f"{self.id} has no master yet: it is just starting; ask again in a moment")
            return self._ask_master(record, wish, answer)
        except JobError:
            if self.state() not in ("starting", "running"):
                last = self.status()
                raise (scaling.too_late(self.job, last, ended) if isinstance(ended, str) else ended(last)) from None
            raise

    def story(self, subject: str = "", *, on_damage: Callable[[str], None] = lambda _: None) -> Story:
        """Return what has happened to a node (``worker-1``, ``master``), to minibatches (``0/17``, ``0/100-200``, ``eval:0/5``), or ("")
        everything that is kept: from the master, or where there is none any more from the job's directory; ``on_damage`` is told what
        couldn't be read there.

        Raises UsageError for a subject that can't be or never was, naming the nearest ones; JobError when the master doesn't answer.
        """
        from dlrover_lite.jobs import events
        from dlrover_lite.protocol.messages import Story, StoryRequest

        subject = str(events.parse_subject(subject))
        record = self.job.record()
        if self.job.result() is None and self._has_master(record):
            try:
                return self._ask_master(record, StoryRequest(subject), Story)
            except JobError:
                if self.state() in ("starting", "running"):
                    raise
        nodes = [node.id for node in self.status().nodes]
        return events.find(events.read(self.directory, on_damage), subject, nodes=nodes)

    def _has_ended(self) -> bool:
        """Return whether there will never be a master again."""
        return self.state() not in ("starting", "running")

    def _has_master(self, record: JobRecord) -> bool:
        """Return whether the job has a master's socket. Raises JobError where only somebody else may know."""
        try:
            return record.has_master
        except PermissionError as error:
            raise JobError(
                f"The master of {self.id} belongs to another user", hint="Ask whoever started it."
            ) from error

    def _ask_master(self, record: JobRecord, question: msgspec.Struct, answer: type[A]) -> A:
        """Ask the master. Raises JobError when the master doesn't answer, or can't do it; UsageError when what it was asked for can't
        be."""
        from dlrover_lite.protocol.messages import MasterReplies
        from dlrover_lite.transport.connector import Connector, read_key
        from dlrover_lite.transport.frames import UNUSABLE

        try:
            with Connector(read_key(self.job.key_file) if record.transport == "tcp" else None) as connector:
                client = connector.client(record.master_endpoint, MasterReplies, peer="the master")
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
        except FileNotFoundError as error:  # where it listened over TCP
            raise JobError(f"The master of {self.id} did not answer: it has just ended") from error
        except WireError as error:
            message = f"The master of {self.id} did not answer: {error.message}"
            raise JobError(message, hint=f"Its log: {self.job.log('master')}") from error
        if not isinstance(body, answer):
            raise JobError(f"The master of {self.id} answered with {type(body).__name__}")
        return body

    def _reap(self) -> None:
        if self._started is not None and self._started.process.poll() is not None:
            self._started.release()
            self._started = None


def list_jobs() -> list[JobHandle]:
    """Find all jobs of this machine, the oldest first, whether or not they run."""
    return [JobHandle(job) for job in stored_jobs()]


def launch(
    recipe: Recipe,
    recipe_text: str,
    *,
    detach: bool = False,
    options: KeeperOptions | None = None,
    beginning: Beginning | None = None,
    say: Callable[[str], None] = _to_stderr,
) -> JobHandle:
    """Start a job of a resolved recipe, in a session of its own (the terminal's ctrl-C doesn't reach it); with the cut it begins with.
    ``say`` is told if the brain has to be started for it.

    Raises JobError, with the last lines of the keeper's log, when it doesn't come up.
    """
    check_process_limits(recipe)  # before anything is started for it
    options = options or default_options(recipe)
    begin(options.brain, say)
    return JobHandle(*start(recipe, recipe_text, detach=detach, options=options, beginning=beginning))


def default_options(recipe: Recipe, brain: BrainMode | None = None, transport: TransportKind = "unix") -> KeeperOptions:
    """Return how a keeper runs a job of this recipe. ``brain``: None: what the environment says, or else the user's daemon."""
    mode = brain_mode(brain)
    if recipe.checkpoint == "off":
        return KeeperOptions(brain=mode, transport=transport)
    return KeeperOptions(master_grace_seconds=_GRACE_WITH_CHECKPOINT_SECONDS, brain=mode, transport=transport)


def resume(
    reference: str = "last", *, cut: int | None = None, detach: bool = False, options: KeeperOptions | None = None
) -> JobHandle:
    """Go on with a job that has ended before it was done, from its newest checkpoint that can be used, or ``cut``.

    Raises JobError when it can't go on: it runs, has succeeded, has no checkpoint, or its data are others now.
    """
    from dlrover_lite.client import resuming

    job = find_job(reference)
    return go_on(job, resuming.chosen_for(job, cut), detach=detach, options=options)


def go_on(
    job: Job,
    chosen: Chosen,
    *,
    detach: bool = False,
    options: KeeperOptions | None = None,
    say: Callable[[str], None] = _to_stderr,
) -> JobHandle:
    """Go on with a job that has ended, from this checkpoint. Raises JobError."""
    from dlrover_lite.client import resuming

    check_process_limits(job.recipe)
    options = options or default_options(job.recipe)
    begin(options.brain, say)
    return JobHandle(job, resuming.go_on(job, chosen, detach=detach, options=options))
