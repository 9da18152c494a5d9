"""The training loop: while minibatch i is computed on a thread of its own, i + 1 is read, pulled and laid out, and i - 1 pushed."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dlrover_lite.core.bounds import clipped
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.data.base import Batch, Dataset
from dlrover_lite.data.order import BLOCK_SIZE, EpochOrder
from dlrover_lite.models.user import exit_error, user_traceback
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.worker.compute import ComputeThread
from dlrover_lite.worker.leases import HeldLease, LeaseBook
from dlrover_lite.worker.log_lines import Journal
from dlrover_lite.worker.parameters.requests import MinibatchKeys, PushTicket
from dlrover_lite.worker.run_delay import RunDelay
from dlrover_lite.worker.schedule import learning_rate_factor
from dlrover_lite.worker.trainer import Gradients, Prepared, Trainer, minibatch_seed

__all__ = ["UNPIPELINED_MINIBATCHES", "TrainingLoop"]

EVALUATION_DEPTH = 2
"""Maximum number of minibatches of an evaluation pulled and not yet computed: nothing changes meanwhile that they could miss."""

MAX_UNACKNOWLEDGED = 2
"""Maximum number of pushes that a worker may have under way."""

UNPIPELINED_MINIBATCHES = 64
"""Number of a job's first minibatches that are each pulled after the push of the one before: the first steps are large, and a gradient from
values that miss the last one costs more there than all later ones together."""

_IDLE_SECONDS = 0.2
_EXPECTED_SAMPLES = 3 * BLOCK_SIZE
"""Number of samples of a lease that the dataset is told of before they are read."""
_LONGEST_EXAMPLE = 2000
"""Maximum number of characters in a bad line's description."""


class _Read(NamedTuple):
    """A minibatch that has been read and de-duplicated."""

    held: HeldLease
    k: int
    batch: Batch
    keys: MinibatchKeys


class _Task(NamedTuple):
    """A minibatch that is being pulled or computed."""

    held: HeldLease
    k: int
    prepared: Prepared


@dataclass(eq=False)
class TrainingLoop:
    """Takes minibatches from the lease book until the master needs nothing more, or ``stop`` says so. ``mark`` is told what begins
    whenever something has got done. ``cpu_clock``: CPU seconds of the calling thread; ``run_delay``: those for which it had no core."""

    recipe: Recipe
    trainer: Trainer
    book: LeaseBook
    train: Dataset
    evaluation: Dataset | None
    stop: Callable[[], bool]
    mark: Callable[[str], None]
    journal: Journal
    cores: float = 1.0
    """Number of cores that this worker was started with."""
    clock: Callable[[], float] = time.perf_counter
    cpu_clock: Callable[[], float] = time.thread_time
    run_delay: RunDelay = field(default_factory=RunDelay)

    def __post_init__(self) -> None:
        recipe = self.recipe
        self._code_directory = (Path(recipe.directory) / recipe.model.use.rpartition(":")[0]).resolve().parent
        self._whole_cores = _whole(self.cores)
        """Number of whole cores, for which there are as many threads."""
        self._orders: dict[int, EpochOrder] = {}
        self.book.asks_ahead = self.train.remote
        self._following: HeldLease | None = None
        """The lease that was last seen to follow the present one."""
        self._present: tuple[HeldLease, int] | None = None
        """The minibatch that was read last."""
        self._read: _Read | None = None
        self._pulling: list[_Task] = []
        self._computing: deque[_Task] = deque()
        self._pushes: list[tuple[PushTicket, HeldLease]] = []
        self._stepped_at: float | None = None
        """Time when a push was acknowledged last; None: there has been nothing to train on since."""
        self._compute: ComputeThread[_Task, Gradients | NDArray[np.float32]] = ComputeThread(
            self._run_task, clock=self.clock
        )

    def run(self) -> None:
        ps, compute = self.trainer.ps, self._compute
        with compute, ps.watching(compute.fileno()), ps.watching(self.book.socket), self.run_delay:
            while not self.stop():
                self._turn()
                if self._pulling or self._computing:
                    ps.wait()
                elif self._read is None:
                    self._collect_pushes(at_most=0)
                    if self.book.finished or self.book.export is not None:
                        return
                    self.mark("waiting for work")
                    self._stepped_at = None
                    self.book.idle(self.book.ask_again_in or _IDLE_SECONDS)
            while self._computing:  # what has been computed is not thrown away
                ps.wait()
                self._take_computed()
            self._collect_pushes(at_most=0)

    def _turn(self) -> None:
        """Move every minibatch that can be moved."""
        self._take_computed()
        self._submit_arrived()
        self._pull_next()
        self._read_ahead()
        self.book.pump()
        self._see_following()
        self.journal.tick()

    # --- stages ---------------------------------------------------------------------------------------------------------

    def _read_ahead(self) -> None:
        """Have one minibatch read and de-duplicated before it may be pulled."""
        while self._read is None and (found := self.book.next()) is not None:
            held, k = found
            began, cpu_before, delay_before = self.clock(), self.cpu_clock(), self.run_delay.seconds()
            batch = self._batch(held, k)
            held.work.add_bad([clipped(f"{bad.file}:{bad.line}: {bad.why}", _LONGEST_EXAMPLE) for bad in batch.bad])
            if len(batch.labels):
                self._read = _Read(held, k, batch, self.trainer.keys(batch.ids))
            else:
                held.consumed(k)  # nothing but bad lines: there is nothing to pull, and no PS to acknowledge it
            held.work.add_seconds("read", self.clock() - began)
            held.work.add_cpu("read", self.cpu_clock() - cpu_before)
            held.work.read_delay_seconds += max(0.0, self.run_delay.seconds() - delay_before)
            self._pull_next()

    def _pull_next(self) -> None:
        read = self._read
        if read is None:
            return
        if len(self._pulling) + len(self._computing) >= self._depth(read):
            return
        self._read = None
        cpu_before = self.cpu_clock()
        evaluates = read.held.lease.kind == "eval"
        prepared = self.trainer.pull(read.batch, read.keys, unknown=evaluates)
        self._pulling.append(_Task(read.held, read.k, prepared))
        read.held.work.add_cpu("pull", self.cpu_clock() - cpu_before)

    def _submit_arrived(self) -> None:
        while self._pulling and not self._pulling[0].prepared.ticket.missing:
            task = self._pulling.pop(0)
            cpu_before = self.cpu_clock()
            self.trainer.embed(task.prepared)
            task.held.work.add_cpu("pull", self.cpu_clock() - cpu_before)
            task.held.work.add_seconds("pull", task.prepared.ticket.seconds)
            if not self._computing:
                self.mark(_name(task))
            self._compute.submit(task)
            self._computing.append(task)

    def _depth(self, read: _Read) -> int:
        """Return how many minibatches may be pulled and not yet pushed. A worker with less than a core of its own has 1: it waits for the
        CPU anyway, and what it has pulled would only grow old."""
        if self._cores_of(read.held) < 1 or _is_among_the_first(read):
            return 1
        return EVALUATION_DEPTH if read.held.lease.kind == "eval" else self.recipe.training.pipeline_depth

    def _cores_of(self, held: HeldLease) -> float:
        """Return the number of cores that the lease says: a worker may be resized."""
        return held.lease.cores or self.cores

    def _run_task(self, task: _Task) -> Gradients | NDArray[np.float32]:
        """Compute a minibatch, on the computing thread."""
        torch.set_flush_denormal(
            True
        )  # a setting of the thread; gradients of saturated logits would slow matrix products down
        self._follow_cores(self._cores_of(task.held))
        if task.held.lease.kind == "eval":
            return self.trainer.evaluate(task.prepared)
        epoch = task.held.lease.index
        seed = minibatch_seed(self.recipe.training.seed, epoch, task.k)
        return self.trainer.gradients(task.prepared, epoch=epoch, k=task.k, seed=seed)

    def _follow_cores(self, cores: float) -> None:
        """Have as many threads as whole cores. Runs on the computing thread: OpenMP keeps the number by thread."""
        if _whole(cores) != self._whole_cores:
            self._whole_cores = _whole(cores)
            torch.set_num_threads(self._whole_cores)
            self.journal.resized(cores=cores, threads=torch.get_num_threads())

    def _take_computed(self) -> None:
        for done in self._compute.finished():
            self._computing.popleft()
            held, k, prepared = done.task
            self.mark(f"what follows {_name(done.task)}")
            held.work.add_seconds("wait", done.idle_seconds)
            held.work.add_seconds("compute", done.seconds)
            held.work.add_cpu("compute", done.cpu_seconds)
            self.journal.computed(prepared.samples, seconds=done.seconds, waited_seconds=done.idle_seconds)
            if done.error is not None:
                self._failed(done.task, done.error)
            elif isinstance(done.result, Gradients):
                failpoint("worker.push.computed")
                cpu_before = self.cpu_clock()
                held.work.add_scores(done.result.logits, prepared.labels.numpy())
                factor = self._factor(held.lease.index, k)
                push = self.trainer.push(prepared, done.result, epoch=held.lease.index, k=k, factor=factor)
                held.work.add_cpu("push", self.cpu_clock() - cpu_before)
                failpoint("worker.push.sent")
                self._pushes.append((push, held))
            elif done.result is not None:
                held.work.add_scores(done.result, prepared.labels.numpy())
                held.work.add_unknown(self.trainer.unknown_ids(prepared))
                held.consumed(k)
                self._stepped_at = None
            if self._computing:  # has begun meanwhile
                self.mark(_name(self._computing[0]))
        self._collect_pushes(at_most=MAX_UNACKNOWLEDGED)

    def _failed(self, task: _Task, error: BaseException) -> None:
        """Note a failed minibatch. Raises ModelError for what is no ordinary exception: nobody is to try that again."""
        self.journal.failed(_name(task), "".join(traceback.format_exception(error)))
        if not isinstance(error, Exception):
            raise exit_error(error, _name(task), self._code_directory) from error
        task.held.failed(task.k, clipped(user_traceback(error, self._code_directory)))

    def _collect_pushes(self, *, at_most: int) -> None:
        """Take acknowledgements; wait while more than ``at_most`` pushes are under way."""
        self._settle()
        while len(self._pushes) > at_most:
            self.trainer.ps.wait()
            self._settle()

    def _settle(self) -> None:
        open_pushes: list[tuple[PushTicket, HeldLease]] = []
        for ticket, held in self._pushes:
            if ticket.missing:
                open_pushes.append((ticket, held))
                continue
            failpoint("worker.push.acknowledged")
            held.consumed(ticket.k)
            self._step(held)
            held.work.add_seconds("push", ticket.seconds)
            held.work.staleness[ticket.staleness] += 1
        self._pushes = open_pushes

    def _step(self, held: HeldLease) -> None:
        """Note that a push is acknowledged: how long after the one before says whether something has held training up."""
        now = self.clock()
        if self._stepped_at is not None:
            held.work.stepped(now - self._stepped_at)
        self._stepped_at = now

    # --- minibatches ----------------------------------------------------------------------------------------------------

    def _batch(self, held: HeldLease, k: int) -> Batch:
        size = self.recipe.training.batch_size
        self._present = held, k
        self._expect(held, k)
        if held.lease.kind == "eval":
            if self.evaluation is None:
                raise DlroverLiteError("the master asks for an evaluation, but there is no data to evaluate on")
            return self.evaluation.read(np.arange(k * size, min((k + 1) * size, self.evaluation.samples)))
        order = self._order(held.lease.index)
        return self.train.read(order.numbers(k * size, min((k + 1) * size, self.train.samples)))

    def _see_following(self) -> None:
        """Have what a lease begins with that has just come fetched while the present one is trained on."""
        if (following := self.book.following) is not None and following is not self._following:
            self._following = following
            self._expect(*(self._present or (following, following.lease.start)))

    def _expect(self, held: HeldLease, k: int) -> None:
        """Tell the dataset what is read from minibatch ``k`` on: of this lease, then of the one that follows."""
        data = self.evaluation if held.lease.kind == "eval" else self.train
        if data is None or not data.remote:
            return
        ranges = self._ranges(held, k, data)
        following = self.book.following
        if following is not None and following is not held and following.lease.kind == held.lease.kind:
            ranges += self._ranges(following, following.lease.start, data)
        data.expect(ranges)

    def _ranges(self, held: HeldLease, k: int, data: Dataset) -> list[range]:
        size = self.recipe.training.batch_size
        stop = min(held.lease.stop * size, k * size + _EXPECTED_SAMPLES, data.samples)
        if held.lease.kind == "eval":
            return [range(k * size, stop)]
        return self._order(held.lease.index).blocks(k * size, stop)

    def _order(self, epoch: int) -> EpochOrder:
        if epoch not in self._orders:
            training = self.recipe.training
            self._orders = {e: order for e, order in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = EpochOrder(
                self.train.samples, seed=training.seed, epoch=epoch, shuffle=training.shuffle
            )
        return self._orders[epoch]

    def _factor(self, epoch: int, k: int) -> float:
        training = self.recipe.training
        before = epoch * self.train.samples + k * training.batch_size
        return learning_rate_factor(training.schedule, before, training.epochs * self.train.samples)


def _whole(cores: float) -> int:
    """Return the number of threads: one per whole core, at least one, as where a node starts."""
    return max(1, int(cores))


def _name(task: _Task) -> str:
    lease = task.held.lease
    return f"minibatch {task.k} of {'epoch' if lease.kind == 'train' else 'evaluation'} {lease.index}"


def _is_among_the_first(read: _Read) -> bool:
    return read.held.lease.kind == "train" and read.held.lease.index == 0 and read.k < UNPIPELINED_MINIBATCHES
