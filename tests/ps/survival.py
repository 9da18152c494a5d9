"""What is done to an engine whose process dies again and again, and what must be the same in the end as if it never had."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dlrover_lite.core import slot_sets
from dlrover_lite.core.rows import RowData
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, mask_of, to_bitmap
from dlrover_lite.ps.memory.state_memory import Memory
from dlrover_lite.ps.migration.cleanup import Cleanup
from dlrover_lite.ps.server.engine import Engine, Slice
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.layout import BLOCK, groups_of, slots_of
from tests.ps.models import read

TABLES = [TableSpec("a", 16, 0.05), TableSpec("b", 3, 0.1), TableSpec("c", 16, 0.2)]
BLOCKS = (3, 2)
"""Of parameters, of buffers."""
OPTIMIZERS = {
    "sgd": Optimizer(use="sgd", learning_rate=0.1),
    "adagrad": Optimizer(use="adagrad", learning_rate=0.1),
    "adam": Optimizer(use="adam", learning_rate=0.01),
    "ftrl": Optimizer(use="ftrl", learning_rate=0.1, l1=0.02, l2=0.01),
}
_SLOT = np.arange(slot_sets.SLOTS)
OWNED = mask_of(slot_sets.pack(_SLOT % 4 > 0))
FOREIGN = ALL_SLOTS & ~OWNED
PARTS = [ALL_SLOTS, mask_of(slot_sets.pack(_SLOT < 2048)), mask_of(slot_sets.pack(_SLOT >= 2048))]


class Push(NamedTuple):
    """Minibatch k, in the slots owned that are in PARTS[part]."""

    k: int
    part: int = 0


class Receive(NamedTuple):
    """Rows of slots that aren't owned, by a move: new ones, and some again."""

    seed: int


class Tidy(NamedTuple):
    """Those rows are dropped, all others moved together."""


Step = Push | Receive | Tidy


def configuration(use: str) -> Configure:
    optimizer = OPTIMIZERS[use]
    return Configure(3, TABLES, DenseSpec(*BLOCKS), optimizer, optimizer, counted=use == "adagrad")


def configure(engine: Engine, use: str) -> None:
    """As a worker does, again and again."""
    blocks = []
    for table, count in zip(("dense parameters", "dense buffers"), BLOCKS, strict=True):
        numbers = within(table, np.arange(count, dtype=np.uint64), OWNED)
        blocks.append((numbers, np.linspace(-1, 1, len(numbers) * BLOCK, dtype=np.float32).reshape(-1, BLOCK)))
    engine.configure(configuration(use), OWNED, blocks)


def within(table: str, keys: np.ndarray, slots: int) -> np.ndarray:
    return keys[slot_sets.unpack(to_bitmap(slots))[slots_of(table, keys)]]


def open_engine(memory: Memory | None) -> Engine:
    """The first one, or one that follows: owns what the master says, and drops what it doesn't."""
    engine = Engine(memory=memory)
    lost = engine.own(OWNED)
    if lost:
        tidy(engine, lost)
    return engine


def do(engine: Engine, step: Step, keys: int) -> None:
    """``keys``: of each table in a push, about. Each step may be done again if nobody knows whether it was."""
    match step:
        case Push(k, part):
            covers = OWNED & PARTS[part]
            engine.push(0, k, 1.0, covers, gradients(k, covers, keys))
        case Receive(seed):
            receive(engine, seed, keys)
        case Tidy():
            tidy(engine, FOREIGN)


@cache
def gradients(k: int, covers: int, keys: int) -> list[Slice]:
    """Of minibatch k, those in ``covers``: whoever computes them, they are the same here."""
    random = np.random.default_rng(k)
    groups: list[Slice] = []
    for spec in groups_of(configuration("sgd")):
        ids, counts, grads = [], [], []
        for table in spec.tables:
            if spec.complete:
                pool = np.arange(BLOCKS["buffers" in table.name], dtype=np.uint64)
            else:
                pool = random.permutation(np.arange(3 * keys, dtype=np.uint64))[: random.integers(0, 2 * keys)]
            grads_of = random.standard_normal((len(pool), spec.dim)).astype(np.float32)
            there = np.isin(pool, within(table.name, pool, covers))
            ids.append(pool[there])
            counts.append(int(there.sum()))
            grads.append(grads_of[there])
        groups.append((np.concatenate(ids), counts, np.concatenate(grads)))
    return groups


def receive(engine: Engine, seed: int, keys: int) -> None:
    random = np.random.default_rng(seed)
    for group in engine.groups[:2]:
        pool = random.permutation(np.arange(3 * keys, dtype=np.uint64))[:keys]
        mine = within(group.tables[0].name, pool, FOREIGN)
        n = len(mine)
        data = RowData(
            mine,
            np.zeros(n, np.uint16),
            np.ones(n, np.uint32),
            random.standard_normal((n, group.dim)).astype(np.float32),
            random.standard_normal((n, group.dim * group.parts)).astype(np.float32),
        )
        group.write(data)


def tidy(engine: Engine, slots: int) -> None:
    tidying = Cleanup(engine)
    tidying.remove(slots)
    while not tidying.done:
        tidying.step(200)


def contents(engine: Engine, names: range) -> dict[Any, Any]:
    """All that must be as if nothing had happened, bit for bit: pushes counted, marks, and rows of the slots owned."""
    found: dict[Any, Any] = {"version": engine.version}
    found["marks"] = [engine.applied_minibatches.applied(0, k) & OWNED for k in names]
    members = slot_sets.unpack(to_bitmap(OWNED))
    for g, group in enumerate(engine.groups):
        rows, _ = group.find(members, 0, scan_limit=1 << 40, row_limit=1 << 40)
        data = read(group, rows)
        for i in range(len(data.ids)):
            name = g, int(data.tables[i]), int(data.ids[i])
            assert name not in found, f"{name} is there twice"
            found[name] = data.values[i].tobytes(), data.state[i].tobytes(), int(data.counts[i])
    return found


def check(engine: Engine) -> None:
    """What was found out about the rows is true of them."""
    for group in engine.groups:
        rows, _ = group.find(np.ones(slot_sets.SLOTS, np.bool_), 0, scan_limit=1 << 40, row_limit=1 << 40)
        data = read(group, rows)
        assert len(rows) == group.rows
        per_slot = np.zeros(slot_sets.SLOTS, np.int64)
        for t, table in enumerate(group.tables):
            of_table = data.ids[data.tables == t]
            assert group.table_rows[t] == len(of_table)
            per_slot += np.bincount(slots_of(table.name, of_table), minlength=slot_sets.SLOTS)
            counts = np.array([len(of_table) if i == t else 0 for i in range(len(group.tables))], np.int64)
            assert group.contains(of_table, counts).all()
        assert np.array_equal(per_slot, group.slot_rows)
