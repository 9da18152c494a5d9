"""Real servers are sent every type of message with extreme values, known names and wrong types: they answer whatever comes next."""

from __future__ import annotations

import itertools
import json
import select
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.keeper.node_memory import NodeMemory
from dlrover_lite.backends.keeper.nodes import Nodes
from dlrover_lite.backends.keeper.options import NodeOptions
from dlrover_lite.backends.keeper.protocol import (
    Channel,
    Forked,
    FromTemplate,
    KeeperReplies,
    KeeperRequests,
    ReadCapacity,
)
from dlrover_lite.backends.keeper.service import KeeperService, Place
from dlrover_lite.backends.keeper.supervisor import NodeSupervisor
from dlrover_lite.backends.limits.watchdog import Watchdog
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.brain_messages import BrainRequests, BrainStatus, BrainStatusRequest
from dlrover_lite.protocol.messages import Ack, MasterRequests, PsOrders
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, PsReplies, PsRequests, TableSpec
from dlrover_lite.protocol.questions import Status, StatusRequest
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.server.service import PsService
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Failure
from dlrover_lite.transport.server import Server
from tests.brain.service_rig import Rig as BrainRig
from tests.brain.service_rig import registration
from tests.master.rig import Rig as MasterRig
from tests.transport.extremes import bodies_of, encoded
from tests.transport.support import PATIENCE

MANY = 10
SETTINGS = settings(
    max_examples=MANY, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
_numbers = itertools.count(1)


def some_of(*kinds: type) -> st.SearchStrategy[list[Any]]:
    """Many bodies of these types, most of them within the bounds of all fields."""
    one = st.sampled_from(kinds).flatmap(
        lambda kind: st.booleans().flatmap(lambda beyond: bodies_of(kind, beyond=beyond))
    )
    return st.lists(one, min_size=15, max_size=40)


@contextmanager
def sender(endpoint: str, context: zmq.Context[Any]) -> Iterator[Any]:
    """A function that sends a header and frames, from a session of its own each time."""
    with context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.LINGER, 0)
        raw.connect(endpoint)
        yield lambda body, *frames: raw.send_multipart([encoded(next(_numbers), 1, body), *frames])


def send_in_memory(rig: MasterRig | BrainRig, body: Any) -> None:
    """Send a request from a session of its own."""
    number = next(_numbers)
    rig.network.to_server(rig.endpoint, b"%d" % number, encoded((1 << 40) + number, 1, body), [])


# --- the master ---------------------------------------------------------------------------------------------------------------


@SETTINGS
@given(bodies=some_of(*MasterRequests.__args__))
def test_the_master_survives_extreme_values(bodies: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        rig = MasterRig(Path(directory), ps=2, workers=2, samples=4000, eval_samples=8)
        try:
            rig.up("ps-0", "ps-1", "worker-0", "worker-1")
            rig.lease("worker-0")
            for body in bodies:
                send_in_memory(rig, body)
                status = rig.ask_while_it_runs("cli", StatusRequest())
                if status is None:
                    break
                assert isinstance(status, Status)
            if not rig.runs:  # some of them end a job: but properly
                assert rig.ended().state in ("stopped", "failed", "succeeded")
            assert rig.server.unforeseen == 0
        finally:
            rig.close()


# --- a parameter server ---------------------------------------------------------------------------------------------------------

ALL = b"\xff" * 512
FRAMES = st.sampled_from(
    [
        b"",
        ALL,
        b"\0" * 512,
        np.arange(3, dtype=np.uint64).tobytes(),
        np.full(3, 2**64 - 1, np.uint64).tobytes(),
        np.full(6, np.nan, np.float32).tobytes(),
        np.ones(2 * 4096, np.float32).tobytes(),
        b"abc",
    ]
)


@SETTINGS
@given(bodies=some_of(*PsRequests.__args__), data=st.data())
def test_a_parameter_server_survives_extreme_values(bodies: list[Any], data: st.DataObject) -> None:
    context: zmq.Context[Any] = zmq.Context()
    server = Server("inproc://ps", PsRequests, context=context)
    client = Client("inproc://ps", PsReplies, context=context)
    service = PsService("ps-0", Engine(), server, lambda endpoint, peer: client)
    service.follow(PsOrders(1, ALL))
    optimizer = Optimizer(use="sgd")
    tables = [TableSpec("a", 2, 0.0), TableSpec("b", 3, 0.0)]
    configuration = Configure(1, tables, DenseSpec(0, 0), optimizer, optimizer, counted=data.draw(st.booleans()))

    def turn() -> None:
        for request in server.receive(0.0):
            service.serve([request])
        service.work()

    try:
        if data.draw(st.booleans()):
            client.send(configuration, [ALL])
            turn()
            reply = client.receive(PATIENCE)
            assert reply is not None and reply.body == Ack()
        with sender("inproc://ps", context) as send:
            for body in bodies:
                send(body, *data.draw(st.lists(FRAMES, max_size=7)))
                while server.socket.poll(0):
                    turn()
        client.send(configuration, [ALL])
        turn()
        reply = client.receive(PATIENCE)
        assert reply is not None  # whatever it was configured with by now
        assert reply.body == Ack() or isinstance(reply.body, Failure)
        assert server.unforeseen == 0
    finally:
        service.close()
        client.close()
        server.close()
        context.destroy(linger=0)


# --- the brain ----------------------------------------------------------------------------------------------------------------


@SETTINGS
@given(bodies=some_of(*BrainRequests.__args__))
def test_the_brain_survives_extreme_values(bodies: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        rig = BrainRig(Path(directory) / "brain.sqlite")
        try:
            rig.ask(registration())
            client = rig.client()
            for body in bodies:
                send_in_memory(rig, body)
                rig.passes(1.0)
                rig.service.ending = ""  # it has been asked to
                assert isinstance(rig.ask(BrainStatusRequest(), client), BrainStatus)
            assert rig.service.server.unforeseen == 0
        finally:
            rig.close()


# --- the keeper ---------------------------------------------------------------------------------------------------------------


def supervisor_in(directory: Path) -> NodeSupervisor:
    """Supervise nodes without processes: the template isn't started."""
    options = NodeOptions(entries={"ps": "nothing:main", "worker": "nothing:main"})
    return NodeSupervisor(Job(directory), directory, options, Watchdog("it is a test"), variables={})


@SETTINGS
@given(bodies=some_of(*KeeperRequests.__args__))
def test_the_keeper_survives_extreme_values(bodies: list[Any]) -> None:
    context: zmq.Context[Any] = zmq.Context()
    with tempfile.TemporaryDirectory() as directory:
        supervisor = supervisor_in(Path(directory))
        service = KeeperService(supervisor, Place(), "inproc://keeper", Connector(context=context))
        client = Client("inproc://keeper", KeeperReplies, context=context)
        try:
            known = NodeSpec("worker-0", "worker", Resources(1.0, GIB), "inproc://master")
            supervisor.nodes.launch(known)
            supervisor.fences.create(known)
            supervisor.nodes.started("worker-0", 2**22 + 1, now=0.0, at=0.0)
            with sender("inproc://keeper", context) as send:
                for body in bodies:
                    send(body)
                    client.send(ReadCapacity())
                    reply = None
                    while reply is None:
                        service.serve()
                        reply = client.receive(0.01)
                    due = supervisor.nodes.next_due()
                    assert due is None or due < 1e12
            assert service._server.unforeseen == 0
        finally:
            client.close()
            service._server.close()
            supervisor.memory.close()
            context.destroy(linger=0)


NESTED = b'{"type":"Fetch","node":"worker-0","x":' + b"[" * 4000


@pytest.mark.parametrize(
    "nonsense", [b"x", b"\xff\xfe", NESTED, json.dumps({"type": "Fetch", "node": "n" * 2000}).encode()]
)
def test_the_keepers_memory_socket_survives_nonsense(tmp_path: Path, nonsense: bytes) -> None:
    nodes = Nodes()
    held = NodeMemory(tmp_path, nodes)
    try:
        for data in (nonsense, b'{"type":"Fetch","node":"worker-0"}'):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.settimeout(PATIENCE)
                peer.connect(str(tmp_path / "memory.sock"))
                peer.send(data)
                held.serve()
                answer = peer.recv(1 << 12)
        assert b"no running node" in answer
    finally:
        held.close()


@pytest.mark.parametrize(
    "line", [b"x", b"\xff\xfe", b"[" * 100_000, b'["Forked","' + b"n" * 2000 + b'",1]', b'["Forked","n",1e300]']
)
def test_a_senseless_line_of_the_template_is_dropped(line: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel: Channel[FromTemplate] = Channel(ours, FromTemplate)
        found: list[Any] = []
        for data in (line + b"\n", msgspec.json.encode(Forked("worker-0", 7)) + b"\n"):
            theirs.sendall(data)
            while ours in _readable(ours):
                found += channel.receive()
        assert (found, channel.open) == ([Forked("worker-0", 7)], True)
        assert capsys.readouterr().err.count("makes no sense") == 1


def _readable(one: socket.socket) -> list[socket.socket]:
    return select.select([one], [], [], 0)[0]
