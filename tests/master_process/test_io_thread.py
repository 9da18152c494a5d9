"""The thread that does a master's input and output: in order, with a word when something is done, and no longer than it may take."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from dlrover_lite.master_process.io_thread import IoThread
from dlrover_lite.transport.polling import wait_for_messages

PATIENCE = 20.0


@pytest.fixture
def thread() -> Iterator[IoThread]:
    thread = IoThread("test")
    yield thread
    thread.close(PATIENCE)


def until_done(thread: IoThread) -> None:
    """Wait as the master's process does: for the descriptor, which then keeps still until more is done."""
    wait_for_messages([thread.fileno()], PATIENCE)
    thread.silence()


def test_results_are_taken_up_in_order_by_who_asks(thread: IoThread) -> None:
    found: list[tuple[str, object]] = []

    def then(name: str) -> object:
        def take(done: Future[int]) -> None:
            error = done.exception()
            found.append((name, str(error) if error is not None else done.result()))

        return take

    thread.submit(lambda: 1, then("first"))  # type: ignore[arg-type]
    thread.submit(lambda: 1 // 0, then("second"))  # type: ignore[arg-type]
    ends = threading.Event()
    thread.submit(ends.set, lambda _: None)
    assert ends.wait(PATIENCE)
    until_done(thread)
    assert found == [], "nothing is handled before it is taken up"
    while len(found) < 2:
        thread.take()
    assert found == [("first", 1), ("second", "integer division or modulo by zero")]


def test_the_descriptor_is_silent_until_more_is_done(thread: IoThread) -> None:
    thread.submit(lambda: None, lambda _: None)
    until_done(thread)
    assert thread.is_done
    assert select.select([thread.fileno()], [], [], 0)[0] == []
    goes_on = threading.Event()
    thread.submit(lambda: goes_on.wait(PATIENCE), lambda _: None)
    goes_on.set()
    until_done(thread)
    thread.take()


def test_closing_waits_for_what_was_submitted_but_not_for_ever() -> None:
    thread, done = IoThread("test"), []
    thread.submit(lambda: done.append(1), lambda _: None)
    assert thread.close(PATIENCE)
    assert done == [1] and not thread.is_open
    hanging, goes_on = IoThread("test"), threading.Event()
    hanging.submit(lambda: goes_on.wait(PATIENCE), lambda _: None)
    assert not hanging.close(0.01)
    goes_on.set()
    assert hanging.close(PATIENCE)
