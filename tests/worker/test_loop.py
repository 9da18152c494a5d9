"""What a worker has under way: when it pulls a minibatch, and how stale the gradients are that it pushes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zmq
from numpy.typing import NDArray
from torch import nn

from dlrover_lite.data.base import Batch, Schema
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.protocol.messages import Lease
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Optimizer, Recipe
from dlrover_lite.worker.leases import HeldLease
from dlrover_lite.worker.log_lines import Journal
from dlrover_lite.worker.loop import UNPIPELINED_MINIBATCHES, TrainingLoop
from dlrover_lite.worker.parameters.client import PsClient
from dlrover_lite.worker.parameters.embedding import EmbeddingLayout
from dlrover_lite.worker.parameters.requests import PushTicket
from dlrover_lite.worker.run_delay import RunDelay
from dlrover_lite.worker.trainer import Gradients, Prepared, Trainer
from tests.worker.scripted import ScriptedJob

BATCH_SIZE = 4
MINIBATCHES = UNPIPELINED_MINIBATCHES + 20
SCHEMA = Schema(("x",), ("A",))
PATIENCE_SECONDS = 30.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_fields = [EmbeddingField("A", 2)]
        self.layer = nn.Linear(3, 1)

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([dense, embedded], 1)).squeeze(1)


class Samples:
    schema = SCHEMA
    samples = MINIBATCHES * BATCH_SIZE
    remote = False

    def __init__(self) -> None:
        self.expected: list[list[range]] = []

    def read(self, numbers: NDArray[np.int64]) -> Batch:
        n = len(numbers)
        return Batch(np.zeros(n, np.float32), np.zeros((n, 1), np.float32), (numbers % 5).astype(np.uint64)[None], [])

    def expect(self, ranges: Sequence[range]) -> None:
        self.expected.append(list(ranges))

    def close(self) -> None: ...


class Book:
    """Leases that are there from the start, in place of those that a master gives."""

    export = None
    ask_again_in = 0.0
    asks_ahead = False

    def __init__(self, leases: list[Lease], context: zmq.Context[Any]) -> None:
        self.held = [HeldLease(lease) for lease in leases]
        self.socket = context.socket(zmq.PAIR)

    @property
    def finished(self) -> bool:
        return all(held.exhausted for held in self.held)

    @property
    def following(self) -> HeldLease | None:
        return next((held for held in self.held if not held.begun), None)

    def next(self) -> tuple[HeldLease, int] | None:
        held = next((held for held in self.held if not held.exhausted), None)
        if held is None:
            return None
        held.next_k += 1
        return held, held.next_k - 1

    def pump(self) -> None: ...


class Watched(Trainer):
    """Notes pulls, pushes and evaluations in their order. A minibatch is computed only when the loop has had two more turns, so that it
    has pulled all that it may by then."""

    def __init__(self, module: nn.Module, layout: EmbeddingLayout, ps: PsClient) -> None:
        super().__init__(module, layout, ps)
        self.events: list[str] = []
        self.asked_for_unknown: set[bool] = set()
        self.turns = threading.Semaphore(0)
        self._pulled: dict[int, str] = {}

    def pull(self, batch: Batch, keys: Any, *, unknown: bool = False) -> Prepared:
        self.asked_for_unknown.add(unknown)
        prepared = super().pull(batch, keys, unknown=unknown)
        self.events.append("pull")
        return prepared

    def gradients(self, prepared: Prepared, *, epoch: int, k: int, seed: int) -> Gradients:
        self._await_turns()
        return super().gradients(prepared, epoch=epoch, k=k, seed=seed)

    def evaluate(self, prepared: Prepared) -> NDArray[np.float32]:
        self._await_turns()
        self.events.append("evaluate")
        return super().evaluate(prepared)

    def push(self, *arguments: Any, **names: Any) -> PushTicket:
        self.events.append("push")
        return super().push(*arguments, **names)

    def _await_turns(self) -> None:
        while self.turns.acquire(blocking=False):
            pass
        for _ in range(3):
            assert self.turns.acquire(timeout=PATIENCE_SECONDS), "the loop doesn't turn"


@pytest.fixture
def servers() -> Iterator[ScriptedJob]:
    job = ScriptedJob(2)
    yield job
    job.close()


def recipe(**training: int) -> Recipe:
    return parse_recipe(
        {
            "version": 1,
            "name": "loop",
            "model": "dlrm",
            "data": {"format": "synthetic", "samples": Samples.samples},
            "training": {"batch_size": BATCH_SIZE, **training},
        }
    )


def train(
    servers: ScriptedJob,
    leases: list[Lease],
    *,
    cores: float = 1.0,
    run_delay: RunDelay | None = None,
    samples: Samples | None = None,
    **training: int,
) -> tuple[Watched, Book]:
    """Run the loop until these leases are done."""
    ps = servers.client()
    module = Model()
    trainer = Watched(module, EmbeddingLayout(module.embedding_fields, SCHEMA), ps)
    ps.pumped = True
    trainer.configure(0, Optimizer(use="sgd"), Optimizer(use="sgd"))
    book = Book(leases, servers.context)
    wait = ps.wait

    def turn(timeout_seconds: float = 0.0) -> None:
        trainer.turns.release()
        wait(timeout_seconds)

    ps.wait = turn  # type: ignore[method-assign]
    loop = TrainingLoop(
        recipe(**training),
        trainer,
        book,  # type: ignore[arg-type]
        train=samples or Samples(),
        evaluation=Samples(),
        stop=lambda: False,
        mark=lambda _: None,
        journal=Journal("worker-0", lambda _: None),
        cores=cores,
        run_delay=run_delay or RunDelay(),
    )
    try:
        loop.run()
    finally:
        book.socket.close()
    return trainer, book


def lease(start: int, stop: int, *, kind: str = "train", epoch: int = 0) -> Lease:
    return Lease(1, kind, epoch, start, stop)  # type: ignore[arg-type]


def staleness(book: Book) -> Counter[int]:
    return sum((Counter(held.work.staleness) for held in book.held), Counter())


def most_under_way(events: list[str]) -> int:
    """Most minibatches that were pulled and neither pushed nor evaluated at one time."""
    under_way = most = 0
    for event in events:
        under_way += 1 if event == "pull" else -1
        most = max(most, under_way)
    return most


def test_by_default_one_minibatch_is_pulled_while_another_is_computed(servers: ScriptedJob) -> None:
    trainer, book = train(servers, [lease(0, MINIBATCHES)])
    first = ["pull", "push"] * (UNPIPELINED_MINIBATCHES - 1)
    assert trainer.events[: len(first)] == first
    assert most_under_way(trainer.events) == 2
    # from then on each misses the push of the minibatch before it
    assert staleness(book) == {0: UNPIPELINED_MINIBATCHES, 1: MINIBATCHES - UNPIPELINED_MINIBATCHES}


def test_later_epochs_are_pipelined_from_their_first_minibatch_on(servers: ScriptedJob) -> None:
    _, book = train(servers, [lease(0, 10, epoch=1)])
    assert staleness(book) == {0: 1, 1: 9}


@pytest.mark.parametrize(("cores", "depth"), [(1.0, 1), (0.9, 2)])
def test_a_pipeline_of_depth_1_misses_none_of_its_pushes(servers: ScriptedJob, cores: float, depth: int) -> None:
    trainer, book = train(servers, [lease(0, 10, epoch=1)], cores=cores, pipeline_depth=depth)
    assert trainer.events == ["pull", "push"] * 10
    assert staleness(book) == {0: 10}


def test_evaluations_are_pipelined_whatever_the_depth(servers: ScriptedJob) -> None:
    trainer, _ = train(servers, [lease(0, 10, kind="eval")], pipeline_depth=1)
    assert most_under_way(trainer.events) == 2


def test_evaluations_ask_which_keys_are_unknown_and_training_does_not(servers: ScriptedJob) -> None:
    assert train(servers, [lease(0, 10)], pipeline_depth=1)[0].asked_for_unknown == {False}
    assert train(servers, [lease(0, 10, kind="eval")], pipeline_depth=1)[0].asked_for_unknown == {True}


def test_samples_of_the_lease_that_follows_are_expected_behind_those_of_this_one(servers: ScriptedJob) -> None:
    far = Samples()
    far.remote = True
    leases = [lease(0, 4, epoch=1), lease(10, 12, epoch=1), lease(0, 2, kind="eval"), lease(12, 14, epoch=1)]
    _, book = train(servers, leases, samples=far, shuffle=False)
    assert book.asks_ahead
    assert far.expected[0] == [range(16), range(40, 48)]
    assert [range(12, 16), range(40, 48)] in far.expected
    assert [range(44, 48)] in far.expected  # what follows is read from other data


def test_samples_that_are_here_are_not_expected(servers: ScriptedJob) -> None:
    near = Samples()
    _, book = train(servers, [lease(0, 4, epoch=1)], samples=near)
    assert near.expected == [] and not book.asks_ahead


class Held(RunDelay):
    """Is held back by a second between two questions."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def seconds(self) -> float:
        self.asked += 1
        return float(self.asked)


def test_seconds_for_which_reading_had_no_core_are_told(servers: ScriptedJob) -> None:
    """Delays are told of reading alone: nobody asks for what comes between."""
    delay = Held()
    _, book = train(servers, [lease(0, 10)], run_delay=delay)
    assert sum(held.work.report().read_delay_seconds for held in book.held) == 10.0
    assert delay.asked == 20


def test_the_systems_account_of_a_thread_is_read(tmp_path: Path) -> None:
    told = tmp_path / "schedstat"
    told.write_text("1000000000 2500000000 17\n")
    with RunDelay(told) as delay:
        assert delay.seconds() == 2.5
    assert delay.seconds() == 0.0


@pytest.mark.parametrize("text", [None, "", "12", "a b c"])
def test_where_the_system_tells_nothing_there_is_no_delay(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    with RunDelay(tmp_path / "schedstat") as delay:
        assert delay.seconds() == 0.0
