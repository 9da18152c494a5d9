"""This process: who it runs as, and whether it has been asked to end."""

from __future__ import annotations

import os
import pwd
import signal

__all__ = ["StopSignals", "user_name"]


class StopSignals:
    """Whether this process has been asked to end, by SIGTERM or SIGINT, as between two steps of a loop. A KeyboardInterrupt can only come
    from a person's own code then."""

    def __init__(self) -> None:
        self._came = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def _take(self, _signal: int, _frame: object) -> None:
        self._came = True

    def __call__(self) -> bool:
        return self._came


def user_name() -> str:
    """Return the name of the user that this process runs as; the number where it has no name, as in a container that runs with any."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
