"""What a worker does before it trains."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dlrover_lite.core.errors import DeadlineExceeded
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.messages import Topology, Wait
from dlrover_lite.protocol.nodes import UNANSWERED_EXIT_CODE, UNANSWERED_SECONDS, NodeSpec
from dlrover_lite.worker import main as worker

SPEC: Any = SimpleNamespace(id="worker-0")


class Master:
    """Each answer takes 100 seconds; an error is raised."""

    def __init__(self, answers: Iterator[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._answers = answers
        monkeypatch.setattr(worker.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(worker.time, "sleep", lambda _seconds: None)

    def call(self, _request: Any, *, deadline_seconds: float) -> Any:
        assert deadline_seconds > 0
        self.now += 100.0
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(body=answer)


def test_servers_that_read_a_checkpoint_are_waited_for_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Topology(3)
    late = DeadlineExceeded("no answer")
    answers = [late, late, Wait(0.0)] * 20
    master: Any = Master(iter([*answers, found]), monkeypatch)
    assert worker._topology(SPEC, master, lambda: False) == found  # type: ignore[arg-type]


def test_servers_that_never_come_up_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    late = DeadlineExceeded("no answer")
    master: Any = Master(iter([late] * 40), monkeypatch)
    with pytest.raises(DeadlineExceeded, match="not up within 600 s"):
        worker._topology(SPEC, master, lambda: False)  # type: ignore[arg-type]


def test_a_worker_that_its_master_never_answers_ends_as_one_that_is_not_at_fault() -> None:
    asked: list[float] = []

    class Silent:
        def client(self, *_: Any, **__: Any) -> Silent:
            return self

        def call(self, _body: Any, *, deadline_seconds: float) -> Any:
            asked.append(deadline_seconds)
            raise DeadlineExceeded("the master did not answer Hello")

        def close(self) -> None:
            pass

    nobody: Any = Silent()
    spec = NodeSpec("worker-0", "worker", Resources(1.0, GIB), "tcp://job.ads.svc:7070")
    assert worker._run(spec, nobody, lambda: False) == UNANSWERED_EXIT_CODE  # type: ignore[arg-type]
    assert asked == [UNANSWERED_SECONDS], "as long as pods live without a master"
