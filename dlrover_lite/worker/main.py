"""The worker's process: builds the model, meets the parameter servers, and trains until the master needs nothing more."""

from __future__ import annotations

import signal
import time
import traceback
from contextlib import suppress
from pathlib import Path

import torch

from dlrover_lite.core.bounds import clipped
from dlrover_lite.core.errors import (
    DataError,
    DeadlineExceeded,
    DiskFull,
    DlroverLiteError,
    JobError,
    ModelError,
    RecipeError,
    WireError,
)
from dlrover_lite.core.processes.log import log
from dlrover_lite.core.processes.this_process import StopSignals
from dlrover_lite.data.base import Dataset, Schema
from dlrover_lite.data.open import open_data
from dlrover_lite.data.shared_index import take_indexes
from dlrover_lite.models.check import fields_of_model
from dlrover_lite.models.matmul import use_onednn
from dlrover_lite.models.registry import build_model
from dlrover_lite.models.user import exits_as_errors
from dlrover_lite.protocol.messages import (
    Export,
    ExportFailed,
    Hello,
    IndexPiece,
    IndexRequest,
    MasterReplies,
    NodeFailed,
    Topology,
    TopologyRequest,
    Wait,
    Welcome,
)
from dlrover_lite.protocol.nodes import UNANSWERED_EXIT_CODE, UNANSWERED_SECONDS, NodeSpec
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.worker.export.export_model import export
from dlrover_lite.worker.heartbeat import HeartbeatSender
from dlrover_lite.worker.leases import LeaseBook
from dlrover_lite.worker.log_lines import Journal
from dlrover_lite.worker.loop import TrainingLoop
from dlrover_lite.worker.parameters.client import PsClient
from dlrover_lite.worker.parameters.embedding import EmbeddingLayout
from dlrover_lite.worker.trainer import Trainer

__all__ = ["main"]

USER_ERROR = 3
"""Exit code of a node that failed through the person's own code or data."""
LEFT_EARLY = 128 + signal.SIGTERM
"""Exit code of a node that was asked to end while there was still something to do: whether by us or by others, the backend knows."""

_ASK_SECONDS = 2.0
_INDEX_SECONDS = 30.0
_LEAVE_SECONDS = 5.0


def main(spec: NodeSpec, _job_directory: Path) -> int:
    """Train a job's model; the exit code says how it ended."""
    stop = StopSignals()
    if use_onednn():
        log("matrices are multiplied by oneDNN, in float32")
    with Connector.of_this_process() as connector:
        return _run(spec, connector, stop)


def _run(spec: NodeSpec, connector: Connector, stop: StopSignals) -> int:
    master = connector.client(spec.master_endpoint, MasterReplies, peer="the master")
    journal = Journal(spec.id, log)
    try:
        try:
            welcome = master.call(Hello(spec.id, "worker"), deadline_seconds=UNANSWERED_SECONDS).body
            if not isinstance(welcome, Welcome):
                raise DlroverLiteError(f"the master answered Hello with {type(welcome).__name__}")
            heartbeat = HeartbeatSender(spec.id, spec.master_endpoint, connector=connector)
            with heartbeat, exits_as_errors(lambda: heartbeat.doing, Path(welcome.recipe.directory)):
                finished = _train(spec, welcome.recipe, master, connector, stop, heartbeat, journal)
        except (ModelError, DataError, RecipeError) as error:
            own = getattr(error, "user_traceback", "") or ""
            master.call(NodeFailed(spec.id, True, clipped(str(error)), clipped(own)))
            print(f"{error}\n{own}")
            journal.leaves("it can't train (see above)")
            return USER_ERROR
        except DeadlineExceeded as error:
            journal.leaves(str(error))
            return UNANSWERED_EXIT_CODE
        except DlroverLiteError as error:
            master.call(NodeFailed(spec.id, False, clipped(str(error)), clipped(traceback.format_exc())))
            print(traceback.format_exc())
            journal.leaves("it has failed (see above)")
            return 1
    finally:
        master.close()
    journal.leaves("nothing is left to do" if finished else "asked to end")
    return 0 if finished else LEFT_EARLY


def _train(
    spec: NodeSpec,
    recipe: Recipe,
    master: Client,
    connector: Connector,
    stop: StopSignals,
    heartbeat: HeartbeatSender,
    journal: Journal,
) -> bool:
    """Train until the master needs nothing more, and return True; False when asked to end before."""
    directory = Path(recipe.directory)
    _take_indexes(spec, recipe, master)
    train = open_data(recipe.data, directory=directory, part="train")
    evaluation = open_data(recipe.data, directory=directory, part="eval")
    if train is None:
        raise DataError("there is no data to train on")
    book: LeaseBook | None = None
    ps: PsClient | None = None
    try:
        trainer = _meet_parameter_servers(spec, recipe, train.schema, master, connector, stop)
        if trainer is None:
            return False
        ps = trainer.ps
        journal.up(
            cores=spec.resources.cores,
            threads=torch.get_num_threads(),
            tables=len(trainer.layout.tables),
            parameters=trainer.flat.count,
        )
        book = LeaseBook(spec.id, spec.master_endpoint, connector=connector)
        while True:
            loop = TrainingLoop(
                recipe,
                trainer,
                book,
                train=train,
                evaluation=evaluation,
                stop=stop,
                mark=heartbeat.mark,
                journal=journal,
                cores=spec.resources.cores,
            )
            loop.run()
            task = book.export
            if task is None or stop():
                break
            if _exported(spec, recipe, trainer, train.schema, task, master, heartbeat):
                return True
            book.export = None  # there may be work again: to try once more
        heartbeat.mark("leaving")
        book.leave(_LEAVE_SECONDS)
        return book.finished
    finally:
        _close(train, evaluation, book, ps)


def _take_indexes(spec: NodeSpec, recipe: Recipe, master: Client) -> None:
    """Take the indexes of data under URLs that the master has built; without an answer they are built here."""

    def ask(name: str, offset: int) -> tuple[int, bytes]:
        try:
            body = master.call(IndexRequest(spec.id, name, offset), deadline_seconds=_INDEX_SECONDS).body
        except WireError as error:
            log(f"An index of the data is built here: {error.message}")
            return 0, b""
        return (body.total, body.data) if isinstance(body, IndexPiece) else (0, b"")

    if taken := take_indexes(recipe.data, Path(recipe.directory), ask):
        log(f"Indexes of the data are taken from the master: {taken}")


def _exported(
    spec: NodeSpec,
    recipe: Recipe,
    trainer: Trainer,
    schema: Schema,
    task: Export,
    master: Client,
    heartbeat: HeartbeatSender,
) -> bool:
    """Export the model; return whether it is there. If it isn't, the master knows why: all parameters are where they were."""
    try:
        exported = export(spec.id, recipe, trainer, schema, task, mark=heartbeat.mark)
    except (JobError, ModelError) as error:
        full = isinstance(error, DiskFull)
        master.call(ExportFailed(spec.id, error.message, error.hint, full))
        log(f"The model couldn't be exported: {error.message}")
        return False
    master.call(exported, deadline_seconds=60)
    log(f"The model is in {task.destination}")
    return True


def _close(*things: Dataset | LeaseBook | PsClient | None) -> None:
    for thing in things:
        if thing is not None:
            thing.close()


def _meet_parameter_servers(
    spec: NodeSpec, recipe: Recipe, schema: Schema, master: Client, connector: Connector, stop: StopSignals
) -> Trainer | None:
    """Build the model and tell every PS its part of it; None when asked to stop meanwhile."""
    module = build_model(recipe.model, schema, directory=Path(recipe.directory), seed=recipe.training.seed)
    topology = _topology(spec, master, stop)
    if topology is None:
        return None
    ps = PsClient(topology, node=spec.id, master_endpoint=spec.master_endpoint, connector=connector)
    trainer = Trainer(module, EmbeddingLayout(fields_of_model(module), schema), ps)
    training = recipe.training
    embedding_optimizer = training.embedding_optimizer or training.optimizer
    trainer.configure(training.seed, training.optimizer, embedding_optimizer, counted=recipe.export.optimizer_state)
    return trainer


def _topology(spec: NodeSpec, master: Client, stop: StopSignals) -> Topology | None:
    """Return the slot map, once all parameter servers that own slots can be reached: the master answers when they can. None when asked to
    stop meanwhile."""
    end = time.monotonic() + UNANSWERED_SECONDS
    while time.monotonic() < end and not stop():
        with suppress(DeadlineExceeded):  # its answer waits for all of them, the stop doesn't
            body = master.call(TopologyRequest(spec.id), deadline_seconds=_ASK_SECONDS).body
            if isinstance(body, Topology) and body.version:
                return body
            if isinstance(body, Wait):  # they read a checkpoint, which takes as long as it takes
                end = time.monotonic() + UNANSWERED_SECONDS
                time.sleep(body.seconds)
    if stop():
        return None
    raise DeadlineExceeded(f"the parameter servers were not up within {UNANSWERED_SECONDS:g} s")
