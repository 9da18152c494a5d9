"""Moving half of a table between two parameter servers with nothing else going on, beside the limit measured in the same run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq
from _migrate_nodes import DIM

from dlrover_lite.core import slot_sets
from dlrover_lite.protocol.messages import Ack, Hello, MasterRequests, MoveOrder, PsOrders, PsReport
from dlrover_lite.protocol.ps_messages import (
    Configure,
    DenseSpec,
    PsReplies,
    Push,
    TableSpec,
)
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.layout import slots_of
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.server import Server

__all__ = ["limit_seconds", "move_seconds"]

TABLE = TableSpec("t", DIM, 0.05)
ROWS_A_PUSH = 50_000
PATIENCE_SECONDS = 120.0


@contextmanager
def node(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("_migrate_nodes.py")), *arguments]
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.terminate()


def limit_seconds(rows: int) -> float:
    """Half of ``rows`` records gathered, sent over ipc and scattered, by two processes that do nothing else."""
    with tempfile.TemporaryDirectory() as directory:
        endpoint = f"ipc://{directory}/limit.sock"
        with (
            node("source", endpoint, str(rows)) as source,
            node("target", endpoint, str(rows), stdout=subprocess.PIPE) as target,
        ):
            out, _ = target.communicate(timeout=PATIENCE_SECONDS)
            source.wait(PATIENCE_SECONDS)
            return float(out)


class _Master:
    """Knows two parameter servers, and one move at most."""

    def __init__(self, endpoint: str, context: zmq.Context[Any]) -> None:
        self.server = Server(endpoint, MasterRequests, context=context)
        self.version = 1
        self.owned = {"ps-0": ~slot_sets.none(), "ps-1": slot_sets.none()}
        self.endpoints: dict[str, str] = {}
        self.reports: dict[str, PsReport] = {}
        self.move: MoveOrder | None = None

    def turn(self) -> None:
        for request in self.server.receive(0.01):
            match request.body:
                case Hello(node, _, endpoint):
                    self.endpoints[node] = endpoint
                    self.server.reply(request, Ack())
                case PsReport() as report:
                    self.reports[report.node] = report
                    if self.move is not None:
                        self.commit(self.move, report)
                    moves = [self.move] if self.move is not None else []
                    self.server.reply(request, PsOrders(self.version, slot_sets.pack(self.owned[report.node]), moves))

    def commit(self, move: MoveOrder, report: PsReport) -> None:
        left = slot_sets.unpack(move.slots)
        for ready in report.ready:
            members = slot_sets.unpack(ready.slots) & left
            if ready.move == move.move and members.any():
                self.owned[move.source] &= ~members
                self.owned[move.target] |= members
                left = left & ~members
                self.version += 1
        self.move = msgspec.structs.replace(move, slots=slot_sets.pack(left)) if left.any() else None

    def until(self, done: Any) -> float:
        """Turns until ``done()``; seconds it took."""
        began = time.perf_counter()
        while not done():
            self.turn()
            if time.perf_counter() - began > PATIENCE_SECONDS:
                raise SystemExit("the parameter servers don't get on")
        return time.perf_counter() - began

    def all_tidy(self) -> bool:
        return len(self.reports) == 2 and all(r.version == self.version and r.tidy for r in self.reports.values())


def move_seconds(rows: int, *, rounds: int) -> list[float]:
    """Of moves of half of a table's ``rows``, there and back: from the order until the master commits."""
    context: zmq.Context[Any] = zmq.Context()
    with tempfile.TemporaryDirectory() as directory:
        endpoint = f"ipc://{directory}/master.sock"
        master = _Master(endpoint, context)
        with node("ps", endpoint, "ps-0"), node("ps", endpoint, "ps-1"):
            master.until(master.all_tidy)
            _fill(master, rows, context)
            half = slot_sets.pack(np.arange(slot_sets.SLOTS) % 2 == 0)
            found = []
            for number in range(1, rounds + 1):
                source, target = ("ps-0", "ps-1") if number % 2 else ("ps-1", "ps-0")
                master.version += 1
                master.move = MoveOrder(number, source, master.endpoints[source], target, half)
                found.append(master.until(lambda: master.move is None))
                master.until(master.all_tidy)
            counted = sum(report.rows for report in master.reports.values())
            if counted != rows:
                raise SystemExit(f"{counted} rows after the moves, {rows} before")
        master.server.close()
    context.destroy(linger=0)
    return found


def _fill(master: _Master, rows: int, context: zmq.Context[Any]) -> None:
    client = Client(master.endpoints["ps-0"], PsReplies, context=context)
    adagrad = Optimizer(use="adagrad")
    all_slots = slot_sets.pack(~slot_sets.none())
    client.send(Configure(0, [TABLE], DenseSpec(0, 0), adagrad, adagrad), [all_slots])
    grads = np.ones((ROWS_A_PUSH, DIM), np.float32)
    pushes = -(-rows // ROWS_A_PUSH)
    for k in range(pushes):
        keys = np.arange(k * ROWS_A_PUSH, min(rows, (k + 1) * ROWS_A_PUSH), dtype=np.uint64)
        client.send(Push(0, k, 1.0, [[len(keys)]]), [all_slots, keys, grads[: len(keys)]])
    answered = 0

    def all_answered() -> bool:
        nonlocal answered
        while client.receive(0) is not None:
            answered += 1
        return answered == pushes + 1

    master.until(all_answered)
    client.close()


def half_of(rows: int) -> int:
    """How many of the keys that ``move_seconds`` uses are in the slots it moves."""
    return int((slots_of(TABLE.name, np.arange(rows, dtype=np.uint64)) % 2 == 0).sum())
