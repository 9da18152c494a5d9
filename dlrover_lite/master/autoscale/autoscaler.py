"""Carrying out what the brain decides, one change at a time, as a pure state machine: what is wanted and what there is come in, a step
goes out.

A goal is a plan to get to, or a list of steps. It is level-triggered: each step follows from what there is, never from what was asked for
before, so a node that dies meanwhile changes nothing but the time it takes. What is released goes before what is taken. A step that is
refused is tried again a few times, one that takes too long isn't waited for; then the goal is given up, and the brain told why.

The state is kept with the ledger, so that a restarted master goes on with it. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from dlrover_lite.core.expected_end import PredictedRate
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.demands import Autoscale, DecisionOutcome
from dlrover_lite.protocol.hosts import HostNodes
from dlrover_lite.protocol.plans import Plan, RolePlan

__all__ = [
    "AddServer",
    "Autoscaler",
    "GiveWay",
    "Goal",
    "LeaseLess",
    "MoveShare",
    "NodeNow",
    "PlanPrediction",
    "ReplaceNode",
    "ResizeNode",
    "ScaleRole",
    "SetNodeSize",
    "Step",
    "TakeCheckpoint",
    "World",
]

TRIES = 5
AGAIN_SECONDS = 2.0
"""Seconds before a refused step is tried again; doubles with each further refusal."""
STEP_SECONDS = 600.0
"""Seconds after which a step that isn't done is given up. Moving slots with many rows takes long."""
WAIT_SECONDS = 900.0
"""Seconds to wait for nodes that come or go by themselves, before a step is begun."""

Role = Literal["ps", "worker"]


# --- steps ----------------------------------------------------------------------------------------------------------


class SetNodeSize(msgspec.Struct, frozen=True, tag="set size"):
    """Give nodes of the role that come from now on this size."""

    role: Role
    each: Resources


class ResizeNode(msgspec.Struct, frozen=True, tag="resize"):
    """Change the resources of a running node in place."""

    node: str
    resources: Resources


class ScaleRole(msgspec.Struct, frozen=True, tag="scale"):
    role: Role
    count: int
    on: dict[str, int] = {}
    """Number of nodes that are wanted on each host; empty: wherever there is room."""


class ReplaceNode(msgspec.Struct, frozen=True, tag="replace"):
    """Replace a node by another one of this size."""

    node: str
    each: Resources
    host: str = ""
    """Host that the other one is wanted on; empty: wherever there is room."""


class AddServer(msgspec.Struct, frozen=True, tag="join"):
    """Add one more PS of this size, so that there are ``count``; it gets no slots by that."""

    each: Resources
    count: int
    host: str = ""


class MoveShare(msgspec.Struct, frozen=True, tag="move hot"):
    """Move slots with ``share`` of the node's load, or of the memory of its rows, those with the most first, to others: each with its
    part."""

    node: str
    share: float
    to: dict[str, float]
    """Weights of the nodes that get the slots; empty: all go to PS that have no slots yet."""
    of: Literal["load", "memory"] = "load"


class LeaseLess(msgspec.Struct, frozen=True, tag="small shards"):
    """Lease a worker ``factor`` times as many minibatches at once as it would get."""

    node: str
    factor: float


class TakeCheckpoint(msgspec.Struct, frozen=True, tag="take cut"):
    """Have a complete checkpoint that holds so many samples at least."""

    samples: int


class GiveWay(msgspec.Struct, frozen=True, tag="let go"):
    """Let all nodes go, and wait for another plan: the job goes on from its newest checkpoint then."""


Step = SetNodeSize | ResizeNode | ScaleRole | ReplaceNode | AddServer | MoveShare | LeaseLess | TakeCheckpoint | GiveWay


# --- what there is --------------------------------------------------------------------------------------------------


class NodeNow(NamedTuple):
    """A node that runs."""

    id: str
    role: Role
    resources: Resources
    up: bool
    leaving: bool = False
    resizing: bool = False
    """The node doesn't have all its new resources yet."""
    host: str = ""
    """Host that the node runs on; empty: not known."""


class World(NamedTuple):
    plan: Plan
    """The plan that new nodes follow."""
    nodes: tuple[NodeNow, ...]
    settled: bool = True
    """No slot is moved, or waits to be moved."""
    over: bool = False
    """Nothing can be changed any more: all samples are trained, or the job ends."""
    samples: int = 0
    saved: int = -1
    """Number of samples that the newest checkpoint holds; -1: there is no checkpoint."""
    leave_first: tuple[str, ...] = ()
    """All PS that stay so far, those that are to leave first when there are fewer; empty: not known."""

    def staying(self, role: Role) -> list[NodeNow]:
        return [node for node in self.nodes if node.role == role and not node.leaving]

    @property
    def calm(self) -> bool:
        """Whether all nodes of the plan are there, and nothing comes, leaves, resizes or moves."""
        whole = all(len(self.staying(role)) == _role(self.plan, role).count for role in _ROLES)
        return self.settled and whole and all(node.up and not node.leaving and not node.resizing for node in self.nodes)


# --- what is wanted -------------------------------------------------------------------------------------------------


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """Number of the brain's decision."""
    target: Plan | None = None
    placement: tuple[HostNodes, ...] = ()
    """Number of nodes of the target plan on each host; empty: wherever there is room."""
    steps: tuple[Step, ...] = ()
    """Steps that are left to do, in this order, where there is no target plan."""
    what: str = ""
    """The goal in words."""
    began: float = 0.0
    samples: int = 0
    """Number of samples trained when the goal began."""
    step: Step | None = None
    """The step under way, or to be tried again."""
    since: float = 0.0
    """Time when the step was begun or the last one ended, in seconds since the epoch."""
    asked: bool = False
    """The step was granted: it is waited for."""
    tries: int = 0
    again: float = 0.0
    """Earliest time of the next try, in seconds since the epoch."""
    predicted: PredictedRate | None = None
    """Predicted throughput with the target plan."""
    replaced: tuple[tuple[str, int], ...] = ()
    """Hosts that a worker was to come to in place of one elsewhere, each with the number of workers there then: where that is still so
    there was no room, as the backend takes hosts for wishes, and it isn't tried again."""
    relocated: tuple[tuple[str, int], ...] = ()
    """Hosts that a parameter server was to come to, with the number of those there then, as of workers in ``replaced``."""
    then: Goal | None = None
    """The change of plan that this one has interrupted, and that goes on after it; None: there is none."""


class PlanPrediction(msgspec.Struct, frozen=True):
    """What was predicted for a plan by the decision that brought it."""

    plan: Plan
    rate: PredictedRate


class Turn(NamedTuple):
    state: Autoscaler
    step: Step | None = None
    """The step to be asked for now; ``answered`` is to be told the result."""
    done: DecisionOutcome | None = None


class Autoscaler(msgspec.Struct, frozen=True, kw_only=True):
    """Methods return the next state; ``heard`` is the newest decision that has arrived."""

    job: str
    mode: Autoscale
    paused: str = ""
    """Why the autoscaler is paused; empty: it isn't."""
    heard: int = 0
    goal: Goal | None = None
    suggestion: Goal | None = None
    """A goal that waits for a person's approval."""
    began: str = ""
    """The plan that the job began or went on with, and why, in words."""
    prediction: PlanPrediction | None = None
    """The prediction for the last plan that was decided and is there; by hand it may have been changed since."""

    @property
    def busy(self) -> bool:
        return self.goal is not None or self.suggestion is not None

    def advised(self, goal: Goal, now: float, samples: int) -> tuple[Autoscaler, list[DecisionOutcome]]:
        """Handle a decision. One that came before already changes nothing; a newer one takes the place of one that isn't done. But other
        limits for nodes only interrupt a change of plan: half of one would be measured as no plan."""
        if goal.number <= self.heard:
            return self, []
        goal = msgspec.structs.replace(goal, began=now, since=now, samples=samples)
        state = msgspec.structs.replace(self, heard=goal.number)
        if self.mode == "off":
            return state, [self._done(goal, "rejected", "autoscaling is off for this job", now, samples)]
        change = None if self.goal is None else self.goal if self.goal.target is not None else self.goal.then
        if (
            self.mode == "on"
            and change is not None
            and goal.steps
            and all(_at_any_time(goal, one) for one in goal.steps)
        ):
            goal = msgspec.structs.replace(goal, then=change)
        dropped = [
            self._done(old, "superseded", f"by decision {goal.number}", now, samples)
            for old in self._goals()
            if old is not goal.then
        ]
        if self.mode == "suggest":
            return msgspec.structs.replace(state, suggestion=goal, goal=None), dropped
        return msgspec.structs.replace(state, goal=goal), dropped

    def _goals(self) -> list[Goal]:
        """List what is under way, has been interrupted, or waits for a person."""
        interrupted = None if self.goal is None else self.goal.then
        return [one for one in (self.goal, interrupted, self.suggestion) if one is not None]

    def pause(self, why: str) -> Autoscaler:
        """Begin no further step; the one under way isn't undone."""
        return msgspec.structs.replace(self, paused=why)

    def resume(self, now: float) -> Autoscaler:
        goal = self.goal
        if goal is not None:
            goal = msgspec.structs.replace(goal, since=now)
        return msgspec.structs.replace(self, paused="", goal=goal)

    def accept(self, now: float, samples: int) -> Autoscaler:
        """Carry out what is suggested; there must be something."""
        assert self.suggestion is not None
        goal = msgspec.structs.replace(self.suggestion, began=now, since=now, samples=samples)
        return msgspec.structs.replace(self, goal=goal, suggestion=None)

    def reject(
        self, why: str, now: float, samples: int, *, state: Literal["rejected", "given up"] = "rejected"
    ) -> tuple[Autoscaler, list[DecisionOutcome]]:
        """Drop the goal under way and the suggestion."""
        dropped = [self._done(old, state, why, now, samples) for old in self._goals()]
        return msgspec.structs.replace(self, goal=None, suggestion=None), dropped

    def goes_on(
        self, heard: int, began: str, *, by_itself: bool, prediction: PlanPrediction | None = None
    ) -> Autoscaler:
        """Return the state for the job's next generation, which decision ``heard`` has begun (0: none has). The goal is kept, unless a
        decision has begun the generation, the job had ended meanwhile (not ``by_itself``), or the goal was to give way."""
        goal = self.goal
        if (
            not by_itself
            or heard
            or (goal is not None and any(isinstance(step, TakeCheckpoint | GiveWay) for step in goal.steps))
        ):
            goal = None
        return msgspec.structs.replace(
            self,
            heard=max(self.heard, heard),
            goal=goal,
            suggestion=self.suggestion if by_itself and not heard else None,
            began=began or self.began,
            prediction=prediction if heard else self.prediction,
        )

    def turn(self, world: World, now: float) -> Turn:
        """Return what to do now."""
        goal = self.goal
        if goal is None:
            return Turn(self)
        if world.over:
            return self._end(goal, "given up", "there is nothing left to change it for", now, world)
        if goal.step is not None and goal.asked:
            if not _is_done(goal.step, world):
                if now - goal.since < STEP_SECONDS or self.paused:
                    return Turn(self)
                why = f"{_words(goal.step)} is not done after {STEP_SECONDS:.0f} s"
                return self._end(goal, "given up", why, now, world)
            steps = goal.steps[1:] if goal.target is None else ()
            goal = msgspec.structs.replace(goal, step=None, steps=steps, asked=False, tries=0, again=now, since=now)
        if self.paused or now < goal.again:
            return Turn(self._with(goal))
        step = _next(goal, world)
        if step is None and (world.calm or goal.target is None):
            return self._end(goal, "done", "", now, world)
        if step is None or not (world.calm or _at_any_time(goal, step)):
            if now - goal.since < WAIT_SECONDS:
                return Turn(self._with(goal))
            return self._end(goal, "given up", f"nodes come and go for {WAIT_SECONDS:.0f} s", now, world)
        goal = msgspec.structs.replace(goal, step=step, since=now, tries=goal.tries if step == goal.step else 0)
        return Turn(self._with(goal), step)

    def answered(self, refused: str, now: float, world: World) -> Turn:
        """Handle what came of the step that was asked for: "" if it is granted, else why not."""
        goal = self.goal
        assert goal is not None and goal.step is not None
        if not refused and isinstance(goal.step, GiveWay):
            return self._end(goal, "done", "", now, world)
        if not refused:
            if goal.target is not None and isinstance(goal.step, ReplaceNode):
                return Turn(self._with(_moved(goal, goal.step, world, now)))
            return Turn(self._with(msgspec.structs.replace(goal, asked=True, since=now)))
        tries = goal.tries + 1
        if tries >= TRIES:
            return self._end(goal, "given up", f"{_words(goal.step)}: {refused}", now, world)
        again = now + AGAIN_SECONDS * 2 ** (tries - 1)
        return Turn(self._with(msgspec.structs.replace(goal, tries=tries, again=again, asked=False)))

    def _with(self, goal: Goal) -> Autoscaler:
        return self if goal == self.goal else msgspec.structs.replace(self, goal=goal)

    def _end(self, goal: Goal, state: Literal["done", "given up"], why: str, now: float, world: World) -> Turn:
        done = self._done(goal, state, why, now, world.samples)
        prediction = self.prediction
        if state == "done" and goal.target is not None:
            prediction = None if goal.predicted is None else PlanPrediction(goal.target, goal.predicted)
        then = None if goal.then is None else msgspec.structs.replace(goal.then, since=now)
        return Turn(msgspec.structs.replace(self, goal=then, prediction=prediction), None, done)

    def _done(
        self,
        goal: Goal,
        state: Literal["done", "given up", "rejected", "superseded"],
        why: str,
        now: float,
        samples: int,
    ) -> DecisionOutcome:
        return DecisionOutcome(
            job=self.job,
            number=goal.number,
            at=now,
            state=state,
            why=why,
            seconds=max(0.0, now - goal.began),
            samples=max(0, samples - goal.samples),
        )


# --- steps towards a plan -------------------------------------------------------------------------------------------

_ROLES: tuple[Role, ...] = ("worker", "ps")


def _role(plan: Plan, role: Role) -> RolePlan:
    return plan.ps if role == "ps" else plan.worker


def _at_any_time(goal: Goal, step: Step) -> bool:
    """Return whether a step may run while other nodes come or go: memory that runs out can't wait, and a slow node needs less at once."""
    return goal.target is None and isinstance(step, ResizeNode | LeaseLess)


def _next(goal: Goal, world: World) -> Step | None:
    if goal.target is None:
        return goal.steps[0] if goal.steps else None
    steps = list(_missing(goal.target, goal, world))
    return next((step for step, releases in steps if releases), steps[0][0] if steps else None)


def _missing(target: Plan, goal: Goal, world: World) -> Iterator[tuple[Step, bool]]:
    """Yield the steps from the present state to ``target``, each with whether it releases something. Sizes for new nodes come first: they
    cost nothing."""
    for role in _ROLES:
        wanted, planned = _role(target, role), _role(world.plan, role)
        if planned.each != wanted.each:
            yield SetNodeSize(role, wanted.each), True
    if target.ps.count == world.plan.ps.count:
        yield from _server_moves(target, goal, world)
    for role in _ROLES:
        wanted, planned = _role(target, role), _role(world.plan, role)
        on = _wanted_on(goal, role)
        if role == "worker" and planned.count == wanted.count:
            for node, host in _elsewhere(world.staying(role), on):
                if (host, _count_on(host, role, world)) not in goal.replaced:
                    yield ReplaceNode(node.id, wanted.each, host), False
        leave = set(world.leave_first[: -wanted.count]) if role == "ps" and wanted.count else set()
        for node in world.staying(role):
            size = _size(node.resources, wanted.each)
            if node.id in leave:  # what it holds goes to those that stay
                size = Resources(size.cores, node.resources.memory)
            if role == "ps" and wanted.count < planned.count and size.memory > node.resources.memory:
                # before any leaves: there has to be room for what it holds
                yield ResizeNode(node.id, Resources(node.resources.cores, size.memory)), True
            elif size != node.resources:
                yield ResizeNode(node.id, size), size.cores <= node.resources.cores
        if planned.count != wanted.count:
            yield ScaleRole(role, wanted.count, on), wanted.count < planned.count


def _server_moves(target: Plan, goal: Goal, world: World) -> Iterator[tuple[Step, bool]]:
    """Yield the steps that bring PS to the hosts that the plan has them on. Where these are full of workers that are to be elsewhere, these
    leave first, as nobody else makes room; and as many come again, there, when all PS have moved."""
    workers_on = _wanted_on(goal, "worker")
    for node, host in _elsewhere(world.staying("ps"), _wanted_on(goal, "ps")):
        if (host, _count_on(host, "ps", world)) in goal.relocated:
            continue
        too_many = _count_on(host, "worker", world) - workers_on.get(host, 0)
        fewer = max(1, world.plan.worker.count - too_many)
        if fewer < world.plan.worker.count:
            yield ScaleRole("worker", fewer, workers_on), True
        yield ReplaceNode(node.id, _size(node.resources, target.ps.each), host), False


def _wanted_on(goal: Goal, role: Role) -> dict[str, int]:
    return {one.host: one.servers if role == "ps" else one.workers for one in goal.placement}


def _moved(goal: Goal, step: ReplaceNode, world: World, now: float) -> Goal:
    """Note that a node is replaced by one on another host, and how many were there then."""
    is_ps = any(node.id == step.node and node.role == "ps" for node in world.nodes)
    move = step.host, _count_on(step.host, "ps" if is_ps else "worker", world)
    replaced, relocated = ((), (move,)) if is_ps else ((move,), ())
    return msgspec.structs.replace(
        goal, asked=True, since=now, replaced=goal.replaced + replaced, relocated=goal.relocated + relocated
    )


def _elsewhere(nodes: Sequence[NodeNow], on: Mapping[str, int]) -> Iterator[tuple[NodeNow, str]]:
    """Yield the nodes of a role that are on hosts with more of them than are wanted there, each with the host that is short of one
    instead."""
    missing = Counter(on)
    missing.subtract(Counter(node.host for node in nodes))
    short = [host for host in sorted(on) for _ in range(missing[host])]
    for node in nodes:
        if short and node.host and missing[node.host] < 0:
            missing[node.host] += 1
            yield node, short.pop(0)


def _count_on(host: str, role: Role, world: World) -> int:
    return sum(node.host == host for node in world.staying(role))


def _size(now: Resources, wanted: Resources) -> Resources:
    """Return the wanted size, with no less memory than the node has: a plan can't know how far the node has grown."""
    return Resources(wanted.cores, max(now.memory, wanted.memory))


def _is_done(step: Step, world: World) -> bool:
    """Return whether a step is done, or can't be done any more since the node is gone: what follows is derived from the present state."""
    match step:
        case SetNodeSize(role, each):
            return _role(world.plan, role).each == each
        case ResizeNode(name, _):
            return not any(node.id == name and node.resizing for node in world.nodes)
        case ScaleRole(role, count):
            planned = _role(world.plan, role).count
            return planned != count or (len(world.staying(role)) == count and world.calm)
        case AddServer(_, count):
            planned = world.plan.ps.count
            return planned != count or (len(world.staying("ps")) == count and world.calm)
        case ReplaceNode(name, _):
            return world.calm and not any(node.id == name for node in world.nodes)
        case MoveShare():
            return world.settled
        case LeaseLess():
            return True
        case TakeCheckpoint(samples):
            return world.saved >= samples
        case GiveWay():
            return False


def _words(step: Step) -> str:
    match step:
        case SetNodeSize(role, each):
            return f"the size of new {role} nodes ({each.cores:g} cores)"
        case ResizeNode(node, resources):
            return f"resizing {node} to {resources.cores:g} cores"
        case ScaleRole(role, count):
            return f"scaling to {count} {role}"
        case ReplaceNode(node, _):
            return f"replacing {node}"
        case AddServer(each, _):
            return f"one more parameter server ({each.cores:g} cores)"
        case MoveShare(node, share, _, of):
            return f"moving {share:.0%} of the {of} of {node}"
        case LeaseLess(node, _):
            return f"smaller shards for {node}"
        case TakeCheckpoint():
            return "a last checkpoint"
        case GiveWay():
            return "letting the nodes go"
