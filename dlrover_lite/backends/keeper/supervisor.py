"""What looks after nodes: their template, their limits, and the memory that outlives them. A keeper has one, on a machine or in a pod."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dlrover_lite.backends.keeper import children
from dlrover_lite.backends.keeper.node_memory import NodeMemory
from dlrover_lite.backends.keeper.nodes import Nodes, SendSignal, describe_end
from dlrover_lite.backends.keeper.options import NodeOptions
from dlrover_lite.backends.keeper.protocol import Channel, Exited, Fork, Forked, FromTemplate, Ready, Signal
from dlrover_lite.backends.keeper.restarts import Restarts
from dlrover_lite.backends.limits.base import Limiter, check_resources
from dlrover_lite.backends.limits.node_limits import NodeLimits
from dlrover_lite.core.errors import BackendError, JobError
from dlrover_lite.core.processes.limits import exhausted
from dlrover_lite.core.processes.log import log
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.transport.polling import Poller, Source

__all__ = ["NodeSupervisor", "start_error"]

Failed = Callable[[str, str], None]
"""Function that is told that no more nodes can be started: why, and what to do about it."""


class NodeSupervisor:
    """Starts nodes and ends them, in the loop of a keeper: methods never block.

    A template that was killed is started again, and nodes that were launched meanwhile wait for it.
    """

    def __init__(
        self,
        job: Job,
        runtime: Path,
        options: NodeOptions,
        limiter: Limiter,
        *,
        variables: dict[str, str],
        has_all: bool = True,
    ) -> None:
        """``runtime``: a directory that only this user can enter. ``variables`` of the environment are given to all nodes. ``has_all``: all
        nodes of the job are started here."""
        self.job = job
        self.options = options
        self.nodes = Nodes(has_all=has_all)
        self.fences = NodeLimits(limiter)
        self.memory = NodeMemory(runtime, self.nodes)
        self.template: int | None = None
        self.closed = ""
        """Why nothing is launched any more; empty while it is."""
        self._clock: Callable[[], float] = time.monotonic
        self._variables = variables
        self._channel: Channel[FromTemplate] | None = None
        """Our end of the channel to the template; None before ``start``."""
        self._template_ready = False
        self._unsent: list[Fork] = []
        self._restarts = Restarts(options.restarts, options.longest_restart_delay_seconds)

    def start(self, poller: Poller, failed: Failed) -> None:
        """Start the template; from now on ``poller`` waits for what concerns nodes. Raises OSError."""
        self._poller = poller
        self._failed = failed
        self._spawn_template()
        if (memory := self.memory.fileno()) is not None:
            poller.register(memory)

    # --- in the loop ------------------------------------------------------------------------------------------------

    def hear(self, ready: list[Source]) -> None:
        """Take what the template says; to be called before ``reaped``."""
        if self._channel is not None and self._channel.socket.fileno() in ready:
            self._take_template_messages(self._channel)

    def act(self) -> None:
        """Do what is due."""
        now = self._clock()
        self.fences.act(now)
        self._send(self.nodes.due(now))
        if not self.closed and self._restarts.take(now):
            self._restart_template()
        self.memory.serve()

    def next_due(self) -> float | None:
        restart = None if self.closed else self._restarts.due_at
        return min(
            (at for at in (restart, self.nodes.next_due(), self.fences.next_due()) if at is not None), default=None
        )

    def reaped(self, ended: list[tuple[int, int]]) -> None:
        """Take note of processes that have ended, with their exit codes; those that aren't nodes are passed over."""
        if any(pid == self.template for pid, _ in ended):
            while (
                self._channel is not None and self._channel.open
            ):  # its last words, up to the end that its death has made
                self._take_template_messages(self._channel)
            self.nodes.taken_along([fork.spec.id for fork in self._unsent])
        # The template last: it takes the nodes along, and how they ended must be known before.
        for pid, exit_code in sorted(ended, key=lambda end: end[0] == self.template):
            if pid == self.template:
                self.template = None
                self._template_ended(exit_code)
            elif (node := self.nodes.with_pid(pid)) is not None:
                self._node_ended(node.spec.id, exit_code)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def launch(self, spec: NodeSpec) -> None:
        """Start a node, at once or when the template is ready. Raises BackendError."""
        entry = self.options.entries.get(spec.role)
        if entry is None:
            raise BackendError(f"Node {spec.id}: no nodes of role {spec.role} are started here")
        if spec.id in self.nodes.by_id:
            return
        if self.closed:
            raise BackendError(f"Node {spec.id} can't be launched any more: {self.closed}")
        check_resources(spec.id, spec.resources)
        self.nodes.check(spec)
        enter = self.fences.create(spec)
        self.nodes.launch(spec)
        self.memory.take_over(spec.id, spec.follows)
        fork = Fork(spec, entry, enter, self.memory.address)
        if self._template_ready:
            self._tell(fork)
        else:
            self._unsent.append(fork)

    def resize(self, node: str, resources: Resources) -> None:
        """Change the limits of a node. Raises BackendError."""
        self.nodes.known(node)
        check_resources(node, resources)
        self.fences.resize(node, resources)

    def terminate(self, node: str, grace_seconds: float, *, keep_memory: bool = False) -> None:
        self._send(self.nodes.terminate(node, grace_seconds, now=self._clock(), keep_memory=keep_memory))
        self._let_go(node)
        for fork in [fork for fork in self._unsent if fork.spec.id == node]:
            self._unsent.remove(fork)
            self._node_ended(node, None)

    def terminate_all(self, grace_seconds: float) -> None:
        for node in self.nodes.alive():
            self.terminate(node.spec.id, grace_seconds)

    def preempt_all(self, why: str, grace_seconds: float) -> None:
        """Have all nodes end, for a reason that isn't who launched them."""
        self._send(self.nodes.preempt(why, grace_seconds, now=self._clock()))
        for fork in self._unsent:
            self._node_ended(fork.spec.id, None)
        self._unsent.clear()

    def close_to_new(self, why: str) -> None:
        """Launch nothing from now on, nor start the template again. The first reason stays."""
        self.closed = self.closed or why

    def kill(self) -> None:
        """Kill the template, and the nodes without its help; where the kernel ties nodes to the template it has done that already."""
        self.kill_template()
        self.kill_nodes()

    def kill_template(self) -> None:
        if self.template is not None:
            with suppress(ProcessLookupError):
                os.kill(self.template, signal.SIGKILL)

    def kill_nodes(self) -> None:
        for node in self.nodes.alive():
            if node.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(node.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of all memory, and remove all limits, when no process is left."""
        self.fences.close()
        self.memory.close()

    def _node_ended(self, node: str, exit_code: int | None, detail: str = "") -> None:
        over_memory = self.fences.ended(node, now=self._clock())
        self.nodes.ended(node, exit_code, at=time.time(), detail=detail, over_memory=over_memory)
        self._let_go(node)

    def _let_go(self, node: str) -> None:
        """Let go of the memory of a node that has ended and is followed by nobody."""
        known = self.nodes.by_id[node]
        if known.phase == "ended" and known.leaves_nothing:
            self.memory.release(node)

    def _send(self, signals: list[SendSignal]) -> None:
        for due in signals:
            self._tell(Signal(due.node.spec.id, due.number))

    def _tell(self, message: Fork | Signal) -> None:
        if self._channel is not None:
            self._channel.send(message)

    # --- the template -----------------------------------------------------------------------------------------------

    def _spawn_template(self) -> None:
        """Start the template, and listen to it from now on. Raises OSError."""
        channel, template_end = socket.socketpair()
        with template_end:
            self.template = children.spawn_template(
                self.job, template_end.fileno(), self.options.imported, self._variables
            )
        self._poller.register(channel.fileno())
        self._channel = Channel(channel, FromTemplate)

    def _take_template_messages(self, channel: Channel[FromTemplate]) -> None:
        at, now = time.time(), self._clock()
        for message in channel.receive():
            if isinstance(message, Ready):
                self._template_ready = True
                for fork in self._unsent:
                    channel.send(fork)
                self._unsent.clear()
            elif isinstance(message, Forked):
                self.fences.started(message.node, message.pid)
                self._send(self.nodes.started(message.node, message.pid, now=now, at=at))
            elif isinstance(message, Exited):
                self._node_ended(message.node, message.exit_code, message.detail)
        if not channel.open:
            self._poller.unregister(channel.socket.fileno())

    def _template_ended(self, exit_code: int) -> None:
        what = "while the job ran" if self._template_ready else "before it was ready"
        log(f"The template has ended {what} ({describe_end(exit_code)})")
        again = exit_code < 0 and not self.closed and self._restarts.after_death(self._clock())
        if not self.closed and not again:
            lines = self.job.last_log_lines("template")
            self._fail(
                f"The process that starts this job's nodes ended {what} ({describe_end(exit_code)})"
                + (f":\n{lines}" if lines else "."),
            )
        self._template_ready = False
        for node in self.nodes.alive():
            if node.phase == "starting":
                if all(fork.spec.id != node.spec.id for fork in self._unsent):
                    self._node_ended(node.spec.id, None)
            elif node.pid is not None:
                # Linux has killed it already, and made it our child.
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(node.pid, signal.SIGKILL)
                if not children.is_ours(node.pid):
                    self._node_ended(node.spec.id, None)

    def _restart_template(self) -> None:
        """Start the template again. Its nodes have ended with it; those launched from now on wait until it is ready."""
        if self._channel is not None:
            self._channel.socket.close()  # heard to its end
            self._channel = None
        try:
            self._spawn_template()
        except OSError as error:
            self._fail(f"Can't start the job's template again: {error}")
            return
        log(f"The template is started again, as process {self.template}")

    def _fail(self, message: str) -> None:
        """Start nothing from now on; nodes that wait for the template have ended for it."""
        self.close_to_new(message)
        self._failed(message, f"Its log: {self.job.log('template')}")
        for fork in self._unsent:
            self._node_ended(fork.spec.id, None, message)
        self._unsent.clear()


def start_error(error: OSError) -> JobError:
    """Return the error of a job whose processes can't be started."""
    why, hint = exhausted(error) or (error, "")
    return JobError(f"Can't start the job's processes: {why}", hint=hint)
