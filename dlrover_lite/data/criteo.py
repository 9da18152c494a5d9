"""Criteo's TSV as published: label, 13 integers, 26 hexadecimal categories; any field but the label may be empty.

Empty columns at the end of a line are left out in the published files, so a line may have fewer than 40 fields. One
that ends before the first category (under 15 fields) has been cut off and is bad, as is one with more than 40.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.data.base import CRITEO_SCHEMA
from dlrover_lite.data.lines import Spans
from dlrover_lite.data.text import Columns
from dlrover_lite.recipe.line_problems import criteo_problem
from dlrover_lite.recipe.schema import CriteoData

__all__ = ["CriteoParser"]


class CriteoParser:
    """See ``text.LineParser``."""

    schema = CRITEO_SCHEMA
    header_lines = 0

    def parse(self, file: int, spans: Spans, rows: NDArray[np.int64], out: Columns) -> int:
        from dlrover_lite.data.kernels.criteo import parse_lines

        return parse_lines(spans, rows, out)

    def problem(self, file: int, line: bytes) -> str:
        return criteo_problem(line.removesuffix(b"\r"))

    def data(self) -> CriteoData:
        return CriteoData(train=[])
