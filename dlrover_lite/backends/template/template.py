"""The warm template: imports what nodes need once, then forks a node per request.

It stays single-threaded (a fork copies only the calling thread, so a thread pool of torch would be dead in every
child); the keeper sets the thread counts in its environment before anything is imported. If a library has started a
thread all the same, nodes are fresh interpreters instead: slower by an import, and said in the log.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import msgspec

from dlrover_lite.backends.host import linux
from dlrover_lite.backends.keeper.protocol import (
    Channel,
    Exited,
    Fork,
    Forked,
    Ready,
    Signal,
    TemplateOptions,
    ToTemplate,
)
from dlrover_lite.backends.limits.join_cgroup import NODE_VARIABLE, enter_fence
from dlrover_lite.backends.template.allocator import give_back_freed_memory, keep_freed_memory
from dlrover_lite.backends.template.threads import ThreadPools
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.files.durable import open_private
from dlrover_lite.core.files.log_stream import pass_over_full_disk
from dlrover_lite.jobs.store import Job
from dlrover_lite.ps.memory.node_memory_client import MEMORY_VARIABLE

__all__ = ["main"]

_COULD_NOT_START = 126


class Template:
    def __init__(self, options: TemplateOptions) -> None:
        linux.set_process_name("dl:template")
        self._job_directory = Path(options.job_directory)
        self._channel: Channel[ToTemplate] = Channel(socket.socket(fileno=options.channel), ToTemplate)
        self._nodes: dict[int, str] = {}
        self._wakeup, wakeup_end = socket.socketpair()
        self._wakeup_end = wakeup_end
        for end in (self._wakeup, wakeup_end):
            end.setblocking(False)
        signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # What is imported stays. To look through it for garbage again and again, while it grows, takes a sixth of the whole time; and
        # children needn't in their collections, which would copy its pages. What is garbage already stays as well: it is half a MiB, and to
        # find it would take a tenth of the time.
        gc.disable()
        for name in options.imports:
            module, _, function = name.partition(":")
            imported = import_module(module)
            if function:
                getattr(imported, function)()
        self._threads = ThreadPools()
        gc.freeze()
        gc.enable()
        give_back_freed_memory()
        self._fork_is_safe = self._check_threads()
        self._channel.send(Ready())

    def _check_threads(self) -> bool:
        threads = linux.thread_count()
        if threads == 1:
            return True
        print(
            f"This process has {threads or 'an unknown number of'} threads, so it can't be forked safely: "
            "nodes are started as fresh interpreters.",
            flush=True,
        )
        return False

    def serve(self) -> None:
        """Serve until the keeper closes its end; then kill whatever still runs."""
        poller = select.poll()
        poller.register(self._channel.socket, select.POLLIN)
        poller.register(self._wakeup, select.POLLIN)
        while self._channel.open:
            poller.poll()
            with suppress(BlockingIOError):
                self._wakeup.recv(4096)
            self._reap()
            if not select.select([self._channel.socket], [], [], 0)[0]:
                continue
            for message in self._channel.receive():
                if isinstance(message, Fork):
                    self._fork(message)
                else:
                    self._signal(message)
        for pid in self._nodes:
            os.kill(pid, signal.SIGKILL)
            _kill_session(pid)

    def _signal(self, message: Signal) -> None:
        # Its pid can't belong to anything else before this process has reaped it.
        for pid, node in self._nodes.items():
            if node == message.node:
                os.kill(pid, message.number)
                if message.number == signal.SIGKILL:
                    _kill_session(pid)

    def _reap(self) -> None:
        while self._nodes:
            if hasattr(os, "waitid"):
                # Look first, reap later: until then the id of the node's session can't be given to anyone else.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None:
                    return
                _kill_session(found.si_pid)
                pid, status = os.waitpid(found.si_pid, 0)
            else:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                _kill_session(pid)
            self._channel.send(Exited(self._nodes.pop(pid), os.waitstatus_to_exitcode(status)))

    def _fork(self, request: Fork) -> None:
        fresh = not (self._fork_is_safe and self._check_threads())
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                if fresh:  # Python 3.12 and later warn of threads: this child only replaces itself
                    warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            self._channel.send(Exited(request.spec.id, None, f"it could not be forked: {error.strerror}"))
            return
        if pid:
            self._nodes[pid] = request.spec.id
            self._channel.send(Forked(request.spec.id, pid))
            return
        code = _COULD_NOT_START
        try:
            self._become(request, parent)
            code = self._exec(request) if fresh else run_node(request, self._job_directory, self._threads)
        except OSError:
            traceback.print_exc()
        finally:
            _leave(code)

    def _become(self, request: Fork, parent: int) -> None:
        """Become the node, in the child: nothing of the template's own business is left afterwards."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        linux.die_with_parent(parent)
        for end in (self._channel.socket, self._wakeup, self._wakeup_end):
            end.close()
        log = open_private(Job(self._job_directory).log(request.spec.id), os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        enter_fence(request.enter)
        os.environ[NODE_VARIABLE] = request.spec.id

    def _exec(self, request: Fork) -> int:
        command = [sys.executable, "-P", "-m", "dlrover_lite.backends.template.template", "--node"]
        os.execv(sys.executable, [*command, msgspec.json.encode(request).decode(), str(self._job_directory)])


def run_node(request: Fork, job_directory: Path, threads: ThreadPools | None = None) -> int:
    """Run the node's entry in this process, which is the node; returns its exit code. ``threads``: if they have been looked for."""
    linux.set_process_name(f"dl:{request.spec.id}")
    keep_freed_memory()
    pass_over_full_disk()
    (threads or ThreadPools()).resize(request.spec.resources.cores)
    os.environ[MEMORY_VARIABLE] = request.memory
    # Named by what is loaded: this module doesn't import it.
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # or all nodes would draw the same numbers from its global generator
    module, _, function = request.entry.partition(":")
    try:
        code = getattr(import_module(module), function)(request.spec, job_directory)
    except SystemExit as leaving:
        code = leaving.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            return 1
    except BaseException:  # noqa: BLE001 - the outermost frame of the node: below it is only the template's loop
        traceback.print_exc()
        return 1
    return code if isinstance(code, int) else 0


def _leave(code: int) -> None:
    """End without the template's exit handlers. Output that can't be written any more is no reason to stay."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _kill_session(pid: int) -> None:
    """Kill processes that a node has started itself, as far as they stayed in its process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    if arguments[0] == "--node":
        request = from_json(arguments[1], Fork)
        _leave(run_node(request, Path(arguments[2])))
    pass_over_full_disk()
    Template(from_json(arguments[0], TemplateOptions)).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
