"""A parameter server's process dies at any moment, and the one that follows goes on: simulated at each step, and for real."""

from __future__ import annotations

import os
import random
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import mmap
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.failpoints import Died, armed
from dlrover_lite.ps.journal.state_words import Header
from dlrover_lite.ps.memory.arena import Arena
from dlrover_lite.ps.memory.state_memory import PrivateMemory
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.tables import table
from tests.ps.survival import (
    OPTIMIZERS,
    Push,
    Receive,
    Step,
    Tidy,
    check,
    configure,
    contents,
    do,
    open_engine,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memory that outlives its process")

NAMES = range(40)
FEW = [Push(0), Receive(1), Push(1, 1), Receive(2), Push(1), Tidy(), Push(2), Push(3, 2), Push(3, 1)]
"""Something of everything."""


def undisturbed(use: str, steps: list[Step], keys: int) -> dict[Any, Any]:
    engine = open_engine(None)
    configure(engine, use)
    for step in steps:
        do(engine, step, keys)
    return contents(engine, NAMES)


class Life:
    """An engine, and those that follow it, in one process."""

    def __init__(self, use: str, keys: int) -> None:
        self.memory = PrivateMemory()
        self.use, self.keys = use, keys
        self.engine: Engine | None = None

    def follow(self) -> None:
        self.engine = None
        self.memory = self.memory.hand_over()
        engine = open_engine(self.memory)
        configure(engine, self.use)
        self.engine = engine

    def do(self, step: Step) -> None:
        if self.engine is None:
            self.follow()
        assert self.engine is not None
        do(self.engine, step, self.keys)


@contextmanager
def life(use: str, keys: int) -> Iterator[Life]:
    found = Life(use, keys)
    try:
        yield found
    finally:
        found.memory.close()


def deaths(use: str, keys: int, failpoint: str, stride: int = 1) -> Iterator[bool]:
    """Does FEW, dying the first, second, … time it comes to ``failpoint``, until it doesn't come there so often; each time all is as if
    nothing had been."""
    expected = undisturbed(use, FEW, keys)
    number, died = 1 - stride, True
    while died:
        number += stride
        with life(use, keys) as it:
            done = 0
            try:
                with armed(f"{failpoint}=raise:{number}"):
                    for step in FEW:
                        it.do(step)
                        done += 1
                died = False
            except Died:
                it.engine = None
            for step in FEW[max(0, done - 1) :]:
                it.do(step)
            assert it.engine is not None
            check(it.engine)
            assert contents(it.engine, NAMES) == expected, f"{failpoint}=raise:{number}"
        yield died


@pytest.mark.parametrize(("use", "stride"), [("sgd", 7), ("adagrad", 1), ("adam", 5), ("ftrl", 6)])
def test_server_survives_a_death_at_each_step_of_its_kernels(use: str, stride: int) -> None:
    assert sum(deaths(use, 20, "ps.step", stride)) > 100 // stride


def test_server_survives_a_death_while_received_rows_are_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "_APPEND_BYTES", 1)  # or they are too few
    assert sum(deaths("adagrad", 20, "ps.step", 5)) > 20


@pytest.mark.parametrize(
    ("failpoint", "times"),
    [
        ("ps.configure.written", 1),
        ("ps.configure.opened", 1),
        ("ps.push.begun", 6),
        ("ps.push.group", 24),
        ("ps.push.applied", 6),
        ("ps.push.marked", 6),
        ("ps.push.done", 6),
    ],
)
def test_server_survives_a_death_between_steps_of_a_push(failpoint: str, times: int) -> None:
    assert sum(deaths("adagrad", 20, failpoint)) == times


@pytest.mark.parametrize("failpoint", ["ps.attach.undone", "ps.attach.marked"])
def test_follower_survives_a_death_while_taking_over(failpoint: str) -> None:
    expected = undisturbed("adam", FEW, 40)
    for number in range(1, 40, 3):
        with life("adam", 40) as it:
            done = 0
            with suppress(Died), armed(f"ps.chunk.half=raise:{number}"):
                for step in FEW:
                    it.do(step)
                    done += 1
            it.engine = None
            for _ in range(2):
                with suppress(Died), armed(f"{failpoint}=raise"):
                    it.follow()
                it.engine = None
            for step in FEW[done:]:
                it.do(step)
            if it.engine is None:
                it.follow()
            assert it.engine is not None
            check(it.engine)
            assert contents(it.engine, NAMES) == expected


steps = st.one_of(
    st.builds(Push, st.integers(0, 5), st.integers(0, 2)),
    st.builds(Receive, st.integers(0, 5)),
    st.just(Tidy()),
)
points = st.sampled_from(["ps.step", "ps.push.group", "ps.push.applied", "ps.chunk.half", "ps.attach.marked"])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(OPTIMIZERS)),
    st.lists(st.tuples(steps, st.none() | st.tuples(points, st.integers(1, 25))), max_size=8),
)
def test_any_history_with_deaths_equals_the_one_without(
    use: str, history: list[tuple[Step, tuple[str, int] | None]]
) -> None:
    with life(use, 12) as it:
        for step, death in history:
            if death is not None:
                it.engine = None  # it is asked to stop, and followed: a death between two steps
                with suppress(Died), armed(f"{death[0]}=raise:{death[1]}"):
                    it.do(step)
                it.engine = None
            it.do(step)
        if it.engine is None:
            it.follow()
        assert it.engine is not None
        check(it.engine)
        assert contents(it.engine, NAMES) == undisturbed(use, [step for step, _ in history], 12)


# --- for real ---------------------------------------------------------------------------------------------------------

KILLS = 50
"""Of each optimizer."""
LENGTH = 24
LONG = [step for k in range(LENGTH // 2) for step in (Push(k, 1), Push(k))]
LONG[10:10] = [Receive(1)]
LONG[16:16] = [Receive(2), Tidy()]
LONG[26:26] = [Receive(3), Receive(4), Tidy()]


@pytest.mark.parametrize("use", OPTIMIZERS)
def test_server_survives_kill_9_at_any_moment(use: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # shown when it fails
    chance, keys = random.Random(seed), 1500
    expected = undisturbed(use, LONG, keys)
    kills = 0
    while kills < KILLS:
        with life(use, keys) as it:
            it.follow()
            it.memory = it.memory.hand_over()
            shared = mmap(-1, 8)
            while not _lives(it, shared, chance):
                kills += 1
            it.follow()
            assert it.engine is not None
            check(it.engine)
            assert contents(it.engine, NAMES) == expected, f"seed {seed}, after {kills} kills"


def _lives(it: Life, shared: mmap, chance: random.Random) -> bool:
    """A child takes over and goes on, and is killed amid one of the next steps. Whether it had come to the end."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _go_on(it, shared, write)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    try:
        for _ in range(chance.randint(0, 6)):  # 0: while it takes over
            os.read(read, 1)
        if chance.random() < 0.6:
            _see_a_chunk(it.memory, child)
        _spin(chance.uniform(0, 0.0001 if chance.random() < 0.5 else 0.004))
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(read)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), "it failed"
    return status == 0


def _see_a_chunk(memory: PrivateMemory, child: int) -> None:
    """Until rows are in the journal, or the child has ended, or is about to be killed for nothing."""
    left = memory.left()
    state = Arena("state", fd=left.pop("state")).bytes.view(np.uint64)
    for fd in left.values():
        os.close(fd)
    until = time.perf_counter() + 0.02
    while not int(state[Header.PROGRESS]) & 0xFFFF and time.perf_counter() < until:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return


def _spin(seconds: float) -> None:
    """There is nothing to wait for that would be as exact."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _go_on(it: Life, shared: mmap, write: int) -> None:
    """A byte says that a step begins."""
    it.follow()
    (done,) = struct.unpack("Q", shared[:8])
    for i in range(max(0, done - 1), len(LONG)):  # as clients would that haven't heard
        os.write(write, b".")
        it.do(LONG[i])
        shared[:8] = struct.pack("Q", i + 1)
