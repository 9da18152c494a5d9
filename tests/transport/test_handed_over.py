"""Messages that are handed over as they are: a run of the same programs is the same as with messages that are encoded."""

from __future__ import annotations

from dlrover_lite.protocol.messages import Hello, MasterReplies, MasterRequests, Wait
from dlrover_lite.transport.memory import MemoryConnector, Network, VirtualClock


def test_what_is_handed_over_is_the_message_itself_and_a_repeat_is_answered_from_memory() -> None:
    network = Network(VirtualClock(), hands_over=True)
    server = MemoryConnector(network).server("memory://here", MasterRequests, remember_replies=True)
    client = MemoryConnector(network).client("memory://here", MasterReplies)
    hello, wait = Hello("worker-0", "worker"), Wait(0.5)
    number = client.send(hello)
    (request,) = server.receive()
    assert request.body is hello and request.sequence == number
    server.answer(request, wait)
    reply = client.receive()
    assert reply is not None and reply.body is wait and reply.sequence == number
    client.send(hello, sequence=number)
    assert server.receive() == []
    again = client.receive()
    assert again is not None and again.body is wait
