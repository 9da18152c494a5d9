"""A keeper as who has nodes run by it sees it: each call is a request. For a job on one machine it is the whole backend."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dlrover_lite.backends.keeper import protocol
from dlrover_lite.core.errors import BackendError, DeadlineExceeded, RemoteError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.nodes import Enforcement, NodeSpec, Observation, Readings
from dlrover_lite.transport.connector import Connector

__all__ = ["KeeperClient"]

A = TypeVar("A")


class KeeperClient:
    """``Backend`` over a keeper's endpoint: ``JobRecord.keeper_endpoint`` of the job's own on this machine, port 7071 of a node's pod.
    Not for several threads: each takes its own.

    Every call may be repeated, and is answered within ``deadline_seconds`` or raises BackendError.
    """

    def __init__(
        self, endpoint: str, *, connector: Connector, deadline_seconds: float = 10.0, peer: str = "the keeper"
    ) -> None:
        self._client = connector.client(endpoint, protocol.KeeperReplies, peer=peer)
        self._deadline_seconds = deadline_seconds

    def capacity(self) -> list[Host]:
        return self._ask(protocol.ReadCapacity(), protocol.CapacityAnswer).hosts

    def shared_room(self) -> None:
        """Return None: a machine's hosts are the same for all jobs."""

    def launch(self, spec: NodeSpec) -> None:
        self._ask(protocol.Launch(spec), protocol.Acknowledged)

    def resize(self, node: str, resources: Resources) -> None:
        self._ask(protocol.Resize(node, resources), protocol.Acknowledged)

    def terminate(self, node: str, *, grace_seconds: float, keep_memory: bool = False) -> None:
        self._ask(protocol.Terminate(node, grace_seconds, keep_memory), protocol.Acknowledged)

    def observe(self, *, after: int | None = None) -> Observation | None:
        return self._ask(protocol.Observe(after), protocol.ObserveAnswer).observation

    def readings(self) -> Readings:
        return self._ask(protocol.ReadAll(), protocol.AllAnswer).readings

    def enforcement(self) -> Enforcement:
        return self._ask(protocol.ReadEnforcement(), protocol.EnforcementAnswer).enforcement

    def read_log(self, process: str, offset: int, most_bytes: int) -> protocol.LogAnswer:
        """Read a part of what a process has printed, whether it runs or has ended. Raises BackendError where there is no log of it."""
        return self._ask(protocol.ReadLog(process, offset, most_bytes), protocol.LogAnswer)

    def leave(self) -> None:
        """Have a keeper without a master, as in a pod, end when its nodes have."""
        self._ask(protocol.Leave(), protocol.Acknowledged)

    def close(self) -> None:
        self._client.close()

    def _ask(self, request: msgspec.Struct, expected: type[A]) -> A:
        try:
            body = self._client.call(request, deadline_seconds=self._deadline_seconds).body
        except RemoteError as error:
            raise BackendError(error.message, hint=error.hint) from error
        except DeadlineExceeded as error:
            raise BackendError(error.message, hint="See keeper.log in the job's logs.") from error
        if not isinstance(body, expected):
            raise BackendError(f"The keeper answered {type(request).__name__} with {type(body).__name__}")
        return body
