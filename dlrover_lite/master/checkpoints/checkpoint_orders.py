"""Orders about checkpoints, for parameter servers at once rather than with the answer to what they ask next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dlrover_lite.master.checkpoints.checkpoints import Checkpoints
from dlrover_lite.master.checkpoints.restored_ledger import facts_for
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.protocol.messages import PsReport
from dlrover_lite.recipe.schema import Checkpoint
from dlrover_lite.transport.frames import Request
from dlrover_lite.transport.server import Server

if TYPE_CHECKING:
    from dlrover_lite.master.loop import Master

__all__ = ["CheckpointOrders", "checkpoints_of"]


class CheckpointOrders:
    """The turns of ``checkpoints``, which also come as soon as there is news. ``commit`` makes durable what orders follow from."""

    def __init__(
        self, checkpoints: Checkpoints, servers: ParameterServers, server: Server, commit: Callable[[], object]
    ) -> None:
        self._checkpoints, self._servers, self._server, self._commit = checkpoints, servers, server, commit
        self._last: dict[str, Request] = {}
        """The last request of each PS with a report."""
        self._is_open = True
        server.watch(checkpoints.fileno())

    def heard(self, report: PsReport, request: Request) -> None:
        self._last[report.node] = request
        self._checkpoints.heard(report)

    def turn(self, fleet: Fleet) -> None:
        """Take a turn. A PS that is to take part in a cut from now on is told so by another answer to its last report."""
        before = dict(self._servers.snapshots)
        self._checkpoints.turn(fleet)
        new = [node for node, order in self._servers.snapshots.items() if before.get(node) is not order]
        if new:
            self._commit()
        for node in new:
            if (request := self._last.get(node)) is not None:
                self._server.reply(request, self._servers.orders(node, fleet))

    def close(self) -> None:
        """Close the checkpoints; may be called again."""
        if self._is_open:
            self._is_open = False
            self._server.unwatch(self._checkpoints.fileno())
            self._checkpoints.close()


def checkpoints_of(
    master: Master, where: str, clock: Callable[[], float], wall_clock: Callable[[], float]
) -> Checkpoints | None:
    """Create the checkpoints of a master that is being made, kept at ``where``, a directory or URL; None if that is empty, or the recipe
    wants none."""
    recipe, shards, facts = master.recipe, master.shards, master.facts
    if not where or not isinstance(recipe.checkpoint, Checkpoint):
        return None
    return Checkpoints(
        recipe.checkpoint,
        where,
        job=master.job,
        servers=master.servers,
        shards=shards,
        story=master.story,
        keep=facts.keep_cuts,
        known=facts.cuts(),
        steps=master.progress.steps,
        facts_of=lambda: facts_for(recipe, shards, master.evaluations, master.progress, now=clock()),
        usage=master.reconciler.usage,
        generation=facts.generation.number,
        lineage=facts.generation.lineage,
        clock=clock,
        wall_clock=wall_clock,
    )
