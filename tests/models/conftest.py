from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dlrover_lite.data.base import Schema


@pytest.fixture
def schema() -> Schema:
    return Schema(dense=("I1", "I2", "I3"), categorical=("C1", "C2", "C3", "C4"))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Spinning OpenMP threads beside other busy processes slow small models down tenfold."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
