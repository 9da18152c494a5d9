"""Control groups from systemd: one for a job's keeper, without which a person who isn't root can't limit anything; and one for what a job
starts and is to outlive it."""

from __future__ import annotations

import os
import shutil
import subprocess

from dlrover_lite.backends.host.mounts import Hierarchy, hierarchies, unified
from dlrover_lite.backends.limits.cgroup_v2 import is_keepers, place_in

__all__ = ["outside_jobs", "scoped"]

_SCOPE = ["--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "--"]
_PLAIN_SCOPE = ["--scope", "--quiet", "--collect", "--"]
_PROBE_SECONDS = 5.0


def scoped(command: list[str], found: list[Hierarchy] | None = None) -> list[str]:
    """Return ``command``, through systemd-run where that gives it a control group it may divide, and nothing else does.

    systemd-run then becomes the command: the process that is started is the one that runs on, with its descriptors.
    """
    if os.geteuid() == 0:
        return command
    hierarchy = unified(hierarchies() if found is None else found)
    if hierarchy is None or place_in(hierarchy) is not None or not _has_controllers(hierarchy):
        return command
    return _through_systemd(_SCOPE, command)


def outside_jobs(command: list[str], found: list[Hierarchy] | None = None) -> list[str]:
    """Return ``command``, through systemd-run where this process is in the control group of a job's keeper: what stays there counts to the
    job's memory, ends with its scope, and keeps that from being removed.

    A group of version 1 is never a keeper's own. Without systemd it is started where this process is.
    """
    hierarchy = unified(hierarchies() if found is None else found)
    if hierarchy is None or not is_keepers(hierarchy.own):
        return command
    return _through_systemd(_PLAIN_SCOPE if os.geteuid() == 0 else ["--user", *_PLAIN_SCOPE], command)


def _through_systemd(options: list[str], command: list[str]) -> list[str]:
    """Return ``command`` through systemd-run with these options; as it is where that doesn't work."""
    systemd_run = shutil.which("systemd-run")
    if systemd_run is None or not _works([systemd_run, *options, "true"]):
        return command
    return [systemd_run, *options, *command]


def _has_controllers(hierarchy: Hierarchy) -> bool:
    """Return whether the hierarchy has both controllers anywhere: which of them users get, the new group itself will tell."""
    try:
        names = (hierarchy.mount / "cgroup.controllers").read_text().split()
    except OSError:
        return False
    return {"cpu", "memory"} <= set(names)


def _works(command: list[str]) -> bool:
    """Return whether a command works. It doesn't where the user has no systemd, or it can't be reached: over su or in a container."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
