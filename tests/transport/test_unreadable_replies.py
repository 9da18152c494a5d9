"""Answers that make no sense: who asked is told so at once, rather than left to ask again and get the same."""

from __future__ import annotations

import msgspec
import pytest
import zmq

from dlrover_lite.core.errors import RemoteError
from dlrover_lite.protocol.messages import MasterReplies, MasterRequests, Wait
from dlrover_lite.protocol.questions import StatusRequest
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.frames import NOT_UNDERSTOOD, WIRE_VERSION, MalformedMessage, ReplyCodec
from dlrover_lite.transport.server import Server


def encoded(*parts: object) -> bytes:
    return msgspec.msgpack.encode(parts)


@pytest.mark.parametrize("body", [Wait(-1e-9), ["Reboot"], ["Wait", "soon"]])
def test_an_unreadable_reply_is_reported_at_once(body: object) -> None:
    with zmq.Context() as context:
        server = Server("inproc://server", MasterRequests, context=context, remember_replies=True)
        client = Client("inproc://server", MasterReplies, context=context, peer="the master")
        sequence = client.send(StatusRequest())
        (request,) = server.receive(60.0)
        server.reply(request, body)  # type: ignore[arg-type]
        reply = client.receive(60.0)
        assert reply is not None
        assert (reply.sequence, reply.body.code) == (sequence, NOT_UNDERSTOOD)
        assert reply.body.message.startswith("the answer makes no sense: ")
        assert reply.body.hint
        client.send(StatusRequest())
        (request,) = server.receive(60.0)
        server.reply(request, Wait(0.5))
        assert (reply := client.receive(60.0)) is not None
        assert reply.body == Wait(0.5)
        client.close()
        server.close()


def test_a_call_with_an_unreadable_reply_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with zmq.Context() as context:
        client = Client("inproc://nobody", MasterReplies, context=context, peer="the master")
        reply = ReplyCodec(MasterReplies).decode(encoded(WIRE_VERSION, 1, Wait(-1.0)), [])
        monkeypatch.setattr(client, "receive", lambda _: reply)
        with pytest.raises(RemoteError, match="the answer makes no sense: Expected"):
            client.call(StatusRequest())
        client.close()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        encoded(WIRE_VERSION + 1, 1, Wait(1.0)),
        encoded(WIRE_VERSION + 1, 1, 5),
        encoded(WIRE_VERSION, "1", 5),
    ],
    ids=["nothing", "no msgpack", "another version", "another version's body", "a sequence that is text"],
)
def test_replies_to_no_known_request_are_dropped(header: bytes) -> None:
    with pytest.raises(MalformedMessage):
        ReplyCodec(MasterReplies).decode(header, [])
