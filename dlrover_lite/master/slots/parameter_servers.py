"""What parameter servers report, and the orders they get: the slot state, kept with the ledger, and what is measured of slots."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from dlrover_lite.core import slot_sets
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.core.intervals import Range
from dlrover_lite.master.edge import as_the_master
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.job_state_store import RESTORE, SLOTS, JobStateStore
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.slots.slot_loads import SlotLoads, decode
from dlrover_lite.master.slots.slot_state import Batch, Move, Next, SlotState
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.protocol.messages import (
    Ack,
    MoveOrder,
    PsOrders,
    PsReport,
    RestoreOrder,
    RestoreReport,
    SnapshotOrder,
    Topology,
)
from dlrover_lite.protocol.questions import MoveStatus, RestoreStatus, SlotsReport
from dlrover_lite.transport.frames import MalformedMessage

__all__ = ["ParameterServers", "consumed"]

Order = TypeVar("Order", SnapshotOrder, RestoreOrder)


@dataclass(eq=False)
class ParameterServers:
    """What changes is put among the ``facts``, which are committed before an answer is sent that was given here."""

    facts: JobStateStore
    shards: ShardService
    story: EventLog
    wall_clock: Callable[[], float]
    url_for_nodes: Callable[[str], str] = as_the_master
    """Returns the URL by which PS reach the checkpoints that the master knows by this one."""

    def __post_init__(self) -> None:
        self.state = self.facts.slots() or SlotState()
        self.restore = self.facts.get(RESTORE)
        """Which cut the PS are to begin with, until all have."""
        self.reports: dict[str, PsReport] = {}
        """Last report of each PS; of one that held nothing when it ended, none."""
        self.loads = SlotLoads()
        self.snapshots: dict[str, SnapshotOrder] = {}
        """Orders of what each PS is to do for the cut under way."""
        self._restoring_since: float | None = None
        self._topology: tuple[SlotState, Fleet, Topology | None] | None = None
        """What was last told of who owns which slots, with what it follows from: each of hundreds of workers asks for it."""
        self.hold_moves = False
        """No move may begin: a cut is taken, or waits to be."""
        self._owned: dict[str, bytes] = {}
        """Slots that each PS owns in this map, packed."""
        self._moves_of: tuple[list[Move], dict[str, list[Move]]] = [], {}
        """Moves that are not over, and those of them that each PS takes part in."""
        self._owned_since = dict.fromkeys(self.state.ps, self.state.version)
        """The version from which on each PS owns what it does, or an older master was gone."""
        self._written_consumed = consumed(self.shards)
        """What is consumed as of the last orders that were written down, or the beginning of this master."""

    # --- what there is --------------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether there is a map, every PS has what it owns, no slot is on its way, and every PS has heard so."""
        return self.state.version > 0 and not self.state.moves and self.restore is None

    @property
    def settled(self) -> bool:
        """Whether nothing is left of what was wanted of the PS."""
        return not (self.state.moves or self.state.leaving or self.state.rebalance)

    @property
    def rows(self) -> int:
        return sum(report.rows for report in self.reports.values())

    def moves(self) -> list[MoveStatus]:
        if not self.state.moves:
            return []
        row_bytes = self.loads.row_bytes(self.state, self.reports)
        return [self._status(move, int(row_bytes[move.members].sum())) for move in self.state.moves]

    def _status(self, move: Move, left_bytes: int) -> MoveStatus:
        """Return the status of a move. ``left_bytes``: those of slots that are still to be moved."""
        rate, source = move.bytes_per_second or None, self.reports.get(move.source)
        return MoveStatus(
            move.id,
            move.source,
            move.target,
            move.count,
            move.state,
            move.moved_rows + (self._received(move.target, move.id) if move.state == "copying" else 0),
            moved_slots=move.moved,
            bytes=move.moved_bytes + left_bytes,
            moved_bytes=move.moved_bytes,
            bytes_per_second=rate,
            seconds_left=left_bytes / rate if rate and move.state == "copying" else None,
            slowed=source.slowed if source is not None and move.state == "copying" else 0.0,
        )

    @property
    def restoring(self) -> RestoreStatus | None:
        """How far the checkpoint is that they restore; None: there is none."""
        if (order := self.restore) is None:
            return None
        owners = self.state.counts()
        known = [report.restoring for node, report in self.reports.items() if node in owners]
        found = [one for one in known if one is not None and one.generation == order.generation]
        rows, size = sum(one.rows for one in found), sum(one.bytes for one in found)
        seconds = max((one.seconds for one in found), default=0.0)
        is_timed = rows > 0 and seconds > 0
        return RestoreStatus(
            order.cut,
            self._restoring_since,
            rows,
            sum(one.total_rows for one in found),
            size,
            sum(one.total_bytes for one in found),
            rows / seconds if is_timed else None,
            size / seconds if is_timed else None,
            _seconds_left(found) if len(found) == len(owners) else None,
        )

    def slots(self, hottest: int, fleet: Fleet) -> SlotsReport:
        state = self.state
        if not state.version:
            return SlotsReport(0)
        now = self.wall_clock()
        servers = [self.loads.of(node.id, state.owned(node.id), now) for node in fleet.running if node.role == "ps"]
        return SlotsReport(state.version, servers, self.loads.hottest(hottest, state), self.moves())

    def tidy(self, node: str) -> bool:
        """Return whether a PS has given back all memory that it can, and nothing moves to or from it."""
        report = self.reports.get(node)
        return report is not None and report.tidy and not report.gives_back and not self._moves(node)

    def bytes_of(self, node: str) -> int:
        """Return the memory that a PS's rows and index take, as it last told, in bytes."""
        report = self.reports.get(node)
        return report.bytes if report else 0

    def _moves(self, node: str) -> list[Move]:
        """List the moves that are not over in which a PS takes part."""
        if self._moves_of[0] is not self.state.moves:
            found: dict[str, list[Move]] = {}
            for move in self.state.moves:
                found.setdefault(move.source, []).append(move)
                found.setdefault(move.target, []).append(move)
            self._moves_of = self.state.moves, found
        return self._moves_of[1].get(node, [])

    def _received(self, target: str, move: int) -> int:
        report = self.reports.get(target)
        return report.received.get(move, 0) if report else 0

    # --- answers --------------------------------------------------------------------------------------------------------

    def report(self, report: PsReport, fleet: Fleet) -> PsOrders | Ack:
        """Take a report; its orders, or Ack for one that is no PS of this job's, or has ended. Raises MalformedMessage."""
        node = fleet.by_id.get(report.node)
        if node is None or node.role != "ps" or node.state == "ended":
            return Ack()
        loads = decode(report.loads) if report.loads else None
        ready = _ready(report)
        if not 0 <= report.requests_per_second < math.inf:
            raise MalformedMessage(f"{report.requests_per_second} requests/s")
        self._note_slowed(node.id, report.slowed)
        self.reports[node.id] = report
        self._note_restoring(report.restoring)
        self._note_restored(node.id)
        if ready:
            self.take(self.state.ready(node.id, ready, self.wall_clock()))
        if report.tidy and not all(move.open for move in self._moves(node.id)):
            self.take(self.state.report(node.id, report.version, report.tidy))
        if loads is not None and report.version >= self._owned_since.get(node.id, 1):
            self.loads.take(
                node.id,
                self.state.owned(node.id),
                loads,
                requests_per_second=report.requests_per_second,
                at=self.wall_clock(),
            )
        return self.orders(node.id, fleet)

    def are_written(self, orders: PsOrders) -> None:
        """Note that all that these orders follow from is durable."""
        self._written_consumed = orders.consumed_below, orders.consumed

    def as_written(self, orders: PsOrders) -> PsOrders:
        """Return orders that say no more of what is consumed than is durable: a server forgets what it has applied of that, and a master
        that knows nothing of it would have it applied again."""
        below, ranges = self._written_consumed
        return msgspec.structs.replace(orders, consumed_below=below, consumed=ranges)

    def orders(self, node: str, fleet: Fleet) -> PsOrders:
        state = self.state
        if not state.version:
            return PsOrders(0)
        if node not in self._owned:
            self._owned[node] = slot_sets.pack(state.owned(node))
        moves = [
            MoveOrder(
                move.id,
                move.source,
                fleet.by_id[move.source].endpoint,
                move.target,
                move.slots,
                move.at_once,
                move.source in state.leaving,
            )
            for move in self._moves(node)
            if move.state == "copying"
        ]
        snapshot, restore = self._for_nodes(self.snapshots.get(node)), self._for_nodes(self.restore)
        return PsOrders(state.version, self._owned[node], moves, *consumed(self.shards), snapshot, restore)

    def _for_nodes(self, order: Order | None) -> Order | None:
        """Return the order with the URL by which nodes reach the checkpoints."""
        return None if order is None else msgspec.structs.replace(order, url=self.url_for_nodes(order.url))

    def _note_slowed(self, node: str, share: float) -> None:
        """Tell the story that a PS holds back pushes for a larger share of the time than before."""
        before = self.reports[node].slowed if node in self.reports else 0.0
        if share > before:
            why = "as their rows change faster than they are copied"
            self.story.node(node, f"holds back pushes to slots that leave it for {share:.0%} of the time, {why}")

    def _note_restoring(self, report: RestoreReport | None) -> None:
        if self.restore is None or report is None or self._restoring_since is not None:
            return
        if report.generation == self.restore.generation:
            self._restoring_since = self.wall_clock() - report.seconds

    def _note_restored(self, node: str) -> None:
        order = self.restore
        if order is None or not (owners := self.state.counts()):
            return
        reports = [self.reports.get(owner) for owner in owners]
        if all(report is not None and report.restored >= order.generation for report in reports):
            self.restore = self._restoring_since = None
            failpoint("master.restore.over")
            self.facts.keep(RESTORE, None)
            self.story.node(node, f"checkpoint {order.cut} is restored: training goes on")

    def topology(self, fleet: Fleet) -> Topology | None:
        """Return the PS that own slots; None before there is a map, and while one of them is still to come up, or to take its rows from a
        cut."""
        if not self.state.version or self.restore is not None:
            return None
        if self._topology is None or self._topology[0] is not self.state or self._topology[1] is not fleet:
            self._topology = self.state, fleet, self._topology_of(fleet)
        return self._topology[2]

    def _topology_of(self, fleet: Fleet) -> Topology | None:
        state = self.state
        used, owners = np.unique(state.positions(), return_inverse=True)
        if any(fleet.by_id[state.ps[at]].state != "up" for at in used.tolist()):
            return None
        servers = [(state.ps[at], fleet.by_id[state.ps[at]].endpoint) for at in used.tolist()]
        return Topology(state.version, servers, owners.astype("<u2").tobytes())

    # --- changes --------------------------------------------------------------------------------------------------------

    def take(self, following: Next) -> bool:
        """Go over to the next state; whether it is another one."""
        state, notes = following
        if state is self.state:
            return False
        if (state.owners, state.ps) != (self.state.owners, self.state.ps):
            for node in state.differing(self.state):
                self._owned.pop(node, None)
                self._owned_since[node] = state.version
        self.state = state
        self.facts.keep(SLOTS, state)
        for note in notes:
            self.story.node(note.node, note.text)
        return True

    def begin(self, fleet: Fleet) -> None:
        """Make the first map, once all PS of the plan are up."""
        if not self.state.version and fleet.all_ps_up(self.state.leaving):
            self.take(self.state.begin([node.id for node in fleet.servers_up(self.state.leaving)]))

    def start(self, fleet: Fleet) -> bool:
        """Begin moves that can; whether there were any."""
        if not self.state.moves or self.hold_moves or self.restore is not None:
            return False
        up = {node.id for node in fleet.of("ps") if node.state == "up"}
        return self.take(self.state.start(up, self.wall_clock()))

    def tell(self, node: str, text: str) -> None:
        self.story.node(node, text)

    def gone(self, node: str) -> None:
        """Note that a PS has ended, and held no slots."""
        self.reports.pop(node, None)
        self.take(self.state.gone(node))

    def down(self, node: str) -> None:
        """Note that a PS has ended, holds slots, and is going to be followed. Durable with the next commit."""
        self.take(self.state.down(node))

    def replaced(self, old: str, new: str) -> None:
        """Note that ``new`` holds all that ``old`` held. Durable with the next commit."""
        if (report := self.reports.pop(old, None)) is not None:
            self.reports[new] = msgspec.structs.replace(
                report, node=new, version=0, tidy=False, restored=0, restoring=None
            )
        self.take(self.state.replaced(old, new))


def _seconds_left(restoring: Collection[RestoreReport]) -> float | None:
    """Return the seconds until the last server is through, each at its own rate; None: that of one isn't known."""
    found = []
    for one in restoring:
        if not (one.rows and one.seconds):
            return None
        found.append((one.total_rows - one.rows) * one.seconds / one.rows)
    return max(0.0, *found) if found else None


def _ready(report: PsReport) -> dict[int, Batch]:
    """Return the slots that are ready, by move. Raises MalformedMessage."""
    found: dict[int, Batch] = {}
    for one in report.ready:
        try:
            members = slot_sets.unpack(one.slots)
        except ValueError as error:
            raise MalformedMessage(str(error)) from error
        before = found.get(one.move, Batch(slot_sets.none()))
        found[one.move] = Batch(before.members | members, before.rows + one.rows, before.bytes + one.bytes)
    return found


def consumed(shards: ShardService) -> tuple[int, list[tuple[int, list[Range]]]]:
    """Return what is consumed: all epochs below the first number, and of the later ones that have begun, these ranges of minibatches. Those
    in quarantine are not among them: a job that goes on from a checkpoint tries them again."""
    below, epochs = shards.epochs_under_way()
    return below, [(of.index, shards.ledger.done(of).listed()) for of in epochs]
