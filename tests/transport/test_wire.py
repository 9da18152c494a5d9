"""Requests and replies over real sockets: repeats, deadlines, restarts, and messages that make no sense."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.bounds import LONGEST_TEXT
from dlrover_lite.core.errors import DeadlineExceeded, JobError, RemoteError, WireError
from dlrover_lite.protocol.messages import Ack, Hello, LeaseRequest, MasterReplies, MasterRequests, Wait, WorkReport
from dlrover_lite.protocol.questions import StatusRequest, StopRequest
from dlrover_lite.transport.client import RETRY_SECONDS, Client
from dlrover_lite.transport.endpoints import listen_endpoint
from dlrover_lite.transport.frames import (
    INTERNAL,
    MAX_FRAMES,
    MAX_HEADER_BYTES,
    NOT_UNDERSTOOD,
    WIRE_VERSION,
    MalformedMessage,
    Request,
    RequestCodec,
)
from dlrover_lite.transport.server import Server, send_frames
from tests.transport.support import PATIENCE, answering, in_background, one, serving, taken


@pytest.fixture
def server(endpoint: str, context: zmq.Context[Any]) -> Iterator[Server]:
    server = Server(endpoint, MasterRequests, context=context, remember_replies=True)
    yield server
    server.close()


@pytest.fixture
def client(server: Server, context: zmq.Context[Any]) -> Iterator[Client]:
    client = Client(server.endpoint, MasterReplies, context=context, peer="the master")
    yield client
    client.close()


# --- the usual ------------------------------------------------------------------------------------------------------


def test_requests_and_replies_arrive_unchanged(server: Server, client: Client) -> None:
    report = WorkReport(3, 2, 1, ["a.csv:3: naïve"], b"\x00\xff", {4: 5}, {"read": 0.5}, {"read": 0.25}, 7.25)
    body = LeaseRequest("worker-0", 7, [(0, 3), (5, 6)], 4, "Traceback", give_back=True, want=False, report=report)
    frames = [b"", b"x", np.arange(5, dtype=np.float32), memoryview(b"view")]
    sequence = client.send(body, frames)
    request = one(server)
    assert (request.body, request.session, request.sequence) == (body, client.session, sequence)
    assert [bytes(request.buffer(i)) for i in range(4)] == [bytes(memoryview(frame).cast("B")) for frame in frames]
    server.reply(request, Wait(0.5), [np.arange(3)])
    reply = taken(client)
    assert (reply.sequence, reply.body) == (sequence, Wait(0.5))
    assert np.frombuffer(reply.buffer(0), np.int64).tolist() == [0, 1, 2]


def test_several_requests_under_way_are_told_apart(server: Server, client: Client) -> None:
    sequences = [client.send(StopRequest(f"reason {i}")) for i in range(10)]
    requests: list[Request] = []
    while len(requests) < 10:
        requests += server.receive(PATIENCE)
    for request in reversed(requests):
        server.reply(request, Wait(float(request.body.reason.split()[1])))
    replies = {reply.sequence: reply.body for reply in (taken(client) for _ in range(10))}
    assert replies == {sequence: Wait(float(i)) for i, sequence in enumerate(sequences)}


@pytest.mark.parametrize("megabytes", [1, 40])
def test_large_frames_are_neither_copied_nor_changed(server: Server, client: Client, megabytes: int) -> None:
    sent = np.random.default_rng(megabytes).integers(0, 255, megabytes << 20, np.uint8)
    client.send(StatusRequest(), [sent, b"between", sent[1000:-1]])
    request = one(server)
    first, last = np.frombuffer(request.buffer(0), np.uint8), np.frombuffer(request.buffer(2), np.uint8)
    assert np.array_equal(first, sent)
    assert np.array_equal(last, sent[1000:-1])
    assert bytes(request.buffer(1)) == b"between"
    assert not first.flags.owndata
    server.reply(request, Ack(), [first])  # straight back out of the buffer it came in
    del request
    assert np.array_equal(np.frombuffer(taken(client).buffer(0), np.uint8), sent)


def test_a_failure_reply_is_raised_with_its_code_and_hint(server: Server, client: Client) -> None:
    thread = in_background(server, lambda request: server.fail(request, "refused", "not now", "later"))
    with pytest.raises(RemoteError, match="not now") as caught:
        client.call(StatusRequest(), deadline_seconds=PATIENCE)
    thread.join()
    assert (caught.value.code, caught.value.hint) == ("refused", "later")


# --- repeats --------------------------------------------------------------------------------------------------------


def test_a_repeated_request_is_answered_from_memory(server: Server, client: Client) -> None:
    sequence = client.send(StopRequest())
    server.reply(one(server), Wait(1.0))
    taken(client)
    for _ in range(3):
        client.send(StopRequest(), sequence=sequence)
        assert server.receive(PATIENCE) == []
        assert taken(client).body == Wait(1.0)


def test_requests_older_than_the_last_answered_are_ignored(server: Server, client: Client) -> None:
    old, new = client.send(StopRequest("old")), client.send(StopRequest("new"))
    requests: list[Request] = []
    while len(requests) < 2:
        requests += server.receive(PATIENCE)
    server.reply(requests[1], Ack())
    assert taken(client).sequence == new
    client.send(StopRequest("old"), sequence=old)
    assert server.receive(PATIENCE) == []
    assert client.receive(0.05) is None


def test_a_request_repeated_before_its_answer_is_given_once(server: Server, client: Client) -> None:
    sequence = client.send(StopRequest())
    client.send(StopRequest(), sequence=sequence)
    client.send(StopRequest(), sequence=sequence)
    last = client.send(StatusRequest())
    bodies: list[tuple[int, Any]] = []
    while not bodies or bodies[-1][0] != last:
        for request in server.receive(PATIENCE):
            bodies.append((request.sequence, request.body))
            server.reply(request, Ack())
    assert bodies == [(sequence, StopRequest()), (last, StatusRequest())]


def test_a_server_without_memory_gives_every_repeated_request(endpoint: str, context: zmq.Context[Any]) -> None:
    server = Server(endpoint, MasterRequests, context=context)
    client = Client(endpoint, MasterReplies, context=context)
    sequence = client.send(StopRequest())
    server.reply(one(server), Ack())
    client.send(StopRequest(), sequence=sequence)
    assert one(server).sequence == sequence
    client.close()
    server.close()


def test_clients_do_not_get_each_others_replies(server: Server, context: zmq.Context[Any]) -> None:
    clients = [Client(server.endpoint, MasterReplies, context=context) for _ in range(20)]
    for i, client in enumerate(clients):
        assert client.send(StopRequest(str(i))) == 1
    left = len(clients)
    while left:
        for request in server.receive(PATIENCE):
            server.reply(request, Wait(float(request.body.reason)))
            left -= 1
    for i, client in enumerate(clients):
        assert taken(client).body == Wait(float(i))
        client.close()


# --- deadlines and peers that aren't there ----------------------------------------------------------------------------


class Clock:
    """Goes on by ``step`` seconds each time it is read."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_a_call_without_an_answer_ends_at_its_deadline(server: Server, context: zmq.Context[Any]) -> None:
    client = Client(server.endpoint, MasterReplies, context=context, peer="the master", clock=Clock(4.0))
    with pytest.raises(DeadlineExceeded, match="the master did not answer StatusRequest within 5 s"):
        client.call(StatusRequest(), deadline_seconds=5.0)
    requests = [one(server)]
    assert requests[0].body == StatusRequest()
    client.close()


def test_a_call_repeats_its_request_until_answered(server: Server, context: zmq.Context[Any]) -> None:
    """The first copy is lost (nobody answers it), the second is answered; ``call`` never knows."""
    client = Client(server.endpoint, MasterReplies, context=context)
    seen: list[int] = []

    def answer_the_second(request: Request) -> None:
        seen.append(request.sequence)
        if len(seen) == 2:
            server.reply(request, Ack())

    thread = in_background(server, answer_the_second, requests=2)
    assert client.call(StopRequest(), deadline_seconds=PATIENCE).body == Ack()
    thread.join()
    assert seen == [1, 1]
    assert RETRY_SECONDS < PATIENCE
    client.close()


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_request_without_a_connection_is_sent_again(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The one that is made for it may have been given up before it is used."""
    left = [zmq.Again()] * times

    def send(*arguments: Any) -> None:
        if left:
            raise left.pop()
        send_frames(*arguments)

    monkeypatch.setattr("dlrover_lite.transport.client.send_frames", send)
    monkeypatch.setattr("dlrover_lite.transport.client.RETRY_SECONDS", 0.1)
    with answering(server) as got:
        assert client.call(StopRequest("again"), deadline_seconds=PATIENCE).body == Ack()
    assert got == [StopRequest("again")]
    assert left == []


def test_a_client_may_start_before_its_server(endpoint: str, context: zmq.Context[Any]) -> None:
    client = Client(endpoint, MasterReplies, context=context)
    client.send(StatusRequest())
    server = Server(endpoint, MasterRequests, context=context)
    server.reply(one(server), Ack())
    assert taken(client).body == Ack()
    client.close()
    server.close()


def test_a_server_restarted_on_the_same_endpoint_is_found_again(endpoint: str, context: zmq.Context[Any]) -> None:
    client = Client(endpoint, MasterReplies, context=context)
    for round_ in range(3):
        with serving(endpoint) as (_, got):
            assert client.call(StopRequest(str(round_)), deadline_seconds=PATIENCE).body == Ack()
            assert got[-1] == StopRequest(str(round_))
    client.close()


def test_a_client_that_vanishes_does_not_disturb_others(
    server: Server, client: Client, context: zmq.Context[Any]
) -> None:
    gone = Client(server.endpoint, MasterReplies, context=context)
    gone.send(StopRequest("from the grave"))
    request = one(server)
    gone.close()
    server.reply(request, Ack(), [np.zeros(1 << 20, np.uint8)])
    client.send(StatusRequest())
    server.reply(one(server), Ack())
    assert taken(client).body == Ack()


def test_an_endpoint_that_cannot_be_listened_on_is_an_error(context: zmq.Context[Any]) -> None:
    with pytest.raises(WireError, match="can't listen on ipc:///no/such/directory/s"):
        Server("ipc:///no/such/directory/s", MasterRequests, context=context)


def test_a_tcp_server_listens_on_any_free_port(context: zmq.Context[Any]) -> None:
    server = Server("tcp://127.0.0.1:*", MasterRequests, context=context)
    client = Client(server.endpoint, MasterReplies, context=context)
    client.send(Hello("ps-0", "ps"))
    server.reply(one(server), Ack())
    assert taken(client).body == Ack()
    client.close()
    server.close()


def test_nodes_listen_beside_their_master() -> None:
    assert listen_endpoint("ipc:///run/x/master.sock", "ps-1") == "ipc:///run/x/ps-1.sock"
    assert listen_endpoint("tcp://10.0.0.7:4711", "ps-1") == "tcp://10.0.0.7:*"


# --- messages that make no sense --------------------------------------------------------------------------------------


def header(*parts: Any) -> bytes:
    return msgspec.msgpack.encode(parts)


DEEP = b"\x94\x01\x01\x01\x93\xabStopRequest\xa1x" + b"\x91" * 100_000 + b"\xc0"
NONSENSE = {
    "nothing": [b""],
    "no msgpack": [b"\xc1"],
    "cut off": [header(WIRE_VERSION, 1, 1, ["StopRequest", "x"])[:-1]],
    "another version": [header(WIRE_VERSION + 1, 1, 1, ["StatusRequest"])],
    "no version": [header(1, 1, ["StatusRequest"])],
    "an unknown request": [header(WIRE_VERSION, 1, 1, ["Reboot"])],
    "a field of another type": [header(WIRE_VERSION, 1, 1, ["StopRequest", 5])],
    "a sequence that is text": [header(WIRE_VERSION, 1, "1", ["StatusRequest"])],
    "text that is no UTF-8": [header(WIRE_VERSION, 1, 1, ["StopRequest", "xy"])[:-2] + b"\xff\xfe"],
    "nested without end": [DEEP],
    "too many frames": [header(WIRE_VERSION, 1, 1, ["StatusRequest"]), *[b"x"] * MAX_FRAMES],
}


@pytest.mark.parametrize("what", NONSENSE)
def test_malformed_messages_are_dropped_and_counted(
    server: Server, client: Client, context: zmq.Context[Any], what: str
) -> None:
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(server.endpoint)
        socket.send_multipart(NONSENSE[what])
        socket.send_multipart([header(WIRE_VERSION, 1, 1, ["StatusRequest"])])  # understood: it comes after, in order
        while not (received := server.receive(PATIENCE)):
            assert server.malformed == 1
        assert received[0].body == StatusRequest()
    assert server.malformed == 1
    client.send(StatusRequest())
    server.reply(one(server), Ack())
    assert taken(client).body == Ack()


@pytest.mark.parametrize("body", [["Reboot"], ["StopRequest", 5], ["StopRequest", "x" * (LONGEST_TEXT + 1)]])
def test_a_senseless_request_is_answered_with_an_error(server: Server, client: Client, body: list[Any]) -> None:
    """Rather than left to wait: where only the body makes no sense, it is known who has asked."""
    client.socket.send(header(WIRE_VERSION, client.session, 7, body))
    assert server.receive(PATIENCE) == []
    reply = taken(client)
    assert (reply.sequence, reply.body.code) == (7, NOT_UNDERSTOOD)
    assert "makes no sense" in reply.body.message
    client.socket.send(header(WIRE_VERSION, client.session, 7, ["StatusRequest"]))  # the same number, and sense
    server.reply(one(server), Ack())
    assert taken(client).body == Ack()


def test_an_oversized_header_is_not_decoded(server: Server, client: Client) -> None:
    client.socket.send(header(WIRE_VERSION, client.session, 1, ["StopRequest", "x" * MAX_HEADER_BYTES]))
    client.send(StatusRequest())
    while not (received := server.receive(PATIENCE)):
        pass
    assert (received[0].body, server.malformed) == (StatusRequest(), 1)


def test_an_error_in_handling_a_request_fails_only_that_request(
    endpoint: str, context: zmq.Context[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(endpoint, MasterRequests, context=context)
    client = Client(server.endpoint, MasterReplies, context=context)
    errors = iter(
        [ZeroDivisionError("no", "way"), *[KeyError("x")] * 6, MalformedMessage("bad"), JobError("known"), None]
    )

    def handle(request: Request) -> Ack:
        if (error := next(errors)) is not None:
            raise error
        return Ack()

    answers: list[Any] = []
    for _ in range(10):
        client.send(StatusRequest())
        try:
            answers.append(server.attempt(one(server), handle))
        except JobError as error:
            answers.append(error.message)
    assert [answer.code for answer in answers[:7]] == [INTERNAL] * 7
    assert "StatusRequest: ZeroDivisionError" in answers[0].message
    assert answers[7:] == [None, "known", Ack()]
    assert (server.unforeseen, server.malformed) == (7, 1)
    said = capsys.readouterr().out
    assert said.count("Traceback") == 3  # the 1st, 2nd and 4th
    assert "StatusRequest met a bug (number 4)" in said
    client.close()
    server.close()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A sound request with a few bytes changed, cut out or doubled."""
    body = draw(
        st.sampled_from(
            [
                Hello("worker-0", "worker"),
                StopRequest("é"),
                LeaseRequest("w", 1, [(1, 2)], report=WorkReport(1, 2, 3, ["x"], b"y", {1: 2}, {"a": 1.0})),
            ]
        )
    )
    data = bytearray(msgspec.msgpack.encode((WIRE_VERSION, 2, 3, body)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["change", "cut", "double"])):
            case "change":
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at:]
                data = data or bytearray(b"\x00")
            case "double":
                data[at:at] = data[at:]
    return bytes(data)


@settings(max_examples=250, deadline=None)
@given(st.one_of(st.binary(max_size=60), damaged()))
def test_any_bytes_are_a_request_or_malformed(data: bytes) -> None:
    codec = RequestCodec(MasterRequests)
    try:
        request = codec.decode(b"peer", data, [])
    except MalformedMessage:
        return
    assert isinstance(request.body, MasterRequests)


@settings(max_examples=30, deadline=None)
@given(messages=st.lists(st.lists(st.one_of(st.binary(max_size=40), damaged()), min_size=1, max_size=4), max_size=20))
def test_no_messages_kill_a_server(messages: list[list[bytes]]) -> None:
    with zmq.Context() as context:
        server = Server("inproc://server", MasterRequests, context=context, remember_replies=True)
        client = Client("inproc://server", MasterReplies, context=context)
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect("inproc://server")
            for message in messages:
                socket.send_multipart(message)
            client.send(StatusRequest())
            received: list[Request] = []
            end = time.monotonic() + PATIENCE
            while client.session not in [request.session for request in received]:
                received += server.receive(0.1)
                assert time.monotonic() < end
            while server.receive(0.0):  # whatever came after
                pass
        client.close()
        server.close()


def test_malformed_replies_are_dropped(endpoint: str, context: zmq.Context[Any]) -> None:
    with context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.bind(endpoint)
        client = Client(endpoint, MasterReplies, context=context)
        sequence = client.send(StatusRequest())
        peer, _ = router.recv_multipart()
        for nonsense in (b"", b"\xc1", header(WIRE_VERSION + 1, sequence, ["Ack"])):
            router.send_multipart([peer, nonsense])
        router.send_multipart([peer, header(WIRE_VERSION, sequence, ["Ack"])])
        assert taken(client).body == Ack()
        client.close()
