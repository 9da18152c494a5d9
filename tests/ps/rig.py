"""Parameter servers in one thread, with a master that a test is: it says when each does a turn, and what is committed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from dlrover_lite.core import slot_sets
from dlrover_lite.protocol.messages import Ack, MoveOrder, PsOrders, PsReport, RestoreOrder
from dlrover_lite.protocol.ps_messages import (
    Configure,
    DenseSpec,
    Moved,
    PsReplies,
    PsRequests,
    Pull,
    Pulled,
    Push,
    Pushed,
    TableSpec,
)
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, mask_of, to_bitmap
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.server.service import PsService
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.layout import BLOCK, group_tables, slots_of
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.frames import Failure, Reply
from dlrover_lite.transport.server import Server
from tests.ps.models import read

TABLES = [TableSpec("a", 2, 0.0), TableSpec("b", 3, 0.5), TableSpec("c", 2, 0.25)]
GROUPS = group_tables(TABLES)
BLOCKS = 3
SGD = Optimizer(use="sgd", learning_rate=1.0)


def configuration(optimizer: Optimizer = SGD) -> Configure:
    return Configure(1, TABLES, DenseSpec(BLOCKS, 1), optimizer, optimizer, counted=True)


def blocks(values: float = 0.0) -> list[tuple[np.ndarray, np.ndarray]]:
    """All dense blocks, of parameters and of buffers."""
    return [(np.arange(count, dtype=np.uint64), np.full((count, BLOCK), values, np.float32)) for count in (BLOCKS, 1)]


class Rig:
    """PS i is ``ps-i``. The map is ``owners`` [4096]; ``moves``: id -> (source, target, slots that are
    still to be moved as a mask)."""

    def __init__(
        self,
        servers: int,
        optimizer: Optimizer = SGD,
        *,
        owners: np.ndarray | None = None,
        virtual: bool = False,
        engine_clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``virtual``: engines go by ``now``, too, and not by ``engine_clock``."""
        self.now = 0.0
        self.engine_clock = (lambda: self.now) if virtual else engine_clock
        self.context: zmq.Context[Any] = zmq.Context()
        self.configuration = configuration(optimizer)
        self.services: list[PsService] = []
        self.servers: list[Server] = []
        self.clients: list[Client] = []
        self.version = 1
        self.owners = np.zeros(slot_sets.SLOTS, np.int64) if owners is None else owners
        self.moves: dict[int, tuple[int, int, int]] = {}
        self.at_once: set[int] = set()
        """Moves whose slots are frozen from the beginning."""
        self.coldest_first = False
        self.ready: dict[int, int] = {}
        """Of moves whose targets say so: slots that may be committed."""
        self.ended: list[int] = []
        self.consumed: list[tuple[int, list[tuple[int, int]]]] = []
        self.restore: RestoreOrder | None = None
        self.said: list[str] = []
        self._next_move = 1
        for _ in range(servers):
            self.add_server()

    def add_server(self) -> int:
        i = len(self.servers)
        server = Server(f"inproc://ps-{i}", PsRequests, context=self.context)
        self.servers.append(server)
        engine = Engine(clock=self.engine_clock)
        service = PsService(f"ps-{i}", engine, server, self._connect, clock=lambda: self.now, say=self.said.append)
        self.services.append(service)
        self.clients.append(Client(f"inproc://ps-{i}", PsReplies, context=self.context))
        self.hear(i)
        return i

    def _connect(self, endpoint: str, peer: str) -> Client:
        return Client(endpoint, PsReplies, context=self.context, peer=peer, clock=lambda: self.now)

    def close(self) -> None:
        for service, server, client in zip(self.services, self.servers, self.clients, strict=True):
            service.close()
            server.close()
            client.close()
        self.services.clear()  # which know this one's clock: arenas would wait for the garbage collector
        self.context.destroy(linger=0)

    def engine(self, i: int) -> Engine:
        return self.services[i].engine

    # --- the master -----------------------------------------------------------------------------------------------------

    def owned(self, i: int) -> int:
        return mask_of(slot_sets.pack(self.owners == i))

    def orders(self, i: int) -> PsOrders:
        moves = [
            MoveOrder(
                move,
                f"ps-{source}",
                f"inproc://ps-{source}",
                f"ps-{target}",
                to_bitmap(slots),
                move in self.at_once,
                self.coldest_first,
            )
            for move, (source, target, slots) in self.moves.items()
            if i in (source, target)
        ]
        return PsOrders(self.version, to_bitmap(self.owned(i)), moves, 0, self.consumed, restore=self.restore)

    def hear(self, i: int) -> PsReport:
        """PS i reports and gets its orders."""
        report = self.services[i].report()
        for one in report.ready:
            if one.move in self.moves and (slots := mask_of(one.slots) & self.moves[one.move][2]):
                self.ready[one.move] = slots
        self.services[i].follow(self.orders(i))
        return report

    def move(self, source: int, target: int, slots: int = ALL_SLOTS, *, at_once: bool = False) -> int:
        move, self._next_move = self._next_move, self._next_move + 1
        self.at_once |= {move} if at_once else set()
        self.moves[move] = source, target, slots & self.owned(source)
        self.version += 1
        return move

    def commit(self, move: int) -> None:
        """What is ready of it."""
        ready = self.ready.pop(move)
        source, target, slots = self.moves.pop(move)
        self.owners[slot_sets.unpack(to_bitmap(ready))] = target
        if slots & ~ready:
            self.moves[move] = source, target, slots & ~ready
        self.version += 1

    def cancel(self, move: int) -> None:
        del self.moves[move]
        self.ready.pop(move, None)
        self.version += 1

    # --- turns ----------------------------------------------------------------------------------------------------------

    def turn(self, i: int) -> None:
        """PS i works a little and answers what is there."""
        self.now += 0.001
        self.services[i].work()
        self.services[i].serve(self.servers[i].receive(0))

    def settle(self, *, most: int = 20_000) -> None:
        """Until every move is committed and everybody is tidy."""
        for _ in range(most):
            for i in range(len(self.services)):
                self.turn(i)
                self.hear(i)
            for move in list(self.ready):
                self.commit(move)
            if not self.moves and all(self.is_tidy(i) for i in range(len(self.services))):
                return
        raise AssertionError(f"the moves {self.moves} don't end")

    def is_tidy(self, i: int) -> bool:
        """As far as the newest orders go."""
        report = self.hear(i)
        return report.tidy and report.version == self.version

    # --- a worker -------------------------------------------------------------------------------------------------------

    def ask(self, i: int, body: Any, *frames: Any) -> Reply | None:
        """The answer of PS i; None if it holds the request back."""
        sequence = self.clients[i].send(body, frames)
        turns = 0
        while turns < 100:
            self.turn(i)
            turns += not self.services[i]._slowed  # which are answered in a moment
            while (reply := self.clients[i].receive(0)) is not None:
                if isinstance(reply.body, Failure):
                    raise AssertionError(reply.body.message)
                if reply.sequence == sequence:
                    return reply
            if any(held == sequence for _, held in self.services[i]._held):
                return None
        raise AssertionError(f"ps-{i} does not answer {body}")

    def configure_all(self, values: float = 0.0) -> None:
        for i in range(len(self.services)):
            covers = self.owned(i)
            frames = [to_bitmap(covers)]
            for (keys, rows), table in zip(blocks(values), ("dense parameters", "dense buffers"), strict=True):
                mine = within(table, keys, covers)
                frames += [keys[mine], rows[mine]]
            reply = self.ask(i, self.configuration, *frames)
            assert reply is not None
            assert reply.body == Ack()

    def push(self, i: int, epoch: int, k: int, covers: int, gradients: dict[str, dict[int, float]]) -> bool | None:
        """Push to PS i what of ``gradients`` (table -> key -> gradient of each value) lies in ``covers``. True: acknowledged, False:
        refused, None: held back."""
        body, frames = _push(epoch, k, covers, gradients)
        reply = self.ask(i, body, *frames)
        if reply is None:
            return None
        if isinstance(reply.body, Moved):
            return False
        assert isinstance(reply.body, Pushed)
        return True

    def send_push(self, i: int, epoch: int, k: int, covers: int, gradients: dict[str, dict[int, float]]) -> int:
        """The same, without waiting for the answer: its number."""
        body, frames = _push(epoch, k, covers, gradients)
        return self.clients[i].send(body, frames)

    def push_everywhere(self, epoch: int, k: int, gradients: dict[str, dict[int, float]]) -> None:
        for i in range(len(self.services)):
            if self.owned(i):
                assert self.push(i, epoch, k, self.owned(i), gradients)

    def pull(self, i: int, table: str, keys: list[int]) -> np.ndarray | None:
        """Rows [keys, dim] of one table; None if refused."""
        counts: list[list[int]] = []
        frames = []
        width = 0
        for names, dim in group_names():
            mine = [np.array(keys if name == table else [], np.uint64) for name in names]
            counts.append([len(of_table) for of_table in mine])
            frames.append(np.concatenate(mine))
            if table in names:
                width = dim
                break
        reply = self.ask(i, Pull(counts), *frames)
        assert reply is not None
        if isinstance(reply.body, Moved):
            return None
        assert isinstance(reply.body, Pulled)
        return np.frombuffer(reply.buffer(len(frames) - 1), np.float32).reshape(len(keys), width)

    def value(self, table: str, key: int) -> float:
        """The first value of a row, from whoever owns it."""
        slot = int(slots_of(table, np.array([key], np.uint64))[0])
        rows = self.pull(int(self.owners[slot]), table, [key])
        assert rows is not None
        assert (rows == rows[0, 0]).all() or table in ("b", "c")  # random initial values
        return float(rows[0, 0])


def group_names() -> list[tuple[list[str], int]]:
    tables = [([table.name for table in group], group[0].dim) for group in GROUPS]
    return [*tables, (["dense parameters"], BLOCK), (["dense buffers"], BLOCK)]


def _push(epoch: int, k: int, covers: int, gradients: dict[str, dict[int, float]]) -> tuple[Push, list[Any]]:
    """With its frames."""
    counts, frames = [], list[Any]([to_bitmap(covers)])
    for names, dim in group_names():
        keys, of_tables, grads = [], [], []
        for name in names:
            wanted = np.array(list(gradients.get(name, {})), np.uint64)
            mine = wanted[within(name, wanted, covers)]
            keys.append(mine)
            of_tables.append(len(mine))
            grads += [np.full(dim, gradients[name][int(key)], np.float32) for key in mine]
        counts.append(of_tables)
        frames += [np.concatenate(keys), np.concatenate(grads) if grads else np.empty(0, np.float32)]
    return Push(epoch, k, 1.0, counts), frames


def within(table: str, keys: np.ndarray, covers: int) -> np.ndarray:
    return slot_sets.unpack(to_bitmap(covers))[slots_of(table, keys)]


def rows_of(engine: Engine, members: np.ndarray | None = None) -> dict[tuple[str, int], tuple[bytes, bytes, int]]:
    """(table, key) -> values, optimizer state and count of updates, bit for bit; of the slots ``members`` (default: owned)."""
    found = {}
    for group, (names, _) in zip(engine.groups, group_names(), strict=True):
        wanted = slot_sets.unpack(to_bitmap(engine.owned)) if members is None else members
        rows, _ = group.find(wanted, 0, scan_limit=1 << 40, row_limit=1 << 40)
        data = read(group, rows)
        for i in range(len(data.ids)):
            name = names[data.tables[i]], int(data.ids[i])
            found[name] = data.values[i].tobytes(), data.state[i].tobytes(), int(data.counts[i])
    return found
