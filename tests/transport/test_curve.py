"""TCP with the job's key: who holds it is served, nobody else is, and nobody on the way learns or changes anything."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import zmq

from dlrover_lite.core.errors import DeadlineExceeded, UsageError, WireError
from dlrover_lite.protocol.messages import Ack, MasterReplies, MasterRequests, Wait
from dlrover_lite.protocol.questions import StopRequest
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.curve import JobKey, present_key
from dlrover_lite.transport.frames import ReplyCodec
from dlrover_lite.transport.server import Server
from tests.transport.support import PATIENCE, answering, one, serving, taken

KEY, ANOTHER = JobKey(bytes(range(32))), JobKey(bytes(32))
HOST = "127.0.0.2"
"""Not the address that connections to it come from: while nobody listens at a port of that, one may be made to itself."""
ANYWHERE = f"tcp://{HOST}:*"
REFUSAL = 0.6
"""Seconds for which a peer that is to be refused keeps asking; one that is let in is answered within milliseconds."""


@pytest.fixture
def server(context: zmq.Context[Any]) -> Iterator[Server]:
    server = Server(ANYWHERE, MasterRequests, context=context, remember_replies=True, key=KEY)
    yield server
    server.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients ask again soon, so that one that is refused has done it a few times by its deadline."""
    monkeypatch.setattr("dlrover_lite.transport.client.RETRY_SECONDS", 0.1)


@contextmanager
def asking(endpoint: str, context: zmq.Context[Any], key: JobKey | None) -> Iterator[Client]:
    client = Client(endpoint, MasterReplies, context=context, peer="the master", key=key)
    try:
        yield client
    finally:
        client.close()


def is_served(endpoint: str, context: zmq.Context[Any], key: JobKey | None, text: str = "served") -> bool:
    with asking(endpoint, context, key) as client:
        return client.call(StopRequest(text), deadline_seconds=PATIENCE).body == Ack()


# --- with the key -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("megabytes", [0, 1, 24])
def test_encrypted_frames_of_any_size_arrive_unchanged(
    server: Server, context: zmq.Context[Any], megabytes: int
) -> None:
    sent = np.random.default_rng(megabytes).integers(0, 255, megabytes << 20, np.uint8)
    with asking(server.endpoint, context, KEY) as client:
        client.send(StopRequest("x"), [sent, b"between", b"", sent[1000:]])
        request = one(server)
        assert np.array_equal(np.frombuffer(request.buffer(0), np.uint8), sent)
        assert [bytes(request.buffer(i)) for i in (1, 2)] == [b"between", b""]
        assert np.array_equal(np.frombuffer(request.buffer(3), np.uint8), sent[1000:])
        server.reply(request, Wait(0.5), [request.buffer(0)])
        reply = taken(client)
        assert reply.body == Wait(0.5)
        assert np.array_equal(np.frombuffer(reply.buffer(0), np.uint8), sent)


def test_many_clients_connect_while_others_are_served(server: Server, context: zmq.Context[Any]) -> None:
    with answering(server) as got:
        clients = [Client(server.endpoint, MasterReplies, context=context, key=KEY) for _ in range(100)]
        for i, client in enumerate(clients):
            client.send(StopRequest(str(i)))
        for client in clients:
            assert taken(client).body == Ack()
            client.close()
    assert sorted(int(body.reason) for body in got) == list(range(100))


@pytest.mark.usefixtures("impatient")
def test_a_restarted_server_is_found_again(context: zmq.Context[Any]) -> None:
    endpoint = ANYWHERE
    with ExitStack() as stack:
        client: Client | None = None
        for round_ in range(3):
            with serving(endpoint, KEY) as (endpoint, got):
                client = client or stack.enter_context(asking(endpoint, context, KEY))
                assert client.call(StopRequest(str(round_)), deadline_seconds=PATIENCE).body == Ack()
            assert got[-1] == StopRequest(str(round_))
            assert {int(body.reason) for body in got} <= {*range(round_ + 1)}  # an earlier one may have been repeated


def test_unix_sockets_need_no_key(context: zmq.Context[Any], endpoint: str) -> None:
    server = Server(endpoint, MasterRequests, context=context, key=KEY)
    with answering(server):
        for key in (None, KEY, ANOTHER):
            assert is_served(endpoint, context, key)
    server.close()


# --- without it -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("key", [None, ANOTHER], ids=["without a key", "with another key"])
def test_a_peer_without_the_key_is_refused(server: Server, context: zmq.Context[Any], key: JobKey | None) -> None:
    with answering(server) as got:
        with (
            asking(server.endpoint, context, key) as client,
            pytest.raises(DeadlineExceeded, match=r"did not answer(.|\n)*have the same job's key"),
        ):
            client.call(StopRequest("from outside"), deadline_seconds=REFUSAL)
        assert is_served(server.endpoint, context, KEY)
    assert got == [StopRequest("served")]
    assert server.malformed == 0


def test_a_peer_with_only_the_public_key_is_refused(server: Server, context: zmq.Context[Any]) -> None:
    with answering(server) as got:
        with context.socket(zmq.DEALER) as intruder:
            intruder.setsockopt(zmq.LINGER, 0)
            present_key(intruder, KEY)
            intruder.curve_publickey, intruder.curve_secretkey = zmq.curve_keypair()
            intruder.connect(server.endpoint)
            with suppress(zmq.Again):  # refused already, it has nobody to send to
                intruder.send(ReplyCodec(MasterReplies).encode(1, 1, StopRequest("from outside")), zmq.NOBLOCK)
            assert not intruder.poll(REFUSAL * 1000)
        assert is_served(server.endpoint, context, KEY)
    assert got == [StopRequest("served")]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("key", [None, ANOTHER], ids=["without a key", "with another key"])
def test_a_client_sends_nothing_to_a_server_without_the_key(context: zmq.Context[Any], key: JobKey | None) -> None:
    impostor = Server(ANYWHERE, MasterRequests, context=context, key=key)
    with (
        answering(impostor) as got,
        asking(impostor.endpoint, context, KEY) as client,
        pytest.raises(DeadlineExceeded),
    ):
        client.call(StopRequest("a secret"), deadline_seconds=REFUSAL)
    impostor.close()
    assert (got, impostor.malformed) == ([], 0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("first", [None, ANOTHER], ids=["without a key", "with another key"])
def test_a_client_finds_the_right_server_after_a_wrong_one(context: zmq.Context[Any], first: JobKey | None) -> None:
    """ZeroMQ gives a peer up for good that doesn't speak CURVE; the client doesn't, nor does it hang."""
    with ExitStack() as stack:
        with serving(ANYWHERE, first) as (endpoint, _):
            client = stack.enter_context(asking(endpoint, context, KEY))
            with pytest.raises(DeadlineExceeded):
                client.call(StopRequest("served"), deadline_seconds=REFUSAL)
        with serving(endpoint, KEY):
            assert client.call(StopRequest("served"), deadline_seconds=PATIENCE).body == Ack()


@pytest.mark.usefixtures("impatient")
def test_a_client_finds_a_server_after_a_silent_one(context: zmq.Context[Any]) -> None:
    """The connection to who says nothing stays open, and so would be all that there is to ZeroMQ."""
    with socket.create_server((HOST, 0)) as listening, ExitStack() as stack:
        endpoint = f"tcp://{HOST}:{listening.getsockname()[1]}"
        client = stack.enter_context(asking(endpoint, context, KEY))
        mute, _ = listening.accept()
        stack.enter_context(mute)
        listening.close()
        with serving(endpoint, KEY):
            assert client.call(StopRequest("served"), deadline_seconds=PATIENCE).body == Ack()


@pytest.mark.parametrize("bytes_sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03", bytes(5000)])
def test_bytes_that_are_no_handshake_do_not_disturb_the_server(
    server: Server, context: zmq.Context[Any], bytes_sent: bytes
) -> None:
    host, _, port = server.endpoint.removeprefix("tcp://").rpartition(":")
    with answering(server) as got, socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(bytes_sent)
        assert is_served(server.endpoint, context, KEY)
    assert got == [StopRequest("served")]


# --- on the way -------------------------------------------------------------------------------------------------------


class Relay:
    """Between a client and a server: passes on what either sends, as ``change`` makes it. For one connection at a time."""

    def __init__(self, target: str, change: Callable[[bytes], bytes]) -> None:
        self._target, self._change = target.removeprefix("tcp://").rpartition(":"), change
        self._listening = socket.create_server((HOST, 0))
        self.endpoint = f"tcp://{HOST}:{self._listening.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._connections: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection((self._target[0], int(self._target[2])))
            self._connections += [near, far]
            for pair in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._pass_on, args=pair))
                self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(self._change(data))
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for connection in self._connections:
            connection.close()


@contextmanager
def relay(target: str, change: Callable[[bytes], bytes]) -> Iterator[str]:
    made = Relay(target, change)
    try:
        yield made.endpoint
    finally:
        made.close()


def test_traffic_cannot_be_read_on_the_way(context: zmq.Context[Any]) -> None:
    marker = b"gradients of a kind that nobody is to see"

    def seen(key: JobKey | None) -> bytes:
        passed = bytearray()
        server = Server(ANYWHERE, MasterRequests, context=context, key=key)

        def note(data: bytes) -> bytes:
            passed.extend(data)
            return data

        with relay(server.endpoint, note) as endpoint, asking(endpoint, context, key) as client:
            client.send(StopRequest("a reason"), [marker])
            server.reply(one(server), Ack(), [marker])
            assert bytes(taken(client).buffer(0)) == marker
        server.close()
        return bytes(passed)

    assert seen(None).count(marker) == 2
    encrypted = seen(KEY)
    assert len(encrypted) > 2 * len(marker)
    for secret in (marker, b"a reason", KEY.secret, *KEY.pair(b"server"), *KEY.pair(b"client")):
        assert secret not in encrypted


@pytest.mark.usefixtures("impatient")
def test_changed_traffic_is_not_delivered(server: Server, context: zmq.Context[Any]) -> None:
    """One bit of each large frame is turned round."""
    changed = threading.Event()

    def meddle(data: bytes) -> bytes:
        if len(data) < 1000:
            return data
        changed.set()
        return data[:500] + bytes([data[500] ^ 1]) + data[501:]

    with answering(server) as got, relay(server.endpoint, meddle) as endpoint, asking(endpoint, context, KEY) as client:
        assert client.call(StopRequest("small"), deadline_seconds=PATIENCE).body == Ack()
        client.send(StopRequest("large"), [bytes(5000)])
        assert changed.wait(PATIENCE)
        with pytest.raises(DeadlineExceeded):
            client.call(StopRequest("large"), [bytes(5000)], deadline_seconds=REFUSAL)
    assert got == [StopRequest("small")]


# --- keys and gates ---------------------------------------------------------------------------------------------------


def test_a_key_is_written_and_parsed_as_text() -> None:
    key = JobKey.generate()
    assert key != JobKey.generate()
    text = key.text()
    assert text.isalnum()
    assert len(text) == 64
    for written in (text, f"  {text}\n", text.upper()):
        assert JobKey.parse(written) == key
    assert key.secret.hex() not in repr(key)
    assert str(key.secret) not in repr(key)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "it is empty"),
        ("ab" * 31, "62 characters"),
        ("ab" * 33, "66 characters"),
        ("xy" * 32, "other characters"),
        ("é" * 64, "other characters"),
    ],
)
def test_text_that_is_no_key_is_refused(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"the variable X can't be used: .* 64 hexadecimal .*{what}") as caught:
        JobKey.parse(text, "the variable X")
    assert caught.value.hint
    assert not text or text not in str(caught.value)


def test_a_context_takes_one_server_with_a_key(server: Server, context: zmq.Context[Any]) -> None:
    with pytest.raises(WireError, match="a ZeroMQ context of its own"):
        Server(ANYWHERE, MasterRequests, context=context, key=KEY)
    with answering(server):
        assert is_served(server.endpoint, context, KEY)


def test_a_server_that_could_not_listen_leaves_no_gate(context: zmq.Context[Any]) -> None:
    for _ in range(2):
        with pytest.raises(WireError, match="can't listen on tcp://203"):
            Server("tcp://203.0.113.1:1", MasterRequests, context=context, key=KEY)
    Server(ANYWHERE, MasterRequests, context=context, key=KEY).close()


def test_a_libzmq_without_curve_is_an_error(context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: capability != "curve")
    with pytest.raises(WireError, match="without CURVE"):
        Server(ANYWHERE, MasterRequests, context=context, key=KEY)
    with pytest.raises(WireError, match="without CURVE"):
        Client("tcp://127.0.0.1:1", MasterReplies, context=context, key=KEY)
