"""The entry of test nodes: does what the spec's ``master_endpoint`` says, so that no master is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dlrover_lite.backends.base import NodeSpec


def main(spec: NodeSpec, job_directory: Path) -> int | None:
    print(f"node {spec.id} of {job_directory.name}", flush=True)
    what, _, argument = spec.master_endpoint.partition(":")
    match what:
        case "exit":
            return int(argument)
        case "raise":
            raise RuntimeError(argument)
        case "kill":
            os.kill(os.getpid(), int(argument))
        case "stay":
            _stay()
        case "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("deaf", flush=True)
            _stay()
        case "children":
            child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", str(job_directory)])
            print(f"child {child.pid}", flush=True)
            _stay()
        case "torch":
            print("torch" in sys.modules, flush=True)
            import torch

            print(torch.get_num_threads(), flush=True)
            print(os.getsid(0) == os.getpid(), flush=True)
            print(*(path.name for path in Path("/proc/self/fd").iterdir()), flush=True)
    return None


def _stay() -> None:
    while True:
        signal.pause()


def busy(spec: NodeSpec, job_directory: Path) -> int:
    """Something to be measured: half a second of CPU, then it stays."""
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    print("measured", flush=True)
    _stay()
    return 0
