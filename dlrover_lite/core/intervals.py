"""Sets of whole numbers kept as sorted, merged, half-open ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["IntervalSet", "Range"]

Range = tuple[int, int]
"""Half-open range: (start, stop) stands for start, start + 1, …, stop - 1."""


class IntervalSet:
    """Whole numbers as the fewest ranges; memory follows the number of ranges, whatever their length.

    Look-ups are O(log ranges). Changes are too, but for the moving of list entries behind the place of change.
    An empty range (``stop <= start``) is accepted everywhere and means nothing.
    """

    __slots__ = ("_listed", "_starts", "_stops", "total")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        # Ranges never touch each other, so both lists rise strictly, and position i of both is one range.
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._listed: list[Range] | None = None
        """All ranges, as listed since the last change; None: nobody has asked for them since."""
        self.total = 0
        """How many numbers are in the set."""
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> Range:
        """Put [start, stop) in. Returns the whole range it is part of from now on."""
        if stop <= start:
            return start, stop
        self._listed = None
        starts, stops = self._starts, self._stops
        low = bisect_left(stops, start)  # the first range that touches or follows `start`
        high = bisect_right(starts, stop, low)  # behind the last one that touches `stop`
        if low == high:
            starts.insert(low, start)
            stops.insert(low, stop)
            self.total += stop - start
            return start, stop
        merged = (min(start, starts[low]), max(stop, stops[high - 1]))
        if high - low == 1:
            self.total -= stops[low] - starts[low]
            starts[low], stops[low] = merged
        else:
            self.total -= sum(stops[low:high]) - sum(starts[low:high])
            starts[low:high] = (merged[0],)
            stops[low:high] = (merged[1],)
        self.total += merged[1] - merged[0]
        return merged

    def remove(self, start: int, stop: int) -> None:
        """Take out what there is of [start, stop)."""
        starts, stops = self._starts, self._stops
        low = bisect_right(stops, start)  # the first range with something at or after `start`
        high = bisect_left(starts, stop, low)
        if stop <= start or low == high:
            return
        self._listed = None
        first, last = starts[low], stops[high - 1]
        if start <= first and stop < last and high - low == 1:  # its beginning, which is what queues take
            self.total -= stop - first
            starts[low] = stop
            return
        self.total -= sum(stops[low:high]) - sum(starts[low:high])
        kept = [(a, b) for a, b in ((first, start), (stop, last)) if a < b]
        starts[low:high] = [a for a, _ in kept]
        stops[low:high] = [b for _, b in kept]
        self.total += sum(b - a for a, b in kept)

    def update(self, ranges: Iterable[Range]) -> None:
        """Put all of ``ranges`` (or of another set) in."""
        for start, stop in ranges:
            self.add(start, stop)

    def subtract(self, ranges: Iterable[Range]) -> None:
        """Take all of ``ranges`` (or of another set) out."""
        for start, stop in list(ranges):
            self.remove(start, stop)

    def within(self, start: int, stop: int) -> list[Range]:
        """List the parts of [start, stop) that are in the set."""
        low = bisect_right(self._stops, start)
        high = bisect_left(self._starts, stop, low)
        return [(max(start, self._starts[i]), min(stop, self._stops[i])) for i in range(low, high)]

    def missing(self, start: int, stop: int) -> list[Range]:
        """List the parts of [start, stop) that are not in the set."""
        gaps: list[Range] = []
        for a, b in self.within(start, stop):
            if start < a:
                gaps.append((start, a))
            start = b
        if start < stop:
            gaps.append((start, stop))
        return gaps

    def first(self) -> Range | None:
        """Return the lowest range; None when the set is empty."""
        return (self._starts[0], self._stops[0]) if self._starts else None

    def listed(self) -> list[Range]:
        """List all ranges; to read only, and the same list until something changes."""
        if self._listed is None:
            self._listed = list(self)
        return self._listed

    def __contains__(self, number: int) -> bool:
        i = bisect_right(self._starts, number) - 1
        return i >= 0 and number < self._stops[i]

    def __iter__(self) -> Iterator[Range]:
        return iter(zip(self._starts, self._stops, strict=True))

    def __len__(self) -> int:
        """Count the ranges; ``total`` is how many numbers there are."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]  # changeable

    def __repr__(self) -> str:
        return f"IntervalSet({list(self)})"
