"""Small real jobs for the tests of the commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

RECIPE = """\
version: 1
name: {name}
model: {{use: wide_deep, options: {{embedding_dim: 4}}}}
data: {{format: synthetic, samples: {samples}, eval_samples: 1000, ids_per_field: 200}}
training: {{batch_size: 256, evaluate_every: 2000}}
resources:
  ps: {{count: 1, cores: 0.5, memory: 1GiB}}
  worker: {{count: 1, cores: 0.5, memory: 1GiB}}
"""
PATIENCE_SECONDS = 200.0
"""With a command: a machine that has much else to do takes ten times as long as one that hasn't, and the first job compiles the kernels."""
ENDLESS = 1_000_000_000
"""Samples of a job that doesn't end by itself."""

Command = Callable[..., "subprocess.Popen[str]"]


def write_recipe(directory: Path, name: str, samples: int = 4000) -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(RECIPE.format(name=name, samples=samples))
    return path


def start(arguments: Sequence[str], **settings: Any) -> subprocess.Popen[str]:
    """The command line as a process of its own; in no test's environment but the session's."""
    command = [sys.executable, "-m", "dlrover_lite", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    return subprocess.Popen(command, text=True, env=environment, **pipes)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``run --json`` printed of a job that succeeded, and as ``stderr`` what it said meanwhile."""
    recipe = write_recipe(tmp_path_factory.mktemp("trained"), "trained")
    done = start(["run", str(recipe), "--no-daemon", "--json"])
    out, said = done.communicate(timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, said
    return {**json.loads(out), "stderr": said}
