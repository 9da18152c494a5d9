"""What the event loops of keepers have in common: signals as bytes to read, and how long to wait."""

from __future__ import annotations

import signal
import socket

__all__ = ["milliseconds_until", "signals_as_bytes"]

_LONGEST_WAIT_SECONDS = 3600.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT, signal.SIGCHLD)


def signals_as_bytes() -> socket.socket:
    """Have signals arrive as bytes to read, one by one, in the loop; nothing is interrupted."""
    reading, writing = socket.socketpair()
    for end in (reading, writing):
        end.setblocking(False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    return reading


def milliseconds_until(due: float | None, now: float) -> int | None:
    """Return how long to wait, so that what is due has come by then; None: for as long as it takes."""
    if due is None:
        return None
    return max(0, int(min(due - now, _LONGEST_WAIT_SECONDS) * 1000) + 1)
