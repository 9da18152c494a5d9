"""The keys, as data: what each screen binds, what the footer and the help show, and what docs/tui.md has to say."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DECISIONS", "EVERYWHERE", "JOB", "JOBS", "OVERVIEW", "READING", "REPLAY", "SCREENS", "WRITING", "Key"]


class Key(NamedTuple):
    key: str
    """Name of the key in textual; several are separated by commas."""
    action: str
    short: str
    """Label in the footer; empty: it isn't there."""
    what: str
    """Description in the help."""
    shown: str = ""
    """Name of the key as people write it, where that is something else."""
    acts: bool = False
    """Whether it changes something: ``--readonly`` has none of these."""
    rank: int = 3
    """Rank of the key: where there isn't room for all of them at the bottom, those with the highest give way first."""

    @property
    def label(self) -> str:
        return self.shown or self.key

    @property
    def does(self) -> str:
        """What the key does, as textual calls it."""
        return f"act('{self.action}')" if self.acts else self.action


EVERYWHERE = (
    Key("question_mark", "keys", "Help", "show the keys that there are", "?", rank=0),
    Key("colon", "command", "", "write a command, such as :jobs; tab completes it", ":"),
    Key("escape", "back", "Back", "back; a filter or a prompt goes first", "esc", rank=0),
    Key("minus", "before", "", "the view before this one; once more comes back", "-"),
    Key("q", "leave", "Quit", "leave"),
    Key(
        "ctrl+c",
        "",
        "",
        "leave, from wherever you are; copy what the mouse has selected in a text, if anything is",
        "^c",
    ),
    Key("ctrl+l", "app.dismiss_notice", "", "dismiss the newest notice", "^l"),
    Key("ctrl+p", "palette", "", "all commands, to choose from", "^p"),
)
_LISTS = (
    Key("slash", "filter", "Filter", "show only rows with these words; !word: without it", "/", rank=4),
    Key("d", "describe", "Describe", "all that is known of the chosen row", rank=5),
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


_AUTOSCALING = (
    Key(
        "p",
        "hold",
        "Pause",
        "leave the job's plan as it is for now; once more lets the brain change it again",
        acts=True,
        rank=2,
    ),
    Key("a", "accept", "Accept", "carry out what the brain suggests (autoscale: suggest)", acts=True, rank=1),
    Key("x", "reject", "Reject", "drop what the brain suggests, or is carrying out", acts=True, rank=1),
)
_SCALE = Key("s", "scale", "Scale", "have another number of workers and parameter servers", acts=True, rank=2)
_RECIPE = Key("y", "recipe", "Recipe", "the job's recipe as it was resolved, with all defaults filled in", rank=7)
_SAVE = Key("t", "checkpoint", "Save", "take a checkpoint now", acts=True, rank=6)
_STOP = Key("ctrl+d", "stop", "Stop", "stop the job, after a question", "^d", acts=True, rank=2)

JOBS = (
    Key("enter", "open", "Open", "open the job", "enter", rank=1),
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
    Key("e", "ended", "Live", "leave out jobs that are over; once more show them", rank=7),
    Key("v", "overview", "Overview", "the machine, or the clusters, as a picture", rank=5),
    Key("l", "logs", "Logs", "the log of the job's master", rank=2),
    Key("L", "all_logs", "", "the logs of all its nodes as one, in order of time"),
    _SCALE,
    _RECIPE,
    Key("c", "copy", "", "copy the id of the chosen job"),
    _SAVE,
    _STOP,
)
JOB = (
    Key("enter", "open", "", "the log of the chosen node; explain the decision that is chosen in the curve", "enter"),
    Key(
        "tab,right",
        "decision(1)",
        "Why",
        "choose a decision in the curve; again, or right, the next one",
        "tab",
        rank=3,
    ),
    Key("shift+tab,left", "decision(-1)", "", "the decision in the curve before it", "left"),
    *_LISTS,
    *_sorts(
        ("J", "node", "node"),
        ("S", "state", "state"),
        ("C", "cpu", "CPU used"),
        ("M", "memory", "memory used"),
        ("T", "work", "work"),
        ("R", "restarts", "restarts"),
    ),
    Key("e", "ended", "Live", "leave out nodes that have ended; once more show them", rank=7),
    Key("v", "decisions", "Decisions", "all decisions for the job", rank=1),
    Key("l", "logs", "Logs", "the log of the chosen node", rank=2),
    Key("L", "all_logs", "", "the logs of all nodes as one, in order of time"),
    *_AUTOSCALING,
    _SCALE,
    Key("z", "resize", "Resize", "give the chosen node more or less cores and memory", acts=True, rank=6),
    Key("r", "drain", "Drain", "let the chosen node leave in good order, after a question", acts=True),
    Key(
        "ctrl+k",
        "kill",
        "Kill",
        "end the chosen node at once, after a question; another takes its place",
        "^k",
        acts=True,
        rank=2,
    ),
    _RECIPE,
    Key("c", "copy", "", "copy the id of the chosen node"),
    _SAVE,
    _STOP,
)
DECISIONS = (
    Key(
        "enter",
        "open",
        "Explain",
        "explain the chosen decision: what else was weighed, and why it lost",
        "enter",
        rank=1,
    ),
    Key("o", "only_changes", "Changes", "only decisions that changed something; once more all of them", rank=1),
    Key("e", "each", "", "a row for each decision that changed nothing; once more one for several in a row"),
    *_LISTS,
    *_sorts(
        ("N", "number", "number"),
        ("S", "stage", "stage"),
        ("A", "action", "action"),
        ("W", "saves", "what it was to save"),
        ("R", "came", "how far it missed"),
    ),
    *_AUTOSCALING,
    _RECIPE,
    Key("c", "copy", "", "copy the explanation of the chosen decision, as text"),
)
OVERVIEW = (
    Key("enter", "open", "Open", "open the job that is pointed to", "enter", rank=1),
    Key("tab", "job(1)", "Job", "point to the next job", rank=1),
    Key("shift+tab", "job(-1)", "", "point to the job before it", "shift+tab"),
)
READING = (
    Key("slash", "filter", "Find", "find lines with this text", "/", rank=1),
    Key("n", "match(1)", "Next", "the next line that was found; after the last one the first", rank=2),
    Key("N", "match(-1)", "", "the line that was found before"),
    Key("ampersand", "only", "Only", "only the lines that were found; once more all", "&", rank=3),
    Key("w", "wrap", "Wrap", "long lines in several rows; once more they are cut", rank=3),
    Key("c", "copy", "", "copy the lines in sight; of other text than a log, all of them"),
    Key("f", "follow", "Follow", "stay at the end as more is written; to scroll up ends that", rank=1),
)
WRITING = {
    "/": (Key("enter", "", "Keep", ""), Key("escape", "", "All again", "", "esc")),
    ":": (Key("enter", "", "Do it", ""), Key("tab", "", "Complete", ""), Key("escape", "", "Back", "", "esc")),
}
"""Keys while something is written into the prompt, by what the prompt begins with."""
REPLAY = (
    Key("space", "replay_toggle", "Play", "play, or stand still", "space", rank=1),
    Key(
        "full_stop,right",
        "replay_step(1)",
        "Step",
        "on to the next moment at which something is new",
        ". right",
        rank=2,
    ),
    Key("comma,left", "replay_step(-1)", "", "back to the one before", ", left"),
    Key("n,greater_than_sign,shift+right", "replay_decision(1)", "Decision", "on to the next decision", "n >", rank=1),
    Key("p,less_than_sign,shift+left", "replay_decision(-1)", "Before", "back to the decision before", "p <", rank=2),
    Key("plus,equals_sign", "replay_speed(1)", "Faster", "twice as fast, up to 64 times as it was", "+ =", rank=2),
    Key("minus", "replay_speed(-1)", "Slower", "half as fast, down to a quarter", "-"),
    Key("left_square_bracket", "replay_go('start')", "", "to the beginning", "["),
    Key("right_square_bracket", "replay_go('end')", "", "to the end", "]"),
)
"""Keys of a replay, on all its screens, before all other keys."""
SCREENS = {
    "Everywhere": EVERYWHERE,
    "Jobs": JOBS,
    "A job": JOB,
    "Decisions": DECISIONS,
    "Overview": OVERVIEW,
    "Logs": READING,
}
"""Keys by the heading that they have in the help."""
