"""A parameter server whose slots move a few at a time, as those of gigabytes do."""

from __future__ import annotations

from pathlib import Path

from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.ps.migration import batches
from dlrover_lite.ps.server import main as ps

BATCH_BYTES = 4096


def main(spec: NodeSpec, job_directory: Path) -> int:
    batches.BATCH_BYTES = BATCH_BYTES
    return ps.main(spec, job_directory)
