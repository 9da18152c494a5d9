"""What looking after a job's pods costs, against a real API server without nodes: statuses are written by another process.

``k8s.calls_per_node``: calls of the API for each node that is launched and ended. ``k8s.calls_per_minute``: calls in a minute in
which nothing happens. ``k8s.launch_s``: from a plan change of twenty nodes until all their pods exist; ``k8s.resize_s``: from a resize
until the node has it. ``k8s.thousand_pods_s``: until a job of 1,000 nodes has all its pods running and accounted for;
``k8s.loop_held_ms``: the longest that any call of the master's loop took meanwhile, and until they have all ended; ``k8s.cores``: what
the backend has used until they ran. ``k8s.tcp_ratio``: samples/s of ``train.ratio``'s job
whose processes talk over TCP with CURVE, as those in pods of one host do, over the same by Unix sockets.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from _train_worker import make_batches
from common import Figure, arguments, emit, line_of, medians, start_process
from train import job_samples_per_second

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect
from dlrover_lite.backends.k8s.nodes.backend import KubeBackend
from dlrover_lite.backends.k8s.nodes.capacity import Bounds
from dlrover_lite.backends.k8s.objects.manifests import manifests
from dlrover_lite.backends.k8s.objects.node_pod import PodSettings
from dlrover_lite.core.errors import ResizeUnderWay
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.curve import JobKey
from tests.k8s.cluster import HOW, ApiServer, is_there, running

T = TypeVar("T")
SMALL, LARGE = Resources(1.0, 256 * MIB), Resources(2.0, 512 * MIB)
NODES = 20
LOOP_SECONDS = 0.02
"""Seconds between two looks of the master's loop."""
PATIENCE_SECONDS = 300.0


class Bench:
    """A backend in a namespace of its own."""

    def __init__(self, server: ApiServer, directory: Path, name: str) -> None:
        file = str(server.kubeconfig(directory / f"config-{name}", namespace=name))
        self.admin = Calls(connect(environment={"KUBECONFIG": file}), clock=time.monotonic, sleep=time.sleep)
        for one in manifests(name, create_namespace=True):
            self.admin.create(one)
        job = directory / name
        (job / "logs").mkdir(parents=True)
        self._connector = Connector(JobKey.generate())
        settings = PodSettings(
            job=name,
            namespace=name,
            owner_uid="11111111-2222-3333-4444-555555555555",
            kubernetes=Kubernetes(image="one"),
        )
        self.backend = KubeBackend(
            connect(environment={"KUBECONFIG": file}),
            settings,
            Job(job),
            connector=self._connector,
            say=say,
            bounds=Bounds(Resources(10_000.0, 1 << 45)),
        )
        self.backend.start()
        self.kubelet = start_process(str(Path(__file__).with_name("_k8s_statuses.py")), file, name)
        line_of(self.kubelet)
        self.longest = 0.0
        """The longest that a call of the master's loop took, in seconds."""

    def call(self, do: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return do()
        finally:
            self.longest = max(self.longest, time.perf_counter() - began)

    def launch(self, number: int) -> None:
        spec = NodeSpec(f"worker-{number}", "worker", SMALL, "tcp://master:7070")
        self.call(lambda: self.backend.launch(spec))

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Look as a master's loop does, until something is so."""
        end = time.monotonic() + PATIENCE_SECONDS
        version = None
        while not done():
            if time.monotonic() > end:
                raise SystemExit(f"{what}: not within {PATIENCE_SECONDS:g} s")
            seen = self.call(partial(self.backend.observe, after=version))
            if seen is not None:
                version = seen.version
            self.call(self.backend.readings)
            time.sleep(LOOP_SECONDS)

    def exist(self) -> int:
        return len(self.admin.list("Pod")["items"])

    def run(self) -> int:
        """Number of pods that the backend knows to run."""
        pods = list(self.backend.book.pods.values())
        return sum(pod.view is not None and pod.view.is_running for pod in pods)

    def calls(self) -> int:
        return sum(self.backend.calls.counts.values())

    def close(self) -> None:
        self.backend.close()
        self._connector.close()
        assert self.kubelet.stdin is not None
        self.kubelet.stdin.close()
        self.kubelet.wait()


@contextmanager
def bench(server: ApiServer, directory: Path, name: str) -> Iterator[Bench]:
    found = Bench(server, directory, name)
    try:
        yield found
    finally:
        found.close()


def few(server: ApiServer, directory: Path, rounds: int, minute: float) -> list[Figure]:
    launches, resizes = [], []
    with bench(server, directory, "few") as one:
        before = one.calls()
        for round_number in range(rounds):
            numbers = range(round_number * NODES, (round_number + 1) * NODES)
            began = time.perf_counter()
            for number in numbers:
                one.launch(number)
            one.until(lambda: one.exist() >= NODES, "the pods")
            launches.append(time.perf_counter() - began)
            one.until(lambda: one.run() == NODES, "the pods to run")
            resizes.append(_resize(one, f"worker-{numbers[0]}"))
            _end(one, [f"worker-{number}" for number in numbers])
        calls, launched = one.calls() - before, rounds * NODES
        for number in range(launched, launched + NODES):
            one.launch(number)
        one.until(lambda: one.run() == NODES, "the pods to run")
        quiet = one.calls()
        time.sleep(minute)
        per_minute = (one.calls() - quiet) * 60.0 / minute
        counts = dict(one.backend.calls.counts)
    return [
        Figure("k8s.calls_per_node", calls / launched, "calls", "<= 3", detail={"nodes": launched, "calls": counts}),
        Figure("k8s.calls_per_minute", per_minute, "calls", "<= 6", detail={"seconds": minute}),
        Figure("k8s.launch_s", statistics.median(launches), "s", "<= 1", detail={"all": launches, "nodes": NODES}),
        Figure("k8s.resize_s", statistics.median(resizes), "s", "<= 2", detail={"all": resizes}),
    ]


def _resize(one: Bench, node: str) -> float:
    """Resize a node; return how long that takes."""
    began = time.perf_counter()

    def done() -> bool:
        try:
            one.backend.resize(node, LARGE)
        except ResizeUnderWay:
            return False
        pod = one.backend.book.pods[one.backend.book.nodes[node].pod]
        return pod.view is not None and pod.view.actual.memory == LARGE.memory

    one.until(done, "the resize")
    return time.perf_counter() - began


def _end(one: Bench, nodes: list[str]) -> None:
    for node in nodes:
        one.call(partial(one.backend.terminate, node, grace_seconds=0))
    one.until(lambda: not one.backend.book.pods, "the pods to be gone")


def many(server: ApiServer, directory: Path, count: int) -> list[Figure]:
    with bench(server, directory, "many") as one:
        began, cpu = time.perf_counter(), time.process_time()
        for number in range(count):
            one.launch(number)
        one.until(lambda: one.run() == count, f"{count} pods to run")
        seconds, cores = time.perf_counter() - began, time.process_time() - cpu
        detail = {"pods": count, "calls": one.calls()}
        say(
            f"{count} pods: {seconds:.1f} s, the loop held for {1000 * one.longest:.0f} ms, {cores / seconds:.2f} cores"
        )
        _end(one, [f"worker-{number}" for number in range(count)])
        held = 1000 * one.longest
    return [
        Figure("k8s.thousand_pods_s", seconds * 1000 / count, "s", detail=detail),
        Figure("k8s.loop_held_ms", held, "ms", "<= 50", detail={"pods": count}),
        Figure("k8s.cores", cores / seconds, "cores", "<= 1", detail={"pods": count}),
    ]


def over_tcp(directory: Path, rounds: int, samples: int) -> Figure:
    """Real jobs on this machine: without a cluster nothing else takes its cores."""
    make_batches(directory / "batches.npz")
    os.environ["DLROVER_LITE_HOME"] = str(directory / "home")
    bench = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [bench, os.environ.get("PYTHONPATH", "")]))
    data = {"format": "synthetic", "samples": samples, "eval_samples": 0}
    train = partial(job_samples_per_second, directory, data, 1, samples)
    rates = medians({"tcp": partial(train, transport="tcp"), "unix": train}, rounds, warm_up=min(1, rounds - 1))
    return Figure("k8s.tcp_ratio", rates["tcp"] / rates["unix"], "x", ">= 0.8", rates["unix"], {"rounds": rounds})


def say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    options = arguments("What looking after a job's pods costs.")
    if not is_there():
        raise SystemExit(f"bench/k8s.py {HOW}")
    with tempfile.TemporaryDirectory() as path, running(Path(path)) as server:
        figures = few(server, Path(path), 2 if options.quick else 5, 20.0 if options.quick else 180.0)
        figures += many(server, Path(path), 100 if options.quick else 1000)
    with tempfile.TemporaryDirectory() as path:
        figures.append(over_tcp(Path(path), 1 if options.quick else 5, 400_000 if options.quick else 1_200_000))
    emit(options, figures)


if __name__ == "__main__":
    main()
