"""Messages within one process, on a virtual clock: in the order that the seed decides, and otherwise as over a socket."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.protocol.messages import Ack, MasterReplies, MasterRequests, Wait
from dlrover_lite.protocol.questions import StatusRequest, StopRequest
from dlrover_lite.transport.frames import LATER, Failure
from dlrover_lite.transport.memory import Delivery, MemoryClient, MemoryConnector, MemoryServer, Network, VirtualClock

HERE = "memory://here"


class Pair:
    """A server and a client of it."""

    def __init__(self, *, seed: int = 0, **options: Any) -> None:
        self.clock = VirtualClock()
        self.network = Network(self.clock, seed=seed, **options)
        self.server = self.listen()
        self.client = self.connect()

    def listen(self) -> MemoryServer:
        return MemoryConnector(self.network).server(HERE, MasterRequests, remember_replies=True)

    def connect(self) -> MemoryClient:
        return MemoryConnector(self.network).client(HERE, MasterReplies)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_request_is_answered_with_frames(pair: Pair) -> None:
    number = pair.client.send(StopRequest("why"), [b"abc"])
    (request,) = pair.server.receive()
    assert request.body == StopRequest("why") and bytes(request.frames[0]) == b"abc"
    pair.server.reply(request, Ack(), [b"def"])
    reply = pair.client.receive()
    assert reply is not None and (reply.sequence, reply.body, reply.frames) == (number, Ack(), [b"def"])
    assert pair.client.receive() is None


def test_a_message_arrives_when_its_latency_is_over() -> None:
    pair = Pair(latency_seconds=lambda: 0.5)
    pair.client.send(StatusRequest())
    assert pair.server.receive() == [] and pair.network.next_arrival == 0.5
    pair.clock.advance_to(0.5)
    assert len(pair.server.receive()) == 1 and pair.network.next_arrival is None


def test_a_network_loses_doubles_and_reorders_what_it_is_told_to() -> None:
    pair, came = Pair(), list[str]()
    ways = {"lost": (), "twice": (Delivery(1.0), Delivery(3.0)), "overtaken": (Delivery(2.0),)}
    ways["overtakes"] = (Delivery(1.5, in_order=False),)
    for reason, deliveries in ways.items():
        pair.network.deliveries = lambda _, these=deliveries: these  # type: ignore[misc]
        pair.client.send(StopRequest(reason))
    while (arrival := pair.network.next_arrival) is not None:
        pair.clock.advance_to(arrival)
        came += [request.body.reason for request in pair.server.receive()]
    assert came == ["twice", "overtakes", "twice", "overtaken"], "what is in order waits for what was sent before"


def test_whoever_has_got_a_message_is_told() -> None:
    clock, told = VirtualClock(), list[str]()
    network = Network(clock)
    server = MemoryConnector(network, lambda: told.append("server")).server(HERE, MasterRequests)
    client = MemoryConnector(network, lambda: told.append("client")).client(HERE, MasterReplies)
    client.send(StatusRequest())
    network.deliver()
    assert told == ["server"]
    (request,) = server.receive()
    server.reply(request, Ack())
    network.deliver()
    assert told == ["server", "client"]


def test_a_repeated_request_is_answered_from_memory(pair: Pair) -> None:
    number = pair.client.send(StatusRequest())
    (request,) = pair.server.receive()
    pair.server.answer(request, LATER)
    pair.client.send(StatusRequest(), sequence=number)
    (again,) = pair.server.receive()  # it was put off: it counts now
    pair.server.answer(again, Wait(1.0))
    pair.client.send(StatusRequest(), sequence=number)
    assert pair.server.receive() == []
    bodies = []
    while (reply := pair.client.receive()) is not None:
        bodies.append(reply.body)
    assert bodies == [LATER, Wait(1.0), Wait(1.0)]


def test_nonsense_is_counted_and_refused(pair: Pair) -> None:
    body = msgspec.msgpack.encode((1, pair.client.session, 7, {"type": "nonsense"}))
    pair.network.to_server(HERE, pair.client.session.to_bytes(8, "big"), body, [])
    pair.network.to_server(HERE, b"nobody", b"\xff", [])
    assert pair.server.receive() == [] and pair.server.malformed == 2
    reply = pair.client.receive()
    assert reply is not None and reply.sequence == 7 and isinstance(reply.body, Failure)


def test_what_nobody_listens_for_is_lost(pair: Pair) -> None:
    pair.client.send(StatusRequest())
    pair.server.close()
    pair.server.receive()
    other = pair.listen()
    assert other.receive() == []
    pair.client.send(StatusRequest())
    (request,) = other.receive()
    pair.client.close()
    other.reply(request, Ack())
    assert pair.client.receive() is None


def order(seed: int, senders: int, messages: int) -> list[tuple[int, int]]:
    """Who was heard, and with which of its requests, when all speak at once."""
    pair = Pair(seed=seed)
    clients = [pair.connect() for _ in range(senders)]
    for _ in range(messages):
        for client in clients:
            client.send(StatusRequest())
    return [(request.session, request.sequence) for request in pair.server.receive()]


@given(seed=st.integers(0, 1000), senders=st.integers(1, 5), messages=st.integers(1, 5))
def test_messages_of_one_sender_never_overtake_each_other(seed: int, senders: int, messages: int) -> None:
    found = order(seed, senders, messages)
    assert found == order(seed, senders, messages)
    for session in {session for session, _ in found}:
        numbers = [sequence for one, sequence in found if one == session]
        assert numbers == sorted(numbers)


def test_other_seeds_give_other_orders() -> None:
    assert len({tuple(order(seed, 4, 1)) for seed in range(20)}) > 5
