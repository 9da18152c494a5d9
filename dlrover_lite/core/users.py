"""Who this process runs as."""

from __future__ import annotations

import os
import pwd

__all__ = ["user_name"]


def user_name() -> str:
    """Return the name of the user that this process runs as; the number where it has no name, as in a container that runs with any."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
