"""Generations of a job: each but the first begins with a cut. Which one is chosen, and everything that is made anew for it.

The order makes it safe to be killed anywhere: the beginning is noted, all nodes end, then the new ledger appears, whole. A ledger is never
newer than the parameters that belong to it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from dlrover_lite.checkpoint.manifest import Manifest, known_id_kinds
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.errors import BackendError, JobError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs.checkpoint_location import store_of
from dlrover_lite.jobs.restore_point import (
    Gone,
    NeverTaken,
    RestorePoint,
    Unreachable,
    Unusable,
    Usable,
    newest_checkpoint,
)
from dlrover_lite.jobs.store import Beginning, Job
from dlrover_lite.master.autoscale.autoscaler import Autoscaler, PlanPrediction
from dlrover_lite.master.checkpoints.restored_ledger import (
    NewLedger,
    begun_anew,
    consumed_minibatches,
    cut_facts,
    ledger_of,
    settings_of,
    write_ledger,
)
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.job_state_store import (
    AUTOSCALER,
    BEGAN,
    CUTS,
    FLEET,
    GENERATION,
    PROGRESS,
    RESTARTS,
    RESTORE,
    SLOTS,
    CutNumbers,
    Generation,
)
from dlrover_lite.master.nodes.fleet import Fleet, Note
from dlrover_lite.master.nodes.relaunch import memory_again
from dlrover_lite.master.phases import Phase
from dlrover_lite.master.slots.slot_state import SlotState
from dlrover_lite.master.work.ledger_data import TokensReserved
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.shard_plan import ID_KINDS, PLAN, ShardPlan
from dlrover_lite.protocol.hosts import HostNodes
from dlrover_lite.protocol.messages import NodeFailed, RestoreOrder, TrainingSettings
from dlrover_lite.protocol.nodes import Backend
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.transport.frames import Request

__all__ = ["POLL_SECONDS", "GoingBack", "begin_generation", "end_generation", "is_to_begin", "waiting"]

MOST = 5
"""How often a job goes back by itself, at most, without a newer checkpoint in between."""
_END_SECONDS = 60.0
POLL_SECONDS = 0.02
"""Seconds between two looks at nodes that are about to end."""


class GoingBack:
    """Decides whether a job that has lost parameters goes on from a cut, and from which."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, failed: NodeFailed, now: Generation) -> tuple[Beginning, list[str]]:
        """Return what is noted, durably, and what to say of newer cuts that can't be used. A job that takes cuts, and had none yet, begins
        again at its start. Raises JobError, the job's end, when there is no cut that can be used, or it has gone back too often; and
        DiskFull, when it may be called again."""
        message, _, hint = failed.message.partition("\n")
        why = f"{failed.node}: {message}" if failed.because == "damaged" else message
        damaged = self._damaged(failed, now, message)
        if failed.because == "damaged" and now.exactly:
            raise JobError(f"{failed.node}: {message}", hint=hint)
        found = newest_checkpoint(self._job)
        went_back = 0 if _got_further(found, now) else now.went_back
        if went_back >= MOST:
            raise JobError(
                f"{failed.node}: {message}. The job has gone back {MOST} times and got no further: that is enough",
                hint=hint,
            )
        if isinstance(found, NeverTaken) and not found.off:
            start = Beginning(now.number + 1, store_of(self._job).url, 0, why, went_back=went_back + 1)
            return self._noted(start, None), []
        if not isinstance(found, Usable):
            hint = hint or f"Its log: dlrover-lite logs {self._job.id} --node {failed.node}"
            raise JobError(f"{failed.node}: {message}{_but(found)}", hint=hint)
        beginning = Beginning(
            now.number + 1,
            found.url,
            found.manifest.cut,
            why,
            exactly=now.exactly and found.url == now.url,
            only_parameters=found.only_parameters,
            went_back=went_back + 1,
            damaged=damaged,
        )
        return self._noted(beginning, found.manifest.generation), [f"passed over {line}" for line in found.passed_over]

    def _damaged(self, failed: NodeFailed, now: Generation, message: str) -> dict[str, dict[int, str]]:
        """Return all cuts known to be damaged, and note them for whoever asks what the job can go on from."""
        damaged = {url: dict(cuts) for url, cuts in now.damaged.items()}
        noted = self._job.beginning()
        if failed.because == "damaged" and noted is not None:
            damaged.setdefault(now.url, {})[now.cut] = message
            known = msgspec.structs.replace(noted, damaged=damaged)
            self._job.write_beginning(known)
        return damaged

    def let_go(self, now: Generation, cut: int, *, why: str, decision: int, at: float) -> Beginning:
        """Return what is noted, durably, of a job that gives way to others: it goes on from this cut of its own, but not before the brain
        has a plan for it again. ``why`` in words, by which ``decision``; ``at``: seconds since the epoch. Raises DiskFull."""
        beginning = Beginning(
            now.number + 1,
            store_of(self._job).url,
            cut,
            why,
            went_back=now.went_back,
            damaged=now.damaged,
            waits_since=at,
            decision=decision,
        )
        return self._noted(beginning, now.lineage.taken_in(cut, now.number))

    def _noted(self, beginning: Beginning, taken_in: int | None) -> Beginning:
        beginning = beginning.after(self._job.beginning(), store_of(self._job).url, taken_in)
        self._job.write_beginning(beginning)
        failpoint("master.restore.noted")
        return beginning


def _got_further(found: RestorePoint, now: Generation) -> bool:
    """Return whether there is a newer checkpoint than the one that the generation began with."""
    return isinstance(found, Usable) and (found.url != now.url or found.manifest.cut > now.cut)


def _but(point: NeverTaken | Gone | Unreachable | Unusable) -> str:
    """Return why the job can't go back."""
    match point:
        case Unreachable(_, why, _):
            return f", and the checkpoints can't be read: {why}"
        case Gone(url, recorded):
            return f", and checkpoint {recorded}, which was complete, isn't at {url} any more"
        case Unusable():
            return ", and no checkpoint can be used"
        case _:
            return ""


class _Before(msgspec.Struct):
    """What is known of the generation before."""

    fleet: Fleet | None = None
    slots: SlotState | None = None
    cuts: CutNumbers | None = None
    tokens: int = 1
    consumed: int = 0
    began_at: float | None = None
    restarts: int = 0
    autoscaler: Autoscaler | None = None


def waiting(job: Job) -> Beginning | None:
    """Return what was noted of a job that has given way to others, or was resumed, and waits; None: it doesn't."""
    beginning = job.beginning()
    waits = beginning is not None and beginning.waits_since is not None and is_to_begin(job)
    return beginning if waits else None


def end_generation(
    job: Job, backend: Backend, clock: Callable[[], float], serve: Callable[[list[Request]], None]
) -> Phase[Fleet | None]:
    """End the last generation of a job: a master that was killed may have left nodes of it, and nothing of it may reach the next one.
    Return its fleet. Raises JobError when they don't end. ``serve`` answers who asks the master meanwhile."""
    fleet = _before(job, job.generation()).fleet
    left = set()
    for node in fleet.by_id if fleet is not None else ():
        with suppress(BackendError):  # it isn't known any more: those who ran it have ended
            backend.terminate(node, grace_seconds=0.0)
            left.add(node)
    until = clock() + _END_SECONDS
    while left:
        if (seen := backend.observe()) is not None:
            left -= {node for node, one in seen.nodes.items() if one.ended_at is not None}
        if not left:
            break
        if clock() > until:
            raise JobError(f"{', '.join(sorted(left))} can't be ended, and the job can't go on beside them")
        serve((yield clock() + POLL_SECONDS))
    return fleet


def is_to_begin(job: Job) -> bool:
    """Say whether a beginning is noted that isn't done yet: first ``end_generation``, then ``begin_generation``."""
    beginning, newest = job.beginning(), job.generation()
    return beginning is not None and (newest is None or beginning.generation > newest)


def begin_generation(
    job: Job,
    plan: ShardPlan,
    nodes: Plan,
    capacity: Resources,
    story: EventLog,
    *,
    decision: int = 0,
    began: str = "",
    prediction: PlanPrediction | None = None,
    placement: tuple[HostNodes, ...] = (),
    wall_clock: Callable[[], float],
    clock: Callable[[], float],
) -> None:
    """Do what is missing of the beginning that was noted last, whose nodes have ended. May be called again after any error. Raises JobError
    and CheckpointDamaged.

    ``nodes`` is the plan of a job that has none yet; with the number of a ``decision`` it takes the place of the one it had. ``began``
    says it in words, ``prediction`` what it predicts, and ``placement`` on which hosts its nodes begin.
    """
    beginning = job.beginning()
    assert beginning is not None
    before = _before(job, job.generation())
    failpoint("master.restore.ended")
    manifest = CheckpointStore(beginning.url).manifest(beginning.cut) if beginning.cut else None
    done_by = None if beginning.only_parameters else manifest
    ledger = _ledger(done_by, plan, before)
    again = before.consumed - (0 if done_by is None else consumed_minibatches(done_by, plan))
    told = _told(job, manifest, beginning, again)
    fleet, notes = _fleet(before.fleet, nodes, capacity, clock(), placement, instead=decision > 0)
    generation = msgspec.structs.replace(
        convert(beginning, Generation, from_attributes=True),
        number=beginning.generation,
        told=told,
        restarts=before.restarts if beginning.by_itself else 0,
    )
    elapsed = 0.0 if manifest is None or manifest.job != job.id else cut_facts(manifest).elapsed_seconds
    goes_back = beginning.went_back and beginning.waits_since is None
    began_at = before.began_at if goes_back and before.began_at is not None else wall_clock() - elapsed
    facts: dict[str, object] = {GENERATION.name: generation, FLEET.name: fleet, BEGAN.name: began_at}
    if manifest is not None:
        facts |= _facts_of_cut(manifest, beginning, settings_of(job.recipe))
    if before.cuts is not None:
        facts[CUTS.name] = CutNumbers(next=before.cuts.next)
    if before.autoscaler is not None:
        facts[AUTOSCALER.name] = before.autoscaler.goes_on(
            decision, began, by_itself=beginning.by_itself, prediction=prediction
        )
    if before.slots is not None:
        facts[SLOTS.name] = SlotState(next_move=before.slots.next_move)
    encoded = {name: msgspec.json.encode(value).decode() for name, value in facts.items()}
    path = job.ledger(beginning.generation)
    write_ledger(path, ledger, encoded, block_minibatches=plan.block_minibatches)
    failpoint("master.restore.ledger")
    story.node("master", told, "checkpoint")
    for note in notes:
        story.node(note.node, note.text)
    story.flush()
    _forget_old(job, beginning.generation)


def _ledger(manifest: Manifest | None, plan: ShardPlan, before: _Before) -> NewLedger:
    """Return the ledger in which the minibatches of a cut are done; without one, none are."""
    if manifest is None:
        return NewLedger([TokensReserved(before.tokens)], {PLAN: msgspec.json.encode(plan).decode()})
    return ledger_of(manifest, plan, tokens_reserved=before.tokens)


def _facts_of_cut(manifest: Manifest, beginning: Beginning, training: TrainingSettings) -> dict[str, object]:
    """Return what goes on from the cut beside its ledger, by names of facts."""
    minibatches = not beginning.only_parameters
    order = RestoreOrder(beginning.url, beginning.cut, beginning.generation, minibatches, training=training)
    facts: dict[str, object] = {RESTORE.name: order}
    if kinds := known_id_kinds(manifest):
        facts[ID_KINDS] = kinds
    progress = cut_facts(manifest).progress
    if progress is not None and minibatches:
        facts[PROGRESS.name] = progress
    return facts


def _told(job: Job, manifest: Manifest | None, beginning: Beginning, again: int) -> str:
    done = f": {again:,} minibatch{'es are' if again != 1 else ' is'} done again" if again > 0 else ""
    if manifest is None:
        return f"went back to {beginning.point}{_because(beginning)}{done}"
    own = manifest.job == job.id
    goes_back = beginning.went_back and beginning.waits_since is None
    verb = "went back to" if goes_back else "goes on from" if own else "begins with"
    what = "the parameters of " if beginning.only_parameters else ""
    cut = f"checkpoint {manifest.cut}" + ("" if own else f" of {manifest.job}")
    anew = begun_anew(manifest, settings_of(job.recipe))
    return "; ".join([f"{verb} {what}{cut}{_because(beginning)}{done}", *anew])


def _because(beginning: Beginning) -> str:
    return f" ({beginning.why})" if beginning.why else ""


def _before(job: Job, generation: int | None) -> _Before:
    """Return what is known of the generation before. A ledger that can't be read says nothing, and needn't."""
    found = _Before()
    if generation is None:
        return found
    with suppress(JobError, msgspec.MsgspecError), LedgerStore(job.ledger(generation)) as store:
        ledger = store.load()
        found.tokens = ledger.data().tokens_reserved
        found.consumed = sum(ledger.done(of).total for of in ledger.passes() if of.kind == "train")
        found.began_at, found.restarts = BEGAN.read(store), RESTARTS.read(store) or 0
        found.cuts, found.autoscaler = CUTS.read(store), AUTOSCALER.read(store)
        found.slots, found.fleet = SLOTS.read(store), FLEET.read(store)
    return found


def _fleet(
    before: Fleet | None,
    plan: Plan,
    capacity: Resources,
    now: float,
    placement: tuple[HostNodes, ...],
    *,
    instead: bool,
) -> tuple[Fleet, list[Note]]:
    """Return the fleet of the next generation. Ids are never used again, and what was scaled stays so, unless the plan is to be another
    one: then nodes have no less memory."""
    wanted = 0
    if before is not None:
        plan = _no_less_memory(plan, before.plan) if instead else _as_grown(before, capacity)
        wanted = 0 if instead else before.workers_wanted
    ended = {}
    for node in before.by_id.values() if before is not None else ():
        if node.state != "ended":
            node = msgspec.structs.replace(node, state="ended", reason=node.reason or "Killed", wanted=None)
        ended[node.id] = node
    fleet, instructions = Fleet(plan, capacity, by_id=ended, placement=placement, workers_wanted=wanted).begin(now)
    return fleet, [one for one in instructions if isinstance(one, Note)]


def _as_grown(before: Fleet, capacity: Resources) -> Plan:
    """Return the plan with the memory that PS were given while they ran: they need it for the rows that come back, too. Where only some
    were given more, there may not be room for as much of each."""
    ps, worker = before.plan.ps, before.plan.worker
    followed = {node.follows for node in before.of("ps")}
    had = [node.resources.memory for node in before.of("ps") if node.id not in followed][-ps.count :]
    room = (capacity.memory - worker.count * worker.each.memory) // ps.count
    each = Resources(ps.each.cores, memory_again(ps.each.memory, had, room))
    return Plan(ps=RolePlan(ps.count, each), worker=worker)


def _no_less_memory(plan: Plan, before: Plan) -> Plan:
    ps, worker = before.ps.each.memory, before.worker.each.memory
    return Plan(ps=plan.ps.with_memory(ps), worker=plan.worker.with_memory(worker))


def _forget_old(job: Job, generation: int) -> None:
    """Remove all ledgers but this generation's and the one before, which may say what happened."""
    kept = {job.ledger(generation), job.ledger(max(0, generation - 1))}
    for path in job.directory.glob("ledger*.sqlite*"):
        if not any(path.name.startswith(one.name) for one in kept):
            path.unlink(missing_ok=True)
