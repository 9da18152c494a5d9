"""Parameter servers and a master that speak the wire's messages and do what a test tells them, in the test's thread.

Each PS is a dict of rows with SGD, the slots it believes to own, and the slots it has applied each minibatch in.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import zmq

from dlrover_lite.core import slot_sets
from dlrover_lite.data.base import Schema
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.protocol.messages import Ack, Topology, TopologyRequest
from dlrover_lite.protocol.ps_messages import (
    Configure,
    DenseSpec,
    Moved,
    PsRequests,
    Pull,
    Pulled,
    Push,
    Pushed,
    Rows,
    Scan,
)
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.hashing import initial_rows
from dlrover_lite.tables.layout import BLOCK, BUFFERS, dense_groups, group_tables, groups_of, slots_of
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Request
from dlrover_lite.transport.server import Server
from dlrover_lite.worker.parameters.client import PsClient
from dlrover_lite.worker.parameters.embedding import EmbeddingLayout

_names = itertools.count()

SCHEMA = Schema(dense=(), categorical=("A", "B", "C"))
LAYOUT = EmbeddingLayout(
    [EmbeddingField("A", 2, "t", 0.0), EmbeddingField("B", 2, "u", 0.0), EmbeddingField("C", 3, init_scale=0.0)], SCHEMA
)
DENSE = DenseSpec(3, 1)
SGD = Optimizer(use="sgd", learning_rate=1.0)
CONFIGURATION = Configure(1, LAYOUT.tables, DENSE, SGD, SGD)
SPECS = [*group_tables(LAYOUT.tables), *([group.tables[0]] for group in dense_groups(DENSE, SGD))]
"""Tables of each group."""

Key = tuple[int, str, int]
"""Group, table, key."""


class ScriptedPs:
    def __init__(self, name: str, job: ScriptedJob) -> None:
        self.name, self.job = name, job
        self.server = Server(f"inproc://ps-{next(_names)}", PsRequests, context=job.context)
        self.version = 0
        """Of the orders it follows."""
        self.owned = slot_sets.none()
        self.frozen = slot_sets.none()
        self.held: list[Request] = []
        """Pushes to frozen slots, and all while it is ``full`` are turned away."""
        self.full = False
        self.configuration: Configure | None = None
        self.rows: dict[Key, np.ndarray] = {}
        self.marks: dict[tuple[int, int], np.ndarray] = {}
        self.pushes = 0
        self.asked: Counter[str] = Counter()
        """Requests by type, repeated ones included."""

    def received(self) -> list[Request]:
        requests = self.server.receive(0.0)
        self.asked.update(type(request.body).__name__ for request in requests)
        return requests

    def answer(self, request: Request, *, lose_reply: bool = False) -> None:
        covers = slot_sets.unpack(request.buffer(0)) if isinstance(request.body, Push) else slot_sets.none()
        if (covers & self.frozen).any():
            self.held.append(request)
            return
        done = self._handle(request)
        if done is None:
            self.server.fail(request, "refused", "a worker declares other tables, parameters or optimizers", "hint")
        elif not lose_reply:
            self.server.reply(request, *done)

    def hear(self) -> None:
        """Follow the newest orders."""
        self.version = self.job.version
        self.owned = self.job.owners == self.name

    def thaw(self) -> None:
        self.frozen = slot_sets.none()
        held, self.held = self.held, []
        for request in held:
            self.answer(request)

    def _handle(self, request: Request) -> tuple[Any, list[Any]] | None:
        match request.body:
            case Pull(counts, unknown):
                runs = [self._runs(g, np.frombuffer(request.buffer(g), np.uint64), of) for g, of in enumerate(counts)]
                if not all(self.owned[at].all() for of in runs for _, _, at in of):
                    return Moved(self.version), []
                rows = [
                    [self.row(g, table, key) for table, keys, _ in of for key in keys.tolist()]
                    for g, of in enumerate(runs)
                ]
                frames: list[Any] = [np.array(of, np.float32) for of in rows]
                if unknown:
                    frames += self._unknown(runs)
                return Pulled(self.pushes, self._table_rows() if unknown else [], self.version), frames
            case Push():
                return self._push(request)
            case Configure() as configuration:
                if self.configuration is not None and self.configuration != configuration:
                    return None
                covers = slot_sets.unpack(request.buffer(0))
                if not self.owned[covers].all():
                    return Moved(self.version), []
                self.configuration = configuration
                first = len(groups_of(configuration)) - (len(request.frames) - 1) // 2
                for at in range(1, len(request.frames), 2):
                    group = first + at // 2
                    keys = np.frombuffer(request.buffer(at), np.uint64)
                    values = np.frombuffer(request.buffer(at + 1), np.float32).reshape(len(keys), BLOCK)
                    table = groups_of(configuration)[group].tables[0].name
                    assert covers[slots_of(table, keys)].all()
                    for key, value in zip(keys.tolist(), values, strict=True):
                        self.rows.setdefault((group, table, key), value.copy())
                return Ack(), []
            case Scan(group, start, limit, state):
                assert self.configuration is not None
                tables = [table.name for table in groups_of(self.configuration)[group].tables]
                every = sorted((key for key in self.rows if key[0] == group), key=str)
                some = every[start : start + limit]
                frames = [
                    np.array([key for _, _, key in some], np.uint64),
                    np.array([tables.index(table) for _, table, _ in some], np.uint16),
                    np.concatenate([self.rows[key] for key in some]) if some else np.empty(0, np.float32),
                ]
                if state:
                    frames += [np.full(len(some), 7, np.uint32), np.full(frames[2].size, 0.5, np.float32)]
                stop = start + limit
                return Rows(stop if stop < len(every) else None, len(every)), frames
        raise AssertionError(request.body)

    def _runs(self, group: int, keys: np.ndarray, counts: list[int]) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """By table: its name, keys, and their slots."""
        assert self.configuration is not None
        assert sum(counts) == len(keys)
        tables = groups_of(self.configuration)[group].tables
        runs = np.split(keys, np.cumsum(counts)[:-1])
        return [(t.name, run, slots_of(t.name, run)) for t, run in zip(tables, runs, strict=True)]

    def _unknown(self, runs: list[list[tuple[str, np.ndarray, np.ndarray]]]) -> list[np.ndarray]:
        """Of each group of embeddings: 1 for a key without a row."""
        assert self.configuration is not None
        specs = groups_of(self.configuration)
        return [
            np.array([(g, table, key) not in self.rows for table, keys, _ in of for key in keys.tolist()], np.uint8)
            for g, of in enumerate(runs)
            if not specs[g].complete
        ]

    def _table_rows(self) -> list[list[int]]:
        assert self.configuration is not None
        of = Counter((g, table) for g, table, _ in self.rows)
        specs = groups_of(self.configuration)
        return [[of[g, t.name] for t in spec.tables] for g, spec in enumerate(specs) if not spec.complete]

    def row(self, group: int, table: str, key: int) -> np.ndarray:
        assert self.configuration is not None
        if (group, table, key) in self.rows:
            return self.rows[group, table, key]
        spec = next(t for t in self.configuration.tables if t.name == table)
        ids = np.array([key], np.uint64)
        return initial_rows(ids, table=table, seed=self.configuration.seed, dim=spec.dim, scale=spec.init_scale)[0]

    def _push(self, request: Request) -> tuple[Any, list[Any]]:
        body, covers = request.body, slot_sets.unpack(request.buffer(0))
        if self.full or not self.owned[covers].all():
            return Moved(self.version), []
        assert self.configuration is not None
        marks = self.marks.setdefault((body.epoch, body.k), slot_sets.none())
        specs = groups_of(self.configuration)
        for g, counts in enumerate(body.counts):
            keys = np.frombuffer(request.buffer(1 + 2 * g), np.uint64)
            grads = np.frombuffer(request.buffer(2 + 2 * g), np.float32).reshape(len(keys), specs[g].dim)
            rate = specs[g].optimizer.learning_rate * (
                1.0 if specs[g].tables == [BUFFERS] else body.learning_rate_factor
            )
            at = 0
            for table, run, where in self._runs(g, keys, counts):
                assert covers[where].all()
                for key, slot in zip(run.tolist(), where.tolist(), strict=True):
                    if not marks[slot]:
                        self.rows[g, table, key] = self.row(g, table, key) - np.float32(rate) * grads[at]
                        self.job.applied[body.epoch, body.k][g, table, key] += 1
                    at += 1
        applied = not marks[covers].all()
        marks |= covers
        self.pushes += applied
        return Pushed(self.pushes - applied, bool(applied), self.version), []


class Applied(dict[tuple[int, int], Counter[Key]]):
    def __missing__(self, minibatch: tuple[int, int]) -> Counter[Key]:
        return self.setdefault(minibatch, Counter())


class PumpedClient(PsClient):
    """``pumped``: whoever waits has everybody answer first."""

    job: ScriptedJob
    pumped = False
    seconds_a_wait = 0.001

    def wait(self, timeout_seconds: float = 0.0) -> None:
        if self.pumped:
            self.job.answer_all()
            self.job.now += self.seconds_a_wait
        super().wait(0.0)


class ScriptedJob:
    """A master, its parameter servers, and the clock of all."""

    def __init__(self, count: int) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.now = 0.0
        self.version = 1
        self.applied = Applied()
        """(epoch, k) -> how often each row was changed by it."""
        self.master = Server(f"inproc://master-{next(_names)}", TopologyRequest, context=self.context)
        self.all: list[ScriptedPs] = []
        """Those that have left included: they answer nothing."""
        self.here: dict[str, ScriptedPs] = {}
        self.clients: list[PumpedClient] = []
        self.topology_requests = 0
        for _ in range(count):
            self.join()
        names = np.array([*self.here])
        self.owners = names[np.arange(slot_sets.SLOTS) * count // slot_sets.SLOTS].astype(object)
        for ps in self.all:
            ps.hear()

    # --- slots ----------------------------------------------------------------------------------------------------------

    def join(self) -> ScriptedPs:
        ps = ScriptedPs(f"ps-{len(self.all)}", self)
        self.all.append(ps)
        self.here[ps.name] = ps
        return ps

    def leave(self, ps: ScriptedPs) -> None:
        assert not (self.owners == ps.name).any()
        del self.here[ps.name]

    def follow(self, dead: ScriptedPs) -> ScriptedPs:
        """It dies, and another takes its place with its memory; what it held back is lost with it."""
        follower = self.join()
        follower.configuration, follower.rows, follower.marks = dead.configuration, dead.rows, dead.marks
        follower.pushes = dead.pushes
        self.here = {
            ps.name: ps for ps in (follower if ps is dead else ps for ps in self.here.values() if ps is not follower)
        }
        self.owners[self.owners == dead.name] = follower.name
        self.version += 1
        follower.hear()
        return follower

    def move(self, moving: np.ndarray, target: ScriptedPs, *, heard: bool = True) -> None:
        """Commit a move; its sources know at once, the target unless ``heard`` is False."""
        self.version += 1
        sources = [ps for ps in self.here.values() if ps is not target and (self.owners[moving] == ps.name).any()]
        for source in sources:
            target.configuration = target.configuration or source.configuration
            going = moving & (self.owners == source.name)
            for key in [key for key in source.rows if going[slots_of(key[1], np.array([key[2]], np.uint64))[0]]]:
                target.rows[key] = source.rows.pop(key)
            for minibatch, marks in source.marks.items():
                there = target.marks.setdefault(minibatch, slot_sets.none())
                there |= marks & going
                marks &= ~going
        self.owners[moving] = target.name
        for source in sources:
            source.hear()
            source.thaw()
        if heard:
            target.hear()

    def topology(self) -> Topology:
        names = [name for name in self.here if (self.owners == name).any()]
        owners = np.array([names.index(name) for name in self.owners], np.uint16).tobytes()
        return Topology(self.version, [(name, self.here[name].server.endpoint) for name in names], owners)

    # --- answering ------------------------------------------------------------------------------------------------------

    def answer_master(self) -> None:
        for request in self.master.receive(0.0):
            self.topology_requests += 1
            self.master.reply(request, self.topology())

    def answer_ps(self) -> None:
        for ps in list(self.here.values()):
            for request in ps.received():
                ps.answer(request)

    def answer_all(self) -> None:
        self.answer_master()
        self.answer_ps()

    def client(self) -> PumpedClient:
        client = PumpedClient(
            self.topology(),
            node="worker-0",
            master_endpoint=self.master.endpoint,
            connector=Connector(context=self.context),
            clock=lambda: self.now,
        )
        client.job = self
        self.clients.append(client)
        return client

    def finish(self, *tickets: Any) -> None:
        """Answer everything until all is done."""
        for _ in range(1000):
            if not any(ticket.missing for ticket in tickets):
                return
            self.answer_all()
            self.now += 0.001
            for client in self.clients:
                client.wait()
        raise AssertionError("these tickets are never done")

    def close(self) -> None:
        for thing in (*self.clients, self.master, *(ps.server for ps in self.all)):
            thing.close()
        self.context.destroy(linger=0)
