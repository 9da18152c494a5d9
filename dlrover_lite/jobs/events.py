"""What has happened to a job's nodes and minibatches: kept as ``story.jsonl`` in its directory, a line for each entry.

The master appends, and anyone reads, whether or not the job runs. A subject is a node's id, or minibatches of a pass::

    worker-1   master             nodes
    0/17       0/100-200          minibatches 17, or 100 to 200, of epoch 0
    eval:0/5   (eval 0/5)         minibatch 5 of evaluation 0; the first form needs no quotes in a shell
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec

from dlrover_lite.core.decoding import json_decoder
from dlrover_lite.core.errors import UsageError
from dlrover_lite.jobs import json_lines
from dlrover_lite.protocol.questions import About, Story, StoryEntry

__all__ = ["FILE", "Minibatches", "Subject", "append", "find", "known_subjects", "parse_subject", "read", "select"]

FILE = "story.jsonl"

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_MINIBATCHES = re.compile(r"(?P<eval>eval[ :]\s*)?(?P<index>\d{1,18})/(?P<first>\d{1,18})(-(?P<last>\d{1,18}))?\Z")
_MOST_NAMED = 4


class Minibatches(msgspec.Struct, frozen=True):
    """Minibatches ``first`` to ``last``, both included, of an epoch or (``eval``) of an evaluation."""

    kind: Literal["train", "eval"]
    index: int
    first: int
    last: int

    def __str__(self) -> str:
        """Return the minibatches as entries name them: ``0/17``, ``0/100-200``, ``eval 0/5``."""
        to = "" if self.last == self.first else f"-{self.last}"
        return f"{'eval ' if self.kind == 'eval' else ''}{self.index}/{self.first}{to}"

    def overlaps(self, other: Minibatches) -> bool:
        same = (self.kind, self.index) == (other.kind, other.index)
        return same and self.first <= other.last and other.first <= self.last

    def distance(self, other: Minibatches) -> tuple[int, int, int]:
        """Return a distance, the larger the less alike: by kind, then by pass, then by the minibatches between."""
        between = max(self.first - other.last, other.first - self.last, 0)
        return int(self.kind != other.kind), abs(self.index - other.index), between


Subject = str | Minibatches
"""Node's id, or minibatches; "" is everything."""


class _Line(msgspec.Struct):
    """A line of the file. Fields that a later version may add are passed over."""

    at: float
    subject: str
    text: str
    node: str = ""
    about: About = ""


_decoder = json_decoder(_Line)


def parse_subject(text: str) -> Subject:
    """Parse a subject. Raises UsageError for a text that can be neither a node's id nor minibatches."""
    text = " ".join(text.split())
    if not text:
        return ""
    if (found := _MINIBATCHES.match(text)) is not None:
        first = int(found["first"])
        last = first if found["last"] is None else int(found["last"])
        if last < first:
            turned = f"{'eval:' if found['eval'] else ''}{found['index']}/{last}-{first}"
            raise UsageError(f"{text!r} ends before it begins: write {turned}")
        return Minibatches("eval" if found["eval"] else "train", int(found["index"]), first, last)
    if _NODE.match(text) and not text.isdecimal():
        return text
    raise UsageError(
        f"{text!r} is neither a node nor minibatches: write a node's id (worker-1, master), EPOCH/NUMBER or EPOCH/FIRST-LAST (0/17, "
        "0/100-200), or for those of an evaluation eval:0/5"
    )


def select(story: Story, subject: Subject) -> Story:
    """Return the entries about this subject: of a node, also those about minibatches it had trouble with; of minibatches, all whose range
    overlaps theirs."""
    if subject == "":
        return story
    return Story([entry for entry in story.entries if _is_about(entry, subject)], story.forgotten)


def _is_about(entry: StoryEntry, subject: Subject) -> bool:
    if isinstance(subject, str):
        return subject in (entry.subject, entry.node)
    about = _minibatches(entry)
    return about is not None and about.overlaps(subject)


def _minibatches(entry: StoryEntry) -> Minibatches | None:
    try:
        subject = parse_subject(entry.subject)
    except UsageError:
        return None
    return subject if isinstance(subject, Minibatches) else None


def find(story: Story, subject: str, *, nodes: Iterable[str] = ()) -> Story:
    """Return what ``select`` gives for a subject as a person writes it. ``nodes``: ids that are known beside those in the story.

    Raises UsageError for a subject that nothing is known of; it names the nearest ones that something is known of.
    """
    wanted, also = parse_subject(subject), ["master", *nodes]
    chosen = select(story, wanted)
    if chosen.entries or wanted == "" or wanted in also:
        return chosen
    near = _nearest(wanted, known_subjects(story, also))
    if isinstance(wanted, str):
        raise UsageError(f"There has never been a node {wanted!r}; there are {', '.join(near)}")
    nearest = ", ".join(name.replace(" ", ":") for name in near)
    raise UsageError(
        f"Nothing is kept of {wanted}: it went well too long ago, or has not begun; "
        + (f"the nearest kept: {nearest}" if near else "nothing is kept of any minibatch so far")
    )


def known_subjects(story: Story, nodes: Iterable[str] = ()) -> list[Subject]:
    """List everything that something is known of, each once: nodes, then minibatches."""
    found: dict[str, Subject] = {name: name for name in nodes}
    for entry in story.entries:
        about = _minibatches(entry)
        found.setdefault(entry.subject, entry.subject if about is None else about)
        if entry.node:
            found.setdefault(entry.node, entry.node)
    return sorted(found.values(), key=lambda subject: isinstance(subject, Minibatches))


def _nearest(wanted: Subject, known: list[Subject]) -> list[str]:
    if isinstance(wanted, Minibatches):
        ranges = [subject for subject in known if isinstance(subject, Minibatches)]
        return [str(subject) for subject in sorted(ranges, key=wanted.distance)[:_MOST_NAMED]]
    names = [subject for subject in known if isinstance(subject, str)]
    return difflib.get_close_matches(wanted, names, n=_MOST_NAMED, cutoff=0.6) or names[:_MOST_NAMED]


# --- the file ---------------------------------------------------------------------------------------------------------


def append(job_directory: Path, entries: Iterable[StoryEntry]) -> None:
    """Add entries at the end, all in one write, or none; what a writer before has left of a line is closed first.

    Raises JobError when it can't be written.
    """
    if lines := [
        msgspec.json.encode(_Line(entry.at, entry.subject, entry.text, entry.node, entry.about)) for entry in entries
    ]:
        json_lines.append(job_directory / FILE, lines)


def read(job_directory: Path, on_damage: Callable[[str], None] = lambda _: None) -> Story:
    """Read all that is kept, the oldest first; empty when nothing is. Lines that can't be understood are left out, and ``on_damage`` is
    told once: the last one may have been cut off when its writer was killed. Raises JobError when the file can't be read."""
    path = job_directory / FILE
    found = json_lines.read(path, _decoder)
    if found.damaged:
        on_damage(_damage(path, found.damaged, last=found.unended))
    return Story([StoryEntry(one.at, one.subject, one.text, one.node, one.about) for one in found.entries])


def _damage(path: Path, damaged: list[int], last: int) -> str:
    if damaged == [last]:
        return f"The last line of {path} is incomplete: its writer was killed; it is left out."
    named = ", ".join(map(str, damaged[:_MOST_NAMED])) + (", …" if len(damaged) > _MOST_NAMED else "")
    return f"Left out of {path}, since they can't be understood: lines {named}"
