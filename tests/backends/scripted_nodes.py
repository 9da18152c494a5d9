"""The entry of test nodes: does what the spec's ``master_endpoint`` says, so that no master is needed."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.ps.memory.node_memory_client import open_memory

_STEP = 1 << 22
_KEPT_FILES = 3
_HOLD = """
import signal, sys, time
held = bytearray(int(sys.argv[1]))
held[::4096] = b"x" * len(held[::4096])
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
print("child holds", flush=True)
signal.pause()
"""


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
        case "work":
            _work(float(argument))
        case "allocate":
            _allocate(*argument.split(","))
        case "share":
            _share(int(argument))
        case "parent":
            subprocess.Popen([sys.executable, "-c", _HOLD, argument, str(job_directory)])
            _stay()
        case "fork":
            if os.fork():
                print("forked", flush=True)
            _stay()
        case "children":
            _start_children(job_directory)
        case "keep":
            _keep(spec.id, argument)
        case "fill":
            _fill(spec.id, *map(int, argument.split(",")))
        case "look":
            _look(spec.id)
        case "torch":
            _show_what_is_imported()
    return None


def _stay() -> None:
    while True:
        signal.pause()


def _work(cpu_seconds: float) -> None:
    """Something to be measured. For ever with ``inf``."""
    end = time.process_time() + cpu_seconds
    while time.process_time() < end:
        pass
    print("measured", flush=True)
    _stay()


def _allocate(size: str, cpu_seconds: str = "") -> None:
    held = []
    for _ in range(0, int(size), _STEP):
        held.append(bytearray(_STEP))
        held[-1][::4096] = b"x" * (_STEP // 4096)
    print("allocated", flush=True)
    if cpu_seconds:
        _work(float(cpu_seconds))
    _stay()


def _share(size: int) -> None:
    descriptor = os.memfd_create("shared")
    os.truncate(descriptor, size)
    shared = mmap.mmap(descriptor, size)
    for at in range(0, size, 4096):
        shared[at] = 1
    print("shared", flush=True)
    _stay()


def _keep(node: str, text: str) -> None:
    """Memory that outlives the node, several files of it."""
    memory = open_memory(node)
    assert memory is not None
    for number in range(_KEPT_FILES):
        descriptor = memory.create(f"notes-{number}", _STEP)
        os.pwrite(descriptor, f"{text} {number}".encode().ljust(_STEP), 0)
    print("kept", flush=True)
    _stay()


def _fill(node: str, first: int, then: int) -> None:
    """An arena that outlives the node: up to ``first`` bytes of it, and, when a signal comes, up to ``then``."""
    memory = open_memory(node)
    assert memory is not None
    descriptor = memory.left().get("arena")
    found = 0
    if descriptor is None:
        descriptor = memory.create("arena", 1 << 40)
    while os.pread(descriptor, _STEP, found) == _pattern(found):
        found += _STEP
    with mmap.mmap(descriptor, 1 << 40) as arena:
        for until in (first, then):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
            for at in range(found, until, _STEP):
                arena[at : at + _STEP] = _pattern(at)
            print("filled", until, "found", found, flush=True)
            found = max(found, until)
            signal.sigwait([signal.SIGUSR1])


def _pattern(at: int) -> bytes:
    return f"{at:016x}".encode() * (_STEP // 16)


def _look(node: str) -> None:
    memory = open_memory(node)
    assert memory is not None
    left = memory.left()
    texts = [os.pread(left[name], _STEP, 0).decode().strip() for name in sorted(left)]
    assert all(os.fstat(descriptor).st_size == _STEP for descriptor in left.values())
    print("found", len(left), "files:", *texts[:2], flush=True)
    _stay()


def _start_children(job_directory: Path) -> None:
    """One as usual, one in a session of its own, one whose parent has ended."""
    wait = [sys.executable, "-c", "import signal; signal.pause()", str(job_directory)]
    start = f"import subprocess; print(subprocess.Popen({wait!r}, stdout=subprocess.DEVNULL, start_new_session=True).pid, flush=True)"
    orphan = subprocess.run([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    pids = [subprocess.Popen(wait).pid, subprocess.Popen(wait, start_new_session=True).pid, orphan]
    print("children", *pids, "started", flush=True)
    _stay()


def _show_what_is_imported() -> None:
    print("torch" in sys.modules, flush=True)
    import numba
    import numpy  # noqa: F401 - it brings a BLAS
    import threadpoolctl
    import torch

    native = {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    print(torch.get_num_threads(), numba.get_num_threads(), *native, os.environ["OMP_NUM_THREADS"], flush=True)
    print(os.getsid(0) == os.getpid(), flush=True)
    print(*(path.name for path in Path("/proc/self/fd").iterdir()), flush=True)
