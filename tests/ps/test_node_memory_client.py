"""Memory that outlives its process, from the side of the node."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dlrover_lite.backends.keeper.node_memory import MEMORY_SOCKET, NodeMemory
from dlrover_lite.backends.keeper.nodes import Nodes
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.ps.memory.node_memory_client import MEMORY_VARIABLE, DirectoryMemory, KeeperMemory, open_memory


def text_of(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, 64, 0).rstrip(b"\0")
    finally:
        os.close(descriptor)


def write(descriptor: int, text: bytes) -> None:
    os.pwrite(descriptor, text, 0)
    os.close(descriptor)


def test_a_memory_directory_keeps_files_of_earlier_processes(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    first = DirectoryMemory(volume)
    assert first.left() == {}
    for name in ("one", "two"):
        write(first.create(name, 1 << 30), name.encode())
    assert first.left() == {}  # its own
    second = DirectoryMemory(volume)
    write(second.create("two", 4096), b"anew")
    assert {name: text_of(fd) for name, fd in second.left().items()} == {"one": b"one"}
    third = DirectoryMemory(volume)
    assert {name: text_of(fd) for name, fd in third.left().items()} == {"one": b"one", "two": b"anew"}
    assert sum(file.stat().st_blocks for file in volume.iterdir()) < 100  # sparse


def test_memory_addresses_choose_keeper_or_directory(tmp_path: Path) -> None:
    assert open_memory("ps-0", {}) is None
    assert isinstance(open_memory("ps-0", {MEMORY_VARIABLE: f"directory:{tmp_path}"}), DirectoryMemory)
    assert isinstance(open_memory("ps-0", {MEMORY_VARIABLE: "keeper:/nowhere"}), KeeperMemory)
    for address in ("keeper:", "elsewhere:/x"):
        with pytest.raises(BackendError, match="neither keeper:PATH nor directory:PATH"):
            open_memory("ps-0", {MEMORY_VARIABLE: address})


def test_a_volume_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BackendError, match=f"memory can't be kept in {tmp_path}/file"):
        DirectoryMemory(tmp_path / "file")


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b", "x" * 65])
def test_memory_file_names_that_are_paths_are_refused(tmp_path: Path, name: str) -> None:
    for memory in (DirectoryMemory(tmp_path), KeeperMemory("/nowhere", "ps-0")):
        with pytest.raises(ValueError, match="name of a memory file"):
            memory.create(name, 4096)


def test_an_absent_keeper_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=f"ps-0's memory can't be kept by {tmp_path}/none: No such file"):
        KeeperMemory(str(tmp_path / "none"), "ps-0").create("rows", 4096)


def test_malformed_requests_to_the_keeper_are_refused(tmp_path: Path) -> None:
    nodes = Nodes()
    nodes.launch(NodeSpec("ps-0", "ps", Resources(1.0, 1 << 28), ""))
    held = NodeMemory(tmp_path, nodes)
    try:
        for sent, answer in (
            (b"nonsense", b""),
            (b'{"type":"Keep","node":"ps-0","name":"x"}', b"a file without a descriptor"),
            (b'{"type":"Fetch","node":"ps-7"}', b"no running node 'ps-7'"),
        ):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(str(tmp_path / MEMORY_SOCKET))
                peer.send(sent)
                held.serve()
                assert answer in peer.recv(4096)
            held.serve()
        assert held.files("ps-0") == []
    finally:
        held.close()
