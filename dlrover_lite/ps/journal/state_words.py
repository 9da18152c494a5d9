"""Where everything is in the arena ``state``."""

from __future__ import annotations

from dlrover_lite.core.errors import JobError

__all__ = ["Header", "damaged"]


class Header:
    """uint64 words by their positions: a page of single ones, then regions, most of which nobody ever touches."""

    MAGIC, FORMAT, CONFIGURATION_BYTES, CONFIGURATION_DIGEST, PUSHES = range(5)
    UNDER_WAY, EPOCH, K, BEFORE, PROGRESS = range(5, 10)
    ENTRIES, PARTS = 10, 11
    RESTORED, BEGUN_EMPTY = 12, 13
    COVERS = 16
    """The slots that the push under way covers: words 16 to 79."""
    GROUPS = 512
    CONFIGURATION = 1 << 17
    APPLIED = 1 << 22
    HALVES = (1 << 26, 3 << 25)
    """Beginnings of the two regions for what is known of interrupted pushes: each has the room up to the next."""
    END = 1 << 27


def damaged(why: str) -> JobError:
    return JobError(f"the state of a parameter server that has ended is damaged: {why}")
