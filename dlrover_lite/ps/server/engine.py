"""A parameter server without its sockets: rows of the slots it owns, and the minibatches it has applied there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.protocol.ps_messages import Configure, TableSpec
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, AppliedMinibatches, Part, to_bitmap
from dlrover_lite.ps.journal.server_state import State
from dlrover_lite.ps.memory.state_memory import Arenas, Memory
from dlrover_lite.ps.server.slot_load import Loads
from dlrover_lite.ps.tables.table import Kept, NotOwned, TableGroup
from dlrover_lite.tables.hashing import SLOT_SHIFT
from dlrover_lite.tables.layout import BLOCK, GroupSpec, groups_of, hashes_of

__all__ = ["Engine", "Frozen", "NotOwned", "PushResult", "Slice"]

Slice = tuple[NDArray[np.uint64], list[int], NDArray[np.float32]]
"""Keys of one group, table after table; number of keys of each table; one gradient for each key."""


class Frozen(Exception):
    """The request would change slots that are about to leave: it has to wait for the master's word."""


class PushResult(NamedTuple):
    version: int
    """Number of pushes applied before this one."""
    applied: bool


class Engine:
    """One parameter server's state. Arrays handed in may be read-only; arrays handed out are fresh. Sets of slots are whole numbers, bit i
    for slot i, as in ``AppliedMinibatches``. Requests for slots not owned raise NotOwned, and nothing is done.

    In ``memory`` it outlives its process: the engine that is made from what was left there goes on where this one was killed, at
    whatever instruction. It owns nothing until it is told.
    """

    def __init__(
        self,
        *,
        owned: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        memory: Memory | None = None,
        follows: bool = False,
    ) -> None:
        """``memory``: None for an engine that nobody follows. ``follows``: what another one has left is to be there. Raises JobError for
        what was left and can't be taken up."""
        self._arenas = Arenas(memory)
        self.state = State(self._arenas, follows=follows)
        self.configuration: Configure | None = None
        self.groups: list[TableGroup] = []
        self.owned = owned
        self.frozen = 0
        """Slots of which no push is taken."""
        self.tracked = 0
        """Slots whose changed rows are logged, for a move."""
        self.applied_minibatches = AppliedMinibatches(self.state.applied_entries)
        self.loads = Loads(clock)
        self.clock = clock
        self._specs: list[GroupSpec] = []
        self._unsettled = 0
        """Slots of which there may be rows and applied minibatches, owned or not, left by a predecessor."""
        if (configuration := self.state.configuration()) is not None:
            self._open(configuration)
            self._unsettled = ALL_SLOTS
            for group in self.groups:
                group.set_owned(self.owned_set())  # tables own all slots until they are told
        self._arenas.close()
        self._end_interrupted()

    @property
    def version(self) -> int:
        """Number of pushes applied so far."""
        return self.state.pushes

    @property
    def rows(self) -> int:
        """Number of rows of embeddings in the slots it owns."""
        owned = self.owned_set()
        return sum(int(group.slot_rows[owned].sum()) for group in self.groups if not group.complete)

    @property
    def bytes(self) -> int:
        """Bytes of memory that rows and their index take."""
        return sum(group.bytes for group in self.groups)

    def table_rows(self) -> list[tuple[TableSpec, int]]:
        """Return the number of rows of each embedding table, whoever owns their slots."""
        found = []
        for group in self.groups:
            if not group.complete:
                found += list(zip(group.tables, group.table_rows, strict=True))
        return found

    @property
    def embedding_bytes(self) -> int:
        """Bytes of memory that rows of embeddings and their index take."""
        return sum(group.bytes for group in self.groups if not group.complete)

    def slot_bytes(self) -> NDArray[np.float64]:
        """Return the bytes of memory of the rows in each slot [4096]."""
        total = np.zeros(slot_sets.SLOTS)
        for group in self.groups:
            total += group.slot_rows * float(group.row_bytes)
        return total

    # --- what it is to keep ---------------------------------------------------------------------------------------------

    def own(self, owned: int) -> int:
        """Own these slots from now on. Returns the slots that ``Cleanup`` is to remove: no longer owned, or perhaps left by a predecessor
        and not owned."""
        lost = (self.owned | self._unsettled) & ~owned
        self._unsettled = 0
        self.applied_minibatches.forget(lost)
        self.owned = owned
        self.frozen &= owned
        members = self.owned_set()
        for group in self.groups:
            group.set_owned(members)
        return lost

    def track(self, slots: int) -> None:
        """Log the rows changed in these slots from now on; 0: log none."""
        self.tracked = slots
        for group in self.groups:
            if slots:
                group.track(slot_sets.unpack(to_bitmap(slots)))
            else:
                group.untrack()

    def configure(
        self,
        configuration: Configure,
        covers: int = 0,
        blocks: Sequence[tuple[NDArray[np.uint64], NDArray[np.float32]]] = (),
    ) -> None:
        """Take over tables and optimizers, and dense blocks (numbers, values [blocks, 4096]) that aren't there, all in the slots
        ``covers``; later calls must agree.

        Raises UsageError when they don't: two workers built different models. Raises Frozen too.
        """
        self._admit(covers)
        self._check_configuration(configuration, blocks)
        if self.configuration is None:
            self.state.configure(configuration, len(groups_of(configuration)))
            failpoint("ps.configure.written")
            self._open(configuration)
            self.own(self.owned)
            self.track(self.tracked)
            failpoint("ps.configure.opened")
        for group, (numbers, values) in zip(self._dense_groups(), blocks, strict=False):
            there = group.contains(numbers, np.array([len(numbers)], np.int64))
            new = numbers[~there]
            group.insert(new, np.array([len(new)], np.int64), values.reshape(-1, BLOCK)[~there])

    def _open(self, configuration: Configure) -> None:
        """Open the arenas of the configuration's groups: new ones, or those that were left with what is in them."""
        self._specs = groups_of(configuration)
        self.groups = [
            TableGroup(
                spec.tables,
                spec.optimizer,
                seed=configuration.seed,
                complete=spec.complete,
                counted=spec.counted,
                kept=Kept(self._arenas, f"group-{g}", self.state.numbers(g), self.state.journal, g),
            )
            for g, spec in enumerate(self._specs)
        ]
        self.configuration = configuration

    def _dense_groups(self) -> list[TableGroup]:
        return [group for group, spec in zip(self.groups, self._specs, strict=True) if spec.complete]

    def _check_configuration(
        self, configuration: Configure, blocks: Sequence[tuple[NDArray[np.uint64], NDArray[np.float32]]]
    ) -> None:
        if self.configuration is not None and configuration != self.configuration:
            raise UsageError(
                "a worker declares other tables, parameters or optimizers than the first one did",
                hint="The model's fields and shapes must not depend on anything but the recipe.",
            )
        dense = configuration.dense
        if any(table.dim < 1 for table in configuration.tables):
            raise UsageError("an embedding table of dim 0 or below")
        if dense.parameter_blocks < 0 or dense.buffer_blocks < 0:
            raise UsageError(f"{dense.parameter_blocks} blocks of parameters and {dense.buffer_blocks} of buffers")
        kinds = [count for count in (dense.parameter_blocks, dense.buffer_blocks) if count]
        if len(blocks) not in (0, len(kinds)):
            raise UsageError(f"dense values of {len(blocks)} kinds where there are {len(kinds)}")
        for (numbers, values), count in zip(blocks, kinds, strict=False):
            if values.size != len(numbers) * BLOCK or (len(numbers) and int(numbers.max()) >= count):
                raise UsageError(f"{values.size} values for {len(numbers)} of {count} blocks of {BLOCK}")

    # --- minibatches ----------------------------------------------------------------------------------------------------

    def pull(self, keys: Sequence[tuple[NDArray[np.uint64], list[int]]]) -> list[NDArray[np.float32]]:
        """Return the rows [keys, dim] of each group asked for. ``keys``: the keys of each group, and how many of each table."""
        if len(keys) > len(self.groups):
            raise UsageError(f"a pull of {len(keys)} table groups where there are {len(self.groups)}")
        found = []
        for g, (of_group, counts) in enumerate(keys):
            began = self.clock()
            found.append(self.groups[g].gather(of_group, np.array(counts, np.int64)))
            self.loads.gathered(g, self.clock() - began)
        return found

    def unknown(
        self, keys: Sequence[tuple[NDArray[np.uint64], list[int]]]
    ) -> tuple[list[NDArray[np.uint8]], list[list[int]]]:
        """Return of each group of embeddings asked for: uint8 [keys], 1 for a key without a row; and the number of rows of each table."""
        found, rows = [], []
        for group, (of_group, counts) in zip(self.groups, keys, strict=False):
            if not group.complete:
                found.append((~group.contains(of_group, np.array(counts, np.int64))).view(np.uint8))
                rows.append(group.table_rows)
        return found, rows

    def push(self, epoch: int, k: int, learning_rate_factor: float, covers: int, groups: Sequence[Slice]) -> PushResult:
        """Apply minibatch (epoch, k) in the slots ``covers``, once in each: where it was applied before, nothing changes.

        Raises NotOwned or Frozen unless all of ``covers`` may be changed, UsageError for arrays that don't fit; nothing is applied then.
        """
        self._check_push(groups)
        self._admit(covers)
        to_do = covers & ~self.applied_minibatches.applied(epoch, k)
        if not to_do:
            return PushResult(self.version, applied=False)
        parts = self.applied_minibatches.parts(epoch, k)
        self.state.begin_push(epoch, k, to_do)
        failpoint("ps.push.begun")
        try:
            for g, of_group in enumerate(groups):
                if parts or to_do != covers:
                    of_group = self._only(g, of_group, to_do, parts)
                self._update(g, of_group, learning_rate_factor)
                self.state.journal.begin(g + 1)
                failpoint("ps.push.group")
        except Exception:
            self._end_interrupted()
            raise
        failpoint("ps.push.applied")
        self.applied_minibatches.add(epoch, k, to_do)
        failpoint("ps.push.marked")
        self.state.end_push(applied=True)
        failpoint("ps.push.done")
        return PushResult(self.version - 1, applied=True)

    def _end_interrupted(self) -> None:
        """Mark what has been applied of a push that was begun and not ended, so that its repeat does the rest. May itself be
        interrupted."""
        push = self.state.push_under_way()
        if push is None:
            return
        epoch, k, slots = push
        progress = self.state.journal.progress
        done = progress.group >= len(self.groups)
        if done:
            self.applied_minibatches.add(epoch, k, slots)
        elif progress.group or progress.keys:
            tables, hashes = self.groups[progress.group].changed_last(progress.keys)
            part = Part(epoch, k, to_bitmap(slots), progress.group, tables.tobytes(), hashes.tobytes())
            self.applied_minibatches.add_part(part)
        failpoint("ps.attach.marked")
        self.state.end_push(applied=done)

    def _update(self, g: int, of_group: Slice, learning_rate_factor: float) -> None:
        keys, counts, grads = of_group
        began = self.clock()
        factor = learning_rate_factor if self._specs[g].scheduled else 1.0
        try:
            self.groups[g].update(keys, np.array(counts, np.int64), grads, learning_rate_factor=factor)
        except NotOwned as error:
            raise UsageError("a push with keys outside the slots it covers") from error
        self.loads.updated(g, self.clock() - began)

    def _admit(self, covers: int) -> None:
        if covers & ~self.owned:
            raise NotOwned
        if covers & self.frozen:
            raise Frozen

    def _check_push(self, groups: Sequence[Slice]) -> None:
        """Check a push before anything of it is applied: half of one would be applied again when it is repeated. Raises UsageError."""
        if self.configuration is None:
            raise UsageError("a push before the first configuration")
        if len(groups) != len(self.groups):
            raise UsageError(f"a push to {len(groups)} table groups where there are {len(self.groups)}")
        for group, (keys, counts, grads) in zip(self.groups, groups, strict=True):
            fit = len(counts) == len(group.tables) and min(counts) >= 0 and sum(counts) == len(keys)
            if not fit or grads.shape != (len(keys), group.dim):
                raise UsageError(f"a push of {counts} rows with {len(keys)} ids and gradients of shape {grads.shape}")

    def _only(self, g: int, of_group: Slice, to_do: int, parts: Sequence[Part]) -> Slice:
        """Return what of a push is in these slots and wasn't applied by one that was interrupted: the rest was applied before."""
        keys, counts, grads = of_group
        for part in parts:
            if part.groups > g:
                to_do &= ~part.mask
        members = slot_sets.unpack(to_bitmap(to_do))
        kept = np.zeros(len(keys), np.bool_)
        kept_counts, start = [], 0
        for t, (table, count) in enumerate(zip(self._specs[g].tables, counts, strict=True)):
            hashes = hashes_of(table.name, keys[start : start + count])
            chosen = members[hashes >> np.uint64(SLOT_SHIFT)]
            for part in parts:
                if part.groups == g:
                    chosen &= ~np.isin(hashes, part.done(t))
            kept[start : start + count] = chosen
            kept_counts.append(int(chosen.sum()))
            start += count
        return keys[kept], kept_counts, grads[kept]

    def owned_set(self) -> slot_sets.SlotSet:
        """Return the slots it owns, as a set."""
        return slot_sets.unpack(to_bitmap(self.owned & ALL_SLOTS))
