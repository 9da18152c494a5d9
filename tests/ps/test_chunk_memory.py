"""Memory through which servers of one machine hand rows over: what is put into it is there, and nothing else is ever opened."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from dlrover_lite.ps.chunk_memory import NotShared, OfferedMemory, open_memory
from dlrover_lite.ps.kept_memory import make_memfd
from dlrover_lite.ps.rows import RowData
from dlrover_lite.wire.ps_messages import Shared

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

DIM, STATE = 3, 6
ROW_BYTES = 8 + 2 + 4 + 4 + 4 * (DIM + STATE)

_OFFERS = """
import sys
import msgspec
from dlrover_lite.ps.chunk_memory import OfferedMemory
memory = OfferedMemory(2, 4096)
for place in range(2):
    for column in memory.rows(place, 5, 3, 6):
        column[:] = 7 + place
print(msgspec.json.encode(memory.offer).decode(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory() -> Iterator[OfferedMemory]:
    offered = OfferedMemory(3, 4096)
    yield offered
    offered.close()


def test_rows_are_where_they_were_put(memory: OfferedMemory) -> None:
    opened = open_memory(memory.offer)
    rng = np.random.default_rng(0)
    put: dict[int, list[bytes]] = {}
    for place, n in ((0, 40), (1, 1), (2, 70)):
        rows = memory.rows(place, n, DIM, STATE)
        assert rows is not None
        assert [column.shape for column in rows] == [(n,), (n,), (n,), (n,), (n, DIM), (n, STATE)]
        for column in rows:
            column[:] = rng.integers(0, 1000, column.shape)
        put[place] = [column.tobytes() for column in rows]
        assert all(column.ctypes.data % column.itemsize == 0 for column in rows), "as kernels need them"
    for place, n in ((0, 40), (1, 1), (2, 70)):
        found = opened.rows(place, n, DIM, STATE)
        assert found is not None
        assert [column.tobytes() for column in found] == put[place]
        assert not any(column.flags.writeable for column in found)


def test_what_was_opened_stays_when_the_one_who_offered_it_is_killed() -> None:
    command = [sys.executable, "-c", _OFFERS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        offer = msgspec.json.decode(process.stdout.readline(), type=Shared)
        opened = open_memory(offer)
        process.kill()
        process.wait()
        rows = opened.rows(1, 5, DIM, STATE)
        assert rows is not None
        assert all((column == 8).all() for column in rows)
        with pytest.raises(NotShared):
            open_memory(offer)


def test_a_place_holds_so_many_rows_and_no_more(memory: OfferedMemory) -> None:
    fits = next(n for n in range(200) if memory.rows(0, n + 1, DIM, STATE) is None)
    assert 4096 - 6 * 64 <= fits * ROW_BYTES <= 4096
    assert memory.rows(2, fits, DIM, STATE) is not None
    assert memory.rows(0, 1 << 50, DIM, STATE) is None
    for place, n in ((3, 1), (-1, 1), (0, -1)):
        with pytest.raises(ValueError, match=f"{n} rows in place {place} of 3"):
            memory.rows(place, n, DIM, STATE)


def test_rows_without_state_take_none(memory: OfferedMemory) -> None:
    rows = memory.rows(0, 4, DIM, 0)
    assert isinstance(rows, RowData)
    assert rows.state.shape == (4, 0)


def test_nobody_can_make_it_smaller_under_a_reader(memory: OfferedMemory) -> None:
    fd = memory.offer.descriptor
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)


def test_only_the_memory_that_was_offered_is_opened(memory: OfferedMemory) -> None:
    offer = memory.offer
    read, write = os.pipe()
    plain = make_memfd(offer.name, offer.places * offer.place_bytes)  # of this name, but it could shrink
    try:
        wrong = [
            {"name": "another"},
            {"descriptor": read},
            {"descriptor": plain},
            {"descriptor": -1},
            {"process": 1 << 30},
            {"process": os.getppid()},
            {"places": offer.places + 1},
            {"places": 0},
            {"place_bytes": -4096},
            {"places": 1 << 62, "place_bytes": 1 << 62},
        ]
        for change in wrong:
            with pytest.raises(NotShared):
                open_memory(msgspec.structs.replace(offer, **change))
    finally:
        for fd in (read, write, plain):
            os.close(fd)
    memory.close()
    with pytest.raises(NotShared):
        open_memory(offer)
