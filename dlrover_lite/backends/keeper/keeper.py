"""The keeper: the small supervisor of one job (``python -m dlrover_lite.backends.keeper.keeper JOBDIR``).

It starts the master and the template at once, and again when they are killed; owns the nodes that the master asks for; and ends everything
when the master ends, when it is told to, or when the command that started the job is gone. Whatever happens to the keeper
itself, on Linux nothing of the job survives it: the kernel kills master and template with it, and the nodes with the template.

Signals: SIGTERM, SIGINT or SIGHUP stops the job cleanly, however often it comes; SIGQUIT kills it at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec

from dlrover_lite.backends.host import linux
from dlrover_lite.backends.keeper import children
from dlrover_lite.backends.keeper.node_memory import NodeMemory
from dlrover_lite.backends.keeper.nodes import Nodes, SendSignal, signal_name
from dlrover_lite.backends.keeper.options import KeeperOptions, KeeperReady
from dlrover_lite.backends.keeper.protocol import Channel, Exited, Fork, Forked, FromTemplate, Ready, Signal
from dlrover_lite.backends.keeper.restarts import Restarts
from dlrover_lite.backends.keeper.runtime_directories import (
    create_runtime_directory,
    record_cgroups,
    remove_runtime_directory,
)
from dlrover_lite.backends.keeper.service import KeeperService
from dlrover_lite.backends.limits.choose import choose
from dlrover_lite.backends.limits.node_limits import NodeLimits
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.core.files.log_stream import pass_over_full_disk
from dlrover_lite.core.process_limits import exhausted
from dlrover_lite.core.process_log import log, log_to
from dlrover_lite.core.processes import identify
from dlrover_lite.jobs.store import Job, JobRecord, Result
from dlrover_lite.protocol.brain_mode import BRAIN_VARIABLE
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE, Connector
from dlrover_lite.transport.polling import Poller

__all__ = ["Keeper", "main"]

_TO_SEE_NODES_END_SECONDS = 2.0
_LONGEST_POLL_SECONDS = 3600.0
_LAST_WORDS_SECONDS = 0.5
"""Longest wait in milliseconds for answers that are on their way when the keeper ends."""
_REASONS: dict[int, str] = {signal.SIGHUP: "the terminal of the command that started the job was closed"}
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)

Phase = Literal["running", "stopping", "draining", "done"]


class Keeper:
    """One event loop. Phases: running; stopping (the master has been asked to end); draining (the master has ended, and
    the nodes it has left are asked to); done."""

    def __init__(self, job: Job, options: KeeperOptions, runtime: Path, tie: int | None) -> None:
        self.job = job
        self.options = options
        self.nodes = Nodes()
        self.phase: Phase = "running"
        self._tie = tie
        self._runtime = runtime
        self._clock: Callable[[], float] = time.monotonic
        self._deadline: float | None = None
        """Time when the phase's patience ends."""
        self._stop_reason = ""
        self._template_ready = False
        self._unsent: list[Fork] = []
        self._wakeup = _signals_as_bytes()
        self._master_restarts, self._template_restarts = (
            Restarts(options.restarts, options.longest_restart_delay_seconds) for _ in range(2)
        )
        # Before there are children: it may move this process, and them with it, to another control group.
        name = f"dlrover-lite-{job.short_id}-{os.getpid()}"
        self.fences = NodeLimits(choose(options.limits, name, lambda groups: record_cgroups(runtime, groups)))
        self.memory = NodeMemory(runtime, self.nodes)
        identity = identify(os.getpid())
        self.record: JobRecord = msgspec.structs.replace(
            job.record(),
            state="running",
            keeper=identity,
            runtime_directory=str(runtime),
            transport=options.transport,
            started_at=time.time(),
        )
        self._variables = {KEY_FILE_VARIABLE: str(job.key_file)} if options.transport == "tcp" else {}
        job.write_record(self.record)
        self._poller = Poller()
        try:
            self.master: int | None = self._spawn_master()
            self.template, self._channel = self._spawn_template()
        except OSError as error:
            why, hint = exhausted(error) or (error, "")
            raise JobError(f"Can't start the job's processes: {why}", hint=hint) from error
        self._write_record(master=identify(self.master))
        self._connector = Connector()
        self.service = KeeperService(self, self.record.keeper_endpoint, self._connector)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        poller = self._poller
        poller.register(self.service.socket)
        poller.register(self._wakeup.fileno())
        tie = self._tie
        if tie is not None:
            poller.register(tie)
        if (memory := self.memory.fileno()) is not None:
            poller.register(memory)
        while self.phase != "done":
            ready = poller.poll(self._timeout_milliseconds())
            if self._wakeup.fileno() in ready:
                self._take_signals()
            if tie is not None and tie in ready and not os.read(tie, 4096):
                poller.unregister(tie)
                tie = None
                self.stop("the command that started the job has ended")
            if self._channel.socket.fileno() in ready:
                self._take_template_messages()
            self._reap()
            self.fences.act(self._clock())
            self.send(self.nodes.due(self._clock()))
            self._advance()
            self.memory.serve()
            self.service.serve()

    def _timeout_milliseconds(self) -> int | None:
        due = (
            self._deadline,
            self._master_restarts.due_at,
            self._template_restarts.due_at,
            self.nodes.next_due(),
            self.fences.next_due(),
        )
        times = [at for at in due if at is not None]
        if not times:
            return None
        return max(0, int(min(min(times) - self._clock(), _LONGEST_POLL_SECONDS) * 1000) + 1)

    def _take_signals(self) -> None:
        for number in self._wakeup.recv(4096):
            if number == signal.SIGCHLD:
                continue
            if number == signal.SIGQUIT:
                self.kill("killed by request")
            else:
                self.stop(_REASONS.get(number, "stopped by request"))

    def _take_template_messages(self) -> None:
        at, now = time.time(), self._clock()
        for message in self._channel.receive():
            if isinstance(message, Ready):
                self._template_ready = True
                for fork in self._unsent:
                    self._channel.send(fork)
                self._unsent.clear()
            elif isinstance(message, Forked):
                self.fences.started(message.node, message.pid)
                self.send(self.nodes.started(message.node, message.pid, now=now, at=at))
            elif isinstance(message, Exited):
                self._node_ended(message.node, message.exit_code, message.detail)
        if not self._channel.open:
            self._poller.unregister(self._channel.socket.fileno())

    # --- nodes ------------------------------------------------------------------------------------------------------

    def launch(self, fork: Fork) -> None:
        """Start a node that is in the book already: at once, or when the template is ready."""
        if self._template_ready:
            self._channel.send(fork)
        else:
            self._unsent.append(fork)

    def terminate(self, node: str, grace_seconds: float, *, keep_memory: bool = False) -> None:
        self.send(self.nodes.terminate(node, grace_seconds, now=self._clock(), keep_memory=keep_memory))
        self._let_go(node)
        for fork in [fork for fork in self._unsent if fork.spec.id == node]:
            self._unsent.remove(fork)
            self._node_ended(node, None)

    def _node_ended(self, node: str, exit_code: int | None, detail: str = "") -> None:
        over_memory = self.fences.ended(node, now=self._clock())
        self.nodes.ended(node, exit_code, at=time.time(), detail=detail, over_memory=over_memory)
        self._let_go(node)

    def _let_go(self, node: str) -> None:
        """Let go of the memory of a node that has ended and is followed by nobody."""
        known = self.nodes.by_id[node]
        if known.phase == "ended" and known.leaves_nothing:
            self.memory.release(node)

    def send(self, signals: list[SendSignal]) -> None:
        for due in signals:
            self._channel.send(Signal(due.node.spec.id, due.number))

    def _spawn_template(self) -> tuple[int | None, Channel[FromTemplate]]:
        """Start the template. Return its pid, and our end of the channel to it, which the loop listens to from now on."""
        options = self.options
        imports = [*options.imports, *(entry.partition(":")[0] for entry in options.entries.values())]
        channel, template_end = socket.socketpair()
        with template_end:
            pid = children.spawn_template(self.job, template_end.fileno(), imports, self._variables)
        self._poller.register(channel.fileno())
        return pid, Channel(channel, FromTemplate)

    # --- the master -------------------------------------------------------------------------------------------------

    def _spawn_master(self) -> int:
        command = [*self.options.master, str(self.job.directory)]
        return children.spawn(
            self.job, "master", command, variables={BRAIN_VARIABLE: self.options.brain, **self._variables}
        )

    def _master_ended(self, exit_code: int) -> None:
        """Start a master again that a signal has killed: it adopts the nodes. Any other has had its say."""
        self.master = None
        self._write_record(master_exit_code=exit_code)
        log(f"The master has ended ({describe(exit_code)})")
        if self.phase != "running" or exit_code >= 0 or self.job.result() is not None:
            return
        if not self._master_restarts.after_death(self._clock()):
            log(f"It has been started again {self._master_restarts.most} times: that is enough")

    def _restart_master(self) -> None:
        try:
            self.master = self._spawn_master()
        except OSError as error:
            self._fail(f"Can't start the job's master again: {error}", f"Its log: {self.job.log('master')}")
            return
        log(f"The master is started again, as process {self.master}")
        self._write_record(master=identify(self.master))

    # --- ends -------------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Ask the master to end the job; it is killed after its grace period."""
        if self.phase != "running":
            return
        log(f"Stopping: {reason}")
        self._stop_reason = reason
        self._enter("stopping", self.options.master_grace_seconds)
        self._write_record(stop_reason=reason)  # before the master is told: it reads it then
        if self.master is not None:
            os.kill(self.master, signal.SIGTERM)

    def kill(self, reason: str) -> None:
        """End everything now."""
        log(f"Killing: {reason}")
        self._stop_reason = self._stop_reason or reason
        for pid in (self.master, self.template):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        self._kill_nodes()
        self.phase, self._deadline = "done", None

    def _kill_nodes(self) -> None:
        """Kill the nodes without the template's help; where the kernel ties nodes to the template this is done already."""
        for node in self.nodes.alive():
            if node.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(node.pid, signal.SIGKILL)

    def _fail(self, message: str, hint: str) -> None:
        """End the job with this result, whatever the master says later."""
        self._record_result(Result("failed", time.time(), message, hint))
        self.stop(message)

    def _enter(self, phase: Phase, patience_seconds: float) -> None:
        self.phase, self._deadline = phase, self._clock() + patience_seconds

    def _advance(self) -> None:
        late = self._deadline is not None and self._clock() >= self._deadline
        if self.phase == "stopping" and late and self.master is not None:
            log(f"The master did not end within {self.options.master_grace_seconds:g} s: killing it")
            os.kill(self.master, signal.SIGKILL)
            self._deadline = None
        if self.phase == "running":
            if self._template_restarts.take(self._clock()):
                self._restart_template()
            if self._master_restarts.due_at is not None:
                if self._master_restarts.take(self._clock()):
                    self._restart_master()
                return
        if self.phase in ("running", "stopping") and self.master is None:
            self._enter("draining", self.options.node_grace_seconds + _TO_SEE_NODES_END_SECONDS)
            for node in self.nodes.alive():
                self.terminate(node.spec.id, self.options.node_grace_seconds)
        if self.phase == "draining" and (late or not self.nodes.alive()):
            self._kill_nodes()
            self.phase = "done"

    def _reap(self) -> None:
        ended = children.reap()
        if any(pid == self.template for pid, _ in ended):
            while self._channel.open:  # its last words, up to the end that its death has made
                self._take_template_messages()
            self.nodes.taken_along()
        # The template last: it takes the nodes along, and how they ended must be known before.
        for pid, exit_code in sorted(ended, key=lambda end: end[0] == self.template):
            if pid == self.master:
                self._master_ended(exit_code)
            elif pid == self.template:
                self.template = None
                self._template_ended(exit_code)
            elif (node := self.nodes.with_pid(pid)) is not None:
                self._node_ended(node.spec.id, exit_code)

    def _template_ended(self, exit_code: int) -> None:
        if self.phase in ("running", "stopping"):
            lines = self.job.last_log_lines("template")
            what = "while the job ran" if self._template_ready else "before it was ready"
            log(f"The template has ended {what} ({describe(exit_code)})")
            again = exit_code < 0 and self.phase == "running" and self._template_restarts.after_death(self._clock())
            if self.phase == "running" and not again:
                self._fail(
                    f"The process that starts this job's nodes ended {what} ({describe(exit_code)})"
                    + (f":\n{lines}" if lines else "."),
                    f"Its log: {self.job.log('template')}",
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
        self._channel.socket.close()  # heard to its end
        try:
            self.template, self._channel = self._spawn_template()
        except OSError as error:
            self._fail(f"Can't start the job's template again: {error}", f"Its log: {self.job.log('template')}")
            return
        log(f"The template is started again, as process {self.template}")

    # --- what remains -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave no process, no socket, and a result. Called however ``run`` ends."""
        for pid in (self.master, self.template):
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pid, exit_code in children.kill_all(spare=self._spared()):
            if pid == self.master:
                self._write_record(master_exit_code=exit_code)
        self.fences.close()
        self.memory.close()
        self._connector.close(linger_seconds=_LAST_WORDS_SECONDS)
        self._record_result(self._own_result())
        self._write_record(state="ended", ended_at=time.time())
        remove_runtime_directory(self._runtime)

    def _spared(self) -> int | None:
        """Return the process that isn't the job's, though it is among its children."""
        module, _, function = self.options.spared.partition(":")
        pid: int | None = getattr(import_module(module), function)()
        return pid

    def _own_result(self) -> Result:
        """Return the keeper's own result, used only if the master has left none."""
        if self._stop_reason:
            return Result("stopped", time.time(), self._stop_reason)
        code = self.record.master_exit_code
        lines = self.job.last_log_lines("master")
        message = f"The job's master ended without a result ({'unknown' if code is None else describe(code)})"
        return Result(
            "failed", time.time(), message + (f":\n{lines}" if lines else "."), f"Its log: {self.job.log('master')}"
        )

    def _record_result(self, result: Result) -> None:
        try:
            self.job.write_result(result)
        except JobError as error:
            log(f"{error.message} ({result.state}: {result.message})")

    def _write_record(self, **changes: Any) -> None:
        """Write the changed record. Going on matters more than a current job.json: the processes are what has to be looked after."""
        self.record = msgspec.structs.replace(self.record, **changes)
        try:
            self.job.write_record(self.record)
        except JobError as error:
            log(error.message)


def describe(exit_code: int) -> str:
    return f"killed by {signal_name(-exit_code)}" if exit_code < 0 else f"exit code {exit_code}"


def _signals_as_bytes() -> socket.socket:
    """Have signals arrive as bytes to read, one by one, in the loop; nothing is interrupted."""
    reading, writing = socket.socketpair()
    for end in (reading, writing):
        end.setblocking(False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    return reading


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dlrover-lite keeper")
    parser.add_argument("job_directory", type=Path)
    parser.add_argument("--options", default="{}", help="KeeperOptions as JSON")
    parser.add_argument("--tie", type=int, help="descriptor of a pipe; the job stops at its end")
    parser.add_argument("--ready", type=int, help="descriptor to write KeeperReady to")
    parsed = parser.parse_args(arguments)
    pass_over_full_disk()
    log_to("stderr")
    linux.adopt_orphans()
    linux.set_process_name("dl:keeper")
    for descriptor in (parsed.tie, parsed.ready):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    job = Job(parsed.job_directory)
    runtime: Path | None = None
    try:
        identity = identify(os.getpid())
        assert identity is not None
        runtime = create_runtime_directory(job.directory, job.short_id, identity)
        keeper = Keeper(job, from_json(parsed.options, KeeperOptions), runtime, parsed.tie)
    except DlroverLiteError as error:
        log(str(error))
        children.kill_all()
        with suppress(JobError):
            job.write_result(Result("failed", time.time(), error.message, error.hint))
        if runtime is not None:
            remove_runtime_directory(runtime)
        _tell(parsed.ready, KeeperReady(error.message, error.hint))
        return 1
    try:
        _tell(parsed.ready, KeeperReady())
        keeper.run()
    finally:
        keeper.close()
    return 0


def _tell(descriptor: int | None, ready: KeeperReady) -> None:
    if descriptor is not None:
        with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
            pipe.write(msgspec.json.encode(ready))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
