"""What nodes print is copied line by line, whenever it is looked at."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.keeper.node_output import FREED_BYTES, NodeOutput
from dlrover_lite.backends.keeper.nodes import Nodes
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.nodes import NodeSpec


class Rig:
    def __init__(self, directory: Path) -> None:
        self.job = Job(directory)
        self.job.logs.mkdir()
        self.nodes = Nodes()
        self.copied = b""
        self.output = NodeOutput(self.job, self._take)

    def _take(self, data: bytes) -> None:
        self.copied += data

    def launch(self, node: str) -> None:
        self.nodes.launch(NodeSpec(node, "worker", Resources(1.0, 1), ""))

    def write(self, node: str, data: bytes) -> None:
        with self.job.log(node).open("ab") as file:
            file.write(data)

    def end(self, node: str) -> None:
        self.nodes.ended(node, 0, at=1.0)

    def copy(self) -> bool:
        self.output.copy(self.nodes.by_id.values())
        return self.output.has_more(self.nodes.by_id.values())


PARTS = st.lists(
    st.tuples(st.sampled_from([b"", b"\n", b"a", b"\xff\n", b"one\ntwo", b"\n\n"]), st.booleans()), max_size=12
)


@settings(deadline=None, max_examples=60)
@given(parts=PARTS)
def test_all_that_a_node_prints_is_copied_once_in_whole_lines(parts: list[tuple[bytes, bool]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        rig = Rig(Path(directory))
        rig.launch("worker-0")
        for data, looked_at in parts:
            rig.write("worker-0", data)
            if looked_at:
                assert rig.copy()
                assert rig.copied == b"" or rig.copied.endswith(b"\n")
        rig.end("worker-0")
        assert not rig.copy() and not rig.copy()
        printed = b"".join(data for data, _ in parts)
        assert rig.copied == printed + (b"" if printed.endswith(b"\n") or not printed else b"\n")


def test_lines_say_whose_they_are_from_the_second_node_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert not rig.copy()
    rig.launch("worker-0")
    assert rig.copy()  # it has no log yet
    rig.write("worker-0", b"first\nha")
    rig.copy()
    rig.end("worker-0")
    rig.launch("worker-1")
    rig.write("worker-1", b"other\n")
    rig.write("worker-0", b"lf")
    rig.copy()
    assert rig.copied == b"first\nworker-0: half\nworker-1: other\n"


def test_a_line_that_does_not_end_is_copied_in_pieces(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.launch("worker-0")
    rig.write("worker-0", b"x" * (3 << 20))
    while rig.copied.count(b"x") < 3 << 20:
        rig.copy()
    rig.end("worker-0")
    assert not rig.copy()


def test_an_ended_node_with_much_to_say_is_copied_to_its_end(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.launch("worker-0")
    rig.write("worker-0", b"0123456\n" * (3 << 17))
    rig.end("worker-0")
    rounds = 0
    while rig.copy():
        rounds += 1
    assert rounds >= 2 and len(rig.copied) == 3 << 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux gives the beginning of a file back")
def test_the_room_of_a_log_that_its_reader_has_is_given_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.launch("worker-0")
    file, line = rig.job.log("worker-0"), b"x" * 1023 + b"\n"
    rig.write("worker-0", line * (2 * FREED_BYTES // len(line)))
    rig.output.has_read("worker-0", 2 * FREED_BYTES)  # it isn't copied yet
    full = file.stat().st_blocks
    rig.copy()
    rig.output.has_read("worker-0", 2 * FREED_BYTES)
    assert file.stat().st_blocks == full
    while len(rig.copied) < 2 * FREED_BYTES:
        rig.copy()
    rig.output.has_read("worker-0", FREED_BYTES - 1)
    assert file.stat().st_blocks == full
    rig.output.has_read("worker-0", FREED_BYTES + len(line))
    assert file.stat().st_blocks * 512 <= FREED_BYTES
    assert file.stat().st_size == 2 * FREED_BYTES
    rig.write("worker-0", b"last\n")
    rig.copy()
    assert rig.copied == line * (2 * FREED_BYTES // len(line)) + b"last\n"
    assert file.read_bytes()[FREED_BYTES + len(line) :] == line * (FREED_BYTES // len(line) - 1) + b"last\n"
