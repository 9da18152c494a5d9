"""A parameter server without its sockets: tables, dense parameters, and the marks of the minibatches it has applied."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.errors import UsageError
from dlrover_lite.intervals import IntervalSet
from dlrover_lite.ps import optimizers
from dlrover_lite.ps.table import TableGroup
from dlrover_lite.wire.messages import Configure, TableSpec

__all__ = ["Engine", "PushResult", "group_tables"]

_THE_ONE_ROW = np.zeros(1, np.uint64)


class PushResult(NamedTuple):
    version: int
    """Pushes applied before this one."""
    applied: bool


def group_tables(tables: list[TableSpec]) -> list[list[TableSpec]]:
    """Tables of equal dim together, groups and tables in order of first appearance. Client and server both follow this."""
    groups: dict[int, list[TableSpec]] = {}
    for table in tables:
        groups.setdefault(table.dim, []).append(table)
    return list(groups.values())


class Engine:
    """One parameter server's state. Arrays handed in may be read-only; arrays handed out are fresh."""

    def __init__(self) -> None:
        self.configuration: Configure | None = None
        self.version = 0
        self.groups: list[TableGroup] = []
        self._marks: dict[int, IntervalSet] = {}
        self._dense = np.zeros(0, np.float32)

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def bytes(self) -> int:
        """Memory of embedding rows and their index."""
        return sum(group.bytes for group in self.groups)

    def configure(self, configuration: Configure, dense: NDArray[np.float32]) -> None:
        """Take over tables, optimizers and initial dense parameters; later calls only check that they agree.

        Raises UsageError when they don't: two workers built different models.
        """
        if self.configuration is not None:
            if configuration != self.configuration:
                raise UsageError(
                    "a worker declares other tables, parameters or optimizers than the first one did",
                    hint="The model's fields and shapes must not depend on anything but the recipe.",
                )
            return
        spec = configuration.dense
        if len(dense) != spec.length or not 0 <= spec.averaged_from <= spec.length:
            raise UsageError(
                f"{len(dense)} dense parameters where {spec.length} were announced, {spec.averaged_from} trained"
            )
        if any(table.dim < 1 for table in configuration.tables):
            raise UsageError("an embedding table of dim 0 or below")
        self.groups = [
            TableGroup(tables, configuration.embedding_optimizer, seed=configuration.seed)
            for tables in group_tables(configuration.tables)
        ]
        self._dense = dense.copy()
        self._kind = optimizers.KINDS[configuration.optimizer.use]
        self._hyper = optimizers.hyperparameters(configuration.optimizer)
        parts = optimizers.STATE_PARTS[configuration.optimizer.use]
        self._dense_state = np.zeros(max(1, len(dense) * parts), np.float32)
        parameters = np.uint64(configuration.dense.averaged_from)
        optimizers.init_state(self._kind, self._hyper, self._dense, self._dense_state, parameters, np.uint64(0))
        self._dense_steps = 0
        self.configuration = configuration

    def pull_dense(self) -> NDArray[np.float32]:
        return self._dense.copy()

    def pull_rows(self, group: int, keys: NDArray[np.uint64], counts: list[int]) -> NDArray[np.float32]:
        return self.groups[group].gather(keys, np.array(counts, np.int64))

    def push(
        self,
        epoch: int,
        k: int,
        learning_rate_factor: float,
        dense: NDArray[np.float32],
        groups: list[tuple[NDArray[np.uint64], list[int], NDArray[np.float32]]],
    ) -> PushResult:
        """Apply minibatch (epoch, k) once: a second push of the same name changes nothing."""
        self._check(dense, groups)
        marks = self._marks.setdefault(epoch, IntervalSet())
        if k in marks:
            return PushResult(self.version, applied=False)
        for group, (keys, counts, grads) in zip(self.groups, groups, strict=True):
            group.update(
                keys, np.array(counts, np.int64), grads, learning_rate_factor=learning_rate_factor, unique=True
            )
        self._push_dense(dense, learning_rate_factor)
        marks.add(k, k + 1)
        self.version += 1
        return PushResult(self.version - 1, applied=True)

    def _check(
        self, dense: NDArray[np.float32], groups: list[tuple[NDArray[np.uint64], list[int], NDArray[np.float32]]]
    ) -> None:
        """Before anything of a push is applied: half of one would be applied again when it is repeated."""
        if self.configuration is None:
            raise UsageError("a push before the first configuration")
        if len(dense) != len(self._dense):
            raise UsageError(f"a push of {len(dense)} dense gradients to {len(self._dense)} parameters")
        if len(groups) != len(self.groups):
            raise UsageError(f"a push to {len(groups)} table groups where there are {len(self.groups)}")
        for group, (keys, counts, grads) in zip(self.groups, groups, strict=True):
            fit = len(counts) == len(group.tables) and min(counts) >= 0 and sum(counts) == len(keys)
            if not fit or grads.shape != (len(keys), group.dim):
                raise UsageError(f"a push of {counts} rows with {len(keys)} ids and gradients of shape {grads.shape}")

    def _push_dense(self, dense: NDArray[np.float32], learning_rate_factor: float) -> None:
        assert self.configuration is not None
        self._dense_steps += 1
        parameters = self.configuration.dense.averaged_from
        optimizers.update_rows(
            self._kind,
            self._hyper,
            np.float32(learning_rate_factor),
            self._dense,
            self._dense_state,
            np.uint64(parameters),
            _THE_ONE_ROW,
            np.uint64(1),
            dense,
            np.uint64(0),
            np.array([self._dense_steps], np.uint32),
        )
        self._dense[parameters:] -= dense[parameters:]
