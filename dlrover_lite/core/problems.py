"""What is wrong with a recipe, or another file that a person writes, and where: collected first, shown together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

from dlrover_lite.core.errors import RecipeError, TraceError

__all__ = ["Place", "Problem", "Problems", "nearest"]


class Place(msgspec.Struct, frozen=True):
    """A line of a file (counted from 1), a whole file (line 0), or an override (``override`` is its dotted key)."""

    source: str
    line: int = 0
    override: str | None = None


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong. ``key`` is the dotted path of the recipe's key, empty for the file as a whole."""

    place: Place
    key: str
    message: str

    def __str__(self) -> str:
        if self.place.override is not None:
            named = not self.key or self.key == self.place.override
            return f"override {self.place.override}: " + (self.message if named else f"{self.key}: {self.message}")
        head = f"{self.place.source}:{self.place.line}" if self.place.line else self.place.source
        return f"{head}: {self.key}: {self.message}" if self.key else f"{head}: {self.message}"


class Problems:
    """Collects problems; ``raise_if_any`` turns them into one error, a line each, in the order of the lines."""

    def __init__(self, error: type[RecipeError | TraceError] = RecipeError) -> None:
        self._error = error
        self._found: list[Problem] = []
        self._hints: list[str] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, place: Place, key: str, message: str, *, hint: str = "") -> None:
        problem = Problem(place, key, message)
        if problem not in self._found:
            self._found.append(problem)
        if hint and hint not in self._hints:
            self._hints.append(hint)

    def raise_if_any(self) -> None:
        if self._found:
            ordered = sorted(self._found, key=lambda problem: (problem.place.override is not None, problem.place.line))
            text = "\n".join(str(problem) for problem in ordered)
            raise self._error(text, hint="\n".join(self._hints), problems=tuple(ordered))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Find the known word that ``word`` is most likely a misspelling of, or None."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), by_lower, n=1, cutoff=0.6)
    close = close or difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None
