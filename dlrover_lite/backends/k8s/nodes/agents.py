"""Asks the agents of a job's pods, twice a second each: how their nodes are, what they use, what they have printed; and tells them what to
do. For one thread. Asking them costs no call of the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from dlrover_lite.backends.k8s.nodes.pod_state import Order
from dlrover_lite.backends.k8s.objects.names import NODE_PORT
from dlrover_lite.backends.keeper import protocol
from dlrover_lite.core.errors import WireError
from dlrover_lite.protocol.nodes import Observation, Readings
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.endpoints import tcp_address
from dlrover_lite.transport.frames import Failure, Later
from dlrover_lite.transport.polling import Poller

__all__ = ["Agents", "Listener", "LogWish"]

ASK_SECONDS = 0.5
MOST_A_SECOND = 1000
"""The most agents that are asked in a second: of many, each is asked less often."""
REPEAT_SECONDS = 2.0
"""A request that wasn't answered for so long is sent again."""
LOG_SECONDS, LOG_BYTES = 1.0, 1 << 18
"""Seconds between two looks at a log, and the most bytes that are fetched at once."""


class LogWish(NamedTuple):
    """A log that is to be read on."""

    node: str
    offset: int
    ended: bool
    """The node has ended: nothing is added any more."""


class Listener(Protocol):
    """Who is told what agents say, by the pods that they are in."""

    def orders(self, pod: str) -> list[Order]: ...

    def heard(self, pod: str) -> None: ...

    def silent(self, pod: str, seconds: float) -> None: ...

    def acknowledged(self, pod: str, order: Order) -> None: ...

    def refused(self, pod: str, order: Order, why: str) -> None: ...

    def observed(self, pod: str, observation: Observation) -> None: ...

    def measured(self, pod: str, readings: Readings) -> None: ...

    def logs(self, pod: str) -> list[LogWish]:
        """Return which logs are to be read on."""

    def logged(self, pod: str, wish: LogWish, data: bytes, size: int) -> None: ...


class _Sent(NamedTuple):
    body: msgspec.Struct
    at: float
    wish: LogWish | None = None


@dataclass
class _Agent:
    pod: str
    uid: str
    client: Client
    next_at: float
    asked_at: float
    version: int | None = None
    """Version of its last observation."""
    sent: dict[int, _Sent] = field(default_factory=dict)
    logs_at: float = 0.0

    def awaits(self, body: msgspec.Struct) -> bool:
        return any(one.body == body for one in self.sent.values())


class Agents:
    def __init__(self, connector: Connector, listener: Listener, poller: Poller, clock: Callable[[], float]) -> None:
        self._connector, self._listener, self._poller, self._clock = connector, listener, poller, clock
        self._agents: dict[str, _Agent] = {}
        self._by_socket: dict[Any, _Agent] = {}
        self._unconnected: dict[str, tuple[str, str]] = {}
        self.problem = ""
        """Why some agents couldn't be asked at all, in words."""

    def follow(self, pods: Mapping[str, tuple[str, str] | None]) -> None:
        """Ask these pods from now on, at once, each with its uid and address; those that are None not any more."""
        now = self._clock()
        for name, found in pods.items():
            agent = self._agents.get(name)
            if agent is not None and (found is None or agent.uid != found[0]):
                self._drop(agent)
                agent = None
            if found is None:
                self._unconnected.pop(name, None)
                continue
            if agent is None:
                self._connect(name, *found, now)
            else:
                self._tell(agent, now)

    def _connect(self, pod: str, uid: str, address: str, now: float) -> None:
        try:
            client = self._connector.client(
                f"{tcp_address(address)}:{NODE_PORT}", protocol.KeeperReplies, peer=f"the agent of {pod}"
            )
        except WireError as error:  # no descriptors or sockets are left for now
            if not self._unconnected:
                self.problem = f"{pod}: {error.message}"
            self._unconnected[pod] = uid, address
            return
        self._unconnected.pop(pod, None)
        self._agents[pod] = agent = _Agent(pod, uid, client, next_at=now, asked_at=now)
        self._by_socket[client.socket] = agent
        self._poller.register(client.socket)

    def _drop(self, agent: _Agent) -> None:
        self._poller.unregister(agent.client.socket)
        del self._by_socket[agent.client.socket], self._agents[agent.pod]
        agent.client.close()

    def close(self) -> None:
        for agent in list(self._agents.values()):
            self._drop(agent)

    # --- asking -----------------------------------------------------------------------------------------------------------

    @property
    def _interval(self) -> float:
        return max(ASK_SECONDS, len(self._agents) / MOST_A_SECOND)

    def next_due(self) -> float:
        return min((agent.next_at for agent in self._agents.values()), default=float("inf"))

    def ask(self) -> None:
        """Ask those whose turn it is."""
        now = self._clock()
        for agent in self._agents.values():
            if agent.next_at <= now:
                self._ask(agent, now)
        for pod, found in list(self._unconnected.items()):
            self._listener.silent(pod, self._interval)
            self._connect(pod, *found, now)

    def _ask(self, agent: _Agent, now: float) -> None:
        interval = self._interval
        if any(isinstance(one.body, protocol.Observe) for one in agent.sent.values()):
            # Nobody is blamed for the time in which this process was held up.
            self._listener.silent(agent.pod, min(now - agent.asked_at, 2 * interval))
        else:
            self._send(agent, protocol.Observe(agent.version), now)
            self._send(agent, protocol.ReadAll(), now)
        agent.asked_at, agent.next_at = now, now + interval
        for sequence, one in agent.sent.items():
            if now >= one.at + REPEAT_SECONDS:
                agent.client.send(one.body, sequence=sequence)
                agent.sent[sequence] = one._replace(at=now)
        self._tell(agent, now)
        if now >= agent.logs_at:
            self._read_logs(agent, now)

    def _tell(self, agent: _Agent, now: float) -> None:
        for order in self._listener.orders(agent.pod):
            if not agent.awaits(order):
                self._send(agent, order, now)

    def _read_logs(self, agent: _Agent, now: float) -> None:
        for wish in self._listener.logs(agent.pod):
            if not any(one.wish is not None and one.wish.node == wish.node for one in agent.sent.values()):
                self._send(agent, protocol.ReadLog(wish.node, wish.offset, LOG_BYTES), now, wish)
        agent.logs_at = now + LOG_SECONDS

    def _send(self, agent: _Agent, body: msgspec.Struct, now: float, wish: LogWish | None = None) -> None:
        agent.sent[agent.client.send(body)] = _Sent(body, now, wish)

    # --- answers ----------------------------------------------------------------------------------------------------------

    def hear(self, ready: list[Any]) -> None:
        """Take in the answers that are here."""
        for socket in ready:
            if (agent := self._by_socket.get(socket)) is not None:
                while (reply := agent.client.receive(0)) is not None:
                    self._hear(agent, reply.sequence, reply.body)

    def _hear(self, agent: _Agent, sequence: int, body: Any) -> None:
        if isinstance(body, Later):
            return
        sent = agent.sent.pop(sequence, None)
        self._listener.heard(agent.pod)
        if sent is None:  # the answer to a repeated request, once more
            return
        order = sent.body if isinstance(sent.body, Order) else None
        match body:
            case Failure(_, message):
                if order is not None:
                    self._listener.refused(agent.pod, order, message)
                elif sent.wish is not None:  # it has printed nothing yet
                    self._listener.logged(agent.pod, sent.wish, b"", sent.wish.offset)
            case protocol.Acknowledged() if order is not None:
                self._listener.acknowledged(agent.pod, order)
            case protocol.ObserveAnswer(observation) if observation is not None:
                agent.version = observation.version
                self._listener.observed(agent.pod, observation)
            case protocol.AllAnswer(readings):
                self._listener.measured(agent.pod, readings)
            case protocol.LogAnswer(data, size) if sent.wish is not None:
                self._listener.logged(agent.pod, sent.wish, data, size)
                if sent.wish.offset + len(data) < size and data:
                    self._read_logs(agent, self._clock())
