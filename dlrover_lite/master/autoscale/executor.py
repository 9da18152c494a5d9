"""Carries out what the autoscaler says, with what a person can ask for too; and tells the brain how the job stands, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dlrover_lite.core import slot_sets
from dlrover_lite.core.units import Resources
from dlrover_lite.master.autoscale.autoscaler import (
    AddServer,
    Autoscaler,
    GiveWay,
    Goal,
    LeaseLess,
    MoveShare,
    NodeNow,
    ReplaceNode,
    ResizeNode,
    ScaleRole,
    SetNodeSize,
    Step,
    TakeCheckpoint,
    Turn,
    World,
)
from dlrover_lite.master.autoscale.memory_reflex import MemoryReflex
from dlrover_lite.master.autoscale.suggestion_check import misfit, refusal, superseded
from dlrover_lite.master.checkpoints.checkpoints import OFF, Checkpoints
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.job_state_store import AUTOSCALER, JobStateStore
from dlrover_lite.master.nodes.reconciler import Reconciler
from dlrover_lite.master.profiling.job_end import predicted_rate
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.master.slots.slot_control import SlotControl
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.protocol import acts
from dlrover_lite.protocol.brain_messages import Advice, AdvisedTreatment, understood
from dlrover_lite.protocol.demands import DecisionOutcome, Standing, StandingNode
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.questions import (
    AutoscaleRequest,
    AutoscaleStatus,
    KillRequest,
    MoveRequest,
    ResizeRequest,
    Scaled,
    Wish,
)
from dlrover_lite.transport.frames import Failure

if TYPE_CHECKING:
    from dlrover_lite.master.generation_run import GenerationRun

__all__ = ["Executor", "executor_of"]

BY_HAND = "nodes were changed by hand"


@dataclass(eq=False)
class Executor:
    """``state`` is put among the ``facts``, which also do what follows from it once it is durable; ``tell`` is given what became of
    decisions. ``let_go`` is given the reason and the decision's number, and says why that can't be, or ""; ``at_once`` does what can't
    wait for advice, and is given whether all is trained."""

    state: Autoscaler
    control: SlotControl
    reconciler: Reconciler
    servers: ParameterServers
    shards: ShardService
    story: EventLog
    facts: JobStateStore
    tell: Callable[[DecisionOutcome], None]
    checkpoints: Checkpoints | None
    let_go: Callable[[str, int], str]
    wall_clock: Callable[[], float]
    at_once: Callable[[bool], None] = lambda _: None

    def __post_init__(self) -> None:
        self._standing: tuple[tuple[object, ...], tuple[StandingNode, ...], int] | None = None
        """Nodes as the brain was told of them last, and the most memory of a worker, with what both follow from."""

    # --- from the brain, and to it --------------------------------------------------------------------------------------

    def advised(self, advice: Advice) -> None:
        """Handle advice about the job that runs; another version's advice is refused, not guessed at."""
        if advice.number <= self.state.heard:
            return
        try:
            goal = self._goal(advice)
        except msgspec.ValidationError as error:
            self._say(
                f"decision {advice.number} can't be understood, as by another version, and is left alone: {error}"
            )
            goal = None
        if goal is None:
            self._take(msgspec.structs.replace(self.state, heard=advice.number))
            return
        state, ended = self.state.advised(goal, self.wall_clock(), self.shards.consumed_samples)
        how = "is suggested" if self.state.mode == "suggest" else "is carried out"
        if state.busy:
            self._say(f"decision {goal.number} {how}: {goal.what}")
        self._take(state, ended)

    def standing(self) -> Standing:
        nodes, worker_peak = self._standing_nodes()
        return Standing(
            plan=self.reconciler.fleet.plan,
            nodes=nodes,
            paused=self.state.paused,
            busy=self.state.busy,
            # not what writing the model takes, at the end
            worker_peak=0 if self.shards.trained else worker_peak,
            evaluated=self.shards.has_evaluated,
            heard=self.state.heard,
            hosts=self.reconciler.changed_hosts,
            shared=self.reconciler.shared_room,
            move_rate=float(f"{self.servers.state.move_rate or 0.0:.2g}"),
            launch_seconds=float(f"{self.reconciler.launch_seconds:.2g}"),
        )

    def _standing_nodes(self) -> tuple[tuple[StandingNode, ...], int]:
        """Return the nodes that are up and stay, and the most memory that any worker has used: found anew when something has changed."""
        fleet, leaving = self.reconciler.fleet, self.servers.state.leaving
        follows_from = fleet, self.reconciler.readings, leaving
        before = self._standing
        if before is None or any(was is not now for was, now in zip(before[0], follows_from, strict=True)):
            hosts, used = self.reconciler.host_of, self.reconciler.most_used
            nodes = tuple(
                StandingNode(
                    node.id,
                    "ps" if node.role == "ps" else "worker",
                    hosts.get(node.id, ""),
                    node.resources,
                    used(node.id),
                )
                for node in fleet.running
                if node.state == "up" and node.id not in leaving
            )
            peak = max((used(node.id) for node in fleet.of("worker")), default=0)
            before = self._standing = follows_from, nodes, peak
        return before[1], before[2]

    def _goal(self, advice: Advice) -> Goal | None:
        decision = understood(advice)
        what, treatment = decision.reason, decision.treatment
        if decision.action in ("change", "explore") and decision.plan is not None:
            target = self._no_less(decision.plan)
            predicted = predicted_rate(decision.predicted)
            return Goal(
                number=advice.number, target=target, placement=decision.placement, what=what, predicted=predicted
            )
        if decision.action == "preempt":
            steps: tuple[Step, ...] = (TakeCheckpoint(self.shards.consumed_samples), GiveWay())
            return Goal(number=advice.number, steps=steps, what=what)
        if treatment is None:
            return None
        if decision.action == "tell":
            self._say(f"decision {advice.number}: {treatment.node}: {what}")
            return None
        steps = self._steps(treatment)
        return Goal(number=advice.number, steps=steps, what=f"{treatment.node}: {what}") if steps else None

    def _steps(self, treatment: AdvisedTreatment) -> tuple[Step, ...]:
        """List the steps of a treatment; none for what is only told."""
        node, cause = treatment.node, treatment.cause
        match treatment.act:
            case acts.Resize(resources, others):
                wanted = {node: resources, **others}
                if cause == "memory to spare":
                    return (*(ResizeNode(name, its) for name, its in wanted.items()), *self._new_sizes(wanted))
                return tuple(ResizeNode(name, self._no_less_now(name, its)) for name, its in wanted.items())
            case acts.Replace(resources, host):
                return (ReplaceNode(node, resources, host),)
            case acts.MoveSlots(share, to):
                return (MoveShare(node, share, to, "memory" if cause == "memory ahead" else "load"),)
            case acts.AddPs(resources, share, host):
                count = self.reconciler.fleet.plan.ps.count + 1
                return (AddServer(resources, count, host), MoveShare(node, share, {}, "memory"))
            case acts.SmallerShards(factor):
                return (LeaseLess(node, factor),)
            case acts.Tell():
                return ()

    def _no_less_now(self, node: str, each: Resources) -> Resources:
        """Return ``each`` with no less memory than the node has: it may have been given more since the brain looked, and help takes nothing
        away."""
        known = self.reconciler.fleet.by_id.get(node)
        return each if known is None else Resources(each.cores, max(each.memory, known.resources.memory))

    def _new_sizes(self, lowered: dict[str, Resources]) -> Iterable[Step]:
        """Yield sizes for nodes that come later: no more memory than the nodes of their role have, if all of these have been lowered."""
        fleet = self.reconciler.fleet
        for role, planned in (("worker", fleet.plan.worker), ("ps", fleet.plan.ps)):
            there = [node.id for node in fleet.running if node.role == role]
            if there and all(node in lowered for node in there) and not fleet.returns.get(role, {}).get("OOMKilled"):
                memory = max(lowered[node].memory for node in there)
                if memory < planned.each.memory:
                    yield SetNodeSize("ps" if role == "ps" else "worker", Resources(planned.each.cores, memory))

    def _no_less(self, target: Plan) -> Plan:
        """Return the target with no less memory than planned for roles whose nodes had too little of it."""
        fleet = self.reconciler.fleet

        def role(name: str, wanted: RolePlan, planned: RolePlan) -> RolePlan:
            if not fleet.returns.get(name, {}).get("OOMKilled"):
                return wanted
            return wanted.with_memory(planned.each.memory)

        return Plan(ps=role("ps", target.ps, fleet.plan.ps), worker=role("worker", target.worker, fleet.plan.worker))

    # --- from people ----------------------------------------------------------------------------------------------------

    def answer(self, wish: AutoscaleRequest) -> AutoscaleStatus | Failure:
        now, samples = self.wall_clock(), self.shards.consumed_samples
        match wish.what:
            case "pause":
                self._take(self.state.pause("by request"))
                self._say("autoscaling is paused by request")
            case "resume":
                self._take(self.state.resume(now))
                self._say("autoscaling goes on")
            case "accept":
                if (suggested := self.state.suggestion) is None:
                    return Failure("refused", "nothing is suggested", "See: dlrover-lite explain")
                if refused := superseded(wish.decision, suggested):
                    return refused
                if why := misfit(suggested, self._world()):
                    self._take(*self.state.reject(why, now, samples, state="given up"))
                    return refusal(suggested, why)
                self._say(f"decision {suggested.number} is accepted")
                self._take(self.state.accept(now, samples))
            case "reject":
                if not self.state.busy:
                    return Failure("refused", "nothing is suggested or under way", "See: dlrover-lite explain")
                if refused := superseded(wish.decision, self.state.goal or self.state.suggestion):
                    return refused
                self._take(*self.state.reject("by request", now, samples))
        return self.status()

    def status(self) -> AutoscaleStatus:
        state = self.state
        one = state.goal or state.suggestion
        return AutoscaleStatus(
            mode=state.mode,
            paused=state.paused,
            decision=one.number if one is not None else None,
            what=one.what if one is not None else "",
            under_way=state.goal is not None,
        )

    def by_hand(self, wish: Wish) -> Scaled | Failure:
        """Change something for a person: the brain doesn't undo it. Raises MalformedMessage."""
        answer = self.control.answer(wish)
        if isinstance(answer, Failure) or self.state.mode == "off" or self.state.paused:
            return answer
        if not isinstance(wish, KillRequest):  # after one the plan is as it was
            self.facts.after_commit(lambda: self._pause_for(answer.actions))
        return answer

    def _pause_for(self, actions: list[str]) -> None:
        """Leave it at what a person has changed, if that was anything, and add so to what was done in words."""
        if actions:
            self._take(self.state.pause(BY_HAND))
            self._say(f"autoscaling is paused: {BY_HAND}")
            actions.append("autoscaling is paused (dlrover-lite autoscale resume)")

    # --- each turn ------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do the next step, if it is time for one; and what can't wait for any."""
        if self.state.mode == "on" and not self.state.paused:
            self.at_once(self.shards.trained)
        if self.state.goal is None:
            return
        found = self.state.turn(self._world(), self.wall_clock())
        self._follow(found)
        if found.step is not None:
            refused = self._do(found.step)
            if refused:
                self._say(f"a step is refused: {refused}")
            self._follow(self.state.answered(refused, self.wall_clock(), self._world()))

    def _follow(self, found: Turn) -> None:
        self._take(found.state, [] if found.done is None else [found.done])

    def _world(self) -> World:
        fleet, leaving = self.reconciler.fleet, self.servers.state.leaving
        nodes = tuple(
            NodeNow(
                node.id,
                "ps" if node.role == "ps" else "worker",
                node.resources,
                node.state == "up",
                node.state in ("draining", "ending") or node.id in leaving,
                node.wanted is not None,
                self.reconciler.host_of.get(node.id, ""),
            )
            for node in fleet.running
        )
        return World(
            fleet.plan,
            nodes,
            settled=self.servers.settled and not fleet.pending,
            over=fleet.done or self.shards.trained,
            samples=self.shards.consumed_samples,
            saved=self._saved(),
            leave_first=self._leave_first(),
        )

    def _leave_first(self) -> tuple[str, ...]:
        """List the PS, those first that leave first for the plan that is got to; none unless it has fewer."""
        goal = self.state.goal
        if goal is None or goal.target is None or goal.target.ps.count >= self.reconciler.fleet.plan.ps.count:
            return ()
        return tuple(self.control.leave_first({one.host: one.servers for one in goal.placement}))

    def _saved(self) -> int:
        cuts = self.checkpoints
        return cuts.newest.samples if cuts is not None and cuts.newest is not None else -1

    def _do(self, step: Step) -> str:
        """Begin a step. Return why it can't be; "" if it is begun."""
        match step:
            case SetNodeSize(role, each):
                self.reconciler.set_size(role, each)
                return ""
            case ResizeNode(node, resources):
                return self._ask(ResizeRequest(node, resources.cores, resources.memory))
            case ScaleRole(role, count, on):
                return _why_not(self.control.scale(role, count, on))
            case ReplaceNode(node, each, host):
                slow = self.state.goal is None or self.state.goal.target is None
                move = self.control.replace if slow else self.control.relocate
                return _why_not(move(node, each, host))
            case AddServer(each, _, host):
                return _why_not(self.control.join(each, host))
            case MoveShare():
                return self._move(step)
            case LeaseLess(node, factor):
                self.shards.lease_less(node, factor)
                return ""
            case TakeCheckpoint():
                answer = self.checkpoints.request() if self.checkpoints is not None else OFF
                return answer.message if isinstance(answer, Failure) else ""
            case GiveWay():
                assert self.state.goal is not None
                return self.let_go(self.state.goal.what, self.state.goal.number)

    def _ask(self, wish: Wish) -> str:
        return _why_not(self.control.answer(wish))

    def _move(self, step: MoveShare) -> str:
        """Move slots, those with the most load first, each to the node with the most of its part still to get. Return why that can't be, or
        ""."""
        state = self.servers.state
        to = step.to or {node.id: 1.0 for node in self.reconciler.fleet.servers_up() if not state.owns(node.id)}
        if not to:
            return "there is no parameter server without slots to move them to"
        loads = self.servers.loads
        measure = loads.busy if step.of == "load" else loads.row_bytes(state, self.servers.reports)
        owned = np.flatnonzero(state.owned(step.node))
        order, total = owned[np.argsort(-measure[owned], kind="stable")], float(measure[owned].sum())
        due = {target: part * step.share * total / sum(to.values()) for target, part in to.items()}
        given: dict[str, list[int]] = {target: [] for target in due}
        for slot in order[:-1].tolist():  # one stays
            load = float(measure[slot])
            target = max(due, key=lambda name: due[name])
            if load > due[target] or load <= 0:
                continue
            due[target] -= load
            given[target].append(slot)
        refused = [
            self._ask(MoveRequest(slot_sets.pack(slot_sets.of(numbers)), target))
            for target, numbers in given.items()
            if numbers
        ]
        return next((why for why in refused if why), "")

    def _take(self, state: Autoscaler, ended: Sequence[DecisionOutcome] = ()) -> None:
        """Go over to this state, and tell what became of the decisions that have ``ended``."""
        if state != self.state:
            self.state = state
            self.facts.keep(AUTOSCALER, state)
        for done in ended:
            why = f": {done.why}" if done.why else f" after {done.seconds:.1f} s" if done.state == "done" else ""
            self._say(f"decision {done.number} is {done.state}{why}")
            self.tell(done)

    def _say(self, what: str) -> None:
        self.story.node("master", what, "decision")


def _why_not(answer: Scaled | Failure) -> str:
    return answer.message if isinstance(answer, Failure) else ""


def _let_go(run: GenerationRun, why: str, decision: int, at: float) -> str:
    """End the job's generation: the next one begins with the newest checkpoint, when there is a plan for it. Return why not, or ""."""
    cuts, go_back = run.checkpoints, run.go_back
    if cuts is None or cuts.newest is None:
        return "there is no checkpoint to go on from"
    cut = cuts.newest.number

    def end() -> None:
        if run.outcome is None and run.beginning is None:
            run.beginning = go_back.let_go(run.facts.generation, cut, why=why, decision=decision, at=at)
            run.story.node("master", f"lets its nodes go, to go on from checkpoint {cut} later: {why}", "decision")

    run.facts.after_commit(end)
    return ""


def executor_of(run: GenerationRun, begin: Autoscaler, wall_clock: Callable[[], float]) -> Executor:
    """Create the executor of a master that is being made, and make it known to the brain's line. It begins with the state that an earlier
    master has left, else with ``begin``."""
    brain, facts = run.brain, run.facts
    at_once = MemoryReflex(
        run.slots,
        run.reconciler,
        run.servers,
        run.story,
        exporter=lambda: run.exporting.exporter,
        clock=run.now,
    )
    found = Executor(
        facts.get(AUTOSCALER) or begin,
        control=run.slots,
        reconciler=run.reconciler,
        servers=run.servers,
        shards=run.shards,
        story=run.story,
        facts=facts,
        tell=brain.done if brain is not None else lambda _: None,
        checkpoints=run.checkpoints,
        let_go=lambda why, decision: _let_go(run, why, decision, wall_clock()),
        wall_clock=wall_clock,
        at_once=lambda trained: at_once.turn(trained=trained),
    )
    if brain is not None:
        brain.standing, brain.advised = found.standing, found.advised
    return found
