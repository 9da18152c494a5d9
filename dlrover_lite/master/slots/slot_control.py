"""What is wanted of parameter servers and of their slots, compared each turn with what is; and people's wishes to change it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import msgspec
import numpy as np

from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.core.slot_sets import SlotSet
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.core.words import plural
from dlrover_lite.master.job_state_store import JobStateStore
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.master.nodes.places import ANYWHERE, Places, given_more_last
from dlrover_lite.master.nodes.reconciler import Reconciler
from dlrover_lite.master.nodes.resizing import refusal as refusal_of_resize
from dlrover_lite.master.nodes.scaling import newcomer_refusal, refusal, replacement_refusal
from dlrover_lite.master.profiling.host_speeds import HostSpeeds
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.master.slots.placement import MEMORY_SHARE, ServerRoom, place
from dlrover_lite.master.slots.slot_state import Move, SlotState, Transfer
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.protocol.acts import WorkRole
from dlrover_lite.protocol.questions import (
    CancelMovesRequest,
    DrainRequest,
    KillRequest,
    MoveRequest,
    ResizeRequest,
    Scaled,
    ScaleRequest,
    Wish,
)
from dlrover_lite.transport.frames import UNUSABLE, Failure, MalformedMessage

__all__ = ["SlotControl"]

AT_ONCE_BYTES = 64 << 20
"""Bytes of rows on a slow PS up to which they are copied with training held up, which is over the sooner for it: a second or two at a tenth
of a core."""
_OVER = Failure("refused", "all samples have been trained on: there is nothing left to scale for, or to move")
_ENDED = Failure("refused", "the job has ended: there is no node to resize")
_NONE_TO_KILL = Failure("refused", "the job has ended: there is no node to kill")


@dataclass(eq=False)
class SlotControl:
    """``total``: the recipe's ceiling. ``facts`` do what follows once what has changed is durable. PS get slots by their cores and by the
    speeds of their hosts."""

    servers: ParameterServers
    reconciler: Reconciler
    shards: ShardService
    total: Resources | None
    facts: JobStateStore
    host_speeds: HostSpeeds

    def __post_init__(self) -> None:
        self.problem = ""
        """Why what is wanted can't be done for now."""
        self.reconciler.replace = self._replace_by_larger

    @property
    def _fleet(self) -> Fleet:
        return self.reconciler.fleet

    @property
    def _state(self) -> SlotState:
        return self.servers.state

    # --- each turn ------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Bring what is nearer to what is wanted."""
        self._forget_ended()
        self.servers.begin(self._fleet)
        if self.shards.trained:
            self.settle("all samples have been trained on")
        elif self._state.version:
            self._plan()
        if self.servers.start(self._fleet):
            failpoint("master.move.decided")
            self.facts.after_commit(lambda: failpoint("master.move.begun"))
        for node in self._state.leaving:
            if not self._state.owns(node) and not self._state.busy(node):
                self.reconciler.drain(node)

    def _forget_ended(self) -> None:
        """Forget a PS that ended, of which an earlier master had no time to say so here."""
        mentioned = {*self._state.leaving, *(node for move in self._state.moves for node in (move.source, move.target))}
        for node in mentioned:
            known = self._fleet.by_id.get(node)
            if (known is None or known.state == "ended") and not self._state.owns(node):
                self.servers.gone(node)

    def _plan(self) -> None:
        """Plan moves off PS that leave, and to those that have come, once nobody is still to come and nothing on its way."""
        state, fleet = self._state, self._fleet
        wanted = state.rebalance or self._to_empty()
        if not wanted:
            self.problem = ""
        waits = state.open_moves() or self.servers.restore is not None
        if not wanted or waits or not fleet.all_ps_up(state.leaving):
            return
        if not all(self._measured(node.id) for node in fleet.of("ps") if node.state == "up"):
            return
        hurry = [node for node in state.slow if self._bytes(state.owned(node)) <= AT_ONCE_BYTES]
        if handed := self._handed_over(state):
            self.servers.take(state.want(handed, at_once=hurry))
            return
        try:
            transfers = self._placed(state, balance=state.rebalance)
        except JobError as error:
            if error.message != self.problem:
                self.problem = error.message
                for node in self._to_empty():
                    self.servers.tell(node, f"can't be emptied: {error.message}")
            return
        self.problem = ""
        after, told = state.want(transfers, at_once=hurry)
        self.servers.take((after.place_anew(False), told))

    def _handed_over(self, state: SlotState) -> list[Transfer]:
        """List transfers of all that slow PS have, each to one that has come for it: in one move, since each takes its time there."""
        staying = self._fleet.servers_up(state.leaving)
        empty = [node for node in staying if not state.owns(node.id)]
        found = []
        for source in state.slow:
            members = state.owned(source)
            coming = self._bytes(members)
            target = next((node for node in empty if coming <= MEMORY_SHARE * self._free(node)), None)
            if members.any() and target is not None:
                empty.remove(target)
                found.append((source, target.id, members))
        return found

    def _measured(self, node: str) -> bool:
        return node in self.servers.reports and node in self.reconciler.usage

    def _to_empty(self) -> list[str]:
        """List the PS that leave, and have slots that nobody is to take from them yet."""
        if not self._state.leaving:
            return []
        ps, positions = self._state.future()
        held = {ps[at] for at in np.unique(positions).tolist()}
        return [node for node in self._state.leaving if node in held]

    def _placed(self, state: SlotState, *, balance: bool) -> list[Transfer]:
        """List the transfers that place slots anew. Raises JobError when there is no room."""
        ps, positions = state.future()
        staying = {node.id: node for node in self._fleet.servers_up(state.leaving)}
        ids = ps + [node for node in staying if node not in ps]
        speeds, hosts = self.host_speeds.by_host(), self.reconciler.host_of
        rooms = [
            ServerRoom(
                node, staying[node].resources.cores * speeds.get(hosts.get(node, ""), 1.0), self._free(staying[node])
            )
            if node in staying
            else ServerRoom(node, 0.0, 0.0, leaving=True)
            for node in ids
        ]
        loads, to_empty = self.servers.loads, slot_sets.none()
        for node in state.leaving:
            to_empty |= state.owned(node)
        row_bytes = loads.row_bytes(state, self.servers.reports)
        return place(positions, loads.busy_elsewhere(to_empty), row_bytes, rooms, balance=balance)

    def _free(self, node: Node) -> float:
        """Return the memory that a PS has left, less what is on its way to it, in bytes."""
        usage, report = self.reconciler.usage.get(node.id), self.servers.reports.get(node.id)
        used = usage.memory if usage else report.bytes if report else 0
        coming = sum(self._bytes(move.members) for move in self._state.open_moves() if move.target == node.id)
        return node.least_memory - used - coming

    def _bytes(self, members: SlotSet) -> float:
        return float(self.servers.loads.row_bytes(self._state, self.servers.reports)[members].sum())

    def settle(self, why: str) -> list[str]:
        """Give up what isn't committed, and what it was for; what that means, in words."""
        state = self._state
        dropped = [
            f"move {move.id} from {move.source} to {move.target} is cancelled{_stays(move)}"
            for move in state.open_moves()
        ]
        after, told = state.cancel(why)
        staying = [node for node in after.leaving if after.owns(node)]
        after, more = after.stay(staying, why)
        self.servers.take((after.place_anew(False), told + more))
        if staying:
            self.reconciler.scale_ps(self._fleet.plan.ps.count + len(staying))
        rest = ["slots stay where they are"] if state.rebalance and not dropped else []
        return dropped + [f"{node} stays" for node in staying] + rest

    # --- wishes ---------------------------------------------------------------------------------------------------------

    def answer(self, wish: Wish) -> Scaled | Failure:
        """Carry out a wish and answer it. Raises MalformedMessage."""
        try:
            match wish:
                case ScaleRequest():
                    return self._scale(wish, ANYWHERE)
                case MoveRequest(members, target):
                    return self._move(_unpacked(members), target)
                case DrainRequest(node, replace):
                    return self._drain(node, replace)
                case KillRequest(node):
                    return self._kill(node)
                case ResizeRequest():
                    return self._resize(wish)
                case CancelMovesRequest():
                    return _OVER if self._over else Scaled(self.settle("by request"))
        except JobError as error:
            return Failure("refused", error.message, error.hint)

    # --- wishes of the brain ----------------------------------------------------------------------------------------------

    def scale(self, role: WorkRole, count: int, wanted: Mapping[str, int]) -> Scaled | Failure:
        """Have so many nodes of a role. ``wanted``: how many of them on each host; empty: wherever there is room."""
        wish = ScaleRequest(workers=count) if role == "worker" else ScaleRequest(ps=count)
        try:
            return self._scale(wish, Places(wanted, self.reconciler.host_of))
        except JobError as error:
            return Failure("refused", error.message, error.hint)

    def leave_first(self, wanted: Mapping[str, int]) -> list[str]:
        """List the PS in the order in which they leave when there are fewer. ``wanted``: as ``scale`` has it."""
        staying = self._fleet.staying_of("ps", self._state.leaving)
        return [node.id for node in self._leaving_order(staying, Places(wanted, self.reconciler.host_of))]

    def join(self, each: Resources, host: str = "") -> Scaled | Failure:
        """Add one more PS, with ``each``, on ``host`` if one is named; slots stay where they are."""
        refused = newcomer_refusal(each, self._fleet, total=self.total) or (_OVER if self._over else None)
        return refused or Scaled(self.reconciler.scale_ps(self._fleet.plan.ps.count + 1, each=each, host=host))

    def replace(self, node: str, each: Resources, host: str = "") -> Scaled | Failure:
        """Replace a node that is slow by another one with ``each``, on ``host`` if one is named, else rather not where this one is."""
        self.reconciler.avoid_host_of(node)
        return self._drain(node, replace=True, each=each, host=host, why="replaced, as it is slow", slow=True)

    def relocate(self, node: str, each: Resources, host: str) -> Scaled | Failure:
        """Replace a node by another one with ``each`` on the ``host`` that the plan has it on."""
        return self._drain(
            node, replace=True, each=each, host=host, why=f"replaced by one on {host}, as the plan has it"
        )

    def _replace_by_larger(self, node: str, each: Resources) -> str:
        """Replace a node that can't be resized by another one with ``each``. Return why that can't be, or ""."""
        answer = self._drain(node, replace=True, each=each, why="replaced, as it can't be resized")
        return answer.message if isinstance(answer, Failure) else ""

    @property
    def _over(self) -> bool:
        return self._fleet.done or self.shards.trained

    def _scale(self, wish: ScaleRequest, places: Places) -> Scaled | Failure:
        plan = self._fleet.plan
        refused = refusal(wish, self._fleet, total=self.total) or (_OVER if self._over else None)
        if refused is not None:
            return refused
        actions = []
        if wish.ps is not None and wish.ps != plan.ps.count:
            actions += self._scale_ps(wish.ps, places)
        if wish.workers is not None and wish.workers != plan.worker.count:
            actions += self.reconciler.scale(wish.workers, places=places)
        return Scaled(actions)

    def _scale_ps(self, count: int, places: Places) -> list[str]:
        """Scale to ``count`` PS. Raises JobError, with nothing done, when the parameters don't fit into so few."""
        why = f"scaled to {plural(count, 'parameter server')}"
        state, fleet = self._state, self._fleet
        staying = fleet.staying_of("ps", state.leaving)
        missing = count - len(staying) - len(fleet.coming_back("ps", state.leaving))
        if missing > 0:
            called_back = [node for node in fleet.staying_of("ps") if node.id in state.leaving]
            kept = [node.id for node in self._least_held(called_back)[::-1][:missing]]
            after, told = state.stay(kept, why)
            self.servers.take((after.place_anew(True), told))
            launched = self.reconciler.scale_ps(count, places=places)
            rest = ["slots move when all parameter servers are up"] if self._state.version else []
            return [f"{node} stays" for node in kept] + launched + rest
        surplus = max(0, len(staying) + fleet.following(state.leaving) - count)
        if surplus > len(staying):
            raise JobError(
                f"there can't be {plural(count, 'parameter server')} before those that follow others are up",
                hint="Try again in a moment.",
            )
        chosen = [node.id for node in self._leaving_order(staying, places)[:surplus]]
        return self._let_go(chosen, why) + self.reconciler.scale_ps(count)

    def _let_go(self, nodes: Collection[str], why: str) -> list[str]:
        """Let PS go. Raises JobError, with nothing done, when there is no room for what they hold."""
        after, told = self._state.leave(nodes, why)
        if after.version and self._fleet.all_ps_up(self._state.leaving):
            self._placed(after, balance=False)
        self.servers.take((after, told))
        return [self._leaves(node) for node in nodes]

    def _leaves(self, node: str) -> str:
        count = self._state.counts().get(node, 0)
        return f"{node} leaves" + (f" when its {plural(count, 'slot')} have moved to others" if count else "")

    def _leaving_order(self, staying: list[Node], places: Places) -> list[Node]:
        """Sort PS: those that leave first first."""
        return places.leave_first(given_more_last(self._least_held(staying)), staying)

    def _least_held(self, nodes: list[Node]) -> list[Node]:
        """Sort PS: those that hold the fewest bytes first, and of them the youngest."""
        counts, reports = self._state.counts(), self.servers.reports

        def held(node: Node) -> tuple[int, int]:
            return reports[node.id].bytes if node.id in reports else 0, counts.get(node.id, 0)

        youngest_first = nodes[::-1]
        youngest_first.sort(key=held)
        return youngest_first

    def _move(self, members: SlotSet, target: str) -> Scaled | Failure:
        state, node = self._state, self._fleet.by_id.get(target)
        refused = _OVER if self._over else self._bad_target(target, node)
        if refused is not None or node is None:
            return refused or _OVER
        if not members.any():
            return Failure(UNUSABLE, "there are no slots to move in the request", "Name at least one: 0-99,200")
        for move in state.open_moves():
            if (shared := move.members & members).any():
                return Failure(
                    "refused",
                    f"{_named(shared)} {'is' if shared.sum() == 1 else 'are'} part of move {move.id} from {move.source} to "
                    f"{move.target}, which is {move.state}",
                    "Wait until it is done, or cancel what is under way: dlrover-lite move --cancel",
                )
        members = members & ~state.owned(target)
        coming, room = self._bytes(members), MEMORY_SHARE * max(0.0, self._free(node))
        if coming > room:
            return Failure(
                "refused",
                f"these slots hold {format_bytes(coming)} of rows, and {target} has room for {format_bytes(room)} "
                f"within its {format_bytes(node.resources.memory)}",
                "Move fewer slots, or have more parameter servers: dlrover-lite scale --ps N",
            )
        transfers = [(source, target, found) for source in state.ps if (found := members & state.owned(source)).any()]
        self.servers.take(state.want(transfers))
        moves = self._state.open_moves()[-len(transfers) :] if transfers else []
        return Scaled(
            [f"move {move.id}: {plural(move.count, 'slot')} from {move.source} to {target}" for move in moves]
        )

    def _bad_target(self, target: str, node: Node | None) -> Failure | None:
        if node is None or node.role != "ps":
            return self._unknown(target, "parameter server", [server.id for server in self._fleet.of("ps")])
        if node.state in ("ended", "ending", "draining") or target in self._state.leaving:
            how = "has ended" if node.state == "ended" else "is about to end"
            return Failure(
                UNUSABLE, f"{target} {how}: no slots can move to it", "dlrover-lite status shows who is there."
            )
        if node.state != "up" or not self._state.version:
            who = f"{target} is" if node.state != "up" else "the parameter servers are"
            return Failure("refused", f"{who} still starting: no slots can move yet", "Try again in a moment.")
        return None

    @staticmethod
    def _unknown(name: str, what: str, known: list[str]) -> Failure:
        near = get_close_matches(name, known, n=1, cutoff=0.0)
        return Failure(
            UNUSABLE, f"there is no {what} {name!r} in this job", f"The nearest is {near[0]}." if near else ""
        )

    def _drain(
        self,
        name: str,
        replace: bool,
        *,
        each: Resources | None = None,
        host: str = "",
        why: str = "drained by request",
        slow: bool = False,
    ) -> Scaled | Failure:
        fleet, node = self._fleet, self._fleet.by_id.get(name)
        if self._over:
            return _OVER
        if node is None:
            return self._unknown(name, "node", [other.id for other in fleet.running])
        if node.state == "ended":
            return Failure(UNUSABLE, f"{name} has ended already", "dlrover-lite status shows who is there.")
        if node.state in ("draining", "ending") or name in self._state.leaving:
            return Scaled()
        role = fleet.planned(node.role)
        if not replace and role.count <= 1:
            what = "parameter server" if node.role == "ps" else "worker"
            return Failure(UNUSABLE, f"{name} is the last {what}", "Let another one take its place: --replace")
        if node.wanted is not None and node.wanted == each:
            node = msgspec.structs.replace(node, wanted=None)  # the other one gets that
        if replace and (refused := replacement_refusal(node, fleet, each)) is not None:
            return refused
        if node.role != "ps":
            return Scaled(self.reconciler.drain(name, why=why, replace=replace, each=each, host=host))
        if replace:
            self.servers.take(self._state.leave([name], why if each else f"{why}, to be replaced", slow=slow))
            return Scaled([self._leaves(name), *self.reconciler.scale_ps(role.count, each=each, host=host)])
        actions = self._let_go([name], why)
        return Scaled(actions + self.reconciler.scale_ps(role.count - 1))

    def _kill(self, name: str) -> Scaled | Failure:
        """Kill a node, whatever it is at: what it has leased is leased again, and what it holds is found by the one that follows."""
        node = self._fleet.by_id.get(name)
        if self._fleet.done:
            return _NONE_TO_KILL
        if node is None:
            return self._unknown(name, "node", [other.id for other in self._fleet.running])
        if node.state == "ended":
            return Failure(UNUSABLE, f"{name} has ended already", "dlrover-lite status shows who is there.")
        stays = node.state != "draining" and name not in self._state.leaving
        told = self.reconciler.kill(name)
        return Scaled([*told, "another one takes its place"] if told and stays else told)

    def more_memory(self, node: str, wanted: int) -> int:
        """Return the limit that a node could have at once, of that which is wanted, in bytes: what all others have and the recipe's ceiling
        leave."""
        fleet, known = self._fleet, self._fleet.by_id[node]
        most = min(fleet.capacity.memory, self.total.memory) if self.total is not None else fleet.capacity.memory
        return max(known.resources.memory, min(wanted, most - fleet.memory_beside(known)))

    def _resize(self, wish: ResizeRequest) -> Scaled | Failure:
        fleet, node = self._fleet, self._fleet.by_id.get(wish.node)
        if fleet.done:
            return _ENDED
        if node is None:
            return self._unknown(wish.node, "node", [other.id for other in fleet.running])
        before = node.wanted or node.resources
        wanted = Resources(wish.cores or before.cores, wish.memory or before.memory)
        if not (math.isfinite(wanted.cores) and wanted.cores > 0 and wanted.memory > 0):
            raise MalformedMessage(f"a node of {wanted.cores} cores and {wanted.memory} bytes")
        is_lowered = wanted.memory < node.resources.memory
        used = self.reconciler.memory_used(node.id) if is_lowered else 0  # which has all nodes' read
        refused = refusal_of_resize(node, wanted, fleet, total=self.total, used=used, tidy=self.servers.tidy(node.id))
        return refused or Scaled(self.reconciler.resize(node.id, wanted))


def _unpacked(members: bytes) -> SlotSet:
    try:
        return slot_sets.unpack(members)
    except ValueError as error:
        raise MalformedMessage(str(error)) from error


def _stays(move: Move) -> str:
    return f": {move.moved:,} of {plural(move.count, 'slot')} moved before, and stay there" if move.moved else ""


def _named(members: SlotSet) -> str:
    text = slot_sets.describe(members)
    return (
        f"slot {text}"
        if members.sum() == 1
        else f"slots {text if len(text) <= 40 else text[:40].rpartition(',')[0] + ', …'}"
    )
