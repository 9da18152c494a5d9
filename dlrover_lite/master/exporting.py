"""Which worker writes the model when all training and evaluation is done, and what it has written."""

from __future__ import annotations

from dlrover_lite.master.facts import Facts
from dlrover_lite.master.parameter_servers import ParameterServers
from dlrover_lite.master.shards import ShardService
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.wire.messages import Export, Exported, Wait

__all__ = ["Exporting"]

_WAIT_SECONDS = 0.1


class Exporting:
    """``destination``: the directory of the model. What changes is kept in ``facts``, durable with the next commit."""

    def __init__(
        self, recipe: Recipe, destination: str, shards: ShardService, servers: ParameterServers, facts: Facts
    ) -> None:
        self.exported: Exported | None = None
        self.begun = False
        self._wanted = recipe.export.format
        self._destination = destination
        self._shards = shards
        self._servers = servers
        self._facts = facts
        self._exporter = ""

    @property
    def exporter(self) -> str:
        """The worker that writes it, or has; empty: nobody yet."""
        return self._exporter

    @property
    def done(self) -> bool:
        return self.exported is not None or self._wanted == "none"

    def remember(self) -> None:
        """What an earlier master of this job knew."""
        self.exported, self._exporter = self._facts.exported(), self._facts.exporter()
        self.begun = bool(self._exporter)

    def task(self, node: str) -> Export | Wait | None:
        """The first worker to find nothing left writes the model; should it die, the next one. Not while slots are on their way."""
        if self._wanted == "none" or self._shards.failure or not self._shards.finished or self.exported is not None:
            return None
        if self._exporter and self._exporter != node:
            return None
        if not self._servers.at_rest:
            return Wait(_WAIT_SECONDS)
        self._exporter = node
        self._facts.keep_exporter(node)
        self.begun = True
        return Export(self._destination, self._wanted, dict(self._shards.id_kinds))

    def take(self, exported: Exported) -> None:
        self.exported = exported
        self._facts.keep_exported(exported)

    def gone(self, worker: str) -> None:
        if self._exporter == worker:
            self._exporter = ""
            self._facts.keep_exporter("")
