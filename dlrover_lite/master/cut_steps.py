"""The loop's side of a job's cuts: their next step is due at once when there is something new, and servers are told of it at once."""

from __future__ import annotations

from dlrover_lite.master.checkpoints import Checkpoints
from dlrover_lite.master.fleet import Fleet
from dlrover_lite.master.parameter_servers import ParameterServers
from dlrover_lite.master.shards import ShardService
from dlrover_lite.wire.frames import Request
from dlrover_lite.wire.messages import PsReport
from dlrover_lite.wire.server import Server

__all__ = ["CutSteps"]


class CutSteps:
    """``server`` doesn't wait any longer when the destination has answered."""

    def __init__(
        self, checkpoints: Checkpoints, servers: ParameterServers, shards: ShardService, server: Server
    ) -> None:
        self._checkpoints, self._servers, self._shards, self._server = checkpoints, servers, shards, server
        self._reports: dict[str, Request] = {}
        """The last of each PS."""
        server.watch(checkpoints.fileno())

    def heard(self, report: PsReport, request: Request) -> None:
        """Of a PS of this job."""
        self._reports[report.node] = request
        self._checkpoints.heard(report)

    @property
    def due(self) -> bool:
        return self._checkpoints.has_news

    def turn(self, fleet: Fleet) -> None:
        """A PS hears at once that it is to take part in a cut, as another answer to its last report: if that gets lost, with the
        next one. Raises JobError when the ledger can't be written."""
        before = dict(self._servers.snapshots)
        self._checkpoints.turn(fleet)
        new = [node for node, order in self._servers.snapshots.items() if before.get(node) is not order]
        if new:
            self._shards.commit()
        for node in new:
            if (report := self._reports.get(node)) is not None:
                self._server.reply(report, self._servers.orders(node, fleet))

    def close(self) -> None:
        """See ``Checkpoints.close``."""
        self._server.unwatch(self._checkpoints.fileno())
        self._checkpoints.close()
