"""A parameter server as the master sees it: it follows orders at once, and writes real parts of the rows it is said to have."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from dlrover_lite.checkpoint.manifest import Layout, configuration_of
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.protocol.messages import PsOrders, PsReport, SnapshotOrder, SnapshotReport
from dlrover_lite.protocol.questions import Status
from tests.checkpoint.cuts import CONFIGURATION, SHAPES, Key, rows_of, slot_of
from tests.master.rig import PATIENCE, Rig, all_of

__all__ = ["LAYOUT", "ScriptedPs", "until", "until_ended"]

LAYOUT = msgspec.json.encode(Layout(configuration_of(CONFIGURATION), SHAPES))


class ScriptedPs:
    """``writes`` may be made False: a part is then done only once it is told to ``write`` it."""

    def __init__(self, rig: Rig, node: str, rows: dict[Key, tuple[int, int]] | None = None, clock: int = 0) -> None:
        self.node = node
        self.orders = PsOrders(0)
        self.rows = {} if rows is None else rows
        """Version, and the clock at which it came."""
        self.clock = clock
        self.taken: list[SnapshotOrder] = []
        self.writes = True
        self.fails = ""
        self._rig = rig
        self._snapshot: SnapshotReport | None = None

    @property
    def owned(self) -> slot_sets.SlotSet:
        return slot_sets.unpack(self.orders.owned) if self.orders.owned else slot_sets.none()

    def push(self, keys: Iterable[Key], version: int) -> None:
        """Those of its slots."""
        self.clock += 1
        for key in keys:
            if self.owned[slot_of(key)]:
                self.rows[key] = (version, self.clock)

    def step(self) -> None:
        """Report, and do what the answer says, if there is one: the master may end meanwhile."""
        ready = [
            one for one, move in zip(all_of(self.orders), self.orders.moves, strict=True) if move.target == self.node
        ]
        report = PsReport(self.node, len(self.rows), 0, 0, self.orders.version, ready=ready, snapshot=self._snapshot)
        answer = self._rig.ask_while_it_runs(self.node, report)
        if not isinstance(answer, PsOrders):
            return
        if answer.version >= self.orders.version:
            self.orders = answer
        order = answer.snapshot
        if order is not None and order.cut not in [taken.cut for taken in self.taken]:
            self.taken.append(order)
            self._take(order)

    def _take(self, order: SnapshotOrder) -> None:
        self._snapshot = SnapshotReport(order.cut, "taking")
        if self.fails:
            self._snapshot = SnapshotReport(order.cut, "failed", why=self.fails, hint="Make room.")
        elif self.writes:
            self._snapshot = self._written(order)

    def write(self) -> None:
        """Its part of the cut that it was told of last."""
        self._snapshot = self._written(self.taken[-1])

    def _written(self, order: SnapshotOrder) -> SnapshotReport:
        whole = slot_sets.unpack(order.whole) if order.whole else slot_sets.none()
        chosen = {
            key: version
            for key, (version, clock) in self.rows.items()
            if self.owned[slot_of(key)] and (not order.since or clock > order.since[key[0]] or whole[slot_of(key)])
        }
        number = int(self.node.partition("-")[2])
        with CheckpointStore(order.url).join(order.cut).part(order.job, number, self.owned, SHAPES) as part:
            for group in range(len(SHAPES)):
                for key, version in chosen.items():
                    if key[0] == group:
                        part.add(group, rows_of([key], group, version).records)
            entry = msgspec.structs.replace(part.finish(), clocks=[self.clock] * len(SHAPES))
        encoded = msgspec.json.encode(entry)
        return SnapshotReport(order.cut, "written", len(chosen), entry.stored_bytes, encoded, layout=LAYOUT)


def until_ended(rig: Rig, servers: Iterable[ScriptedPs]) -> Outcome:
    """Have these do what they are told until the master has ended."""
    end = rig.clock.now + PATIENCE
    while rig.runs:
        assert rig.clock.now < end
        for server in servers:
            server.step()
        rig.passes()
    return rig.ended()


def until(rig: Rig, servers: Iterable[ScriptedPs], wanted: Callable[[Status], object]) -> Status:
    """Have these do what they are told until the master's status is as wanted."""
    for status in rig.statuses():
        if wanted(status):
            return status  # type: ignore[no-any-return]
        for server in servers:
            server.step()
    raise AssertionError
