"""The simulated backend keeps the contract of backends, on a virtual clock: nothing is waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from dlrover_lite.backends.sim.backend import SimBackend
from dlrover_lite.backends.sim.clock import EventClock
from dlrover_lite.backends.sim.cluster import Cluster
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.startup import CLUSTER
from dlrover_lite.backends.sim.process import Process
from dlrover_lite.core.units import MIB
from dlrover_lite.protocol.nodes import NodeSpec
from tests.backends.contract import BackendContract, Scripted

STEP_SECONDS, PATIENCE_SECONDS = 0.01, 1000.0
"""Seconds of the virtual clock that pass between two looks, and after which what is waited for doesn't come any more."""
OWN_BYTES = 20 * MIB
KEPT_FILES, FILE_BYTES = 3, 4 * MIB


class Program:
    """Does what the spec's ``master_endpoint`` says, as ``tests.backends.scripted_nodes`` does in processes."""

    def __init__(self, spec: NodeSpec, write: Callable[[str], None]) -> None:
        self._what, _, self._argument = spec.master_endpoint.partition(":")
        self._id, self._write, self._deaf = spec.id, write, False

    def begin(self, process: Process) -> None:
        self._process = process
        process.hold(OWN_BYTES)
        self._write(f"node {self._id} of a job\n")
        getattr(self, f"_{self._what}")(self._argument)

    def resized(self) -> None:
        pass

    def asked_to_end(self) -> None:
        if not self._deaf:
            self._process.end(-15)

    def ended(self) -> None:
        pass

    def _say(self, text: str) -> None:
        if self._process.running:
            self._write(f"{text}\n")

    def _exit(self, code: str) -> None:
        self._process.end(int(code))

    def _raise(self, text: str) -> None:
        self._write(f"RuntimeError: {text}\n")
        self._process.end(1)

    def _kill(self, signal: str) -> None:
        self._process.end(-int(signal))

    def _stay(self, _: str) -> None:
        pass

    def _ignore(self, _: str) -> None:
        self._deaf = True
        self._say("deaf")

    def _work(self, seconds: str) -> None:
        self._process.do(float(seconds), lambda: self._say("measured"))

    def _allocate(self, argument: str) -> None:
        size, _, seconds = argument.partition(",")
        self._process.hold(OWN_BYTES + int(size))
        self._say("allocated")
        if seconds:
            self._work(seconds)

    def _share(self, size: str) -> None:
        self._process.hold(OWN_BYTES, shared=int(size))
        self._say("shared")

    def _parent(self, size: str) -> None:
        self._process.hold(OWN_BYTES + int(size))
        self._process.do(0.3, lambda: self._say("child holds"))

    def _keep(self, text: str) -> None:
        for number in range(KEPT_FILES):
            self._process.keep(f"notes-{number}", FILE_BYTES, f"{text} {number}")
        self._say("kept")

    def _look(self, _: str) -> None:
        left = self._process.kept
        texts = [str(left[name].content) for name in sorted(left)][:2]
        self._say(" ".join(["found", str(len(left)), "files:" if texts else "files", *texts]))


def scripted_on(cluster: Cluster) -> Scripted:
    written: dict[str, str] = defaultdict(str)

    def program(spec: NodeSpec) -> Program:
        def write(text: str) -> None:
            written[spec.id] += text

        return Program(spec, write)

    def until(condition: Callable[[], object], what: str) -> None:
        end = cluster.clock.now + PATIENCE_SECONDS
        while not condition():
            assert cluster.clock.now < end, f"waited in vain for {what}"
            cluster.clock.run_until(cluster.clock.now + STEP_SECONDS)

    def wait_for_output(node: str, text: str) -> None:
        until(lambda: text in written[node], f"{text!r} of {node}")

    backend = SimBackend(cluster, program, startup=CLUSTER, seed=1)
    return Scripted(
        backend,
        wait_for_output,
        written.__getitem__,
        another=lambda: backend,
        close=lambda: None,
        until=until,
        clock=cluster.clock,
    )


@pytest.fixture
def scripted() -> Scripted:
    return scripted_on(Cluster({"a": Machine(4.0), "b": Machine(2.0, 1.3), "c": Machine(8.0, 0.8)}, EventClock()))


class TestSimBackend(BackendContract):
    """On three machines that are unlike, with starts that take as long as pods' do."""
