"""Orders about checkpoints, for parameter servers at once rather than with the answer to what they ask next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.master.checkpoints.checkpoints import Checkpoints
from dlrover_lite.master.checkpoints.restored_ledger import facts_for
from dlrover_lite.master.io_queue import IoQueue
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.protocol.messages import PsReport
from dlrover_lite.recipe.schema import Checkpoint
from dlrover_lite.transport.frames import Request

if TYPE_CHECKING:
    from dlrover_lite.master.generation_run import GenerationRun

__all__ = ["CheckpointOrders", "checkpoints_of"]


class CheckpointOrders:
    """The turns of ``checkpoints``, which also come as soon as there is news. ``reply`` sends an answer, once what it follows from is
    durable."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        servers: ParameterServers,
        reply: Callable[[Request, msgspec.Struct], None],
    ) -> None:
        self._checkpoints, self._servers, self._reply = checkpoints, servers, reply
        self._last: dict[str, Request] = {}
        """The last request of each PS with a report."""
        self._is_open = True

    def heard(self, report: PsReport, request: Request) -> None:
        self._last[report.node] = request
        self._checkpoints.heard(report)

    def turn(self, fleet: Fleet) -> None:
        """Take a turn. A PS that is to take part in a cut from now on is told so by another answer to its last report."""
        before = dict(self._servers.snapshots)
        self._checkpoints.turn(fleet)
        for node, order in self._servers.snapshots.items():
            if before.get(node) is not order and (request := self._last.get(node)) is not None:
                self._reply(request, self._servers.orders(node, fleet))

    def close(self) -> None:
        """Close the checkpoints; may be called again."""
        if self._is_open:
            self._is_open = False
            self._checkpoints.close()


def checkpoints_of(
    run: GenerationRun,
    where: str,
    io: Callable[[], IoQueue],
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
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
        keep=facts.keep_cuts,
        after_commit=facts.after_commit,
        io=io(),
        known=facts.cuts(),
        steps=run.progress.steps,
        facts_of=lambda: facts_for(recipe, shards, run.evaluations, run.progress, now=clock()),
        usage=run.reconciler.usage,
        generation=facts.generation.number,
        lineage=facts.generation.lineage,
        clock=clock,
        wall_clock=wall_clock,
    )
