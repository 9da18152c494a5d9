"""The entry of nodes that do nothing until they are told to end: for tests of what their master does beside."""

from __future__ import annotations

import signal
from pathlib import Path

from dlrover_lite.protocol.nodes import NodeSpec


def main(spec: NodeSpec, job_directory: Path) -> None:
    signal.pause()
