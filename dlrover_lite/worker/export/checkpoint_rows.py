"""A model straight from the files of a cut, without parameter servers: its dense parameters at once, its embedding rows some at a time."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from dlrover_lite.checkpoint.destination import damaged
from dlrover_lite.checkpoint.manifest import Manifest, configure
from dlrover_lite.checkpoint.newest_rows import NewestRows
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core.errors import JobError
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.tables.layout import BLOCK, GroupSpec, groups_of
from dlrover_lite.tables.optimizer_state import STATE_PARTS
from dlrover_lite.worker.parameters.dry_configuration import Declared, declare

__all__ = ["CutRows"]


class CutRows:
    """The model of the cut in ``store`` with this manifest, by the recipe that it was trained with. ``declared`` has its dense
    parameters.

    Raises CheckpointDamaged, JobError for a recipe that the cut isn't of, ModelError and DataError.
    """

    def __init__(self, store: CheckpointStore, manifest: Manifest, recipe: Recipe) -> None:
        self._store, self._cut = store, manifest.cut
        self.declared = declare(recipe)
        configuration = configure(manifest)
        if (self.declared.configuration.tables, self.declared.flat.spec) != (configuration.tables, configuration.dense):
            raise JobError(
                f"The model of the recipe isn't that of checkpoint {manifest.cut} any more: its tables or parameters are others",
                hint="Has the model's file been changed since?",
            )
        self.groups: list[GroupSpec] = groups_of(configuration)
        """Groups of tables that the cut has rows of."""
        shapes = [(spec.dim, spec.dim * STATE_PARTS[spec.optimizer.use]) for spec in self.groups]
        if [(shape.dim, shape.state) for shape in manifest.groups] != shapes:
            raise damaged(
                f"the manifest of checkpoint {manifest.cut}", f"its groups aren't {shapes}, as its configuration says"
            )
        self._take_dense(self.declared)

    @property
    def embeddings(self) -> list[int]:
        """Numbers of the groups of embeddings."""
        return [number for number, spec in enumerate(self.groups) if not spec.complete]

    def table(self, group: int, position: int) -> TableSpec:
        """Return the table at this position of a group. Raises CheckpointDamaged for one that there isn't."""
        tables = self.groups[group].tables
        if position >= len(tables):
            raise damaged(f"cut {self._cut}", f"it has rows of table {position} of {len(tables)}")
        return tables[position]

    def rows(self, groups: Collection[int]) -> NewestRows:
        """Return all rows of these groups."""
        return NewestRows(self._store, self._cut, groups)

    def _take_dense(self, declared: Declared) -> None:
        """Read the dense parameters into the module: parameters' blocks first, then buffers'."""
        spec = declared.flat.spec
        flat, start = declared.flat.values.reshape(-1, BLOCK), 0
        counts = [count for count in (spec.parameter_blocks, spec.buffer_blocks) if count]
        for group, count in zip([g for g, one in enumerate(self.groups) if one.complete], counts, strict=True):
            missing = np.ones(count, np.bool_)
            for some in self.rows([group]):
                if len(some.rows.ids) and int(some.rows.ids.max()) >= count:
                    raise damaged(f"cut {self._cut}", f"it has a dense block {some.rows.ids.max()} of {count}")
                numbers = some.rows.ids.astype(np.int64)
                flat[start + numbers] = some.rows.values
                missing[numbers] = False
            if missing.any():
                raise damaged(f"cut {self._cut}", f"{int(missing.sum())} of its {count} dense blocks are missing")
            start += count
