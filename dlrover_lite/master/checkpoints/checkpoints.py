"""A job's cuts: the state machine of ``cuts``, with orders for parameter servers, files at the destination, and what is to be known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dlrover_lite.checkpoint.manifest import Consumed, Manifest
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.core.units import format_bytes
from dlrover_lite.master.checkpoints.checkpoint_files import (
    Owner,
    basis_for,
    interval_for,
    manifest_of,
    number_of,
    part_order,
    spill_bytes,
)
from dlrover_lite.master.checkpoints.checkpoint_schedule import (
    CheckpointSchedule,
    Commit,
    Drop,
    Hurry,
    Instruction,
    Open,
    Server,
    Take,
    Tell,
    View,
)
from dlrover_lite.master.checkpoints.checkpoint_stalls import Steps
from dlrover_lite.master.checkpoints.checkpoint_store import CutStore, Found, Opened
from dlrover_lite.master.checkpoints.restored_ledger import facts_for
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.io_queue import IoQueue
from dlrover_lite.master.job_state_store import CUTS, SLOTS, CutNumbers, JobStateStore
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.slots.parameter_servers import ParameterServers, consumed
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.protocol.messages import PsReport, SnapshotOrder
from dlrover_lite.protocol.nodes import Usage
from dlrover_lite.protocol.questions import (
    CheckpointProblem,
    CheckpointPromise,
    CheckpointsStatus,
    CheckpointStall,
    CheckpointStatus,
    CheckpointUnderWay,
)
from dlrover_lite.recipe.schema import Checkpoint
from dlrover_lite.transport.frames import Failure, Request

if TYPE_CHECKING:
    from dlrover_lite.master.generation_run import GenerationRun

__all__ = ["OFF", "Checkpoints", "checkpoints_of"]

T = TypeVar("T")

OFF = Failure(
    "refused", "this job takes no checkpoints: its recipe says `checkpoint: off`", "Remove that line, and run it again."
)
_OVER = Failure("refused", "the job has ended: there is nothing to take a checkpoint of")
_MOST_STALLS = 32
"""Number of stalls that are kept, at most."""
_CLEANING_SECONDS = 2.0
"""Seconds that a destination gets at the job's end to remove what is half-written or too old."""


@dataclass(eq=False)
class Checkpoints:
    """Numbers are put among the ``facts``, which the next commit makes durable, and what follows from them is done then. ``facts_of``: what
    the master is to know again beside the ledger. ``usage``: of nodes, as last seen. ``io`` does what is done at the destination. ``reply``
    sends an answer, once what it follows from is durable.

    Nothing here waits for the destination, but for ``close``.
    """

    chosen: Checkpoint
    url: str
    job: str
    servers: ParameterServers
    shards: ShardService
    story: EventLog
    facts: JobStateStore
    reply: Callable[[Request, msgspec.Struct], None]
    io: IoQueue
    facts_of: Callable[[], dict[str, Any]]
    usage: Mapping[str, Usage]
    steps: Steps
    clock: Callable[[], float]
    wall_clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._kept = self.facts.get(CUTS) or CutNumbers()
        create, lineage = self._kept.newest is None, self.facts.generation.lineage
        self._store = CutStore(self.url, create=create, lineage=lineage)
        self._opened: Opened | None = None
        self._noted: Manifest | None = None
        """What is known of the cut under way since before any snapshot began."""
        self._began = 0.0
        self._cleans = False
        """A cut was under way when the job ended."""
        self._problem: CheckpointProblem | None = None
        self._interval_is_told = False
        self._is_asked = False
        """There is something for a turn to go by that there wasn't before."""
        self._heard: dict[str, tuple[int, str]] = {}
        """Number and state of the cut that each PS has reported last."""
        self._requests: dict[str, Request] = {}
        """The last request of each PS with a report."""
        self._is_open = True
        self.newest = self._kept.newest
        self._stalls = self._kept.stalls
        self.cuts = self._resumed(self._kept)
        self.io.submit(self._store.look, self._looked)

    def _resumed(self, known: CutNumbers) -> CheckpointSchedule:
        """Return the state to go on with. A cut that an earlier master was at has come to nothing: its number isn't used again."""
        every, newest = self.chosen.every_seconds, known.newest
        # A clock that was put forward or back may make the next cut come sooner, but not later.
        since = 0.0 if newest is None else min(max(0.0, self.wall_clock() - newest.at), every)
        if known.under_way:
            self.story.node(
                "master", f"checkpoint {known.under_way} is given up: the master has been restarted", "checkpoint"
            )
        return CheckpointSchedule(
            every,
            due_at=self.clock() + every - since,
            next=known.next,
            newest=newest.number if newest else 0,
            wanted=known.wanted or known.under_way > 0,
            hurried=known.wanted or known.under_way > 0,
        )

    # --- what there is --------------------------------------------------------------------------------------------------

    def status(self) -> CheckpointsStatus:
        cuts, under_way = self.cuts, None
        if cuts.phase != "idle":
            rows, size, _ = cuts.written
            under_way = CheckpointUnderWay(cuts.cut, cuts.phase, rows, size)
        return CheckpointsStatus(self.newest, under_way, self._problem, list(self._stalls))

    def request(self) -> CheckpointPromise | Failure:
        """Take one as soon as may be."""
        if self.cuts.over:
            return _OVER
        self.cuts, number = self.cuts.request(self.clock())
        self._remember()
        self._is_asked = True
        return CheckpointPromise(number)

    def heard(self, report: PsReport, request: Request) -> None:
        """Handle what a PS reports of its part, with this request."""
        self._requests[report.node] = request
        said = report.snapshot
        if said is not None and self._heard.get(report.node) != (said.cut, said.state):
            self._heard[report.node] = said.cut, said.state
            self._is_asked = True

    @property
    def has_news(self) -> bool:
        """A turn shouldn't wait."""
        return self._is_asked or self.io.is_done

    def stop(self) -> None:
        """Let the job stop, after a last cut. May be said again."""
        self.cuts = self.cuts.stop(self.clock(), begun=self.shards.consumed_samples > 0)

    def may_stop(self, fleet: Fleet) -> bool:
        """Return whether there is no last cut to wait for: it is complete, or can't be."""
        lost = fleet.done and any(fleet.by_id[node].state == "ended" for node in self.servers.state.counts())
        return self.cuts.may_stop(self.clock()) or (lost and self.cuts.phase != "committing")

    def misses(self, samples: int) -> bool:
        """Say whether more has been trained than ``samples``, and than the newest complete one holds."""
        newest = self.newest.samples if self.newest is not None else 0
        return self.shards.consumed_samples > max(samples, newest)

    def missing(self) -> str:
        """Return what a job that has been stopped ends without, and why; empty: its last checkpoint is complete."""
        cuts, problem = self.cuts, self._problem
        if cuts.newest >= cuts.last:
            return ""
        why = f": {problem.why}" if problem is not None and problem.number >= cuts.newest else ""
        return f"without a last checkpoint{why}"

    # --- each turn ------------------------------------------------------------------------------------------------------

    def turn(self, fleet: Fleet) -> None:
        """Bring the cut under way nearer to its end. A PS that is to take part in a cut from now on is told so by another answer to its
        last report."""
        ordered = dict(self.servers.snapshots)
        self._is_asked = False
        self.io.take()
        self._take_stall()
        while True:
            before = self.cuts
            self._go(self.cuts.tick(self.clock(), self._view(fleet)), fleet)
            if self.cuts.phase == before.phase:
                break
        self.servers.hold_moves = self.cuts.holds_moves(self.clock())
        if not self.facts.is_written(SLOTS):
            return  # servers hear of it with their next report
        for node, order in self.servers.snapshots.items():
            if ordered.get(node) is not order and (request := self._requests.get(node)) is not None:
                self.reply(request, self.servers.as_written(self.servers.orders(node, fleet)))

    def end(self) -> None:
        """Note that the job is over: what is under way is given up."""
        self._cleans = self.cuts.phase != "idle"
        self._go(self.cuts.end())
        self.servers.hold_moves = False

    def close(self) -> None:
        """Close when nobody writes any more; may be called again. Remove the cut that was under way, and those that needn't be kept since
        the last one, if the destination allows it."""
        if not self._is_open:
            return
        self._is_open = False
        if self._cleans:
            self.io.submit(self._store.clean, lambda _: None)
        if not self.io.close(_CLEANING_SECONDS):
            print("the checkpoints' destination doesn't answer; what is to be removed there may stay", flush=True)

    def _view(self, fleet: Fleet) -> View:
        servers, state = self.servers, self.servers.state
        generation = servers.restore.generation if servers.restore is not None else 0
        found = []
        for node in state.counts():
            report = servers.reports.get(node)
            ready = (
                report is not None and report.version >= state.version and report.tidy and report.restored >= generation
            )
            found.append(Server(node, fleet.by_id[node].state == "up", ready))
        return View(
            begun=self.shards.consumed_samples > 0,
            at_rest=state.version > 0 and all(move.state == "queued" for move in state.moves),
            queued=any(move.state == "queued" for move in state.moves),
            servers=found,
            reports={node: report.snapshot for node, report in servers.reports.items() if report.snapshot is not None},
        )

    def _go(self, following: tuple[CheckpointSchedule, list[Instruction]], fleet: Fleet | None = None) -> None:
        before, (self.cuts, instructions) = self.cuts, following
        if (problem := self.cuts.problem) is not None and problem is not before.problem:
            self._problem = CheckpointProblem(
                problem.cut, self.wall_clock(), problem.why, problem.hint, problem.failures
            )
        self._remember()
        if before.phase != "idle" and self.cuts.phase == "idle":
            self.steps.gives_up()  # unless it is complete
        for instruction in instructions:
            match instruction:
                case Open(cut):  # nothing may be begun under a number that isn't noted
                    self.facts.after_commit(partial(self._open, cut))
                case Take(cut, nodes, seconds):
                    assert fleet is not None
                    self._order(cut, nodes, fleet, seconds)
                case Hurry():
                    for node, order in self.servers.snapshots.items():
                        self.servers.snapshots[node] = msgspec.structs.replace(order, seconds=0.0)
                case Drop():
                    self.servers.snapshots.clear()
                case Commit():
                    self._commit(instruction)
                case Tell(text):
                    self.story.node("master", text, "checkpoint")

    def _remember(self) -> None:
        cuts = self.cuts
        numbers = CutNumbers(cuts.next, cuts.cut, cuts.wanted, self.newest, self._stalls)
        if numbers != self._kept:
            self._kept = numbers
            self.facts.keep(CUTS, numbers)

    # --- a cut ----------------------------------------------------------------------------------------------------------

    def _open(self, cut: int) -> None:
        self.io.submit(lambda: self._store.open(cut), lambda done: self._begun(cut, done))

    def _order(self, cut: int, nodes: list[str], fleet: Fleet, seconds: float) -> None:
        """Order the parts of a cut. What is consumed is noted first: nothing of it can be missing in a snapshot that begins later."""
        opened, state = self._opened, self.servers.state
        assert opened is not None
        owners = {node: Owner(state.owned(node), _line(node, fleet)) for node in nodes}
        basis = basis_for(
            opened.basis, self.job, self.facts.generation.number, self.chosen.full_every, [*owners.values()]
        )
        moved = state.moved_since(basis.manifest.map_version if basis else 0)
        below, ranges = consumed(self.shards)
        self._noted = Manifest(
            job=self.job,
            cut=cut,
            at=self.wall_clock(),
            generation=self.facts.generation.number,
            map_version=state.version,
            consumed=Consumed(below, ranges),
            samples=self.shards.consumed_samples,
            facts=self.facts_of(),
            builds_on=basis.manifest.cut if basis else None,
            configuration={},
            groups=[],
            parts=[],
        )
        self._began = self.clock()
        self.steps.begins(cut, self._began)
        order = SnapshotOrder(cut, self.job, self._store.url, compress=self.chosen.compress, seconds=seconds)
        for node, owner in owners.items():
            room = spill_bytes(fleet.by_id[node].least_memory, self.usage.get(node))
            self.servers.snapshots[node] = part_order(
                msgspec.structs.replace(order, spill_bytes=room), basis, owner, moved
            )
        failpoint("master.cut.ordered")

    def _commit(self, commit: Commit) -> None:
        failpoint("master.cut.written")
        opened, noted = self._opened, self._noted
        assert opened is not None and noted is not None
        try:
            manifest = manifest_of(noted, commit.parts)
        except DlroverLiteError as error:
            self._go(self.cuts.failed(commit.cut, error.message, error.hint, self.clock()))
            return
        self.io.submit(lambda: opened.writer.commit(manifest), lambda done: self._committed(manifest, done))

    # --- what the destination has answered ------------------------------------------------------------------------------

    def _looked(self, done: Future[Found]) -> None:
        found = _outcome(done)
        if isinstance(found, DlroverLiteError):
            self._go(self.cuts.unreachable(found.message, found.hint))
        else:
            self._take_over(found)

    def _take_over(self, found: Found) -> None:
        one = found.newest
        if one is not None and (self.newest is None or one.cut > self.newest.number):
            self.newest = CheckpointStatus(one.cut, one.at, one.samples, one.rows, one.stored_bytes, 0.0)
        self._go((self.cuts.found(one.cut if one else 0, found.used), []))

    def _begun(self, cut: int, done: Future[Opened | Found]) -> None:
        result = _outcome(done)
        if isinstance(result, Opened):
            failpoint("master.cut.opened")
            self._opened = result
            self._go((self.cuts.opened(cut, self.clock()), []))
        elif isinstance(result, Found):
            self._take_over(result)
            self._go((self.cuts.refused(cut, result.used), []))
        else:
            self._go(self.cuts.failed(cut, result.message, result.hint, self.clock()))

    def _committed(self, manifest: Manifest, done: Future[None]) -> None:
        cut, error = manifest.cut, _outcome(done)
        if error is not None:
            self._go(self.cuts.failed(cut, error.message, error.hint, self.clock()))
            return
        failpoint("master.cut.manifest")
        seconds, size = self.clock() - self._began, manifest.stored_bytes
        self.steps.ends(cut, self.clock())
        self.newest = CheckpointStatus(cut, manifest.at, manifest.samples, manifest.rows, size, seconds)
        kind = "" if manifest.builds_on is None else f", on top of {manifest.builds_on}"
        what = f"{manifest.rows:,} rows, {format_bytes(size)}{kind}"
        self.story.node("master", f"checkpoint {cut} is complete in {seconds:.2f} s: {what}", "checkpoint")
        self._judge_interval(cut, seconds)
        self._go((self.cuts.committed(cut), []))
        failpoint("master.cut.complete")
        keep, every_hours = self.chosen.keep, self.chosen.keep_every_hours
        self.io.submit(lambda: self._store.retain(keep, every_hours), lambda done: self._retained(cut, done))

    def _judge_interval(self, cut: int, seconds: float) -> None:
        """Say once that checkpoints take longer than the time from one to the next."""
        every = self.chosen.every_seconds
        if seconds <= every or self._interval_is_told:
            return
        self._interval_is_told = True
        enough = interval_for(seconds)
        why = f"checkpoint {cut} took {seconds:.0f} s, longer than the {every:g} s from one to the next"
        hint = f"It would do to take one every {enough:g} s: checkpoint.every_seconds."
        self._problem = CheckpointProblem(cut, self.wall_clock(), why, hint, too_slow=True)
        self.story.node("master", f"{why}. {hint}", "checkpoint")

    def _take_stall(self) -> None:
        """Note how long the last cut has held training up, once all workers have told."""
        stall, newest = self.steps.take(self.clock()), self.newest
        if stall is None or newest is None or newest.number != stall.cut:
            return
        self.newest = msgspec.structs.replace(
            newest, stall_seconds=stall.seconds, usual_stall_seconds=stall.usual_seconds
        )
        told = CheckpointStall(stall.cut, newest.seconds, stall.seconds, stall.usual_seconds)
        self._stalls = (*self._stalls, told)[-_MOST_STALLS:]
        self._remember()

    def _retained(self, cut: int, done: Future[list[int]]) -> None:
        error = _outcome(done)
        if isinstance(error, DlroverLiteError):
            why = f"old checkpoints can't be deleted: {error.message}"
            self._problem = CheckpointProblem(cut, self.wall_clock(), why, error.hint)
            self.story.node("master", why, "checkpoint")


def _outcome(done: Future[T]) -> T | DlroverLiteError:
    """Return the result, or an error that is for a person. Raises any other: a bug."""
    error = done.exception()
    if error is None:
        return done.result()
    if not isinstance(error, DlroverLiteError):
        raise error
    return error


def _line(node: str, fleet: Fleet) -> list[int]:
    """Return the numbers of a PS and of those whose memory it has taken over."""
    numbers = []
    while node:
        numbers.append(number_of(node))
        node = fleet.by_id[node].follows
    return numbers


def checkpoints_of(
    run: GenerationRun, where: str, io: Callable[[], IoQueue], reply: Callable[[Request, msgspec.Struct], None]
) -> Checkpoints | None:
    """Create the checkpoints of a master that is being made, kept at ``where``, a directory or URL; None if that is empty, or the recipe
    wants none."""
    recipe, shards, facts = run.recipe, run.shards, run.facts
    if not where or not isinstance(recipe.checkpoint, Checkpoint):
        return None
    return Checkpoints(
        recipe.checkpoint,
        where,
        job=run.job,
        servers=run.servers,
        shards=shards,
        story=run.story,
        facts=facts,
        reply=reply,
        io=io(),
        steps=run.progress.steps,
        facts_of=lambda: facts_for(recipe, shards, run.evaluations, run.progress, now=run.now()),
        usage=run.reconciler.usage,
        clock=run.now,
        wall_clock=run.wall_now,
    )
