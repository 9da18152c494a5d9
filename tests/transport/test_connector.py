"""Servers and clients of a process, with the job's key where they talk over TCP."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.core.errors import UsageError, WireError
from dlrover_lite.protocol.messages import Ack, Hello, MasterReplies, MasterRequests
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE, Connector, read_key
from dlrover_lite.transport.curve import JobKey
from dlrover_lite.transport.endpoints import may_be_ipv6, tcp_address
from dlrover_lite.transport.polling import Poller, wait_for_messages
from tests.transport.support import one, taken


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_server_and_a_client_of_one_job_understand_each_other(tmp_path: Path, kind: str) -> None:
    key = JobKey.generate()
    endpoint = f"ipc://{tmp_path}/s" if kind == "unix" else "tcp://127.0.0.1:*"
    with Connector(key) as here, Connector(key) as there:
        server = here.server(endpoint, MasterRequests)
        client = there.client(server.endpoint, MasterReplies)
        client.send(Hello("ps-0", "ps"))
        server.reply(one(server), Ack())
        assert taken(client).body == Ack()
        client.close()
        server.close()


@pytest.mark.parametrize(
    ("listen", "known_as"), [("::1", "::1"), ("127.0.0.1", "localhost"), ("*", "::1"), ("*", "127.0.0.1")]
)
def test_a_server_is_reached_at_an_address_of_ipv6_and_by_name(listen: str, known_as: str) -> None:
    key = JobKey.generate()
    with Connector(key) as here, Connector(key) as there:
        try:
            server = here.server(f"{tcp_address(listen)}:*", MasterRequests)
        except WireError as error:
            pytest.skip(error.message)
        assert server.endpoint.startswith(f"{tcp_address('::' if listen == '*' else listen)}:")
        port = server.endpoint.rpartition(":")[2]
        client = there.client(f"{tcp_address(known_as)}:{port}", MasterReplies)
        client.send(Hello("ps-0", "ps"))
        server.reply(one(server), Ack())
        assert taken(client).body == Ack()
        client.close()
        server.close()


@pytest.mark.parametrize(
    ("endpoint", "may_be"),
    [
        ("tcp://10.1.2.3:7070", False),
        ("tcp://127.0.0.1:*", False),
        ("tcp://*:7070", True),
        ("tcp://[fd00::1]:7070", True),
        ("tcp://job.ns.svc:7070", True),
        ("ipc:///tmp/job/master.sock", False),
    ],
)
def test_ipv6_is_on_only_where_it_may_be_needed(endpoint: str, may_be: bool) -> None:
    assert may_be_ipv6(endpoint) == may_be


@pytest.mark.parametrize("made", ["server", "client"])
def test_tcp_without_a_key_is_refused_before_anything_is_sent(made: str) -> None:
    with Connector() as connector, pytest.raises(WireError, match="without the job's key") as refused:
        if made == "server":
            connector.server("tcp://127.0.0.1:*", MasterRequests)
        else:
            connector.client("tcp://127.0.0.1:9", MasterReplies)
    assert KEY_FILE_VARIABLE in refused.value.hint


def test_the_environment_names_the_key_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, key = tmp_path / "key", JobKey.generate()
    path.write_text(key.text())
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(path))
    with Connector.of_this_process() as connector:
        server = connector.server("tcp://127.0.0.1:*", MasterRequests)
        server.close()
    path.write_text("short")
    with pytest.raises(UsageError, match="must have 64 hexadecimal digits") as refused:
        Connector.of_this_process()
    assert "short" not in str(refused.value).removeprefix(str(path))
    path.unlink()
    with pytest.raises(UsageError, match="can't be read"):
        read_key(path)


def test_who_waits_elsewhere_waits_for_the_handshake_too() -> None:
    """A client with the key is let in by ``receive``, which is called when one of ``sockets`` is readable."""
    key = JobKey.generate()
    with Connector(key) as here, Connector(key) as there:
        server = here.server("tcp://127.0.0.1:*", MasterRequests)
        client = there.client(server.endpoint, MasterReplies)
        client.send(Hello("ps-0", "ps"))
        requests = []
        while not requests:
            wait_for_messages(server.sockets, 20.0)
            requests = server.receive(0)
        assert requests[0].body == Hello("ps-0", "ps")
        poller = Poller()
        poller.register(client.socket)
        assert poller.poll(0) == []
        server.reply(requests[0], Ack())
        assert poller.poll(20_000) == [client.socket]
        poller.unregister(client.socket)
        client.close()
        server.close()
