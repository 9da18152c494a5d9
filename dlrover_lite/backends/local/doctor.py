"""Whether this machine can run jobs, and what it can't do for them: a list of checks, each quick, none of which leaves anything.

Nothing heavy is imported: of packages only what their metadata says.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from dlrover_lite.backends.checks import Check, Level
from dlrover_lite.backends.host import linux
from dlrover_lite.backends.host.cgroups import read_fields, read_number
from dlrover_lite.backends.host.machine import machine_resources
from dlrover_lite.backends.host.mounts import Hierarchy, hierarchies, unified, with_controller
from dlrover_lite.backends.keeper.runtime_directories import (
    MAX_SOCKET_NAME_BYTES,
    MAX_SOCKET_PATH_BYTES,
    create_runtime_directory,
    remove_runtime_directory,
)
from dlrover_lite.backends.limits.probe import probe_enforcement
from dlrover_lite.backends.local.jobs.leftovers import leftovers
from dlrover_lite.core.errors import BackendError, JobError
from dlrover_lite.core.files.paths import cache_directory, state_directory
from dlrover_lite.core.kernels.files import INDEX, damaged_files, is_ours
from dlrover_lite.core.processes.identity import identify
from dlrover_lite.core.processes.limits import descriptor_shortage, process_shortage
from dlrover_lite.core.units import GIB, MIB, format_bytes
from dlrover_lite.protocol.nodes import Enforcement
from dlrover_lite.transport.endpoints import KEEPER_SOCKET

__all__ = ["diagnose"]

PYTHONS = ((3, 11), (3, 14))
"""Python versions that can be used: from the first on, below the second."""
LEAST_TORCH = (2, 6)
REQUIRED = ("numba", "numpy", "pyzmq", "safetensors")
COMPILE_SECONDS = "5 to 20 s"
"""Time that all kernels take to compile, on one core of this decade."""
LITTLE_DISK, TOO_LITTLE_DISK = 2 * GIB, 100 * MIB
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 1 * GIB, 256 * MIB
LITTLE_SHARED_MEMORY = 64 * MIB
_FEW_NODES = 8
_SKEW_SECONDS = 10.0
_SLEPT_SECONDS = 60.0
_SHARED_MEMORY = Path("/dev/shm")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def diagnose() -> list[Check]:
    """Run all checks, in the order in which they are shown."""
    checks: tuple[Callable[[], Check], ...] = (
        python,
        torch,
        packages,
        extras,
        cores,
        memory,
        limits,
        control_groups,
        process_limits,
        ends_with_parent,
        state,
        runtime,
        kernels,
        shared_memory,
        huge_pages,
        clock,
        left_behind,
    )
    return [check() for check in checks]


# --- Python and packages ----------------------------------------------------------------------------------------------


def python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    text = ".".join(map(str, version))
    least, below = PYTHONS
    if version < least:
        return Check("python", "problem", f"{text} is too old", f"Use Python {least[0]}.{least[1]} or newer.")
    if version >= below:
        return Check("python", "warning", f"{text} is newer than what is tested", "Use Python 3.11 to 3.13.")
    return Check("python", "ok", f"{text}, {sys.executable}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch(version_of: Callable[[str], str | None] = _version) -> Check:
    version = version_of("torch")
    if version is None or find_spec("torch") is None:
        return Check(
            "torch", "problem", "not installed", "Install it: pip install torch (docs/using.md, Installing elsewhere)"
        )
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < LEAST_TORCH:
        wanted = ".".join(map(str, LEAST_TORCH))
        return Check("torch", "problem", f"{version} is too old", f"Install {wanted} or newer: pip install -U torch")
    return Check("torch", "ok", f"{version}; a node gets one thread for each whole core it has")


def packages(version_of: Callable[[str], str | None] = _version) -> Check:
    found = {name: version_of(name) for name in REQUIRED}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        return Check("packages", "problem", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Check("packages", "ok", ", ".join(f"{name} {version}" for name, version in found.items()))


def extras(version_of: Callable[[str], str | None] = _version) -> Check:
    version = version_of("pyarrow")
    if version is None:
        return Check(
            "extras", "ok", "no pyarrow: Parquet can't be read or written", "If you need it: pip install pyarrow"
        )
    return Check("extras", "ok", f"pyarrow {version} (Parquet)")


# --- what a job gets ----------------------------------------------------------------------------------------------------


def cores() -> Check:
    usable, all_cores = machine_resources().cores, os.cpu_count() or 1
    if usable < all_cores:
        return Check("cores", "ok", f"{usable:g} of the machine's {all_cores} (affinity, or the container's limit)")
    return Check("cores", "ok", f"{usable:g}")


def memory() -> Check:
    import psutil

    host, given = psutil.virtual_memory(), machine_resources().memory
    free, of = host.available, f"{format_bytes(given)}"
    if given < host.total:
        free = min(free, max(0, given - _container_memory_in_use()))
        of += f" (the container's limit; the machine has {format_bytes(host.total)})"
    text = f"{format_bytes(free)} free of {of}"
    if free < LITTLE_MEMORY:
        level: Level = "problem" if free < TOO_LITTLE_MEMORY else "warning"
        return Check("memory", level, text, "A node needs 300 MiB before it has learnt anything: end other programs.")
    return Check("memory", "ok", text)


def _container_memory_in_use() -> int:
    """Return the bytes in use in this container, without what can be dropped; 0 where it can't be known."""
    found = hierarchies()
    for hierarchy, usage, inactive in (
        (unified(found), "memory.current", "inactive_file"),
        (with_controller(found, "memory"), "memory.usage_in_bytes", "total_inactive_file"),
    ):
        if hierarchy is None:
            continue
        try:
            used = read_number(hierarchy.mount / usage)
            return max(0, used - read_fields(hierarchy.mount / "memory.stat").get(inactive, 0))
        except OSError:
            continue
    return 0


def limits(probe: Callable[[], Enforcement] = probe_enforcement) -> Check:
    try:
        found = probe()
    except BackendError as error:
        return Check("limits", "problem", error.message, "Jobs would fail to start for the same reason.")
    together = "; one CPU limit for all nodes of a job: what one doesn't use, others may" if found.shared_cores else ""
    cannot = f"; not enforced: {', '.join(found.cannot)}" if found.cannot else ""
    level: Level = "warning" if found.cannot or found.why else "ok"
    return Check("limits", level, f"{found.kind}{together}{cannot}", found.why)


def control_groups(find: Callable[[], list[Hierarchy]] = hierarchies) -> Check:
    """Say which control groups are mounted around this process; whether they are used is for ``limits`` to say."""
    found = find()
    two = unified(found)
    one = {name: group for name in ("cpu", "cpuacct", "memory") if (group := with_controller(found, name)) is not None}
    parts = []
    if two is not None:
        names = ", ".join(sorted({"cpu", "memory"} & two.controllers)) or "no controller for jobs"
        parts.append(f"v2 at {two.own}: {names} ({_writable([two.own])})")
    if one:
        parts.append(f"v1: {', '.join(one)} ({_writable([group.own for group in one.values()])})")
    if not parts:
        return Check("cgroups", "warning", "none can be seen here", "Exact limits of CPU and memory need them.")
    return Check("cgroups", "ok", "; ".join(parts))


def _writable(directories: list[Path]) -> str:
    return "writable" if all(os.access(directory, os.W_OK) for directory in directories) else "not writable for you"


def process_limits(nodes: int = _FEW_NODES) -> Check:
    """Open files and processes (ulimit) for a job of a few nodes."""
    for shortage in (descriptor_shortage(nodes), process_shortage(nodes)):
        if shortage is not None:
            return Check("ulimit", "problem", shortage.message, shortage.hint)
    return Check("ulimit", "ok", f"open files and processes are enough for a job of {nodes} nodes")


def ends_with_parent() -> Check:
    if not sys.platform.startswith("linux"):
        return Check(
            "orphans",
            "warning",
            "this system doesn't end processes with their parent",
            "After a kill -9 of a job's keeper: ps",
        )
    if not _dies_with_parent():
        return Check(
            "orphans",
            "warning",
            "PR_SET_PDEATHSIG has no effect here: nodes may outlive a keeper that is killed",
            "The next dlrover-lite run ends them. A sandbox (gVisor, old WSL) may be the cause.",
        )
    return Check("orphans", "ok", "the kernel ends nodes with their parent (PR_SET_PDEATHSIG)")


def _dies_with_parent(timeout_seconds: float = 2.0) -> bool:
    """Try it: a process between that ends, and one below it that should be ended by that. Everything is reaped in a process of its own,
    the first of the three."""
    first = os.fork()
    if first:
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 0
    code = 2
    try:
        linux.adopt_orphans()
        code = _try_it(timeout_seconds)
    finally:
        os._exit(code)


def _try_it(timeout_seconds: float) -> int:
    import select
    import signal

    told, telling = os.pipe()
    lives, living = os.pipe()
    between = os.fork()
    if between == 0:
        parent = os.getpid()
        below = os.fork()
        if below == 0:
            linux.die_with_parent(parent)
            os.close(living)
            os.write(telling, b".")
            os.read(lives, 1)  # until the parent has ended: from then on the time counts
            select.select([], [], [], timeout_seconds)
            os._exit(0)
        os.read(told, 1)  # it has asked for it
        os.write(telling, below.to_bytes(4, "little"))
        os._exit(0)
    os.close(living)
    os.waitpid(between, 0)
    below = int.from_bytes(os.read(told, 4), "little")
    status = os.waitpid(below, 0)[1]  # adopted; ends by itself if nothing ends it
    return 0 if os.waitstatus_to_exitcode(status) == -signal.SIGKILL else 1


# --- places -------------------------------------------------------------------------------------------------------------


def _refusal(directory: Path) -> str:
    """Return why nothing can be written in ``directory``, or, as long as it isn't there, where it would be made; empty if something can."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return ""
    except OSError as error:
        return f"{place}: {error.strerror}"


def state() -> Check:
    directory = state_directory()
    if refusal := _refusal(directory):
        return Check("state", "problem", f"can't write {refusal}", "Point DLROVER_LITE_HOME to a directory of yours.")
    import psutil

    place = next(parent for parent in (directory, *directory.parents) if parent.exists())
    free = psutil.disk_usage(str(place)).free
    text = f"{directory}, {format_bytes(free)} free"
    if free < LITTLE_DISK:
        level: Level = "problem" if free < TOO_LITTLE_DISK else "warning"
        return Check("state", level, text, "Make room there, or point DLROVER_LITE_HOME elsewhere.")
    if directory.is_dir() and directory.stat().st_mode & 0o077:
        hint = f"Close it: chmod 700 {directory}. It is done by itself where the file system and its owner let us."
        return Check(
            "state", "warning", f"{text}; open to other users (mode {directory.stat().st_mode & 0o777:o})", hint
        )
    return Check("state", "ok", text)


def runtime() -> Check:
    """Make what a job would make, a socket in it, and remove both."""
    me = identify(os.getpid())
    assert me is not None
    try:
        directory = create_runtime_directory(Path("doctor"), "doctor", me)
    except JobError as error:
        return Check("sockets", "problem", error.message, error.hint)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(directory / KEEPER_SOCKET))
    except OSError as error:
        hint = "Set XDG_RUNTIME_DIR or TMPDIR to a directory of yours on a local file system."
        return Check("sockets", "problem", f"{directory.parent} can't hold sockets: {error.strerror}", hint)
    finally:
        remove_runtime_directory(directory)
    longest = len(os.fsencode(directory)) + 1 + MAX_SOCKET_NAME_BYTES
    return Check(
        "sockets", "ok", f"{directory.parent}; paths of up to {longest} bytes, and {MAX_SOCKET_PATH_BYTES} fit"
    )


def kernels() -> Check:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    directory = Path(chosen) if chosen else cache_directory() / "kernels"
    if refusal := _refusal(directory):
        return Check(
            "kernels",
            "warning",
            f"can't be kept ({refusal}): every job compiles them, {COMPILE_SECONDS}",
            "Point NUMBA_CACHE_DIR or DLROVER_LITE_HOME to a directory of yours.",
        )
    places = sorted({index.parent for index in directory.rglob(f"*{INDEX}")})
    if not places:
        return Check("kernels", "ok", f"{directory}; the first job compiles them, {COMPILE_SECONDS}")
    if foreign := [place for place in places if not is_ours(place)]:
        text = f"other users can write to {foreign[0]}: what is kept there isn't used"
        return Check("kernels", "warning", text, f"Remove it, or point NUMBA_CACHE_DIR elsewhere: rm -r {foreign[0]}")
    if damaged := list(damaged_files(directory)):
        named = ", ".join(map(str, damaged[:3])) + (", …" if len(damaged) > 3 else "")
        return Check(
            "kernels",
            "warning",
            f"{len(damaged)} compiled ones are damaged: {named}",
            "The next job that needs one compiles it anew.",
        )
    return Check("kernels", "ok", f"compiled ones are kept in {directory}")


def shared_memory(directory: Path = _SHARED_MEMORY) -> Check:
    import psutil

    if not directory.is_dir():
        if directory == _SHARED_MEMORY and not sys.platform.startswith("linux"):
            return Check("shm", "ok", "not used on this system")
        return Check("shm", "warning", f"there is no {directory}", "Code of yours that shares tensors needs it.")
    if refusal := _refusal(directory):
        return Check("shm", "warning", f"can't write {refusal}", f"Have it made writable: chmod 1777 {directory}")
    size = psutil.disk_usage(str(directory))
    text = f"{directory}, {format_bytes(size.free)} free of {format_bytes(size.total)}"
    if size.free < LITTLE_SHARED_MEMORY:
        hint = "Jobs don't use it; code of yours that shares tensors does. Containers: --shm-size"
        return Check("shm", "warning", text, hint)
    return Check("shm", "ok", text)


# --- time, and what is left ---------------------------------------------------------------------------------------------


def huge_pages(setting: Path = _HUGE_PAGES) -> Check:
    """Check for huge pages of shared memory, which the rows of parameter servers are in."""
    try:
        chosen = re.search(r"\[(\w+)\]", setting.read_text(encoding="ascii"))
    except OSError:
        chosen = None
    if chosen is None:
        return Check("pages", "ok", "4 KiB for shared memory: this kernel has no huge ones for it")
    if chosen[1] not in ("never", "deny"):
        return Check("pages", "ok", f"huge ones for shared memory ({chosen[1]})")
    if chosen[1] == "never":
        return Check("pages", "ok", "4 KiB for shared memory (never), huge ones where a server asks for them")
    hint = f"For tables of many gigabytes huge ones are faster: echo never > {setting} allows them where a server asks"
    return Check("pages", "ok", f"4 KiB for shared memory ({chosen[1]})", hint)


def clock(now: Callable[[], float] = time.time) -> Check:
    directory = next(parent for parent in (state_directory(), *state_directory().parents) if parent.exists())
    skew = _skew(directory, now)
    if skew is not None and abs(skew) > _SKEW_SECONDS:
        return Check(
            "clock",
            "warning",
            f"files written now in {directory} are dated {abs(skew):.0f} s {'later' if skew > 0 else 'earlier'}",
            "Set the clock of this machine, or of the file server, right (NTP).",
        )
    slept = _slept_seconds()
    if slept is not None and slept > _SLEPT_SECONDS:
        text = f"right; this machine has slept {slept:.0f} s since it was started: jobs don't count that time"
        return Check("clock", "ok", text)
    return Check("clock", "ok", "agrees with the files' times; the machine has not slept")


def _skew(directory: Path, now: Callable[[], float]) -> float | None:
    """Return the seconds by which the file system's clock is ahead of ours, at least; however long making a file takes."""
    try:
        before = now()
        with tempfile.NamedTemporaryFile(dir=directory) as file:
            written = os.fstat(file.fileno()).st_mtime
        return written - min(max(written, before), now())
    except OSError:
        return None  # ``state`` says so


def _slept_seconds() -> float | None:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def left_behind(find: Callable[[], Iterable[Path]] = leftovers) -> Check:
    found = list(find())
    if not found:
        return Check("leftovers", "ok", "none of killed jobs")
    named = ", ".join(map(str, found[:3])) + (", …" if len(found) > 3 else "")
    return Check(
        "leftovers", "warning", f"{len(found)} of killed jobs: {named}", "The next dlrover-lite run removes them."
    )
