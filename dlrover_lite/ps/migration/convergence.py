"""When a batch of slots may be frozen, and what is done when its rows change faster than they are copied. Pure.

A batch is frozen when what is left of it takes 10 ms. While rounds don't get shorter, pushes for its slots are held back for a share of
the time, up to one half; then the batch is halved, down to one slot, whose pushes are held back for up to nine tenths.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Asked", "Convergence"]

FEW_BYTES = 4 << 20
"""Maximum bytes that may be left to copy while the slots are frozen."""
FREEZE_SECONDS = 0.01
"""Seconds that copying what is left may take at the recent speed when slots are frozen."""
MOST_FREEZE_SECONDS = 0.04
"""Seconds that copying what is left may take when rounds don't get shorter."""
_LEAST_BYTES = 1 << 16
"""Bytes that may be left however slow copying is. Smaller chunks say nothing of the speed."""
SHRINKS = 0.8
"""A round is to leave less than this share of what the one before left."""
MOST_ROUNDS = 12
"""Number of rounds after which further ones count as not getting shorter."""
SHARES = (0.0, 0.25, 0.5)
"""Shares of the time for which pushes are held back, one after the other."""
LAST_SHARES = (0.75, 0.9)
"""Further shares of the time for which pushes are held back, for a single slot."""
_NEWS = 0.2
"""Weight of the newest chunk in the average of seconds per byte."""


class Asked(NamedTuple):
    """What the source is to do with the batch."""

    batch: int = 0
    freeze: bool = False
    slowed: float = 0.0
    """Share of the time for which pushes are held back."""
    split: bool = False


class Convergence:
    """Decides how the batches of one session are copied, one after the other."""

    def __init__(self) -> None:
        self.asked = Asked()
        self._seconds_per_byte = 0.0
        self._left: int | None = None
        """Bytes left to copy at the beginning of the present round; None: nothing to compare the next round with."""
        self._round = self._rounds = 0

    @property
    def few_bytes(self) -> float:
        """Bytes that may be left when a batch is frozen."""
        return min(FEW_BYTES, self._bytes_in(FREEZE_SECONDS))

    def took(self, received: int, seconds: float) -> None:
        """Note that a chunk of ``received`` bytes has taken both sides ``seconds``."""
        if received >= _LEAST_BYTES and seconds > 0:
            each = seconds / received
            self._seconds_per_byte += (_NEWS if self._seconds_per_byte else 1.0) * (each - self._seconds_per_byte)

    def done(self) -> None:
        """Note that the batch is complete."""
        self.asked = Asked()

    def look(self, batch: int, round_number: int, left: int) -> None:
        """Decide what to ask for: of ``batch``, in its second round or later (or at the end of the first), ``left`` bytes have changed and
        aren't copied."""
        if batch != self.asked.batch:
            self._begin(batch, round_number, left)
        if self.asked.freeze:
            return
        begins = round_number > self._round
        self._rounds += begins
        stays = begins and self._left is not None and (left >= SHRINKS * self._left or self._rounds > MOST_ROUNDS)
        if left <= self.few_bytes or (stays and left <= self._bytes_in(MOST_FREEZE_SECONDS)):
            self.asked = self.asked._replace(freeze=True, split=False)
        elif stays:
            self._press()
        if begins:
            self._round, self._left = round_number, left

    def _begin(self, batch: int, round_number: int, left: int) -> None:
        """Begin with a batch. A half of the one before, which comes amid a round, is held back as that was."""
        whole_round = round_number > 1 and not self.asked.split
        self.asked = Asked(batch, slowed=self.asked.slowed)
        self._left, self._round, self._rounds = left if whole_round else None, round_number, 0

    def _press(self) -> None:
        steps = [*SHARES, *(LAST_SHARES if self.asked.split else ())]  # it couldn't be halved
        further = [share for share in steps if share > self.asked.slowed]
        if further:
            self.asked = self.asked._replace(slowed=further[0])
        else:
            self.asked = self.asked._replace(split=True)
        self._rounds = 0

    def _bytes_in(self, seconds: float) -> float:
        if not self._seconds_per_byte:
            return FEW_BYTES
        return max(_LEAST_BYTES, seconds / self._seconds_per_byte)
