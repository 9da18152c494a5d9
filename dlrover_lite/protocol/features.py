"""What is known of a job before it runs. It tells jobs apart, and finds past jobs that are like a new one."""

from __future__ import annotations

import msgspec

from dlrover_lite.recipe.schema import CensusData, CriteoData, CsvData, Data, ParquetData, Recipe, SyntheticData

_CRITEO_COLUMNS, _CENSUS_COLUMNS = 26, 2
_DIM = {"census": 4}
_OTHER_DIM = 16
"""Dimension of the built-in models' embeddings (other than ``_DIM``'s) where the recipe doesn't say."""
_WITH_WEIGHTS = ("wide_deep", "xdeepfm")
"""Built-in models whose rows have, beside the embedding, a weight of the linear model."""


class JobFeatures(msgspec.Struct, frozen=True):
    model: str
    """The model as the recipe says: a built-in one's name, or ``file.py:Class``."""
    tables: int
    dims: int
    """Sum of the dims of all tables: number of floats in a sample's rows."""
    batch_size: int
    rows: int
    """Number of samples in the dataset."""
    optimizer: str = ""
    owner: str = ""
    name: str = ""
    pipeline_depth: int = 2
    """Number of minibatches that a worker with a core of its own has pulled and not yet pushed."""


def features_of(recipe: Recipe, *, rows: int, owner: str = "") -> JobFeatures:
    """Collect the features of a job with this recipe. ``rows``: number of training samples. Tables and dims of a person's own model aren't
    known before it is built: they are 0, which is compared with nothing."""
    tables, dims = _tables(recipe)
    return JobFeatures(
        model=recipe.model.use,
        tables=tables,
        dims=dims,
        batch_size=recipe.training.batch_size,
        rows=rows,
        optimizer=(recipe.training.embedding_optimizer or recipe.training.optimizer).use,
        owner=owner,
        name=recipe.name,
        pipeline_depth=recipe.training.pipeline_depth,
    )


def _tables(recipe: Recipe) -> tuple[int, int]:
    """Return the number of tables, and the number of floats in a sample's rows."""
    use = recipe.model.use
    dim = recipe.model.options.get("embedding_dim", _DIM.get(use, _OTHER_DIM))
    if ":" in use or not isinstance(dim, int):
        return 0, 0
    columns = _categorical(recipe.data)
    return columns, columns * (dim + (use in _WITH_WEIGHTS))


def _categorical(data: Data) -> int:
    match data:
        case CsvData() | ParquetData():
            return len(data.categorical)
        case CensusData():
            return _CENSUS_COLUMNS
        case CriteoData() | SyntheticData():
            return _CRITEO_COLUMNS
