"""What has happened to nodes and minibatches, for whoever asks why.

Entries about nodes and about minibatches in trouble are written to the job's directory as they come. Leases that went well are kept in
memory, the newest few thousand, and written when the job ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from dlrover_lite.core.errors import UsageError
from dlrover_lite.jobs.events import find
from dlrover_lite.master.work.ledger_data import Pass
from dlrover_lite.protocol.questions import About, Story, StoryEntry
from dlrover_lite.transport.frames import UNUSABLE, Failure

__all__ = ["EventLog"]

KEPT_LEASES = 10_000


_Leased = tuple[float, str, int, int, int, str, str]
"""Time, the minibatches [start, stop) of a pass (kind, index), what happened, and the worker. Formatted if somebody asks: there may be
thousands a second. The garbage collector tracks nothing in it, so it doesn't track these either."""


def _entry(leased: _Leased) -> StoryEntry:
    at, kind, index, start, stop, text, worker = leased
    last = f"-{stop - 1}" if stop - start > 1 else ""
    prefix = "eval " if kind == "eval" else ""
    return StoryEntry(at, f"{prefix}{index}/{start}{last}", f"{text} {worker}", worker)


class EventLog:
    """``write`` appends entries to a file; ``clock`` gives seconds since the epoch."""

    def __init__(
        self,
        write: Callable[[list[StoryEntry]], None],
        clock: Callable[[], float],
        before: Iterable[StoryEntry] = (),
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create the log. ``before``: what an earlier master of this job has written. ``say`` is told of nodes, a line for each entry."""
        self._say = say
        self._write = write
        self._clock = clock
        self._entries = list(before)
        self._unwritten: list[StoryEntry] = []
        self._leases: deque[_Leased] = deque(maxlen=KEPT_LEASES)
        self._told_leases = 0

    def node(self, node: str, text: str, about: About = "") -> None:
        self._add(StoryEntry(self._clock(), node, text, about=about))
        self._say(f"{node}: {text}")

    def lease(self, of: Pass, start: int, stop: int, text: str, worker: str) -> None:
        """Record that minibatches [start, stop) went their usual way: ``text`` is "leased to" or "done by"."""
        self._told_leases += 1
        self._leases.append((self._clock(), of.kind, of.index, start, stop, text, worker))

    def trouble(self, of: Pass, start: int, stop: int, text: str, worker: str) -> None:
        """Record what happens to minibatches [start, stop) and doesn't happen to most: "given back by"."""
        self._add(_entry((self._clock(), of.kind, of.index, start, stop, text, worker)))

    def _add(self, entry: StoryEntry) -> None:
        self._entries.append(entry)
        self._unwritten.append(entry)

    def flush(self) -> None:
        """Write what isn't yet. What can't be written is kept for the next time; raises what ``write`` does."""
        if self._unwritten:
            self._write(list(self._unwritten))
            self._unwritten.clear()

    def close(self) -> None:
        """Write the leases too."""
        self._unwritten += map(_entry, self._leases)
        self.flush()

    def about(self, subject: str, nodes: Iterable[str]) -> Story:
        """Return the story of a subject. Raises UsageError for one that nothing is known of."""
        entries = [*self._entries, *map(_entry, self._leases)]
        entries.sort(key=lambda entry: entry.at)
        return find(Story(entries, self._told_leases - len(self._leases)), subject, nodes=nodes)

    def answer(self, subject: str, nodes: Iterable[str]) -> Story | Failure:
        """Return the story of a subject as ``about`` does, or a failure for whoever asks."""
        try:
            return self.about(subject, nodes)
        except UsageError as error:
            return Failure(UNUSABLE, error.message, error.hint)

    def last_words(self, nodes: Iterable[str], most: int = 6) -> list[str]:
        """Return the last entries about these nodes, as lines."""
        wanted = set(nodes)
        told = [entry for entry in self._entries if entry.subject in wanted]
        return [f"{entry.subject}: {entry.text}" for entry in told[-most:]]
