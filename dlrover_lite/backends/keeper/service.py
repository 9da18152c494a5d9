"""The keeper's side of the wire: what the master asks of the local backend."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.backends.host.host_meter import HostMeter
from dlrover_lite.backends.host.machine import machine_resources
from dlrover_lite.backends.keeper import protocol
from dlrover_lite.core.errors import BackendError, DlroverLiteError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.nodes import NodeSpec, Readings
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.endpoints import listen_endpoint
from dlrover_lite.transport.frames import Request

if TYPE_CHECKING:
    from dlrover_lite.backends.keeper.keeper import Keeper

__all__ = ["KeeperService"]


class KeeperService:
    def __init__(self, keeper: Keeper, endpoint: str, connector: Connector) -> None:
        self._keeper = keeper
        self._server = connector.server(endpoint, protocol.KeeperRequests)
        self._host = HostMeter()
        self.socket = self._server.socket

    def serve(self) -> None:
        """Answer all requests that are here. Never blocks."""
        while requests := self._server.receive(0):
            for request in requests:
                self._answer(request)

    def _answer(self, request: Request) -> None:
        try:
            answer = self._server.attempt(request, lambda one: self._do(one.body))
        except DlroverLiteError as error:
            self._server.fail(request, "refused", error.message, error.hint)
            return
        if answer is not None:
            self._server.reply(request, answer)

    def _do(self, body: msgspec.Struct) -> msgspec.Struct:
        match body:
            case protocol.Launch(spec):
                self._launch(spec)
                return protocol.Acknowledged()
            case protocol.Resize(node, resources):
                self._keeper.nodes.known(node)
                _check_resources(node, resources)
                self._keeper.fences.resize(node, resources)
                return protocol.Acknowledged()
            case protocol.Terminate(node, grace_seconds, keep_memory):
                self._keeper.terminate(node, grace_seconds, keep_memory=keep_memory)
                return protocol.Acknowledged()
            case protocol.Observe(after):
                return protocol.ObserveAnswer(self._keeper.nodes.observe(after))
            case protocol.ReadAll():
                return protocol.AllAnswer(self._readings())
            case protocol.ReadCapacity():
                return protocol.CapacityAnswer([self._capacity()])
            case protocol.ReadEnforcement():
                return protocol.EnforcementAnswer(self._keeper.fences.enforcement())
        raise AssertionError(f"no answer to {type(body).__name__}")

    def _launch(self, spec: NodeSpec) -> None:
        entry = self._keeper.options.entries.get(spec.role)
        if entry is None:
            raise BackendError(f"Node {spec.id}: the local backend starts no nodes of role {spec.role}")
        if spec.id in self._keeper.nodes.by_id:
            return
        if self._keeper.phase != "running":
            raise BackendError(f"Node {spec.id} can't be launched any more: the job is being stopped")
        if spec.host not in ("", self._host.name):
            raise BackendError(
                f"Node {spec.id} can't be launched on {spec.host}: this job's nodes all run on {self._host.name}",
                hint="Launch it without a host.",
            )
        spec = msgspec.structs.replace(spec, listen=listen_endpoint(spec.master_endpoint, spec.id))
        _check_resources(spec.id, spec.resources)
        self._keeper.nodes.check(spec)
        enter = self._keeper.fences.create(spec)
        self._keeper.nodes.launch(spec)
        self._keeper.memory.take_over(spec.id, spec.follows)
        self._keeper.launch(protocol.Fork(spec, entry, enter, self._keeper.memory.address))

    def _readings(self) -> Readings:
        usages = {node.spec.id: self._keeper.fences.usage(node.spec.id) for node in self._keeper.nodes.alive()}
        nodes = {node: usage for node, usage in usages.items() if usage is not None}
        host = self._host.read()
        return Readings(nodes, dict.fromkeys(nodes, host.host), [host])

    def _capacity(self) -> Host:
        machine, total = machine_resources(), self._keeper.job.recipe.resources.total
        return Host(self._host.name, machine if total is None else machine.within(total))


def _check_resources(node: str, resources: Resources) -> None:
    if not (resources.cores > 0 and math.isfinite(resources.cores) and resources.memory > 0):
        raise BackendError(
            f"Node {node} can't have {resources.cores:g} cores and {resources.memory:,} bytes: both must be above 0"
        )
