"""Security of all pods: what the restricted Pod Security Standard asks for, and a root file system that nothing writes to."""

from __future__ import annotations

from typing import Any

from dlrover_lite.core.units import GIB

__all__ = [
    "CONTAINER_SECURITY",
    "FS_GROUP",
    "POD_SECURITY",
    "SCRATCH",
    "pod_security",
    "scratch_environment",
    "scratch_volume",
]

POD_SECURITY: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
FS_GROUP = 65532
"""Group that may write to the volumes of pods that keep files."""
SCRATCH = "/scratch"
"""Directory in every pod that may be written to, and is gone with the pod."""


def scratch_volume(size: int = GIB) -> dict[str, Any]:
    """Make the volume of ``SCRATCH``. ``size``: bytes at which the pod is evicted, which nothing reserves; 0: as much as there is."""
    return {"name": "scratch", "emptyDir": {"sizeLimit": str(size)} if size else {}}


def pod_security(fs_group: int) -> dict[str, Any]:
    """Make the security of a pod whose volume is given to this group; 0: to the one that the namespace gives it."""
    return {**POD_SECURITY, **({"fsGroup": fs_group, "fsGroupChangePolicy": "OnRootMismatch"} if fs_group else {})}


def scratch_environment() -> dict[str, str]:
    """Return the variables by which everything is written below ``SCRATCH``: the user may be any, without a home."""
    return {
        "HOME": SCRATCH,
        "TMPDIR": SCRATCH,  # one that is there
        "NUMBA_CACHE_DIR": f"{SCRATCH}/numba",
        "XDG_CACHE_HOME": f"{SCRATCH}/cache",
        "XDG_CONFIG_HOME": f"{SCRATCH}/config",
        "XDG_DATA_HOME": f"{SCRATCH}/data",
        "XDG_STATE_HOME": f"{SCRATCH}/state",
    }
