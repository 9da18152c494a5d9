"""What every backend must do. A backend's own test file subclasses ``BackendContract`` and provides ``scripted``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dlrover_lite.backends.base import Backend, NodeEvent, NodeSpec, Role
from dlrover_lite.errors import BackendError
from dlrover_lite.units import Resources


@dataclass
class Scripted:
    """A backend, and nodes that behave as told.

    ``exit:CODE``, ``raise:TEXT``, ``kill:SIGNAL`` (by itself), ``stay`` (until SIGTERM), ``ignore`` (SIGTERM; prints ``deaf``
    once it does). A node of role ps uses half a second of CPU, prints ``measured`` and stays.
    """

    backend: Backend
    wait_for_output: Callable[[str, str], None]
    """(node, text): until the node has printed it."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def spec(self, behaviour: str, role: Role = "worker") -> NodeSpec:
        return NodeSpec(f"{role}-{next(self.numbers)}", role, Resources(1.0, 1 << 28), behaviour)

    def launch(self, behaviour: str, role: Role = "worker") -> str:
        spec = self.spec(behaviour, role)
        self.backend.launch(spec)
        return spec.id

    def event(self, node: str, kind: str) -> NodeEvent:
        """Waits for it."""
        after = 0
        while True:
            events = self.backend.events(after, timeout_seconds=20)
            assert events, f"no {kind} of {node} within 20 s"
            for event in events:
                if (event.node, event.kind) == (node, kind):
                    return event
            after = events[-1].number


class BackendContract:
    def test_capacity_is_something(self, scripted: Scripted) -> None:
        capacity = scripted.backend.capacity()
        assert capacity.cores > 0
        assert capacity.memory > 0

    def test_a_node_starts_and_ends(self, scripted: Scripted) -> None:
        node = scripted.launch("exit:0")
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.exit_code) == ("Succeeded", 0)
        assert scripted.event(node, "started").number < ended.number

    @pytest.mark.parametrize(
        ("behaviour", "reason", "exit_code", "detail"),
        [
            ("exit:3", "UserError", 3, ""),
            ("exit:7", "Unknown", 7, "exit code 7"),
            ("raise:out of luck", "Unknown", 1, "exit code 1"),
            ("kill:9", "Killed", -9, "SIGKILL"),
            ("kill:11", "Killed", -11, "SIGSEGV"),
        ],
    )
    def test_exit_reasons(self, scripted: Scripted, behaviour: str, reason: str, exit_code: int, detail: str) -> None:
        ended = scripted.event(scripted.launch(behaviour), "exited")
        assert (ended.reason, ended.exit_code) == (reason, exit_code)
        assert detail in ended.detail

    def test_events_are_numbered_and_can_be_resumed(self, scripted: Scripted) -> None:
        for node in [scripted.launch("exit:0"), scripted.launch("exit:0")]:
            scripted.event(node, "exited")
        events = scripted.backend.events(0)
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert scripted.backend.events(2) == events[2:]
        assert scripted.backend.events(len(events)) == []

    def test_waiting_for_events_ends_with_the_first_one(self, scripted: Scripted) -> None:
        seen = len(scripted.backend.events(0))
        scripted.launch("exit:0")
        assert scripted.backend.events(seen, timeout_seconds=20)[0].number == seen + 1

    def test_launching_again_changes_nothing(self, scripted: Scripted) -> None:
        spec = scripted.spec("exit:0")
        scripted.backend.launch(spec)
        scripted.backend.launch(spec)
        last = scripted.event(spec.id, "exited")
        scripted.backend.launch(spec)
        other = scripted.launch("exit:0")
        assert scripted.event(other, "started").number == last.number + 1
        scripted.event(other, "exited")

    def test_termination(self, scripted: Scripted) -> None:
        node = scripted.launch("stay")
        scripted.event(node, "started")
        scripted.backend.terminate(node, grace_seconds=20)
        scripted.backend.terminate(node, grace_seconds=20)
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.detail) == ("Killed", "ended on request (SIGTERM)")
        scripted.backend.terminate(node, grace_seconds=0)  # of an ended node: nothing happens
        assert scripted.backend.events(ended.number) == []

    def test_termination_right_after_launch(self, scripted: Scripted) -> None:
        node = scripted.launch("stay")
        scripted.backend.terminate(node, grace_seconds=20)
        assert scripted.event(node, "exited").reason == "Killed"

    @pytest.mark.parametrize("grace_seconds", [0.0, 0.05])
    def test_a_deaf_node_is_killed(self, scripted: Scripted, grace_seconds: float) -> None:
        node = scripted.launch("ignore")
        scripted.wait_for_output(node, "deaf")
        scripted.backend.terminate(node, grace_seconds=grace_seconds)
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.exit_code) == ("Killed", -9)
        assert "killed on request" in ended.detail

    def test_a_shorter_grace_overrides(self, scripted: Scripted) -> None:
        node = scripted.launch("ignore")
        scripted.wait_for_output(node, "deaf")
        scripted.backend.terminate(node, grace_seconds=1000)
        scripted.backend.terminate(node, grace_seconds=0)
        assert scripted.event(node, "exited").reason == "Killed"

    def test_terminating_a_node_that_never_was_is_refused(self, scripted: Scripted) -> None:
        with pytest.raises(BackendError, match="nobody"):
            scripted.backend.terminate("nobody", grace_seconds=1)

    def test_usage(self, scripted: Scripted) -> None:
        node = scripted.launch("", role="ps")
        scripted.wait_for_output(node, "measured")
        usage = scripted.backend.usage(node)
        assert usage is not None
        assert usage.cpu_seconds >= 0.4
        assert 1 << 20 < usage.memory <= usage.peak_memory
        scripted.backend.terminate(node, grace_seconds=0)
        scripted.event(node, "exited")
        assert scripted.backend.usage(node) is None
        assert scripted.backend.usage("nobody") is None

    def test_logs_hold_the_output(self, scripted: Scripted) -> None:
        node = scripted.launch("raise:out of luck")
        scripted.event(node, "exited")
        text = Path(scripted.backend.logs(node)).read_text()
        assert text.startswith(f"node {node} ")
        assert "RuntimeError: out of luck" in text

    def test_a_node_id_is_no_path(self, scripted: Scripted) -> None:
        with pytest.raises(BackendError, match="node's id"):
            scripted.backend.launch(NodeSpec("../up", "worker", Resources(1.0, 1 << 28), "exit:0"))
