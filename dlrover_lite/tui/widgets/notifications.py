"""Notices: how long each stays, and how many there are at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from textual.notifications import Notification

__all__ = ["MOST_AT_ONCE", "Notice", "superseded"]

MOST_AT_ONCE = 4
"""Maximum number of notices: more would hide what they are about, and each is mounted again on every screen that comes."""
_LEAST_SECONDS = 0.25
_SEVERITIES = ("information", "warning", "error")


class Notice(Notification):
    """A notice that has some time left whenever it is asked. (Textual looks whether a notice has expired, and then makes its toast, with a
    timer for the time left. Where that has passed in between, as on a machine that does other things, the timer's interval is below 0: its
    loop never ends, and neither a key nor anything else is taken any more. The same happens when the machine's clock is put forward.)"""

    @classmethod
    def of(cls, one: Notification) -> Notice:
        return cls(**{field.name: getattr(one, field.name) for field in fields(one)})

    @property
    def time_left(self) -> float:
        """Seconds until it goes; for its toast, which is to be there for a moment at least, and not longer than it was to be."""
        return min(max(_LEAST_SECONDS, super().time_left), max(_LEAST_SECONDS, self.timeout))

    @property
    def has_expired(self) -> bool:
        return super().time_left <= 0


def superseded(shown: Sequence[Notification], new: Notification) -> list[Notification]:
    """Return which of the notices that are shown, the oldest first, give way to a new one: those that say the same, and, where there are
    too many, the oldest of the least severe."""
    same = [one for one in shown if (one.message, one.severity) == (new.message, new.severity)]
    others = [one for one in shown if one not in same]
    by_weight = sorted(others, key=lambda one: _SEVERITIES.index(one.severity))
    return same + by_weight[: max(0, len(others) + 1 - MOST_AT_ONCE)]
