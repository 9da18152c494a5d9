"""When an export that has failed is tried again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.master.work.exporting import FIRST_DELAY_SECONDS, Exporting
from dlrover_lite.protocol.messages import Export, ExportFailed, Wait
from dlrover_lite.recipe import schema

DECODER = msgspec.msgpack.Decoder(Wait)


class TickingClock:
    """Each look at it takes as long as any other thing does."""

    def __init__(self, tick_seconds: float) -> None:
        self.now, self._tick_seconds = 0.0, tick_seconds

    def __call__(self) -> float:
        self.now += self._tick_seconds
        return self.now


def exporting(clock: TickingClock) -> Exporting:
    recipe: Any = SimpleNamespace(export=schema.Export(format="npz"))
    shards: Any = SimpleNamespace(failure=None, finished=True, id_kinds={})
    servers: Any = SimpleNamespace(at_rest=True, rows=0)
    facts: Any = SimpleNamespace(keep=lambda fact, value: None)
    evaluations: Any = SimpleNamespace(usual_shares=dict)
    return Exporting(
        recipe, "/x", shards, servers, facts, evaluations, clock=clock, wall_clock=clock, free=lambda _: 4096
    )


def test_the_worker_is_told_where_it_reaches_the_models_directory() -> None:
    tried = exporting(TickingClock(0.1))
    tried.url_for_nodes = lambda url: f"dlrover-lite://master:7072{url}"
    task = tried.task("worker-0")
    assert isinstance(task, Export) and task.destination == "dlrover-lite://master:7072/x"
    assert tried.destination == "/x"


@given(tick_seconds=st.floats(1e-3, 2.0))
def test_wait_until_the_next_export_try_is_never_negative(tick_seconds: float) -> None:
    """Time goes on while the answer is made, also beyond the moment that is waited for."""
    clock = TickingClock(tick_seconds)
    tried = exporting(clock)
    assert isinstance(tried.task("worker-0"), Export)
    failed_at = clock.now
    tried.failed(ExportFailed("worker-0", "It may not be written.", "Make it writable.", False))
    while isinstance(answer := tried.task("worker-0"), Wait):
        assert DECODER.decode(msgspec.msgpack.encode(answer)) == answer
    assert isinstance(answer, Export)
    assert failed_at + FIRST_DELAY_SECONDS <= clock.now <= failed_at + FIRST_DELAY_SECONDS + 3 * tick_seconds
