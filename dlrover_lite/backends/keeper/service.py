"""A keeper's side of the wire: what is asked of it by whoever has nodes run here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from dlrover_lite.backends.host.host_meter import HostMeter
from dlrover_lite.backends.host.machine import machine_resources
from dlrover_lite.backends.keeper import protocol
from dlrover_lite.backends.keeper.supervisor import NodeSupervisor
from dlrover_lite.core.errors import BackendError, DlroverLiteError
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.nodes import NodeSpec, Readings
from dlrover_lite.recipe.schema import JobCeiling
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.endpoints import listen_endpoint
from dlrover_lite.transport.frames import Request
from dlrover_lite.transport.polling import Source

__all__ = ["KeeperService", "Place"]

_MOST_LOG_BYTES = 1 << 20
"""Most bytes of a log in one answer: the loop that reads them looks after nodes, too."""


@dataclass(frozen=True)
class Place:
    """Where a keeper's nodes run."""

    name: str = ""
    """Name of the host; empty: this machine."""
    listen: str = ""
    """Address that nodes listen at; empty: beside their master."""
    ceiling: JobCeiling | None = None
    """The most that nodes may use together of what there is."""


class KeeperService:
    """Answers requests about the nodes of ``supervisor``. ``leave`` is called when the keeper is asked to; None: it can't.
    ``has_read`` is told how much of a log its reader has."""

    def __init__(
        self,
        supervisor: NodeSupervisor,
        place: Place,
        endpoint: str,
        connector: Connector,
        *,
        leave: Callable[[], None] | None = None,
        has_read: Callable[[str, int], None] = lambda _node, _offset: None,
    ) -> None:
        self._supervisor = supervisor
        self._place = place
        self._leave, self._has_read = leave, has_read
        self._server = connector.server(endpoint, protocol.KeeperRequests)
        self._host = HostMeter(name=place.name)
        self.requests = 0
        """Number of requests that were answered."""

    @property
    def endpoint(self) -> str:
        return self._server.endpoint

    @property
    def sockets(self) -> list[Source]:
        """Sockets that have something to be read when ``serve`` has something to do."""
        return [*self._server.sockets]

    def serve(self) -> None:
        """Answer all requests that are here. Never blocks."""
        while requests := self._server.receive(0):
            for request in requests:
                self.requests += 1
                self._answer(request)

    def _answer(self, request: Request) -> None:
        try:
            answer = self._server.attempt(request, lambda one: self._do(one.body))
        except DlroverLiteError as error:
            self._server.fail(request, "refused", error.message, error.hint)
            return
        if answer is not None:
            self._server.reply(request, answer)

    def _do(self, body: Any) -> msgspec.Struct:
        supervisor = self._supervisor
        match body:
            case protocol.Launch(spec):
                self._launch(spec)
            case protocol.Resize(node, resources):
                supervisor.resize(node, resources)
            case protocol.Terminate(node, grace_seconds, keep_memory):
                supervisor.terminate(node, grace_seconds, keep_memory=keep_memory)
            case protocol.Leave():
                self._end()
            case protocol.Observe(after):
                return protocol.ObserveAnswer(supervisor.nodes.observe(after))
            case protocol.ReadAll():
                return protocol.AllAnswer(self._readings())
            case protocol.ReadCapacity():
                return protocol.CapacityAnswer([self._capacity()])
            case protocol.ReadEnforcement():
                return protocol.EnforcementAnswer(supervisor.fences.enforcement())
            case protocol.ReadLog(process, offset, most_bytes):
                self._has_read(process, offset)
                return read_log(supervisor.job, process, offset, most_bytes)
            case _:
                raise AssertionError(f"no answer to {type(body).__name__}")
        return protocol.Acknowledged()

    def _launch(self, spec: NodeSpec) -> None:
        if spec.host not in ("", self._host.name) and spec.id not in self._supervisor.nodes.by_id:
            raise BackendError(
                f"Node {spec.id} can't be launched on {spec.host}: nodes that are launched here run on {self._host.name}",
                hint="Launch it without a host.",
            )
        listen = self._place.listen or listen_endpoint(spec.master_endpoint, spec.id)
        self._supervisor.launch(msgspec.structs.replace(spec, listen=listen))

    def _end(self) -> None:
        if self._leave is None:
            raise BackendError("This keeper runs a job: it ends with that", hint="Stop the job: dlrover-lite stop JOB")
        self._leave()

    def _readings(self) -> Readings:
        nodes, fences = self._supervisor.nodes, self._supervisor.fences
        usages = {node.spec.id: fences.usage(node.spec.id) for node in nodes.alive()}
        known = {node: usage for node, usage in usages.items() if usage is not None}
        host = self._host.read()
        return Readings(known, dict.fromkeys(known, host.host), [host])

    def _capacity(self) -> Host:
        machine, ceiling = machine_resources(), self._place.ceiling
        return Host(self._host.name, machine if ceiling is None else machine.within(ceiling))


def read_log(job: Job, process: str, offset: int, most_bytes: int) -> protocol.LogAnswer:
    """Read a part of a process's log. Raises BackendError where there is none."""
    path = job.log(process)
    try:
        with path.open("rb") as file:
            size, data = file.seek(0, 2), b""
            if offset < size:
                file.seek(offset)
                data = file.read(min(most_bytes, _MOST_LOG_BYTES, size - offset))
    except FileNotFoundError:
        raise BackendError(f"There is no log of {process!r} here") from None
    except OSError as error:
        raise BackendError(f"The log of {process} can't be read: {path}: {error.strerror}") from error
    return protocol.LogAnswer(data, size)
