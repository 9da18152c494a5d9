"""Agents as processes, each at an address of its own on the loopback network; in control groups of their own where that is possible."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import zmq

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.host.mounts import hierarchies, with_controller
from dlrover_lite.backends.keeper.agent import HOST_VARIABLE, OPTIONS_VARIABLE, POD_IP_VARIABLE
from dlrover_lite.backends.keeper.client import KeeperClient
from dlrover_lite.backends.keeper.options import AgentOptions
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.files.paths import python_environment
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE, Connector
from dlrover_lite.transport.curve import JobKey
from tests.backends.contract import Scripted
from tests.backends.support import NODES, PATIENCE_SECONDS, recipe, until

HOST = "machine-7"
_JOIN = """
import os, sys
for group in sys.argv[1].split(":"):
    with open(group + "/cgroup.procs", "w") as members:
        members.write("0")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
_numbers = itertools.count(2)


class AgentRig:
    """One agent, which runs scripted nodes. ``groups``: control groups of version 1 to be started in, by controller."""

    def __init__(self, groups: dict[str, Path] | None = None, *, beneath: str | None = None, **options: Any) -> None:
        """``beneath``: directory for its files; None: the temp directory of this process, which others can't enter."""
        self.directory = Path(tempfile.mkdtemp(prefix="agent-", dir=beneath))
        self.ip = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.{next(_numbers)}"
        self.key = JobKey.generate()
        self.groups = groups or {}
        files = self.directory / "files"
        files.mkdir()
        (files / "recipe.json").write_bytes(msgspec.json.encode(recipe()))
        (self.directory / "key").write_text(self.key.text())
        self.scratch = self.directory / "scratch"
        self.scratch.mkdir()
        self.options = AgentOptions(
            **{
                "entries": {"worker": f"{NODES}:main", "ps": f"{NODES}:main"},
                "imports": {},
                "files": str(files),
                "scratch": str(self.scratch),
                **options,
            }
        )
        self.environment = {
            **python_environment(),
            POD_IP_VARIABLE: self.ip,
            HOST_VARIABLE: HOST,
            KEY_FILE_VARIABLE: str(self.directory / "key"),
            OPTIONS_VARIABLE: msgspec.json.encode(self.options).decode(),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._context: zmq.Context[Any] = zmq.Context()
        self._clients: list[KeeperClient] = []

    @property
    def endpoint(self) -> str:
        return f"tcp://{self.ip}:{self.options.port}"

    def start(self) -> None:
        command = ["-P", "-m", "dlrover_lite.backends.keeper.agent"]
        if self.groups:
            command = ["-c", _JOIN, ":".join(str(group) for group in self.groups.values()), *command]
        with (self.directory / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.environment
            )

    def start_with(self, key: JobKey) -> None:
        """Start it with the key of a job."""
        self.key = key
        (self.directory / "key").write_text(key.text())
        self.start()

    def logs(self) -> list[str]:
        """Names of the processes that have a log in the pod."""
        return [path.stem for path in (self.scratch / "job" / "logs").glob("*.log")]

    def printed(self) -> str:
        return (self.directory / "output").read_text()

    def client(self, key: JobKey | None = None, *, deadline_seconds: float = PATIENCE_SECONDS) -> KeeperClient:
        connector = Connector(key or self.key, context=self._context)
        self._clients.append(KeeperClient(self.endpoint, connector=connector, deadline_seconds=deadline_seconds))
        return self._clients[-1]

    def scripted(self) -> Scripted:
        backend = self.client()

        def output(node: str) -> str:
            try:
                return backend.read_log(node, 0, 1 << 20).data.decode()
            except BackendError:  # it hasn't begun
                return ""

        def wait_for_output(node: str, text: str) -> None:
            until(lambda: text in output(node), f"{text!r} of {node}")

        return Scripted(backend, wait_for_output, output, self.client, close=lambda: None)

    def descendants(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def node(self, node: str) -> psutil.Process:
        """The process of a node that runs its own code."""
        return next(process for process in self.descendants() if process.name() == f"dl:{node}")

    def alive(self) -> list[psutil.Process]:
        """Processes of this agent's nodes, also those that aren't its descendants any more."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(POD_IP_VARIABLE) == self.ip:
                    found.append(process)
        return found

    def wait(self) -> int:
        """Wait until the agent has ended, with all that it has started; return its exit code."""
        assert self.process is not None
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        try:
            if self.process is not None:
                if self.process.poll() is None:
                    self.process.send_signal(signal.SIGQUIT)
                self.wait()
        finally:
            for client in self._clients:
                client.close()
            self._context.destroy(linger=0)
            assert cgroups.end(self.groups.values())
            shutil.rmtree(self.directory)


@contextmanager
def agent(groups: dict[str, Path] | None = None, **options: Any) -> Iterator[AgentRig]:
    rig = AgentRig(groups, **options)
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


def make_groups(memory_limit: int | None = None) -> dict[str, Path] | str:
    """Make groups of version 1 as a container has them; returns why that can't be."""
    found = hierarchies()
    made: dict[str, Path] = {}
    for controller in ("cpu", "cpuacct", "memory"):
        hierarchy = with_controller(found, controller)
        if hierarchy is None:
            return f"there is no {controller} controller of cgroup v1 here"
        made[controller] = hierarchy.own / f"dlrover-lite-agent-{os.getpid()}-{next(_numbers)}"
    try:
        for group in dict.fromkeys(made.values()):
            group.mkdir()
    except OSError as error:
        return f"no control groups can be made here: {error}"
    if memory_limit is not None:
        cgroups.write(made["memory"] / "memory.limit_in_bytes", memory_limit)
    return made
