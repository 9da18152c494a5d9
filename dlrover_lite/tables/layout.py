"""What a parameter server keeps, in which order: client and server both follow this.

Dense parameters are cut into blocks of 4,096 values, each a row whose key is its number: rows and blocks are pulled, pushed, placed and
moved by one mechanism.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.records import mixed, table_salt
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.hashing import SLOT_SHIFT

__all__ = ["BLOCK", "BUFFERS", "PARAMETERS", "GroupSpec", "group_tables", "groups_of", "hashes_of", "slots_of"]

BLOCK = 4096
"""Number of values in a block."""

PARAMETERS = TableSpec("dense parameters", BLOCK, 0.0)
BUFFERS = TableSpec("dense buffers", BLOCK, 0.0)
_SUBTRACT = Optimizer(use="sgd", learning_rate=1.0)


class GroupSpec(NamedTuple):
    """Tables of one dim that lie in one arena."""

    tables: list[TableSpec]
    optimizer: Optimizer
    scheduled: bool = True
    """The learning rate's schedule applies."""
    complete: bool = False
    """All its rows are there from the start: an unknown key is an error."""
    counted: bool = False
    """Rows have a count of their updates, whether or not the optimizer needs it."""

    @property
    def dim(self) -> int:
        return self.tables[0].dim


def group_tables(tables: list[TableSpec]) -> list[list[TableSpec]]:
    """Put tables of equal dim together, groups and tables in order of first appearance."""
    groups: dict[int, list[TableSpec]] = {}
    for table in tables:
        groups.setdefault(table.dim, []).append(table)
    return list(groups.values())


def dense_groups(dense: DenseSpec, optimizer: Optimizer, *, counted: bool = False) -> list[GroupSpec]:
    """Return the groups of those kinds of dense parameters that have blocks."""
    kinds = (
        (dense.parameter_blocks, GroupSpec([PARAMETERS], optimizer, complete=True, counted=counted)),
        (dense.buffer_blocks, GroupSpec([BUFFERS], _SUBTRACT, scheduled=False, complete=True, counted=counted)),
    )
    return [group for blocks, group in kinds if blocks]


def groups_of(configuration: Configure) -> list[GroupSpec]:
    """Return all groups, in the order of requests."""
    optimizer, counted = configuration.embedding_optimizer, configuration.counted
    tables = [GroupSpec(tables, optimizer, counted=counted) for tables in group_tables(configuration.tables)]
    return tables + dense_groups(configuration.dense, configuration.optimizer, counted=counted)


def hashes_of(table: str, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of each key [n] of a table."""
    return mixed(np.asarray(keys, np.uint64) ^ table_salt(table))


def slots_of(table: str, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the slot of each key [n] of a table."""
    return (hashes_of(table, keys) >> np.uint64(SLOT_SHIFT)).astype(np.int64)
