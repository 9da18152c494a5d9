"""The keeper: the small supervisor of one job (``python -m dlrover_lite.backends.keeper.keeper JOBDIR``).

It starts the master and the template at once, and again when they are killed; owns the nodes that the master asks for; and ends everything
when the master ends, when it is told to, or when the command that started the job is gone. Whatever happens to the keeper
itself, on Linux nothing of the job survives it: the kernel kills master and template with it, and the nodes with the template.

Signals: SIGTERM, SIGINT or SIGHUP stops the job cleanly, however often it comes; SIGUSR1 too, to go on later; SIGQUIT kills it at once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
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
from dlrover_lite.backends.keeper.loop import milliseconds_until, signals_as_bytes
from dlrover_lite.backends.keeper.nodes import describe_end
from dlrover_lite.backends.keeper.options import KeeperOptions, KeeperReady
from dlrover_lite.backends.keeper.restarts import Restarts
from dlrover_lite.backends.keeper.runtime_directories import (
    create_runtime_directory,
    record_cgroups,
    remove_runtime_directory,
)
from dlrover_lite.backends.keeper.service import KeeperService, Place
from dlrover_lite.backends.keeper.supervisor import NodeSupervisor, start_error
from dlrover_lite.backends.limits.choose import choose
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.core.files.durable import make_private
from dlrover_lite.core.files.log_stream import pass_over_full_disk
from dlrover_lite.core.processes.identity import ProcessIdentity, identify
from dlrover_lite.core.processes.log import log, log_to
from dlrover_lite.jobs.store import EndState, Job, JobRecord, Result
from dlrover_lite.protocol.brain_mode import BRAIN_VARIABLE
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE, Connector
from dlrover_lite.transport.polling import Poller

__all__ = ["Keeper", "main"]

_TO_SEE_NODES_END_SECONDS = 2.0
_LAST_WORDS_SECONDS = 0.5
"""Longest wait in milliseconds for answers that are on their way when the keeper ends."""
_REASONS: dict[int, str] = {
    signal.SIGHUP: "the terminal of the command that started the job was closed",
    signal.SIGUSR1: "suspended by request",
}

Phase = Literal["running", "stopping", "draining", "done"]


class Keeper:
    """One event loop. Phases: running; stopping (the master has been asked to end); draining (the master has ended, and
    the nodes it has left are asked to); done."""

    def __init__(self, job: Job, options: KeeperOptions, runtime: Path, tie: int | None) -> None:
        self.job = job
        self.options = options
        self.phase: Phase = "running"
        self._tie = tie
        self._runtime = runtime
        self._clock: Callable[[], float] = time.monotonic
        self._deadline: float | None = None
        """Time when the phase's patience ends."""
        self._stop_reason = ""
        self._wakeup = signals_as_bytes()
        self._restarts = Restarts(options.restarts, options.longest_restart_delay_seconds)
        self._variables = {KEY_FILE_VARIABLE: str(job.key_file)} if options.transport == "tcp" else {}
        # Before there are children: choosing the limits may move this process, and them with it, to another control group.
        self.nodes = self._node_supervisor() if options.runs_nodes else None
        identity, before = identify(os.getpid()), job.record()
        self.record: JobRecord = msgspec.structs.replace(
            before,
            state="running",
            keeper=identity,
            runtime_directory=str(runtime),
            transport=options.transport,
            listen=options.listen,
            advertised=options.advertised,
            started_at=before.started_at or time.time(),  # another keeper may have started it, in a pod that is gone
        )
        job.write_record(self.record)
        self._poller = Poller()
        try:
            self.master: int | None = self._spawn_master()
            if self.nodes is not None:
                self.nodes.start(self._poller, self._fail)
        except OSError as error:
            raise start_error(error) from error
        self._write_record(master=identify(self.master))
        self._connector = Connector()
        self._service: KeeperService | None = None
        if self.nodes is not None:
            place = Place(ceiling=job.recipe.resources.total)
            self._service = KeeperService(self.nodes, place, self.record.keeper_endpoint, self._connector)

    def _node_supervisor(self) -> NodeSupervisor:
        name = f"dlrover-lite-{self.job.short_id}-{os.getpid()}"
        options = self.options
        limiter = choose(
            options.limits, name, lambda groups: record_cgroups(self._runtime, groups), own_cores=options.own_cores
        )
        return NodeSupervisor(self.job, self._runtime, self.options, limiter, variables=self._variables)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        poller = self._poller
        for source in (self._wakeup.fileno(), *(self._service.sockets if self._service is not None else ())):
            poller.register(source)
        tie = self._tie
        if tie is not None:
            poller.register(tie)
        while self.phase != "done":
            ready = poller.poll(milliseconds_until(self._next_due(), self._clock()))
            if self._wakeup.fileno() in ready:
                self._take_signals()
            if tie is not None and tie in ready and not os.read(tie, 4096):
                poller.unregister(tie)
                tie = None
                self.stop("the command that started the job has ended")
            if self.nodes is not None:
                self.nodes.hear(ready)
            self._reap()
            if self.nodes is not None:
                self.nodes.act()
            self._advance()
            if self._service is not None:
                self._service.serve()

    def _next_due(self) -> float | None:
        of_nodes = self.nodes.next_due() if self.nodes is not None else None
        due = (self._deadline, self._restarts.due_at, of_nodes)
        return min((at for at in due if at is not None), default=None)

    def _take_signals(self) -> None:
        for number in self._wakeup.recv(4096):
            if number == signal.SIGCHLD:
                continue
            if number == signal.SIGQUIT:
                self.kill("killed by request")
            else:
                self.stop(_REASONS.get(number, "stopped by request"), suspends=number == signal.SIGUSR1)

    def _reap(self) -> None:
        ended = children.reap()
        for pid, exit_code in ended:
            if pid == self.master:
                self._master_ended(exit_code)
        if self.nodes is not None:
            self.nodes.reaped(ended)

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
        log(f"The master has ended ({describe_end(exit_code)})")
        if self.phase != "running" or exit_code >= 0 or self.job.result() is not None:
            return
        if not self._restarts.after_death(self._clock()):
            log(f"It has been started again {self._restarts.most} times within an hour: that is enough")

    def _restart_master(self) -> None:
        try:
            self.master = self._spawn_master()
        except OSError as error:
            self._fail(f"Can't start the job's master again: {error}", f"Its log: {self.job.log('master')}")
            return
        log(f"The master is started again, as process {self.master}")
        self._write_record(master=identify(self.master))

    # --- ends -------------------------------------------------------------------------------------------------------

    def stop(self, reason: str, *, suspends: bool = False) -> None:
        """Ask the master to end the job; it is killed after its grace period. ``suspends``: the job is to go on later."""
        if self.phase != "running":
            return
        log(f"Stopping: {reason}")
        self._stop_reason = reason
        self._enter("stopping", self.options.master_grace_seconds)
        self._write_record(stop_reason=reason, suspends=suspends)  # before the master is told: it reads it then
        if self.master is not None:
            os.kill(self.master, signal.SIGTERM)

    def kill(self, reason: str) -> None:
        """End everything now."""
        log(f"Killing: {reason}")
        self._stop_reason = self._stop_reason or reason
        if self.master is not None:
            os.kill(self.master, signal.SIGKILL)
        if self.nodes is not None:
            self.nodes.kill()
        self.phase, self._deadline = "done", None

    def _fail(self, message: str, hint: str) -> None:
        """End the job with this result, whatever the master says later."""
        self._record_result(Result("failed", time.time(), message, hint))
        self.stop(message)

    def _enter(self, phase: Phase, patience_seconds: float) -> None:
        self.phase, self._deadline = phase, self._clock() + patience_seconds
        if self.nodes is not None:
            self.nodes.close_to_new("the job is being stopped")

    def _advance(self) -> None:
        late = self._deadline is not None and self._clock() >= self._deadline
        if self.phase == "stopping" and late and self.master is not None:
            log(f"The master did not end within {self.options.master_grace_seconds:g} s: killing it")
            os.kill(self.master, signal.SIGKILL)
            self._deadline = None
        if self.phase == "running" and self._restarts.due_at is not None:
            if self._restarts.take(self._clock()):
                self._restart_master()
            return
        if self.phase in ("running", "stopping") and self.master is None:
            self._enter("draining", self.options.node_grace_seconds + _TO_SEE_NODES_END_SECONDS)
            if self.nodes is not None:
                self.nodes.terminate_all(self.options.node_grace_seconds)
        if self.phase == "draining" and (late or self.nodes is None or not self.nodes.nodes.alive()):
            if self.nodes is not None:
                self.nodes.kill_nodes()
            self.phase = "done"

    # --- what remains -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave no process, no socket, and a result. Called however ``run`` ends."""
        if self.master is not None:
            with suppress(ProcessLookupError):
                os.kill(self.master, signal.SIGKILL)
        if self.nodes is not None:
            self.nodes.kill_template()
        for pid, exit_code in children.kill_all(spare=self._spared()):
            if pid == self.master:
                self._write_record(master_exit_code=exit_code)
        if self.nodes is not None:
            self.nodes.close()
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
            state: EndState = "suspended" if self.record.suspends else "stopped"
            return Result(state, time.time(), self._stop_reason)
        code = self.record.master_exit_code
        lines = self.job.last_log_lines("master")
        message = f"The job's master ended without a result ({'unknown' if code is None else describe_end(code)})"
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
        options = from_json(parsed.options, KeeperOptions)
        runtime = _runtime_directory(job, options, identity)
        keeper = Keeper(job, options, runtime, parsed.tie)
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


def _runtime_directory(job: Job, options: KeeperOptions, keeper: ProcessIdentity) -> Path:
    """Make the directory of what tells where the job's processes are. Raises JobError."""
    if not options.runtime:
        return create_runtime_directory(job.directory, job.short_id, keeper)
    directory = Path(options.runtime)
    shutil.rmtree(directory, ignore_errors=True)  # of a keeper that was killed
    try:
        make_private(directory)
    except OSError as error:
        raise JobError(f"Can't make {directory}: {error.strerror}", hint="Is its disk full, or read-only?") from error
    return directory


def _tell(descriptor: int | None, ready: KeeperReady) -> None:
    if descriptor is not None:
        with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
            pipe.write(msgspec.json.encode(ready))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
