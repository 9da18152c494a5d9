"""How the lines of a screen are shared among what is above each other on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlrover_lite.tui.text import Line, line

__all__ = ["Want", "divide", "fitted"]


class Want(NamedTuple):
    """Lines that one part of a screen wants."""

    least: int
    """Fewest lines that it is shown in; 0 lines: it isn't shown."""
    enough: int
    """Number of lines in which all of it is seen."""
    grows: bool = False
    """Whether more lines than enough make it better."""
    rank: int = 0
    """Rank of the part: where there isn't room for all, those of the highest give way first; 0: never."""
    spare: bool = False
    """Whether it is shown only where all others have enough, and then has all lines that are left over."""


def divide(room: int, wants: Sequence[Want]) -> list[int]:
    """Divide ``room`` lines: nothing gets more than enough while another has less. Of what is left over those that grow get equal parts,
    unless one is for that."""
    spare = next((at for at, want in enumerate(wants) if want.spare and want.enough > 0), None)
    if spare is not None:
        left = room - sum(want.enough for at, want in enumerate(wants) if at != spare)
        if left >= wants[spare].enough:
            return [left if at == spare else want.enough for at, want in enumerate(wants)]
        wants = [Want(0, 0) if want.spare else want for want in wants]
    kept = _kept(room, wants)
    found = [min(want.least, want.enough) if at in kept else 0 for at, want in enumerate(wants)]
    left = room - sum(found)
    while left > 0 and (short := [at for at in kept if found[at] < wants[at].enough]):
        at = min(short, key=lambda at: found[at])
        found[at] += 1
        left -= 1
    growing = [at for at in kept if wants[at].grows]
    for number, at in enumerate(growing):
        found[at] += max(0, left) // len(growing) + (number < max(0, left) % len(growing))
    return found


def _kept(room: int, wants: Sequence[Want]) -> list[int]:
    """Choose the parts that are shown."""
    kept = [at for at, want in enumerate(wants) if want.enough > 0]

    def taken() -> int:
        return sum(min(wants[at].least, wants[at].enough) for at in kept)

    while taken() > room:
        droppable = [at for at in kept if wants[at].rank]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda at: (wants[at].rank, at)))
    return kept


def fitted(lines: Sequence[Line], height: int) -> list[Line]:
    """Return at most ``height`` lines; where some are missing, the last one says how many."""
    if len(lines) <= height or height < 1:
        return list(lines[: max(0, height)])
    return [*lines[: height - 1], line((f"… {len(lines) - height + 1} more lines", "dim"))]
