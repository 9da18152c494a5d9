"""Memory that nodes are given before the brain could be asked: parameter servers (PS) that fill up, workers that nearly
are, the one that writes the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dlrover_lite.core.units import MIB, format_bytes
from dlrover_lite.master.autoscale.filling_servers import Filling
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.master.nodes.reconciler import Reconciler
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.master.slots.slot_control import SlotControl
from dlrover_lite.protocol.messages import PsReport
from dlrover_lite.protocol.questions import ResizeRequest

__all__ = ["MemoryReflex"]

_NEARLY_FULL, _MORE = 0.9, 1.25
"""Share of its memory limit from which on a worker gets more, and its new limit in multiples of what it uses."""
_EXPORT_BYTES = 512 * MIB
"""Bytes that writing the model takes beside what a worker has used: rows that are scanned and held back, and what writes them (Parquet's
library takes the most)."""


@dataclass(eq=False)
class MemoryReflex:
    """Memory that nodes of an autoscaled job get at once, before the brain decides. ``exporter`` says which worker writes the model, or
    ""."""

    control: SlotControl
    reconciler: Reconciler
    servers: ParameterServers
    story: EventLog
    exporter: Callable[[], str]
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._filling = Filling()
        self._fleet: Fleet | None = None
        """The fleet that the servers and workers are of."""
        self._servers_up: list[Node] = []
        self._workers_up: list[Node] = []
        self._looked_at: dict[str, PsReport] = {}
        """The report of each PS by which it was looked last whether it fills up: without another one it is as it was."""
        self._read: object = None
        """What was read of the memory of all nodes when workers were looked at last."""
        self._exports = ""
        """The worker that was given room to write the model."""

    def turn(self, *, trained: bool) -> None:
        """Give more memory to nodes that need it at once. ``trained``: all there is has been trained on."""
        if trained:
            self._make_room_to_export()
            return
        if (fleet := self.reconciler.fleet) is not self._fleet:
            self._fleet, self._read = fleet, None
            self._servers_up = fleet.servers_up()
            self._workers_up = [node for node in fleet.staying if node.state == "up"]
            present = {node.id for node in self._servers_up}
            self._filling.keep(present)
            self._looked_at = {node: report for node, report in self._looked_at.items() if node in present}
        self._fill_up()
        if self._read is not self.reconciler.readings or self._read is None:
            self._read = self.reconciler.readings
            self._raise_workers()

    def _fill_up(self) -> None:
        """Give a little more memory to PS that are about to be full: the brain hears of it, and decides what they are to have."""
        for node in self._servers_up:
            # those that slots come to as well: a move has looked for room before, and takes minutes in which rows grow
            report, limit = self.servers.reports.get(node.id), node.resources.memory
            if node.wanted is not None or report is None or report is self._looked_at.get(node.id):
                continue
            self._looked_at[node.id] = report
            used = partial(self.reconciler.memory_used, node.id)
            wanted = self._filling.look(node.id, self.clock(), held=report.bytes, limit=limit, used=used)
            if wanted is not None:
                self._give(node.id, limit, wanted, "fills up")

    def _raise_workers(self) -> None:
        """Give more memory to workers that have come to need more than any had until their limit was set."""
        for node in self._workers_up:
            usage, limit = self.reconciler.usage.get(node.id), node.resources.memory
            if node.wanted is None and usage is not None and usage.memory >= _NEARLY_FULL * limit:
                self._give(node.id, limit, int(_MORE * usage.memory), "is nearly full")

    def _make_room_to_export(self) -> None:
        """Give the worker that writes the model room for that: its limit may be what training takes."""
        node = self.reconciler.fleet.by_id.get(self.exporter())
        if node is None or node.id == self._exports:
            return
        self._exports = node.id
        wanted = self.reconciler.most_used(node.id) + _EXPORT_BYTES
        self._give(node.id, node.resources.memory, wanted, "writes the model")

    def _give(self, node: str, limit: int, wanted: int, why: str) -> None:
        """Raise the node's memory limit to ``wanted``, as far as there is so much."""
        more = self.control.more_memory(node, wanted)
        if more > limit:
            self.story.node(node, f"{why}: it gets {format_bytes(more)} instead of {format_bytes(limit)} at once")
            self.control.answer(ResizeRequest(node, memory=more))
