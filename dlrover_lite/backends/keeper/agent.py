"""The keeper of a node's pod, as its first process (``python -P -m dlrover_lite.backends.keeper.agent``).

It listens over TCP with the job's key, and launches what it is asked to, as the keeper of a machine does; but it has no master, and the
limits of its nodes are those of the container, which the kubelet sets. It ends when the pod is deleted (SIGTERM), when it is asked to and
its nodes have ended, and when nobody has asked for anything for so long that there can't be a master any more. SIGQUIT ends it at once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from dlrover_lite.backends.host import linux
from dlrover_lite.backends.keeper import children
from dlrover_lite.backends.keeper.loop import milliseconds_until, signals_as_bytes
from dlrover_lite.backends.keeper.node_output import COPY_SECONDS, NodeOutput
from dlrover_lite.backends.keeper.options import MEMORY_VARIABLE, ROLE_VARIABLE, AgentOptions
from dlrover_lite.backends.keeper.scratch import make_places
from dlrover_lite.backends.keeper.service import KeeperService, Place
from dlrover_lite.backends.keeper.supervisor import NodeSupervisor, start_error
from dlrover_lite.backends.limits.container import ContainerLimits, container_group
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import DlroverLiteError, UsageError
from dlrover_lite.core.files.durable import make_private
from dlrover_lite.core.files.log_stream import pass_over_full_disk
from dlrover_lite.core.processes.log import log, log_to
from dlrover_lite.jobs.store import Job
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE, Connector
from dlrover_lite.transport.endpoints import tcp_address
from dlrover_lite.transport.polling import Poller

__all__ = ["Agent", "Silence", "main"]

POD_IP_VARIABLE = "DLROVER_LITE_POD_IP"
HOST_VARIABLE = "DLROVER_LITE_HOST"
OPTIONS_VARIABLE = "DLROVER_LITE_AGENT"
"""Environment variable with ``AgentOptions`` as JSON; without it the defaults hold."""
_LAST_WORDS_SECONDS = 0.5
"""Longest wait in seconds for answers that are on their way when the agent ends."""

Phase = Literal["running", "leaving", "ending", "done"]


class Silence:
    """For how long nobody has asked for anything. ``now`` is seconds of a steady clock."""

    def __init__(self, most_seconds: float, now: float) -> None:
        self._most_seconds = most_seconds
        self._requests = 0
        self.ends_at = now + most_seconds
        """Time from which on nobody is expected any more."""

    def note(self, requests: int, now: float) -> None:
        """Note how many requests there have been so far."""
        if requests != self._requests:
            self._requests, self.ends_at = requests, now + self._most_seconds

    def is_over(self, now: float) -> bool:
        return now >= self.ends_at


class Agent:
    """One event loop. Phases: running; leaving (nothing is launched any more, nodes end when they are told to); ending (the nodes have been
    asked to end, and have their grace); done."""

    def __init__(self, options: AgentOptions, ip: str, host: str) -> None:
        self.options = options
        self.phase: Phase = "running"
        self._clock: Callable[[], float] = time.monotonic
        self._deadline: float | None = None
        """Time when the grace of nodes ends."""
        scratch = Path(options.scratch)
        self.job = _job_directory(scratch / "job", Path(options.files))
        runtime = _empty_directory(scratch / "run")
        self._wakeup = signals_as_bytes()
        self._poller = Poller()
        self._connector = Connector.of_this_process()
        limiter = ContainerLimits(container_group(), beside=options.memory)
        self.supervisor = NodeSupervisor(self.job, runtime, options, limiter, variables={}, has_all=False)
        place = Place(host, f"{tcp_address(ip)}:*")
        endpoint = f"{tcp_address(ip)}:{options.port}"
        self._output = NodeOutput(self.job, _write_through)
        self.service = KeeperService(
            self.supervisor, place, endpoint, self._connector, leave=self.leave, has_read=self._output.has_read
        )
        try:
            self.supervisor.start(self._poller, lambda why, _: log(f"No more nodes are started here: {why}"))
        except OSError as error:
            raise start_error(error) from error
        self._silence = Silence(options.idle_seconds, self._clock())
        self._copy_at = 0.0

    def run(self) -> None:
        log(f"The agent of {os.uname().nodename} listens at {self.service.endpoint}")
        for source in (self._wakeup.fileno(), *self.service.sockets):
            self._poller.register(source)
        while self.phase != "done":
            ready = self._poller.poll(milliseconds_until(self._next_due(), self._clock()))
            if self._wakeup.fileno() in ready:
                self._take_signals()
            self.supervisor.hear(ready)
            self.supervisor.reaped(children.reap())
            self.supervisor.act()
            self.service.serve()
            self._advance(self._clock())

    @property
    def _heeds_silence(self) -> bool:
        return self.phase in ("running", "leaving")

    def _next_due(self) -> float | None:
        nodes = self.supervisor.nodes
        copy = self._copy_at if self._output.has_more(nodes.by_id.values()) else None
        silence = self._silence.ends_at if self._heeds_silence else None
        due = (self._deadline, silence, self.supervisor.next_due(), copy)
        return min((at for at in due if at is not None), default=None)

    def _advance(self, now: float) -> None:
        alive = self.supervisor.nodes.alive()
        if now >= self._copy_at:
            self._output.copy(self.supervisor.nodes.by_id.values())
            self._copy_at = now + COPY_SECONDS
        self._silence.note(self.service.requests, now)
        if self._heeds_silence and self._silence.is_over(now):
            log(
                f"Nobody has asked for anything for {self.options.idle_seconds:g} s: the pod ends, and its nodes with it"
            )
            self.phase = "done"
        elif self.phase in ("leaving", "ending") and not alive:
            self.phase = "done"
        elif self._deadline is not None and now >= self._deadline:
            log(f"{', '.join(node.spec.id for node in alive)}: killed after {self.options.grace_seconds:g} s of grace")
            self.phase = "done"

    def _take_signals(self) -> None:
        for number in self._wakeup.recv(4096):
            if number == signal.SIGQUIT:
                log("Killed by request")
                self.phase = "done"
            elif number != signal.SIGCHLD:
                self.end("the pod is being ended")

    def leave(self) -> None:
        """Launch nothing more, and end when all nodes have ended."""
        if self.phase == "running":
            log("Leaving, as asked")
            self.phase = "leaving"
            self.supervisor.close_to_new("the pod is about to end")

    def end(self, why: str) -> None:
        """Ask all nodes to end, and end when they have, or when their grace is over."""
        if self.phase in ("ending", "done"):
            return
        log(f"Ending: {why}")
        self.phase, self._deadline = "ending", self._clock() + self.options.grace_seconds
        self.supervisor.close_to_new(why)
        self.supervisor.preempt_all(why, self.options.grace_seconds)

    def close(self) -> None:
        """Leave no process and no socket. Called however ``run`` ends."""
        self.supervisor.kill_template()
        children.kill_all()
        self.supervisor.close()
        self._output.copy(self.supervisor.nodes.by_id.values())
        self._connector.close(linger_seconds=_LAST_WORDS_SECONDS)


def _job_directory(directory: Path, files: Path) -> Job:
    """Make the job's directory as nodes expect it, with the recipe that the job's ConfigMap has. Raises UsageError."""
    job = Job(directory)
    try:
        make_private(job.logs)
        shutil.copyfile(files / "recipe.json", directory / "recipe.json")
    except OSError as error:
        raise UsageError(
            f"The pod's job can't be set up in {directory}: {error.filename}: {error.strerror}",
            hint=f"{files} must hold the job's recipe.json, and {directory.parent} be a volume that can be written to.",
        ) from error
    return job


def _empty_directory(directory: Path) -> Path:
    """Make a directory for sockets, without those that an agent of this container has left that was killed."""
    shutil.rmtree(directory, ignore_errors=True)
    make_private(directory)
    return directory


def _write_through(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def read_environment(environment: Mapping[str, str]) -> tuple[AgentOptions, str, str]:
    """Return the options, the pod's IP and its host's name. Raises UsageError for what is missing or makes no sense."""
    missing = [name for name in (POD_IP_VARIABLE, HOST_VARIABLE, KEY_FILE_VARIABLE) if not environment.get(name)]
    if missing:
        raise UsageError(
            f"The environment of this pod lacks {', '.join(missing)}",
            hint="An agent is started by the Kubernetes backend, in the pods that it makes.",
        )
    try:
        options = from_json(environment.get(OPTIONS_VARIABLE) or "{}", AgentOptions)
    except ValueError as error:
        raise UsageError(f"{OPTIONS_VARIABLE} can't be understood: {error}") from error
    if given := environment.get(MEMORY_VARIABLE):
        if not given.isdecimal():
            raise UsageError(f"{MEMORY_VARIABLE} is no number of bytes: {given!r}")
        options = msgspec.structs.replace(options, memory=int(given))
    if role := environment.get(ROLE_VARIABLE):
        entries = {known: entry for known, entry in options.entries.items() if known == role}
        if not entries:
            raise UsageError(f"{ROLE_VARIABLE} is no role of nodes: {role!r}")
        options = msgspec.structs.replace(options, entries=entries)
    return options, environment[POD_IP_VARIABLE], environment[HOST_VARIABLE]


def main(arguments: list[str]) -> int:
    argparse.ArgumentParser(prog="dlrover-lite agent").parse_args(arguments)
    pass_over_full_disk()
    log_to("stdout")
    linux.adopt_orphans()
    linux.set_process_name("dl:agent")
    try:
        options, ip, host = read_environment(os.environ)
        make_places(Path(options.scratch))
        agent = Agent(options, ip, host)
    except (DlroverLiteError, OSError) as error:
        log(f"The agent can't start: {error}")
        children.kill_all()
        return 1
    try:
        agent.run()
    finally:
        agent.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
