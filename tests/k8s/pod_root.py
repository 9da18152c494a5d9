"""Runs a command as a container would: in mount and process namespaces of its own, below a root that can't be written to. As root only.

``python pod_root.py FILE`` with a ``Container`` as JSON in the file. SIGTERM is passed on; its exit code is the command's.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1
DEVICES = ("dev", "sys")
OWN = ("tmp", "run", "proc", "root", "home")
"""Directories of the machine that a container has its own of."""

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    check(
        libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None),
        f"mount {source} on {target}",
    )


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def make_place(root: Path, source: str, target: str) -> str:
    """Make what ``source`` is mounted on, below ``root``."""
    place = root / os.path.realpath(target).lstrip("/")  # /var/run is a link
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return str(place)


def make_root(container: dict[str, Any]) -> None:
    """Make the container's root, and enter it."""
    root = Path(container["root"])
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", str(root), "tmpfs", MS_NOSUID, "size=16m")
    for entry in Path("/").iterdir():
        if entry.is_symlink():
            (root / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir():
            (root / entry.name).mkdir()
            if entry.name not in OWN:
                bind(str(entry), str(root / entry.name), read_only=entry.name not in DEVICES)
    mount("proc", str(root / "proc"), "proc")
    for source, target, read_only in container["mounts"]:
        bind(source, make_place(root, source, target), read_only=read_only)
    bind(container["hosts"], str(root / "etc" / "hosts"))
    mount("none", str(root), flags=MS_BIND | MS_REMOUNT | MS_RDONLY)
    os.chroot(root)


def run(container: dict[str, Any]) -> None:
    """Become the container's first process."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    make_root(container)
    os.setsid()
    os.chdir(container["directory"])
    if (user := container["user"]) is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    os.execvpe(container["command"][0], container["command"], container["environment"])


def main(file: str) -> int:
    container = json.loads(Path(file).read_text())
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    for group in container["cgroups"]:
        Path(group, "cgroup.procs").write_text("0")
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWPID), "unshare")
    child = os.fork()
    if not child:
        try:
            run(container)
        except OSError as error:
            print(f"container can't be started: {error}", file=sys.stderr, flush=True)
        os._exit(128)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    while True:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
