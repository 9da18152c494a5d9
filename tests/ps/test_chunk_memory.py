"""Memory through which servers of one machine hand rows over: what is put into it is there, and nothing else is ever opened."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from dlrover_lite.protocol.ps_messages import Shared
from dlrover_lite.ps.memory.node_memory_client import make_memfd
from dlrover_lite.ps.migration.chunk_memory import NotShared, OfferedMemory, open_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

WORDS = 11

_OFFERS = """
import sys
import msgspec
from dlrover_lite.ps.migration.chunk_memory import OfferedMemory
memory = OfferedMemory(2, 4096)
for place in range(2):
    memory.records(place, 5, 11)[:] = 7 + place
print(msgspec.json.encode(memory.offer).decode(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory() -> Iterator[OfferedMemory]:
    offered = OfferedMemory(3, 4096)
    yield offered
    offered.close()


def test_rows_are_read_where_they_were_put(memory: OfferedMemory) -> None:
    opened = open_memory(memory.offer)
    rng = np.random.default_rng(0)
    put: dict[int, bytes] = {}
    for place, n in ((0, 40), (1, 1), (2, 70)):
        records = memory.records(place, n, WORDS)
        assert records is not None
        assert records.shape == (n, WORDS)
        records[:] = rng.integers(0, 1000, records.shape)
        put[place] = records.tobytes()
        assert records.flags.aligned and records.flags.c_contiguous, "as kernels need them"
    for place, n in ((0, 40), (1, 1), (2, 70)):
        found = opened.records(place, n, WORDS)
        assert found is not None
        assert found.tobytes() == put[place]
        assert not found.flags.writeable


def test_opened_memory_outlives_the_process_that_offered_it() -> None:
    command = [sys.executable, "-c", _OFFERS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        offer = msgspec.json.decode(process.stdout.readline(), type=Shared)
        opened = open_memory(offer)
        process.kill()
        process.wait()
        records = opened.records(1, 5, WORDS)
        assert records is not None
        assert (records == 8).all()
        with pytest.raises(NotShared):
            open_memory(offer)


def test_a_place_holds_a_limited_number_of_rows(memory: OfferedMemory) -> None:
    fits = 4096 // (4 * WORDS)
    assert memory.records(2, fits, WORDS) is not None
    assert memory.records(2, fits + 1, WORDS) is None
    assert memory.records(0, 1 << 50, WORDS) is None
    for place, n in ((3, 1), (-1, 1), (0, -1)):
        with pytest.raises(ValueError, match=f"{n} rows in place {place} of 3"):
            memory.records(place, n, WORDS)


def test_offered_memory_cannot_be_made_smaller(memory: OfferedMemory) -> None:
    fd = memory.offer.descriptor
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)


def test_only_offered_memory_is_opened(memory: OfferedMemory) -> None:
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
