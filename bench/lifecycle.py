"""How soon a job goes on when one of its processes is killed (kill -9).

``lifecycle.worker_back_s``: from the kill of a worker until the master has the first report of training by the one that replaces it;
``lifecycle.master_back_s``: from the kill of the master until it answers again and the job's samples grow. Each round is a real job of
its own, since the second death of a job waits longer than the first. The baseline is a fresh ``python -c "import torch"``: what a node
would have to pay at least, were it not forked from a warm template.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import zmq
from common import Figure, arguments, emit

from dlrover_lite.client.handle import JobHandle, launch
from dlrover_lite.core.errors import DeadlineExceeded
from dlrover_lite.core.processes.identity import send_signal, wait_for_end
from dlrover_lite.core.units import GIB
from dlrover_lite.protocol.messages import MasterReplies
from dlrover_lite.protocol.questions import NodeStatus, Status, StatusRequest, Story, StoryRequest
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.transport.client import Client

RECIPE: dict[str, Any] = {
    "version": 1,
    "name": "bench-lifecycle",
    "model": {"use": "wide_deep", "options": {"embedding_dim": 8, "hidden": [64, 32]}},
    "data": {"format": "synthetic", "samples": 1_000_000_000, "eval_samples": 0},
    "training": {"batch_size": 512},
    "resources": {
        "ps": {"count": 1, "cores": 0.5, "memory": GIB},
        "worker": {"count": 2, "cores": 0.75, "memory": GIB},
    },
    "export": {"format": "none"},
}
T = TypeVar("T")

LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 120.0
"""For a job that has never run here: its kernels are compiled first."""


# --- looking at a job -------------------------------------------------------------------------------------------------


class Watch:
    """Asks the job's master anew for each look, as somebody who has just come does; a master that is dead doesn't answer."""

    def __init__(self, handle: JobHandle, context: zmq.Context[Any]) -> None:
        self.handle = handle
        self._context = context
        self._endpoint = handle.job.record().master_endpoint

    def ask(self, question: StatusRequest | StoryRequest) -> Any:
        client = Client(self._endpoint, MasterReplies, context=self._context, peer="the master")
        try:
            return client.call(question, deadline_seconds=0.2).body
        except DeadlineExceeded:
            return None
        finally:
            client.close()

    def status(self) -> Status | None:
        answer: Status | None = self.ask(StatusRequest())
        return answer

    def until(self, look: Callable[[], T | None], what: str) -> T:
        """The first look that finds something; one every 20 ms."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if (found := look()) is not None:
                return found
            try:
                result = self.handle.wait(LOOK_SECONDS)
            except TimeoutError:
                continue
            raise SystemExit(f"the job has {result.state} before {what}: {result.message}\n{result.hint}")
        raise SystemExit(f"{what}: not within {PATIENCE_SECONDS:g} s; see {self.handle.directory}")


@contextmanager
def training_job() -> Iterator[Watch]:
    """A job in which every worker trains."""
    recipe = parse_recipe(RECIPE)
    handle = launch(recipe)
    with zmq.Context() as context:
        try:
            watch = Watch(handle, context)
            watch.until(lambda: all_train(watch.status()), "all its workers trained")
            yield watch
        finally:
            handle.stop()
            handle.wait()


def workers(status: Status) -> list[NodeStatus]:
    return [node for node in status.nodes if node.role == "worker"]


def all_train(status: Status | None) -> bool | None:
    return (status is not None and all(node.samples_per_second > 0 for node in workers(status))) or None


def kill_node(job: JobHandle, node: str) -> float:
    """Returns when, in seconds since the epoch."""
    (process,) = [
        process
        for process in psutil.process_iter(["name"])
        if process.info["name"] == f"dl:{node}" and is_of(process, job)
    ]
    at = time.time()
    process.kill()
    return at


def is_of(process: psutil.Process, job: JobHandle) -> bool:
    """By the log that it writes to."""
    return str(job.directory / "logs") in str(Path(f"/proc/{process.pid}/fd/1").readlink())


# --- what is measured -------------------------------------------------------------------------------------------------


def worker_back(watch: Watch) -> dict[str, float]:
    """Seconds from the kill of a worker: until its replacement is up, and until it has reported training."""
    status = watch.until(watch.status, "its status was known")
    known = {node.id for node in workers(status)}
    killed_at = kill_node(watch.handle, workers(status)[0].id)
    node = watch.until(lambda: replacement(watch.status(), known), "a killed worker was replaced")
    up_at = time.time()
    trained_at = watch.until(lambda: first_done(watch.ask(StoryRequest(node)), node), f"{node} trained")
    return {"up": up_at - killed_at, "back": trained_at - killed_at}


def replacement(status: Status | None, known: set[str]) -> str | None:
    """The worker that wasn't there before, once it is up."""
    new = [node.id for node in workers(status) if node.id not in known and node.state == "up"] if status else []
    return new[0] if new else None


def first_done(story: Story | None, node: str) -> float | None:
    """When the master took the node's first report of minibatches done."""
    found = (
        [entry.at for entry in story.entries if entry.node == node and entry.text.startswith("done")] if story else []
    )
    return min(found, default=None)


def master_back(watch: Watch) -> dict[str, float]:
    """Seconds from the kill of the master: until one answers again, and until the samples grow that it counts."""
    master = watch.handle.job.record().master
    assert master is not None
    killed = time.monotonic()
    send_signal(master, signal.SIGKILL)
    wait_for_end(master, None)
    first = watch.until(watch.status, "a killed master answered again")
    answered = time.monotonic()
    watch.until(lambda: grown(watch.status(), first.samples), "its workers went on")
    return {"answers": answered - killed, "back": time.monotonic() - killed}


def grown(status: Status | None, samples: int) -> bool | None:
    return (status is not None and status.samples > samples) or None


def import_torch() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - started


def one_round(only: str | None) -> dict[str, float]:
    """The figures of one round, by name."""
    measured = {"torch": import_torch()}
    with training_job() as watch:
        if only != "master":
            measured |= {f"worker_{name}": value for name, value in worker_back(watch).items()}
        if only != "worker":
            measured |= {f"master_{name}": value for name, value in master_back(watch).items()}
    return measured


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="jobs to measure (default 7; 3 with --quick)")
    parser.add_argument("--only", choices=["worker", "master"], help="measure one figure")


def main() -> None:
    options = arguments(__doc__ or "", extend)
    source = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-bench-") as home:
        os.environ.setdefault("DLROVER_LITE_HOME", home)
        rounds = [one_round(options.only) for _ in range(options.rounds or (3 if options.quick else 7))]
    emit(options, figures(rounds))


def figures(rounds: list[dict[str, float]]) -> list[Figure]:
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    found = []
    for who, earlier, target in (("worker", "up", "<= 1"), ("master", "answers", "<= 2")):
        if f"{who}_back" in medians:
            detail = {
                f"{earlier}_s": medians[f"{who}_{earlier}"],
                "slowest_s": max(each[f"{who}_back"] for each in rounds),
                "rounds": len(rounds),
            }
            value = medians[f"{who}_back"]
            found.append(Figure(f"lifecycle.{who}_back_s", value, "s", target, medians["torch"], detail))
    return found


if __name__ == "__main__":
    main()
