"""What signals do to a job that is followed, wherever in the code they come."""

from __future__ import annotations

import io
import queue
import signal
import threading
from typing import Any

import pytest

from dlrover_lite.cli.follow import Signals
from tests.cli.conftest import PATIENCE_SECONDS


class Handle:
    """A job that can only be told of anything while nobody else has ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.told: queue.Queue[str] = queue.Queue()

    def hang_up(self) -> None:
        self._tell("hang up")

    def stop(self, *, kill: bool = False) -> None:
        self._tell("kill" if kill else "stop")

    def _tell(self, what: str) -> None:
        free = self.lock.acquire(timeout=PATIENCE_SECONDS / 10)
        self.told.put(what if free else f"{what}: there was no way to tell it")
        if free:
            self.lock.release()


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([signal.SIGHUP], ["hang up"]),
        ([signal.SIGHUP, signal.SIGHUP], ["hang up"]),  # the shell and the kernel both tell
        ([signal.SIGTERM], ["stop"]),
        ([signal.SIGINT, signal.SIGINT], ["stop", "kill"]),
        ([signal.SIGHUP, signal.SIGTERM], ["hang up", "kill"]),
    ],
)
def test_a_signal_that_comes_while_a_lock_is_held_that_telling_needs_is_told(
    numbers: list[signal.Signals], told: list[str]
) -> None:
    handle: Any = Handle()
    with Signals(io.StringIO()) as signals:
        signals.hold(handle)
        with handle.lock:  # as the main thread has one while it reads the job's files
            for number in numbers:
                signal.raise_signal(number)
        assert [handle.told.get(timeout=PATIENCE_SECONDS) for _ in told] == told
        assert signals.first == numbers[0]
    assert handle.told.empty()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_when_a_job_can_no_longer_be_told_the_next_signal_ends_the_command() -> None:
    ended = threading.Event()

    class Broken:
        def stop(self, *, kill: bool = False) -> None:
            teller = threading.current_thread()
            threading.Thread(target=lambda: (teller.join(), ended.set())).start()
            raise RuntimeError(f"can't be told, kill={kill}")

    broken: Any = Broken()
    with Signals(io.StringIO()) as signals:
        signals.hold(broken)
        signal.raise_signal(signal.SIGTERM)
        assert ended.wait(PATIENCE_SECONDS)
        with pytest.raises(SystemExit) as error:
            signal.raise_signal(signal.SIGTERM)
        assert error.value.code == 128 + signal.SIGTERM
