"""Being asked to end by a signal, as between two steps of a loop."""

from __future__ import annotations

import signal

__all__ = ["StopSignals"]


class StopSignals:
    """Whether this process has been asked to end, by SIGTERM or SIGINT. A KeyboardInterrupt can only come from a person's own code then."""

    def __init__(self) -> None:
        self._came = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def _take(self, _signal: int, _frame: object) -> None:
        self._came = True

    def __call__(self) -> bool:
        return self._came
