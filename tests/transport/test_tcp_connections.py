"""TCP connections of this process as the kernel counts them, on loopback and over a link whose rate is known."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from dlrover_lite.transport.tcp_connections import TcpConnection, own_tcp_connections
from tests.backends.support import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells it")
BITS_PER_SECOND = 200_000_000


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        listener = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip(f"{request.param} isn't there")
    with listener, socket.create_connection(listener.getsockname()[:2]) as client:
        server, _ = listener.accept()
        with server:
            yield client, server


def of(one: socket.socket) -> TcpConnection | None:
    found = [found for found in own_tcp_connections() if found.port == one.getsockname()[1] and found.peer_port]
    return next((each for each in found if each.peer_port == one.getpeername()[1]), None)


def test_bytes_are_counted_at_both_ends(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    client.sendall(b"x" * 50_000)
    left = 50_000
    while left:
        left -= len(server.recv(left))
    server.sendall(b"y" * 7)
    assert client.recv(7) == b"y" * 7

    def counted() -> bool:
        ours, theirs = of(client), of(server)
        assert ours is not None and theirs is not None
        assert ours.peer == server.getsockname()[0]
        sent = (ours.sent_bytes - 1, theirs.sent_bytes)  # the one who connects has sent a SYN, which is counted
        return sent == (theirs.received_bytes, ours.received_bytes) == (50_000, 7)

    until(counted, "all to be acknowledged")
    ours = of(client)
    assert ours is not None and ours.bytes_per_second > 0


def test_an_ended_connection_is_not_among_them(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    port = client.getsockname()[1]
    assert of(client) is not None and of(server) is not None
    client.close()
    assert not [one for one in own_tcp_connections() if one.port == port]


def test_other_sockets_and_files_are_not_among_them(pair: tuple[socket.socket, socket.socket]) -> None:
    ours = {pair[0].getsockname()[1], pair[1].getsockname()[1]}
    before = {one for one in own_tcp_connections() if one.port in ours}
    assert len(before) == 2
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.connect(("127.0.0.1", 9))
        ports = {listener.getsockname()[1], other.getsockname()[1]} - ours
        assert not [one for one in own_tcp_connections() if one.port in ports]


SENDER = """
    import socket, sys
    from dlrover_lite.transport.tcp_connections import own_tcp_connections
    with socket.create_server((sys.argv[1], 5555)) as listener:
        print("ready", flush=True)
        one, _ = listener.accept()
    fastest = 0
    for _ in range(8):  # as rows of a minibatch come: much at once, then nothing until it is asked for
        one.recv(1)
        one.sendall(b"x" * 1_700_000)
        one.recv(1)
        fastest = max([fastest, *(each.bytes_per_second for each in own_tcp_connections())])
    print(fastest)
"""
RECEIVER = """
    import socket, sys
    one = socket.create_connection((sys.argv[1], 5555))
    for _ in range(8):
        one.sendall(b"g")
        left = 1_700_000
        while left:
            left -= len(one.recv(min(left, 1 << 20)))
        one.sendall(b"k")
    one.recv(1)
"""


@pytest.fixture
def shaped() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a link between them that carries so many bits a second."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("needs root, ip and tc")
    names = [f"dl-{os.getpid()}-{end}" for end in "ab"]
    shape = f"tc qdisc add dev {names[0][:15]} root tbf rate {BITS_PER_SECOND}bit burst 64kb latency 50ms"
    commands = [
        *(f"ip netns add {name}" for name in names),
        f"ip -n {names[0]} link add {names[0][:15]} type veth peer name {names[1][:15]} netns {names[1]}",
        *(f"ip -n {name} addr add 10.77.0.{i}/24 dev {name[:15]}" for i, name in enumerate(names, 1)),
        *(f"ip -n {name} link set {name[:15]} up" for name in names),
        f"ip netns exec {names[0]} {shape}",
    ]
    try:
        for command in commands:
            if (done := subprocess.run(command.split(), capture_output=True, text=True, check=False)).returncode:
                pytest.skip(f"{command}: {done.stderr.strip()}")
        yield names[0], names[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_the_fastest_rate_is_that_of_the_link(shaped: tuple[str, str]) -> None:
    ours, theirs = shaped

    def start(namespace: str, code: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", namespace, sys.executable, "-c", textwrap.dedent(code), "10.77.0.1"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def measured() -> int:
        with start(ours, SENDER) as sender:
            assert sender.stdout is not None and sender.stdout.readline() == "ready\n"
            with start(theirs, RECEIVER) as receiver:
                fastest = int(sender.stdout.read())
                receiver.wait()
        return fastest

    # Where the processor was late, the kernel takes what has come meanwhile as come at once: that makes it more, never less.
    fastest = min(measured() for _ in range(3))
    assert fastest == pytest.approx(BITS_PER_SECOND / 8, rel=0.35)
