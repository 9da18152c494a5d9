"""The keys, as data: what each screen binds, what the footer and the help show, and what docs/tui.md has to say."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DECISIONS", "EVERYWHERE", "JOB", "JOBS", "READING", "SCREENS", "Key"]


class Key(NamedTuple):
    key: str
    """As textual names it; several are separated by commas."""
    action: str
    short: str
    """In the footer; empty: not there."""
    what: str
    """In the help."""
    shown: str = ""
    """As people write it, where that is something else."""
    acts: bool = False
    """It changes something: ``--readonly`` has none of these."""

    @property
    def label(self) -> str:
        return self.shown or self.key


EVERYWHERE = (
    Key("question_mark", "keys", "Help", "show the keys that there are", "?"),
    Key("colon", "command", "", "write a command, such as :jobs; tab completes it", ":"),
    Key("escape", "back", "Back", "back; a filter or a prompt goes first", "esc"),
    Key("q", "leave", "Quit", "leave"),
    Key("ctrl+p", "command_palette", "", "all commands, to choose from", "^p"),
)
_LISTS = (
    Key("slash", "filter", "Filter", "show only rows with these words; !word: without it", "/"),
    Key("d", "describe", "Describe", "all that is known of the chosen row"),
    Key("up,k", "", "", "up", "up k"),
    Key("down,j", "", "", "down", "down j"),
    Key("pageup,ctrl+b", "", "", "a page up", "pgup ^b"),
    Key("pagedown,ctrl+f", "", "", "a page down", "pgdn ^f"),
    Key("home,g", "", "", "to the first row", "home g"),
    Key("end,G", "", "", "to the last row", "end G"),
)


def _sorts(*columns: tuple[str, str, str]) -> tuple[Key, ...]:
    return tuple(
        Key(key, f"sort('{column}')", "", f"sort by {what}; once more turns it round") for key, column, what in columns
    )


JOBS = (
    Key("enter", "open", "Open", "open the job", "enter"),
    *_LISTS,
    *_sorts(
        ("J", "job", "job"),
        ("S", "state", "state"),
        ("P", "progress", "progress"),
        ("E", "ends", "end"),
        ("T", "rate", "throughput"),
        ("N", "nodes", "number of nodes"),
        ("C", "cpu", "CPU used"),
        ("M", "memory", "memory used"),
        ("X", "cost", "cost"),
    ),
    Key("l", "logs", "Logs", "the log of the job's master"),
    Key("y", "copy", "", "copy the id of the chosen job"),
    Key("ctrl+d", "stop", "Stop", "stop the job, after a question", "^d", acts=True),
)
JOB = (
    Key("enter", "open", "", "the log of the chosen node", "enter"),
    *_LISTS,
    *_sorts(
        ("J", "node", "node"),
        ("S", "state", "state"),
        ("C", "cpu", "CPU used"),
        ("M", "memory", "memory used"),
        ("T", "work", "work"),
        ("R", "restarts", "restarts"),
    ),
    Key("v", "decisions", "Decisions", "all decisions for the job"),
    Key("l", "logs", "Logs", "the log of the chosen node"),
    Key("y", "copy", "", "copy the id of the chosen node"),
    Key("ctrl+d", "stop", "Stop", "stop the job, after a question", "^d", acts=True),
)
DECISIONS = (
    Key("enter", "open", "Explain", "explain the chosen decision: what else was weighed, and why it lost", "enter"),
    *_LISTS,
    *_sorts(
        ("N", "number", "number"),
        ("S", "stage", "stage"),
        ("A", "action", "action"),
        ("W", "saves", "what it was to save"),
        ("R", "came", "how far it missed"),
    ),
    Key("y", "copy", "", "copy the explanation of the chosen decision, as text"),
)
READING = (
    Key("slash", "filter", "Find", "show only lines with these words", "/"),
    Key("y", "copy", "", "copy the lines in sight; of other text than a log, all of them"),
    Key("f", "follow", "Follow", "stay at the end as more is written, or not"),
)
SCREENS = {"Everywhere": EVERYWHERE, "Jobs": JOBS, "A job": JOB, "Decisions": DECISIONS, "Logs": READING}
"""By the heading that they have in the help."""
