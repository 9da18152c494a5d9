from __future__ import annotations

import pytest

from dlrover_lite.data.base import Schema


@pytest.fixture
def schema() -> Schema:
    return Schema(dense=("I1", "I2", "I3"), categorical=("C1", "C2", "C3", "C4"))
