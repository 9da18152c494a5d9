"""Slots that move from one parameter server to another while a worker trains.

``migrate.move_s``, ``migrate.stall_ms`` and ``migrate.throughput_kept``: half of 1 GiB of rows (values and Adagrad state) moves between
two PS of a real job: how long it takes, the longest pause between two steps of the worker over its usual step, and its samples/s
meanwhile over those before. ``migrate.wire_ratio``: bytes/s of such a move with nothing else going on, over those of two processes that
gather, send over ipc and scatter the same bytes. ``migrate.census_errors``: jobs of the census recipe go from 1 PS to 2, to 4 and
back to 1 while they train; then each counter is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _migrate_nodes import ROW_BYTES
from _migrate_wire import limit_seconds, move_seconds
from _migrate_worker import FILL
from _train_worker import BATCH_SIZE, FEATURES, TIMES, make_batches
from common import Figure, arguments, emit

GIB = 1 << 30
TABLE_ROW_BYTES = 4 * 16 * 2
"""Values and Adagrad state of a row of dim 16."""
WARM_UP_SECONDS = 3.0
USUAL_SECONDS = 4.0
PATIENCE_SECONDS = 180.0
LOOK_SECONDS = 0.05
"""Each look takes the CPU of this process and the master: what is measured before a move is looked at as often."""


class Watch:
    """Looks at a running job."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def until(self, done: Callable[[Any], bool], what: str) -> float:
        """Looks at the status until ``done``; the time of the look, on the monotonic clock."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            status = self.handle.status()
            now = time.monotonic()
            if status.state in ("failed", "stopped", "succeeded"):
                raise SystemExit(f"the job has {status.state} before {what}: {status.message}")
            if done(status):
                return now
            time.sleep(LOOK_SECONDS)
        raise SystemExit(f"{what}: not within {PATIENCE_SECONDS:g} s; see {self.handle.directory}")


# --- a job that trains meanwhile ------------------------------------------------------------------------------------------


class Job(Watch):
    """Tables of ``table_bytes``, on so many PS; trains until it is stopped. ``checkpoint`` as in a recipe; ``beginning`` with one."""

    def __init__(
        self, home: Path, table_bytes: int, *, servers: int = 2, checkpoint: Any = "off", beginning: Any = None
    ) -> None:
        from dlrover_lite.backends.keeper.options import KeeperOptions
        from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
        from dlrover_lite.client.handle import launch
        from dlrover_lite.jobs.backend import RunOptions
        from dlrover_lite.recipe.load import parse_recipe

        make_batches(home / "batches.npz")
        self.fill = table_bytes // (TABLE_ROW_BYTES * FEATURES * BATCH_SIZE)
        (home / FILL).write_text(str(self.fill))
        recipe = parse_recipe(
            {
                "version": 1,
                "name": "bench-migrate",
                "model": {"use": "wide_deep", "options": {"embedding_dim": 16, "hidden": [256, 128]}},
                "data": {"format": "synthetic", "samples": 1_000_000_000, "eval_samples": 0},
                "training": {
                    "batch_size": BATCH_SIZE,
                    "shuffle": False,  # the first minibatches are those that fill the tables
                    "optimizer": {"use": "adagrad", "learning_rate": 0.02},
                },
                "resources": {
                    "ps": {"count": servers, "cores": 1, "memory": 4 * GIB},
                    "worker": {"count": 1, "cores": 1.5, "memory": GIB},
                },
                "export": {"format": "none"},
                "checkpoint": checkpoint,
                "directory": str(home),
            }
        )
        entries = {"ps": "dlrover_lite.ps.server.main:main", "worker": "_migrate_worker:main"}
        backend = LocalJobs(KeeperOptions(entries=entries))  # type: ignore[arg-type]
        super().__init__(launch(recipe, options=RunOptions(), beginning=beginning, backend=backend))

    def until_full(self) -> None:
        self.until(lambda status: status.rows >= self.fill * BATCH_SIZE * FEATURES, "the tables were full")

    def move(self, slots: Any, target: str) -> tuple[float, float]:
        """From the command until the move is committed; returns when both PS have tidied up too."""
        began = time.monotonic()
        self.handle.move(slots, target)
        ended = self.until(
            lambda status: all(move.state == "committed" for move in status.moves), "the move was committed"
        )
        self.until(lambda status: not status.moves, "both had tidied up")
        return began, ended

    def end(self) -> list[float]:
        """When each minibatch was read, on the monotonic clock, in seconds."""
        self.handle.stop(now=True)
        self.handle.wait()
        return list(json.loads((self.handle.directory / TIMES.format(node="worker-0")).read_text()))


def moves_while_training(home: Path, table_bytes: int, moves: int) -> list[dict[str, float]]:
    """What each move of half of the tables cost."""
    import numpy as np

    from dlrover_lite.core.slot_sets import SLOTS

    job = Job(home, table_bytes)
    windows: list[tuple[float, float, float]] = []
    try:
        job.until_full()
        odd = np.arange(SLOTS) % 2 == 1
        job.move(~odd, "ps-0")
        job.move(odd, "ps-0")
        for number in range(moves):
            before = time.monotonic() + WARM_UP_SECONDS + USUAL_SECONDS
            job.until(lambda _, before=before: time.monotonic() >= before, "it had trained for a while")  # type: ignore[misc]
            windows.append((time.monotonic(), *job.move(odd, f"ps-{(number + 1) % 2}")))
    finally:
        times = job.end()
    return [_cost(times, *window) for window in windows]


def _cost(times: list[float], before: float, began: float, ended: float) -> dict[str, float]:
    usual = _gaps(times, before - USUAL_SECONDS, before)
    meanwhile = _gaps(times, began, ended)
    step = statistics.median(usual)
    return {
        "move_s": ended - began,
        "stall_ms": 1000 * (max(meanwhile) - step),
        "usual_longest_ms": 1000 * (max(usual) - step),
        "kept": (len(meanwhile) / sum(meanwhile)) / (len(usual) / sum(usual)),
        "step_ms": 1000 * step,
    }


def _gaps(times: list[float], start: float, end: float) -> list[float]:
    """Between reads, from the last before ``start`` to the first after ``end``."""
    inside = [i for i, at in enumerate(times) if start <= at <= end]
    around = times[max(0, inside[0] - 1) : inside[-1] + 2]
    return [later - earlier for earlier, later in pairwise(around)]


# --- census -----------------------------------------------------------------------------------------------------------


def census_errors(runs: int) -> int:
    """Counters that are wrong after runs of the census recipe that go from 1 PS to 2, to 4 and back to 1."""
    errors = 0
    for number in range(runs):
        optimizer = ("adagrad", "sgd", "adam", "ftrl")[number % 4]
        found = census_run(optimizer)
        print(f"census {number + 1} of {runs}, {optimizer}: {found} errors", file=sys.stderr, flush=True)
        errors += found
    return errors


def census_run(optimizer: str) -> int:
    from dlrover_lite.client.census import check
    from dlrover_lite.client.handle import launch
    from dlrover_lite.recipe.load import load_recipe

    overrides = {
        "training.optimizer.use": optimizer,
        "data.samples": 1 << 19,
        "resources.ps.cores": 0.25,
        "resources.ps.memory": GIB // 2,
    }
    path = Path(__file__).parent.parent / "recipes" / "census.yaml"
    recipe = load_recipe(path, overrides=overrides)
    handle = launch(recipe)
    watch = Watch(handle)
    try:
        watch.until(lambda status: status.samples > 50_000, "it trained")
        for servers in (2, 4, 1):
            handle.scale(ps=servers)
            watch.until(lambda status, wanted=servers: placed(status, wanted), f"{servers} PS share the slots")  # type: ignore[misc]
        status = handle.status()
        if status.samples >= status.total_samples:
            raise SystemExit("the job has trained on everything before it had been scaled: make it longer")
        result = handle.wait(PATIENCE_SECONDS)
    except BaseException:
        handle.stop()
        handle.wait()
        raise
    if not result.ok:
        raise SystemExit(f"{result.message}\n{result.hint}")
    return int(check(handle.job).errors)


def placed(status: Any, servers: int) -> bool:
    """So many PS share the slots, all others have left, and nothing moves."""
    slots = [node.slots or 0 for node in status.nodes if node.role == "ps" and not node.state.startswith("ended")]
    return len(slots) == servers and all(slots) and not status.moves


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--moves", type=int, help="moves while training (default 5; 2 with --quick)")
    parser.add_argument("--runs", type=int, help="census jobs (default 20; 2 with --quick)")
    parser.add_argument("--only", choices=["training", "wire", "census"], help="measure one of the three")


def main() -> None:
    options = arguments(__doc__ or "", extend)
    paths = [str(Path(__file__).parent), str(Path(__file__).resolve().parent.parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH", "")]))
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-bench-") as home:
        os.environ.setdefault("DLROVER_LITE_HOME", home)
        if options.only in (None, "wire"):
            figures += wire_figures(options)
        if options.only in (None, "training"):
            figures += training_figures(Path(home), options)
        if options.only in (None, "census"):
            runs = options.runs or (2 if options.quick else 20)
            figures.append(
                Figure("migrate.census_errors", census_errors(runs), "counters", "<= 0", detail={"runs": runs})
            )
    emit(options, figures)


def wire_figures(options: argparse.Namespace) -> list[Figure]:
    rows = (GIB // 4 if options.quick else GIB) // TABLE_ROW_BYTES
    limits, moves = [], []
    for _ in range(2 if options.quick else 5):
        limits.append(limit_seconds(rows))
        moves += move_seconds(rows, rounds=2)
    limit, moved = statistics.median(limits), statistics.median(moves)
    gib = rows / 2 * ROW_BYTES / GIB
    detail = {"gib_per_s": gib / moved, "limit_gib_per_s": gib / limit, "rows": rows // 2}
    return [Figure("migrate.wire_ratio", limit / moved, "x", ">= 0.5", limit, detail)]


def training_figures(home: Path, options: argparse.Namespace) -> list[Figure]:
    moves = options.moves or (2 if options.quick else 5)
    costs = moves_while_training(home, GIB // 4 if options.quick else GIB, moves)
    medians = {name: statistics.median(cost[name] for cost in costs) for name in costs[0]}
    worst = {"move_s": max, "stall_ms": max, "kept": min}
    detail = {name: {"worst": function(cost[name] for cost in costs)} for name, function in worst.items()}
    baseline = medians["step_ms"]
    return [
        Figure("migrate.move_s", medians["move_s"], "s", "<= 5", detail=detail["move_s"]),
        Figure(
            "migrate.stall_ms",
            medians["stall_ms"],
            "ms",
            "<= 100",
            baseline,
            {**detail["stall_ms"], "usual_longest_ms": medians["usual_longest_ms"]},
        ),
        Figure("migrate.throughput_kept", medians["kept"], "x", ">= 0.8", detail=detail["kept"]),
    ]


if __name__ == "__main__":
    main()
