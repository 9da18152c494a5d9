"""What workers would tell parameter servers to keep, without any."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import nn

from dlrover_lite.core.errors import DataError
from dlrover_lite.data.base import Schema
from dlrover_lite.data.open import open_data
from dlrover_lite.models.check import fields_of_model
from dlrover_lite.models.registry import build_model
from dlrover_lite.protocol.ps_messages import Configure
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.worker.parameters.dense import FlatParameters
from dlrover_lite.worker.parameters.embedding import EmbeddingLayout

__all__ = ["Declared", "declare"]


class Declared(NamedTuple):
    module: nn.Module
    flat: FlatParameters
    schema: Schema
    configuration: Configure


def declare(recipe: Recipe) -> Declared:
    """Build the model. Raises ModelError, and DataError for data that can't be read."""
    directory, training = Path(recipe.directory), recipe.training
    dataset = open_data(recipe.data, directory=directory, part="train")
    if dataset is None:
        raise DataError("there is no data to train on")
    try:
        schema = dataset.schema
    finally:
        dataset.close()
    module = build_model(recipe.model, schema, directory=directory, seed=training.seed)
    layout, flat = EmbeddingLayout(fields_of_model(module), schema), FlatParameters(module)
    embedding_optimizer = training.embedding_optimizer or training.optimizer
    configuration = Configure(
        training.seed,
        layout.tables,
        flat.spec,
        training.optimizer,
        embedding_optimizer,
        recipe.export.optimizer_state,
    )
    return Declared(module, flat, schema, configuration)
