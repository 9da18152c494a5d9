"""The logs of all nodes of a job as one, in order of time, each line with its node."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from dlrover_lite.core.errors import JobError
from dlrover_lite.tui.sources.log_tail import KEPT_LINES, NOTHING, LogLines, cleaned
from dlrover_lite.tui.text import Line, Tone, line

if TYPE_CHECKING:
    from dlrover_lite.jobs.backend import Log

__all__ = ["JobLogTail"]

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_TONES: tuple[Tone, ...] = ("one", "two", "three", "plain")


class _Entry(NamedTuple):
    time: str
    """Time of the line, of which a later one comes after in order of text; of a line without one that of the line before."""
    node: str
    text: str


class _Node:
    """One node's log, as far as it was read."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.restarts = 0
        self.time = ""


class JobLogTail:
    """The last lines of all logs of a job. ``names`` lists those there are, and ``log`` opens one, with at most so many lines: both each
    time it is read."""

    def __init__(self, names: Callable[[], Sequence[str]], log: Callable[[str, int], Log]) -> None:
        self._names, self._open = names, log
        self._nodes: dict[str, _Node] = {}
        self._entries: list[_Entry] = []
        self._ends: list[_Entry] = []
        """What can't be read, and lines whose end isn't written yet: they come last."""
        self._gone = 0
        self._told: LogLines | None = None

    def read(self) -> LogLines:
        """Return all lines that are kept; the same object as before if nothing is new. Raises JobError when it can't be listed which logs
        there are; one that can't be read is told in a line."""
        new: list[_Entry] = []
        ends: list[_Entry] = []
        anew = False
        for name in self._names():
            try:
                anew |= self._read(name, new, ends)
            except JobError as error:
                ends.append(_Entry("", name, f"(can't be read: {error.message})"))
        if new:
            self._entries = sorted([*self._entries, *new], key=attrgetter("time"))  # of one time: as they came
            self._gone += max(0, len(self._entries) - KEPT_LINES)
            del self._entries[:-KEPT_LINES]
        if new or anew or ends != self._ends or self._told is None:
            self._ends = ends
            self._told = LogLines(self._written(), self._gone)
        return self._told

    def _read(self, name: str, new: list[_Entry], ends: list[_Entry]) -> bool:
        """Read what is new in one log. Returns whether it has begun anew."""
        if (node := self._nodes.get(name)) is None:
            node = self._nodes[name] = _Node(self._open(name, KEPT_LINES))
        lines = list(node.log.new_lines())
        if anew := node.log.restarts != node.restarts:
            node.restarts, node.time = node.log.restarts, ""
            self._entries = [one for one in self._entries if one.node != name]
        for text in lines:
            if (match := _TIME.match(text)) is not None:
                node.time = " ".join(match.groups()).replace(",", ".")
            new.append(_Entry(node.time, name, text))
        if node.log.begun:
            ends.append(_Entry(node.time, name, node.log.begun))
        return anew

    def _written(self) -> tuple[Line, ...]:
        width = max(map(len, self._nodes), default=0)
        tones = {name: _TONES[at % len(_TONES)] for at, name in enumerate(sorted(self._nodes))}
        return tuple(
            line((f"{node:<{width}}", tones.get(node, "plain")), (" │ ", "dim"), cleaned(text))
            for _, node, text in (*self._entries, *self._ends)
        ) or (NOTHING,)
