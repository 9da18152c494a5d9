"""Memory of arenas in huge pages, where they can be had and where they can't."""

from __future__ import annotations

import errno
import math
import mmap
import sys

import numpy as np
import pytest

from dlrover_lite.core.records import TABLE_EPOCH
from dlrover_lite.ps.memory import arena as arenas
from dlrover_lite.ps.memory import page_choice
from dlrover_lite.ps.memory.aligned_mapping import HUGE_BYTES
from dlrover_lite.ps.memory.arena import Arena
from dlrover_lite.ps.memory.row_arena import RowArena
from dlrover_lite.ps.memory.state_memory import Arenas
from dlrover_lite.ps.tables.row_arrays import NUMBERS, TOUCHED, USED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has arenas that are files")
SIZE = 3 * HUGE_BYTES + 5 * mmap.PAGESIZE
WORDS = 37


@pytest.fixture(params=["as the kernel gives them", "none now", "none ever", "every other"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What becomes of huge pages that are asked for, from the first byte on."""
    monkeypatch.setattr(arenas, "_SMALL_BYTES", 0)
    monkeypatch.setattr(page_choice, "WORTH", math.inf)
    monkeypatch.setattr(page_choice, "WORTH_AT_ONCE", math.inf)
    monkeypatch.setattr(page_choice, "SKIPPED", 0 if request.param == "every other" else page_choice.SKIPPED)
    asked, advise = [0], arenas.Mapping.advise

    def advised(mapping: arenas.Mapping, advice: int, start: int, length: int) -> None:
        if advice == arenas._MADV_COLLAPSE and request.param != "as the kernel gives them":
            asked[0] += 1
            if request.param != "every other" or asked[0] % 2:
                raise OSError(errno.EINVAL if request.param == "none ever" else errno.ENOMEM, "no huge page")
        advise(mapping, advice, start, length)

    monkeypatch.setattr(arenas.Mapping, "advise", advised)
    return str(request.param)


def test_memory_that_is_touched_is_zero_and_keeps_what_was_there(kernel: str) -> None:
    arena = Arena("touched", SIZE)
    arena.bytes[:5000] = 7
    end = arena.touch(5000, HUGE_BYTES + 5)
    assert HUGE_BYTES + 5 <= end <= arena.size
    assert (arena.bytes[:5000] == 7).all()
    assert not arena.bytes[5000:].any()
    arena.bytes[5000:end] = 9
    assert arena.touch(end, arena.size) == arena.size
    assert (arena.bytes[5000:end] == 9).all()
    assert not arena.bytes[end:].any()


def test_another_mapping_of_the_file_sees_the_same_bytes(kernel: str) -> None:
    first = Arena("seen", SIZE)
    assert first.fd is not None
    second = Arena("seen", fd=arenas.os.dup(first.fd))
    first.touch(0, SIZE)
    first.bytes[::4096] = 3
    assert (second.bytes[::4096] == 3).all()
    second.map(SIZE)
    second.bytes[:] = 4
    assert (first.bytes == 4).all()
    first.give_back(HUGE_BYTES + 100, SIZE)
    assert (second.bytes[: HUGE_BYTES + 100] == 4).all()
    assert not second.bytes[HUGE_BYTES + mmap.PAGESIZE :].any()


def test_rows_are_appended_whole_and_those_beyond_are_free(kernel: str) -> None:
    numbers = np.zeros(NUMBERS, np.uint64)
    rows = RowArena(Arenas(), "rows", WORDS, SIZE, numbers)
    random = np.random.default_rng(1)
    given_rows = random.integers(1, 1 << 32, (rows.capacity, WORDS), dtype=np.uint32)
    for count in (5000, 9000, 30, 12_000):
        used = int(numbers[USED])
        assert rows.append(given_rows[used : used + count])
        assert int(numbers[TOUCHED]) >= used + count
        numbers[USED] = used + count
        rows.free_beyond()
    used = int(numbers[USED])
    records = rows.records[: rows.capacity * WORDS].reshape(-1, WORDS)
    assert (records[:used] == given_rows[:used]).all()
    assert not records[used:, int(TABLE_EPOCH)].any()
    assert int(numbers[TOUCHED]) <= rows.capacity
