"""A parameter server without its sockets: rows of the slots it owns, and the marks of the minibatches it has applied there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite import slots as slot_sets
from dlrover_lite.errors import UsageError
from dlrover_lite.ps.layout import BLOCK, GroupSpec, groups_of, slots_of
from dlrover_lite.ps.loads import Loads
from dlrover_lite.ps.marks import ALL_SLOTS, Marks, to_bitmap
from dlrover_lite.ps.table import NotOwned, TableGroup
from dlrover_lite.wire.ps_messages import Configure

__all__ = ["Engine", "Frozen", "NotOwned", "PushResult", "Slice"]

Slice = tuple[NDArray[np.uint64], list[int], NDArray[np.float32]]
"""Keys of one group, table after table; how many of each table; a gradient a key."""


class Frozen(Exception):
    """The request would change slots that are about to leave: it has to wait for the master's word."""


class PushResult(NamedTuple):
    version: int
    """Pushes applied before this one."""
    applied: bool


class Engine:
    """One parameter server's state. Arrays handed in may be read-only; arrays handed out are fresh. Sets of slots are whole numbers, bit i
    for slot i, as in ``marks``. Requests for slots not owned raise NotOwned, and nothing is done."""

    def __init__(self, *, owned: int = 0, clock: Callable[[], float] = time.perf_counter) -> None:
        self.configuration: Configure | None = None
        self.version = 0
        self.groups: list[TableGroup] = []
        self.owned = owned
        self.frozen = 0
        """Of these no push is taken."""
        self.tracked = 0
        """Rows changed in these are logged, for a move."""
        self.marks = Marks()
        self.loads = Loads(clock)
        self.clock = clock
        self._specs: list[GroupSpec] = []

    @property
    def rows(self) -> int:
        """Of embeddings, in the slots it owns."""
        owned = self._owned_set()
        return sum(int(group.slot_rows[owned].sum()) for group in self.groups if not group.complete)

    @property
    def bytes(self) -> int:
        """Memory of rows and their index."""
        return sum(group.bytes for group in self.groups)

    def slot_bytes(self) -> NDArray[np.float64]:
        """Memory of the rows in each slot [4096]."""
        total = np.zeros(slot_sets.SLOTS)
        for group in self.groups:
            total += group.slot_rows * float(group.row_bytes)
        return total

    # --- what it is to keep ---------------------------------------------------------------------------------------------

    def own(self, owned: int) -> None:
        """Own these slots from now on. What it no longer owns is for ``tidying`` to remove."""
        self.marks.forget(self.owned & ~owned)
        self.owned = owned
        members = self._owned_set()
        for group in self.groups:
            group.set_owned(members)

    def track(self, slots: int) -> None:
        """Log the rows changed in these slots from now on; 0: none."""
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
            self._specs = groups_of(configuration)
            self.groups = [
                TableGroup(spec.tables, spec.optimizer, seed=configuration.seed, complete=spec.complete)
                for spec in self._specs
            ]
            self.configuration = configuration
            self.own(self.owned)
            self.track(self.tracked)
        for group, (numbers, values) in zip(self._dense_groups(), blocks, strict=False):
            there = group.contains(numbers, np.array([len(numbers)], np.int64))
            new = numbers[~there]
            group.insert(new, np.array([len(new)], np.int64), values.reshape(-1, BLOCK)[~there])

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
        """Rows [keys, dim] of each group asked for: keys, and how many of each table."""
        if len(keys) > len(self.groups):
            raise UsageError(f"a pull of {len(keys)} table groups where there are {len(self.groups)}")
        found = []
        for g, (of_group, counts) in enumerate(keys):
            began = self.clock()
            found.append(self.groups[g].gather(of_group, np.array(counts, np.int64)))
            self.loads.gathered(g, self.clock() - began)
        return found

    def push(self, epoch: int, k: int, learning_rate_factor: float, covers: int, groups: Sequence[Slice]) -> PushResult:
        """Apply minibatch (epoch, k) in the slots ``covers``, once in each: where it was applied before, nothing changes.

        Raises NotOwned or Frozen unless all of ``covers`` may be changed, UsageError for arrays that don't fit; nothing is applied then.
        """
        self._check_push(groups)
        self._admit(covers)
        to_do = covers & ~self.marks.applied(epoch, k)
        if not to_do:
            return PushResult(self.version, applied=False)
        if to_do != covers:
            groups = [self._only(spec, of_group, to_do) for spec, of_group in zip(self._specs, groups, strict=True)]
        for g, (keys, counts, grads) in enumerate(groups):
            began = self.clock()
            factor = learning_rate_factor if self._specs[g].scheduled else 1.0
            self._update(g, keys, counts, grads, factor)
            self.loads.updated(g, self.clock() - began)
        self.marks.add(epoch, k, to_do)
        self.version += 1
        return PushResult(self.version - 1, applied=True)

    def _update(
        self, g: int, keys: NDArray[np.uint64], counts: list[int], grads: NDArray[np.float32], factor: float
    ) -> None:
        try:
            self.groups[g].update(keys, np.array(counts, np.int64), grads, learning_rate_factor=factor, unique=True)
        except NotOwned as error:
            raise UsageError("a push with keys outside the slots it covers") from error

    def _admit(self, covers: int) -> None:
        if covers & ~self.owned:
            raise NotOwned
        if covers & self.frozen:
            raise Frozen

    def _check_push(self, groups: Sequence[Slice]) -> None:
        """Before anything of a push is applied: half of one would be applied again when it is repeated."""
        if self.configuration is None:
            raise UsageError("a push before the first configuration")
        if len(groups) != len(self.groups):
            raise UsageError(f"a push to {len(groups)} table groups where there are {len(self.groups)}")
        for group, (keys, counts, grads) in zip(self.groups, groups, strict=True):
            fit = len(counts) == len(group.tables) and min(counts) >= 0 and sum(counts) == len(keys)
            if not fit or grads.shape != (len(keys), group.dim):
                raise UsageError(f"a push of {counts} rows with {len(keys)} ids and gradients of shape {grads.shape}")

    def _only(self, spec: GroupSpec, of_group: Slice, to_do: int) -> Slice:
        """The part of a push in these slots: the rest has been applied before."""
        keys, counts, grads = of_group
        members = slot_sets.unpack(to_bitmap(to_do))
        kept = np.zeros(len(keys), np.bool_)
        kept_counts, start = [], 0
        for table, count in zip(spec.tables, counts, strict=True):
            kept[start : start + count] = members[slots_of(table.name, keys[start : start + count])]
            kept_counts.append(int(kept[start : start + count].sum()))
            start += count
        return keys[kept], kept_counts, grads[kept]

    def _owned_set(self) -> slot_sets.SlotSet:
        return slot_sets.unpack(to_bitmap(self.owned & ALL_SLOTS))
