"""Rebuilds an exported model as a plain torch module, and evaluates it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dlrover_lite.core.errors import DataError, ModelError
from dlrover_lite.core.files.regular import check_regular
from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.core.progress import Steps, no_steps
from dlrover_lite.core.unknown_ids import unusual_ids, warnings_of
from dlrover_lite.data.base import Dataset, Schema
from dlrover_lite.data.keys import keys_of
from dlrover_lite.models.digests import EXPORT_AGAIN
from dlrover_lite.models.export import DENSE_FILE, MANIFEST_FILE, Manifest, TableEntry
from dlrover_lite.models.export_reader import ExportReader, Say
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.models.registry import build_model
from dlrover_lite.models.tables import read_table
from dlrover_lite.models.user import user_code
from dlrover_lite.recipe.id_kinds import IdKind, kinds_of_format, reconcile

__all__ = [
    "EmbeddingTable",
    "Metrics",
    "ServingModel",
    "evaluate_export",
    "evaluate_model",
    "known_id_kinds",
    "load_model",
    "read_manifest",
]


class Metrics(msgspec.Struct, frozen=True):
    """Metrics of an evaluated model. ``loss`` is the mean log loss; ``auc`` is None when all samples have the same label."""

    samples: int
    loss: float | None
    auc: float | None
    unknown_ids: dict[str, float] = {}
    """Share of the ids that have never been trained, by embedded column."""
    unusual_ids: dict[str, float | None] = {}
    """Share of such ids that the job had seen, by column where ``unknown_ids`` is far above it; None: that isn't known."""
    warnings: list[str] = []
    """Reasons why the ids may hardly be those that were trained on."""


_SHOWN = 4
_EXPECTED_SAMPLES = 100_000
"""Number of samples that the dataset is told of before they are read."""
"""Maximum number of columns in a message."""


class EmbeddingTable:
    """Rows in memory, sorted by id. Ids it doesn't hold get what training would have started them with."""

    def __init__(self, entry: TableEntry, ids: NDArray[np.uint64], vectors: NDArray[np.float32], *, seed: int) -> None:
        """Take over ``ids``, which rise, and their vectors."""
        self.entry, self.seed = entry, seed
        self.ids, self.vectors = ids, vectors

    def find(self, ids: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the vectors float32 [n, dim] of ids uint64 [n], and whether the table holds each."""
        from dlrover_lite.tables.hashing import initial_rows

        if not len(self.ids):
            found, at = np.zeros(len(ids), bool), np.zeros(len(ids), np.int64)
            rows = np.empty((len(ids), self.entry.dim), np.float32)
        else:
            at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
            found = self.ids[at] == ids
            rows = self.vectors[at]
        if not found.all():
            entry, unknown = self.entry, ids[~found]
            rows[~found] = initial_rows(
                unknown, table=entry.name, seed=self.seed, dim=entry.dim, scale=entry.init_scale
            )
        return rows, found


class ServingModel(nn.Module):
    """A trained model with its tables: ``forward`` gives logits, ``predict`` probabilities.

    ``dense`` is float32 [n, dense columns]; ``ids`` is [categorical columns, n], uint64 or int64 (the same 64 bits),
    as in ``data.base.Batch``; the columns are ``schema``'s. Both may be tensors or numpy arrays.
    """

    def __init__(self, network: nn.Module, manifest: Manifest, tables: dict[str, EmbeddingTable]) -> None:
        super().__init__()
        self.network = network
        self.manifest = manifest
        self.tables = tables
        self.fields: list[EmbeddingField] = manifest.fields
        self._rows = [manifest.schema.categorical.index(field.column) for field in manifest.fields]

    @property
    def schema(self) -> Schema:
        """Names of the columns, in the order that ``forward`` expects."""
        return self.manifest.schema

    def forward(self, dense: Tensor | NDArray[np.float32], ids: Tensor | NDArray[np.uint64]) -> Tensor:
        """Return logits, float32 [n]. Raises ModelError for inputs of another shape."""
        return self.forward_and_count(dense, ids)[0]

    def forward_and_count(
        self, dense: Tensor | NDArray[np.float32], ids: Tensor | NDArray[np.uint64]
    ) -> tuple[Tensor, dict[str, int]]:
        """Return the logits as ``forward`` does; and by embedded column the number of samples whose id has never been trained."""
        device = next(self.network.parameters(), torch.empty(0)).device
        keys = ids.cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
        x = torch.as_tensor(dense, dtype=torch.float32, device=device)
        shape = (len(self.schema.categorical), len(x))
        if x.ndim != 2 or x.shape[1] != len(self.schema.dense) or keys.shape != shape:
            raise ModelError(
                f"The model got dense {list(x.shape)} and ids {list(keys.shape)}.",
                hint=f"It wants dense [n, {len(self.schema.dense)}] and ids [{shape[0]}, n].",
            )
        if keys.dtype.kind not in "iu" or keys.dtype.itemsize != 8:
            raise ModelError(
                f"The model got ids of type {keys.dtype}, not keys of ids: it was trained on {self._kinds_in_words()}.",
                hint="Keys are uint64, or int64 of the same bits. Make them of a column's values: model.keys({column: values, ...})",
            )
        rows, unknown = self._embed(keys.view(np.uint64))
        embedded = torch.from_numpy(rows).to(device)
        logits: Tensor = self.network(x, embedded)
        return logits.reshape(len(x)), unknown

    def keys(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> NDArray[np.uint64]:
        """Return keys of ids, uint64 [categorical columns, n], as ``forward`` and ``predict`` take them; of values by column: integers or
        text, as in training, None for an empty field.

        Raises DataError, naming the column, for values of another kind than were trained on; ModelError for other columns, or lengths.
        """
        wanted = self.schema.categorical
        odd = sorted({*wanted} ^ {*columns})
        if odd:
            raise ModelError(f"{', '.join(odd)}: not the model's columns.", hint=f"They are: {', '.join(wanted)}")
        if len({len(columns[column]) for column in wanted}) > 1:
            raise ModelError("The columns are of different lengths.", hint="Each has a value for each sample.")
        kinds, data_format = self._id_kinds(), self.manifest.data_format
        return np.array(
            [keys_of(columns[column], column, kinds.get(column), data_format) for column in wanted], np.uint64
        )

    def _id_kinds(self) -> dict[str, IdKind]:
        return known_id_kinds(self.manifest)

    def _kinds_in_words(self) -> str:
        kinds = self._id_kinds()
        found = {kind: [name for name in kinds if kinds[name].kind == kind] for kind in ("integer", "text")}
        parts = [
            f"{words} in {', '.join(names[:_SHOWN])}"
            + (f" and {len(names) - _SHOWN} more columns" if len(names) > _SHOWN else "")
            for (_, names), words in zip(found.items(), ("integers", "text"), strict=True)
            if names
        ]
        return ", ".join(parts) or "keys that its data's reader made"

    def _embed(self, ids: NDArray[np.uint64]) -> tuple[NDArray[np.float32], dict[str, int]]:
        """Return float32 [n, sum of dims], and by column the number of samples whose id the table doesn't hold (of a column that is
        embedded several times, the first table)."""
        out = np.empty((ids.shape[1], sum(field.dim for field in self.fields)), np.float32)
        unknown: dict[str, int] = {}
        start = 0
        for field, row in zip(self.fields, self._rows, strict=True):
            out[:, start : start + field.dim], found = self.tables[field.table_name].find(ids[row])
            unknown.setdefault(field.column, len(found) - int(np.count_nonzero(found)))
            start += field.dim
        return out, unknown

    def predict(self, dense: Tensor | NDArray[np.float32], ids: Tensor | NDArray[np.uint64]) -> Tensor:
        """Return probabilities of label 1, float32 [n], without gradients."""
        with torch.no_grad():
            return torch.sigmoid(self(dense, ids))


def read_manifest(directory: Path) -> Manifest:
    """Read ``model.json`` of an export. Raises ModelError when it is missing, damaged, or of a newer format."""
    return ExportReader(directory).manifest


def known_id_kinds(manifest: Manifest) -> dict[str, IdKind]:
    """Return the kinds of ids that a model was trained on, by categorical column: as its export says, or else as follows from its data's
    format."""
    return {**kinds_of_format(manifest.data_format, manifest.schema.categorical), **manifest.id_kinds}


def load_model(
    directory: Path | str | None, device: str = "cpu", *, say: Say | None = None, steps: Steps = no_steps
) -> ServingModel:
    """Return the exported model in evaluation mode, with its dense part on ``device`` and its tables in memory. ``steps`` is told how far
    it is.

    ``directory`` may be a result's ``export``. A user's model runs its own code from the export. All files are compared with what was
    exported before they are used; ``say`` is told of an export that is too old for that (by default it is a Python warning). Raises
    ModelError, naming the file at fault.
    """
    if directory is None:
        raise ModelError("The job has no exported model.", hint="Its result's message says why.")
    directory = Path(directory)
    export = ExportReader(directory, say=say)
    manifest = export.manifest
    dense, *files = export.files(DENSE_FILE, *(entry.file for entry in manifest.tables), steps=steps)
    network = build_model(manifest.model, manifest.schema, directory=export.code(), seed=manifest.seed)
    _load_dense(network, dense, manifest)
    tables = {}
    total, before = sum(entry.rows for entry in manifest.tables), 0
    for entry, file in zip(manifest.tables, files, strict=True):
        tell = partial(_tell_loaded, steps, before, total)
        rows = read_table(file, rows=entry.rows, dim=entry.dim, progress=tell)
        tables[entry.name] = EmbeddingTable(entry, rows.ids, rows.vectors, seed=manifest.seed)
        before += entry.rows
    return ServingModel(network.to(device), manifest, tables).eval()


def _tell_loaded(steps: Steps, before: int, total: int, rows: int) -> None:
    steps("loading", before + rows, total, "rows")


def _load_dense(network: nn.Module, path: Path, manifest: Manifest) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        check_regular(path)
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise ModelError(f"The export's file {path} is missing.", hint=EXPORT_AGAIN) from error
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"The export's file {path} can't be used: {str(error).rstrip('.')}.", hint=EXPORT_AGAIN
        ) from error
    if sorted(tensors) != sorted(entry.name for entry in manifest.dense):
        raise ModelError(f"{path} and {MANIFEST_FILE} don't belong together.", hint=EXPORT_AGAIN)
    # Parameters that training doesn't change are as the seed made them.
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    counters = {name for name, _ in network.named_buffers() if name.endswith("num_batches_tracked")}
    try:
        result = network.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise ModelError(f"{path} doesn't fit the model {manifest.model.use}: {error}") from error
    missing = [*(set(result.missing_keys) - frozen - counters), *result.unexpected_keys]
    if missing:
        raise ModelError(
            f"{path} doesn't fit the model {manifest.model.use}: {', '.join(sorted(missing))}.",
            hint="The model's code must be the one that was trained.",
        )


def evaluate_export(
    directory: Path | str,
    dataset: Dataset,
    batch_size: int = 4096,
    progress: Callable[[int], None] | None = None,
    *,
    name: str = "",
    say: Say | None = None,
    steps: Steps = no_steps,
) -> Metrics:
    """Compute log loss, AUC and unknown ids of an exported model over all samples of ``dataset``; bad lines are left out.

    ``progress`` is called with the number of samples done, ``say`` and ``steps`` as by ``load_model``; ``name`` is the model's in messages.
    Raises ModelError, and DataError when the columns differ, or ids are of another kind than in training.
    """
    model = load_model(directory, say=say, steps=steps)
    code = Path(directory) / "model"
    return evaluate_model(model, dataset, batch_size, progress, name=name or f"the model in {directory}", code=code)


def evaluate_model(
    model: ServingModel,
    dataset: Dataset,
    batch_size: int = 4096,
    progress: Callable[[int], None] | None = None,
    *,
    name: str,
    code: Path,
) -> Metrics:
    """Evaluate a model that is loaded, as ``evaluate_export`` does; ``code``: where a user's own code is."""
    if dataset.schema != model.schema:
        columns = {*model.schema.dense, *model.schema.categorical} - {
            *dataset.schema.dense,
            *dataset.schema.categorical,
        }
        what = f"it has no {', '.join(sorted(columns))}" if columns else "its columns are others, or in another order"
        raise DataError(
            f"The data doesn't fit {name}: {what}.",
            hint="Evaluate on data with the same columns, under the same names, as in training.",
        )
    kinds = reconcile(dataset.look_at_ids(), known_id_kinds(model.manifest), whose=name)
    kinds.require()
    totals, unknown = BinaryMetrics(), Counter[str]()
    with torch.no_grad():
        for start in range(0, dataset.samples, batch_size):
            end = min(start + batch_size, dataset.samples)
            dataset.expect([range(start, min(start + _EXPECTED_SAMPLES, dataset.samples))])
            batch = dataset.read(np.arange(start, end, dtype=np.int64))
            if len(batch.labels):
                with user_code(f"{type(model.network).__name__}.forward", code):
                    logits, counts = model.forward_and_count(batch.dense, batch.ids)
                totals.add(logits.numpy(), batch.labels)
                unknown.update(counts)
            if progress is not None:
                progress(end)
    shares = {column: count / totals.samples for column, count in unknown.items()}
    unusual = unusual_ids(shares, model.manifest.unknown_ids, samples=totals.samples)
    odd = [*kinds.warnings, *warnings_of(shares, unusual)]
    return Metrics(totals.samples, totals.log_loss, totals.auc, shares, unusual, odd)
