"""How limits would be enforced for a job that is started now, tried."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from dlrover_lite.backends.limits.systemd_scope import scoped
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.files.paths import python_environment
from dlrover_lite.protocol.nodes import Enforcement

__all__ = ["probe_enforcement"]

_PROBE_SECONDS = 60.0
"""Seconds that a probe may take. Usually it takes less than one; a machine that is busy is no problem."""


def probe_enforcement() -> Enforcement:
    """Return how limits would be enforced for a job started now; tried in a process of its own, which may be moved to another group for it.

    Raises BackendError when that process fails.
    """
    command = scoped([sys.executable, "-P", "-m", "dlrover_lite.backends.limits"])
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=True,
            timeout=_PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
            env=python_environment(),
        )
        return from_json(done.stdout, Enforcement)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {error.returncode}"]
        raise BackendError(f"can't be found out: {said[-1]}") from error
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
        raise BackendError(f"can't be found out: {error}") from error
