"""The local backend as the master sees it: each call is a request to the job's keeper."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dlrover_lite.backends.keeper import protocol
from dlrover_lite.core.errors import BackendError, DeadlineExceeded, RemoteError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.nodes import Enforcement, NodeSpec, Observation, Readings
from dlrover_lite.transport.connector import Connector

__all__ = ["LocalBackend"]

A = TypeVar("A")


class LocalBackend:
    """``Backend`` over the keeper's endpoint (``JobRecord.keeper_endpoint``). Not for several threads: each takes its own.

    Every call may be repeated, and is answered within ``deadline_seconds`` or raises BackendError.
    """

    def __init__(self, endpoint: str, *, connector: Connector, deadline_seconds: float = 10.0) -> None:
        self._client = connector.client(endpoint, protocol.KeeperReplies, peer="the keeper")
        self._deadline_seconds = deadline_seconds

    def capacity(self) -> list[Host]:
        return self._ask(protocol.ReadCapacity(), protocol.CapacityAnswer).hosts

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
