"""What profiling costs: ``profile.cost``, the throughput of a real job (1 PS, 1 worker) with it over without, in interleaved rounds.

Without, nodes measure and tell nothing for profiles, and the master makes none. ``profile.cpu_cost`` is the same of the CPU seconds that
master, PS and worker take for a sample: other processes on the machine disturb it less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from _profiling_nodes import MASTER_CPU, OFF
from _train_worker import BATCH_SIZE, TIMES, make_batches
from common import Figure, arguments, emit

MIB = 1 << 20
WARM_UP_SECONDS = 2.0


class Measured(NamedTuple):
    samples_per_second: float
    cpu_seconds_per_sample: float


def measure(directory: Path, samples: int, *, profiled: bool) -> Measured:
    from dlrover_lite.backends.local.options import KeeperOptions
    from dlrover_lite.jobs.handle import launch
    from dlrover_lite.recipe.load import parse_recipe, resolved_yaml

    role = {"count": 1, "cores": 1, "memory": 2048 * MIB}
    recipe = parse_recipe(
        {
            "version": 1,
            "name": "bench-profiling",
            "model": {"use": "wide_deep", "options": {"embedding_dim": 16, "hidden": [256, 128]}},
            "data": {"format": "synthetic", "samples": samples, "eval_samples": 0},
            "training": {"batch_size": BATCH_SIZE},
            "resources": {"ps": role, "worker": role},
            "export": {"format": "none"},
            "checkpoint": "off",
            "directory": str(directory),
        }
    )
    os.environ[OFF] = "" if profiled else "1"
    options = KeeperOptions(
        master=[sys.executable, "-P", str(Path(__file__).with_name("_profiling_nodes.py"))],
        entries={"ps": "_profiling_nodes:server", "worker": "_profiling_nodes:worker"},
    )
    handle = launch(recipe, resolved_yaml(recipe), options=options)
    result = handle.wait()
    if not result.ok or result.status is None:
        raise SystemExit(f"{result.message}\n{result.hint}\n{result.traceback}")
    reads = json.loads((handle.directory / TIMES.format(node="worker-0")).read_text())
    start, end = reads[0] + WARM_UP_SECONDS, reads[-1]
    minibatches = sum(start <= at < end for at in reads)
    nodes: list[dict[str, Any]] = result.status["nodes"]
    cpu = sum(node["cpu_seconds"] for node in nodes) + float((handle.directory / MASTER_CPU).read_text())
    return Measured(minibatches * BATCH_SIZE / (end - start), cpu / samples)


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 7; 2 with --quick)")


def main() -> None:
    options = arguments(__doc__ or "", extend)
    bench = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [bench, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("DLROVER_LITE_HOME", home)
        make_batches(Path(home) / "batches.npz")
        samples = 400_000 if options.quick else 1_200_000
        subjects = {profiled: partial(measure, Path(home), samples, profiled=profiled) for profiled in (True, False)}
        emit(options, figures(rounds_of(subjects, options.rounds or (2 if options.quick else 7))))


def rounds_of(subjects: Mapping[bool, Callable[[], Measured]], rounds: int) -> dict[bool, list[Measured]]:
    """One after the other, every second round the other way around; the first round doesn't count."""
    found: dict[bool, list[Measured]] = {profiled: [] for profiled in subjects}
    for number in range(-1, rounds):
        for profiled in list(subjects)[:: 1 if number % 2 else -1]:
            measured = subjects[profiled]()
            if number >= 0:
                found[profiled].append(measured)
    return found


def figures(found: dict[bool, list[Measured]]) -> list[Figure]:
    """Medians of the ratios of each round."""
    pairs = list(zip(found[True], found[False], strict=True))
    rates = [on.samples_per_second / off.samples_per_second for on, off in pairs]
    costs = [on.cpu_seconds_per_sample / off.cpu_seconds_per_sample for on, off in pairs]
    rate = statistics.median(off.samples_per_second for _, off in pairs)
    cpu = statistics.median(off.cpu_seconds_per_sample for _, off in pairs)
    return [
        Figure("profile.cost", statistics.median(rates), "x", ">= 0.99", rate, {"rounds": rates}),
        Figure("profile.cpu_cost", statistics.median(costs), "x", "<= 1.01", cpu, {"rounds": costs}),
    ]


if __name__ == "__main__":
    main()
