"""The process that ``tests.forked_keepers`` forks keepers from, and what becomes of its forks."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import msgspec

from dlrover_lite.backends.host import linux
from dlrover_lite.backends.keeper import children
from dlrover_lite.backends.keeper.options import KeeperOptions
from dlrover_lite.backends.keeper.protocol import TemplateOptions
from dlrover_lite.core import failpoints
from dlrover_lite.core.files.durable import open_private
from dlrover_lite.core.processes.identity import JOB_VARIABLE
from dlrover_lite.jobs.store import Job

__all__ = ["LONGEST_COMMAND_BYTES", "Request"]

LONGEST_COMMAND_BYTES = 1 << 14
"""Longest command, and longest path of a job, that can be shown for a process."""
_LONGEST_REQUEST_BYTES = 1 << 20
KEEPER = "dlrover_lite.backends.keeper.keeper"
MASTER = "dlrover_lite.master_process.__main__"
TEMPLATE = "dlrover_lite.backends.template.template"


class Request(msgspec.Struct):
    """A keeper to be forked. Its descriptors come beside it: what it reads, what it writes, and those named in ``passed``."""

    job: str
    options: str
    directory: str
    environment: dict[str, str]
    passed: list[str]
    """Option of the keeper for each descriptor from the third on."""
    files: tuple[int, int]
    """How many files it may open, and may let itself open."""


def _serve(channel: socket.socket) -> None:
    os.environ.pop(JOB_VARIABLE)
    for name in KeeperOptions().imported:
        module, _, function = name.partition(":")
        imported = import_module(module)
        if function:
            getattr(imported, function)()
    for module in (KEEPER, MASTER, TEMPLATE):
        import_module(module)
    assert linux.thread_count() == 1, "a process with threads can't be forked"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        said, descriptors, _, _ = socket.recv_fds(channel, _LONGEST_REQUEST_BYTES, 8)
        if not said:
            return
        if not (pid := os.fork()):
            channel.close()
            _become_keeper(msgspec.json.decode(said, type=Request), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(str(pid).encode())


def _become_keeper(request: Request, descriptors: list[int]) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing, log, *passed = descriptors
        _become(nothing, log)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.directory)
        resource.setrlimit(resource.RLIMIT_NOFILE, request.files)
        arguments = [request.job, "--options", request.options]
        for name, descriptor in zip(request.passed, passed, strict=True):
            arguments += [name, str(descriptor)]
        _show([sys.executable, "-P", "-m", KEEPER, *arguments], job="")
        children.spawn, children.spawn_template = _fork_master, _fork_template
        with failpoints.armed(os.environ.get(failpoints.VARIABLE, "")):
            code = import_module(KEEPER).main(arguments)
    except BaseException:  # noqa: BLE001 - the outermost frame of the keeper
        traceback.print_exc()
    _leave(code)


_spawn, _spawn_template = children.spawn, children.spawn_template


def _fork_master(
    job: Job, name: str, command: list[str], *, keep: int | None = None, variables: dict[str, str] | None = None
) -> int:
    """In place of ``children.spawn``."""
    if command == [*KeeperOptions().master, str(job.directory)] and linux.thread_count() == 1:
        return _fork(job, name, MASTER, [str(job.directory)], variables=variables or {})
    return _spawn(job, name, command, keep=keep, variables=variables)


def _fork_template(job: Job, channel: int, imports: list[str], variables: dict[str, str]) -> int:
    """In place of ``children.spawn_template``."""
    if "torch" in imports and linux.thread_count() == 1:  # the template imports what else there is
        options = msgspec.json.encode(TemplateOptions(channel, str(job.directory), imports)).decode()
        environment = {**children.SINGLE_THREADED, **variables}
        return _fork(job, "template", TEMPLATE, [options], keep=channel, variables=environment)
    return _spawn_template(job, channel, imports, variables)


def _fork(
    job: Job, name: str, module: str, arguments: list[str], *, keep: int | None = None, variables: dict[str, str]
) -> int:
    """Do what ``children.spawn`` does, for a process that goes on as this module's ``main``."""
    keeper = os.getpid()
    nothing, log = os.open(os.devnull, os.O_RDONLY), open_private(job.log(name), os.O_WRONLY | os.O_APPEND)
    if pid := os.fork():
        os.close(nothing)
        os.close(log)
        return pid
    code = 1
    try:
        linux.die_with_parent(keeper)
        linux.set_process_name(Path(sys.executable).name)
        signal.set_wakeup_fd(-1)
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        _become(nothing, log)
        kept = 3 if keep is None else keep
        os.closerange(3, kept)
        os.closerange(kept + (keep is not None), os.sysconf("SC_OPEN_MAX"))
        os.environ.update({JOB_VARIABLE: str(job.directory), **variables})
        _show([sys.executable, "-P", "-m", module.removesuffix(".__main__"), *arguments], job=str(job.directory))
        code = import_module(module).main(arguments) or 0
    except BaseException:  # noqa: BLE001 - the outermost frame of the process
        traceback.print_exc()
    return _leave(code)


def _become(nothing: int, log: int) -> None:
    """Have a session of its own, and its own input and output."""
    os.setsid()
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _show(command: list[str], job: str) -> None:
    """Have others see this command, and this job in the environment, where they look for processes of a job: in the memory that held
    those that the first process was started with."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, arguments_end, environment, environment_end = map(int, fields[45:49])
    shown = b"".join(word.encode() + b"\0" for word in command)
    assert len(shown) <= arguments_end - arguments, "no room to show the command"
    ctypes.memset(arguments, 0, arguments_end - arguments)
    ctypes.memmove(arguments, shown, len(shown))
    name = f"{JOB_VARIABLE}=".encode()
    variables = ctypes.string_at(environment, environment_end - environment)
    start = environment + variables.index(name) + len(name)
    assert len(job.encode()) <= LONGEST_COMMAND_BYTES
    ctypes.memset(start, 0, LONGEST_COMMAND_BYTES)
    ctypes.memmove(start, job.encode(), len(job.encode()))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
