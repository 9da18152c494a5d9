"""Lines to be read as data: which are shown, in which rows, and which a search has found."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from dlrover_lite.tui.text import Line, folded, marked, padded, plain, stripped

__all__ = ["TextView"]


class TextView:
    """Lines in rows of a ``width``: each in one, cut where it is too long, or, while it ``wraps``, in as many as it takes.

    A search finds the lines with its text, in any case. ``only``: other lines are left out.
    """

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self.lines: list[Line] = [stripped(one) for one in lines]
        self.width = 80
        self.wraps = False
        self.only = False
        self.looked_for = ""
        """Text that is searched for; empty: none is."""
        self.at: int | None = None
        """Position in ``found`` of the line that was gone to last; None: none was."""
        self.shown: list[Line] = self.lines
        self.found: list[int] = []
        """Positions in ``shown`` of the lines that were found, in order."""
        self._starts: list[int] = []
        """First row of each line that is shown, while lines wrap."""

    # --- what there is --------------------------------------------------------------------------------------------------

    def put(self, lines: Sequence[Line], *, gone: int = 0) -> int:
        """Take these lines, in place of those there are, of which the first ``gone`` are gone. Returns the rows that were above the others
        and are gone."""
        rows = self.first_row(gone) if gone and not self.only else 0
        lost = sum(self._matches(one) for one in self.lines[:gone]) if self.looked_for else 0
        self.lines = [stripped(one) for one in lines]
        self._arrange()
        if self.at is not None:
            self.at = self.at - lost if 0 <= self.at - lost < len(self.found) else None
        return rows

    def search(self, text: str) -> None:
        self.looked_for = text.strip().lower()
        self.at = None
        self._arrange()

    def show_only(self, only: bool) -> None:
        self.only = only
        self._arrange()  # the line that was gone to stays the one of its number

    def arrange(self, width: int, *, wraps: bool) -> None:
        """Use another width, or another way with long lines."""
        if (width, wraps) != (self.width, self.wraps):
            self.width, self.wraps = max(1, width), wraps
            self._arrange_rows()

    def _arrange(self) -> None:
        self.shown = self.lines
        self.found = [at for at, one in enumerate(self.lines) if self._matches(one)] if self.looked_for else []
        if self.only and self.looked_for:
            self.shown = [self.lines[at] for at in self.found]
            self.found = list(range(len(self.shown)))
        self._arrange_rows()

    def _matches(self, line: Line) -> bool:
        return self.looked_for in plain(line).lower()

    def _arrange_rows(self) -> None:
        counts = (_rows_of(one, self.width) for one in self.shown) if self.wraps else ()
        self._starts = [0, *accumulate(counts)] if self.wraps else []

    # --- rows -----------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        return self._starts[-1] if self.wraps else len(self.shown)

    def row(self, y: int) -> Line:
        """Return a row, of exactly the width, with what was found marked."""
        if not 0 <= y < self.rows:
            return padded((), self.width)
        at = self.line_at(y)
        line = self.shown[at]
        if self.looked_for:
            here = self.at is not None and self.found[self.at] == at
            line = marked(line, self._pattern, "here" if here else "found")
        if not self.wraps:
            return padded(line, self.width)
        return padded(folded(line, self.width)[y - self._starts[at]], self.width)

    def line_at(self, y: int) -> int:
        """Return the position of the line that is in a row."""
        return bisect_right(self._starts, y) - 1 if self.wraps else y

    def first_row(self, line: int) -> int:
        """Return the row in which a line of those that are shown begins."""
        return self._starts[min(line, len(self._starts) - 1)] if self.wraps else line

    # --- what was found -------------------------------------------------------------------------------------------------

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.looked_for), re.IGNORECASE)

    @property
    def row_gone_to(self) -> int | None:
        """First row of the line that was gone to last; None: none was."""
        return None if self.at is None else self.first_row(self.found[self.at])

    def first_from(self, y: int) -> int | None:
        """Go to the first line that was found in this row or below it, or else above it. Returns its row; None: none was found."""
        if not self.found:
            return None
        self.at = bisect_left(self.found, self.line_at(y) if self.rows else 0) % len(self.found)
        return self.row_gone_to

    def next(self, y: int, step: int) -> int | None:
        """Go to the line that was found after the one gone to last (``step`` 1) or before it (-1); where none was, after or before a row.
        After the last one comes the first. Returns its row; None: none was found."""
        if not self.found:
            return None
        if self.at is not None:
            self.at = (self.at + step) % len(self.found)
        else:
            after = bisect_left(self.found, self.line_at(y) if self.rows else 0)
            self.at = (after if step > 0 else after - 1) % len(self.found)
        return self.row_gone_to


_NARROW = re.compile("[ -~\u2500-\u25ff]*")
"""Text of which each character is certainly one cell wide: ASCII, lines and blocks."""


def _rows_of(line: Line, width: int) -> int:
    if all(map(_NARROW.fullmatch, (span.text for span in line))):
        return max(1, -(-sum(len(span.text) for span in line) // width))
    return len(folded(line, width))
