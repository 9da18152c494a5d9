"""Recipes of a few seconds, and how a job of them went."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import dlrover_lite
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.jobs.store import Result
from tests.backends.support import assert_nothing_runs, until

HERE = Path(__file__).parent
WAIT_SECONDS = 200.0
SEED = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(10_000)
"""Another one with each run; the same in all processes of a run, which must collect the same tests."""

SYNTHETIC = {"format": "synthetic", "samples": 8_192, "eval_samples": 2_048, "ids_per_field": 100, "seed": 3}
SMALL_WIDE_DEEP = {"use": "wide_deep", "options": {"embedding_dim": 4, "hidden": [16]}}


def nodes(ps: int, workers: int, memory: dict[str, str]) -> dict[str, Any]:
    def role(name: str, count: int) -> dict[str, Any]:
        return {"count": count, "cores": 1, "memory": memory.get(name, "1GiB")}

    return {"ps": role("ps", ps), "worker": role("worker", workers)}


def start(
    model: Any,
    data: Any,
    *,
    ps: int = 1,
    workers: int = 1,
    export: str = "npz",
    health: dict[str, float] | None = None,
    memory: dict[str, str] | None = None,
    total: dict[str, Any] | None = None,
    checkpoint: dict[str, Any] | str | None = None,
    **training: Any,
) -> JobHandle:
    return dlrover_lite.run(
        {
            "version": 1,
            "name": "spine",
            "model": model,
            "data": data,
            "training": {"batch_size": 64, **training},
            "resources": {**nodes(ps, workers, memory or {}), **({"total": total} if total else {})},
            "export": {"format": export},
            "health": health or {},
            **({} if checkpoint is None else {"checkpoint": checkpoint}),
            "directory": str(HERE),
        }
    )


def open_gate(handle: JobHandle) -> None:
    """Of a job that has one: it may come to its end now."""
    model = handle.job.recipe.model
    if gate := model.options.get("gate"):
        Path(gate).touch()


def end(handle: JobHandle) -> Result:
    """Wait for it, and see that nothing of it runs on."""
    open_gate(handle)
    result = handle.wait(WAIT_SECONDS)
    assert_nothing_runs(handle.job)
    return result


def succeeded(handle: JobHandle) -> dict[str, Any]:
    """The final status of a job that must have gone well."""
    result = end(handle)
    logs = "\n".join(f"--- {name}\n{path.read_text()[-2000:]}" for name, path in handle.logs().items())
    assert result.ok, f"{result.state}: {result.message}\n{result.hint}\n{logs}"
    assert result.status is not None
    assert result.status["samples"] == result.status["total_samples"]
    return result.status


def write_csv(path: Path, samples: int, label: Callable[[int], int] = lambda i: i % 2) -> dict[str, Any]:
    """Samples numbered 0…: the number as a category and as a value, and a category that is the same everywhere."""
    lines = ["label,value,number,everywhere", *(f"{label(i)},{i},n{i},x" for i in range(samples))]
    path.write_text("\n".join(lines) + "\n")
    return {
        "format": "csv",
        "train": [str(path)],
        "label": "label",
        "dense": ["value"],
        "categorical": ["number", "everywhere"],
        "eval_share": 0,
    }


def pid_of(handle: JobHandle, node: str) -> int | None:
    """Of a node that is up. Nodes carry their job's directory in the command line and their own name as the process's."""
    for process in psutil.process_iter():
        try:
            if process.name() == f"dl:{node}" and any(str(handle.directory) in part for part in process.cmdline()):
                return process.pid
        except psutil.NoSuchProcess:
            continue
    return None


def until_trained(handle: JobHandle, samples: int) -> None:
    """Until so many samples are consumed; a job that ends before is an error."""

    def trained() -> bool:
        if handle.status().samples >= samples:
            return True
        assert handle.result() is None, f"the job ended early: {handle.result()}"
        return False

    until(trained, f"{samples} samples", WAIT_SECONDS)


def kill(handle: JobHandle, node: str, number: int = signal.SIGKILL) -> None:
    pid = pid_of(handle, node)
    assert pid is not None, f"{node} is not there to be killed"
    os.kill(pid, number)
