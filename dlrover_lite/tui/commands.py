"""What can be written after ``:``, and how it is completed."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from dlrover_lite.core.errors import UsageError
from dlrover_lite.tui.themes import THEMES

__all__ = ["ACTING", "COMMANDS", "OF_REPLAYS", "Command", "complete", "job_named", "parse"]


class Command(NamedTuple):
    name: str
    argument: str
    what: str
    acts: bool = False
    """Whether it changes something: ``--readonly`` has none of these."""
    aliases: tuple[str, ...] = ()
    """Other names, the shorter ones that hands know."""

    @property
    def written(self) -> str:
        """The command as it is written: ``:job JOB``."""
        return f":{self.name} {self.argument}".rstrip()

    @property
    def short(self) -> str:
        """The other names as they are written: ``:q :q! :exit``."""
        return " ".join(f":{name}" for name in self.aliases)


COMMANDS = (
    Command("jobs", "", "all jobs", aliases=("ls",)),
    Command("job", "JOB", "one job", aliases=("j",)),
    Command("overview", "", "the machine, or the clusters, as a picture", aliases=("ov", "v")),
    Command("pulse", "", "how all is, in a few lines", aliases=("pu", "pulses")),
    Command("decisions", "", "all decisions for the job that is open", aliases=("dec", "d")),
    Command("logs", "NODE", "the log of a node; without one those of all as one", aliases=("log", "l")),
    Command("recipe", "", "the job's recipe as it was resolved", aliases=("yaml", "y")),
    Command("before", "", "the view before this one; once more comes back", aliases=("-",)),
    Command("sort", "COLUMN", "another order of the rows", aliases=("so",)),
    Command("notices", "", "all that was told at the bottom so far", aliases=("no",)),
    Command("theme", "NAME", "other colours, also the next time", aliases=("skin",)),
    Command("alias", "", "the commands and their short names", aliases=("aliases", "a")),
    Command("help", "", "the keys", aliases=("h", "?")),
    Command("quit", "", "leave", aliases=("q", "q!", "exit")),
    Command("pause", "", "leave the job's plan as it is for now", acts=True, aliases=("pa",)),
    Command("resume", "", "let the brain change it again", acts=True, aliases=("res",)),
    Command("accept", "", "carry out what the brain suggests", acts=True, aliases=("acc",)),
    Command("reject", "", "drop what it suggests, or is carrying out", acts=True, aliases=("rej",)),
    Command("scale", "", "another number of workers and parameter servers", acts=True, aliases=("sc",)),
    Command("resize", "NODE", "more or less cores and memory for a node", acts=True, aliases=("rs",)),
    Command("drain", "NODE", "let a node leave in good order", acts=True, aliases=("dr",)),
    Command("kill", "NODE", "end a node at once; another takes its place", acts=True, aliases=("k",)),
    Command("checkpoint", "", "take a checkpoint now", acts=True, aliases=("cp", "save")),
    Command("stop", "", "stop the job", acts=True),
)
ACTING = frozenset(one.name for one in COMMANDS if one.acts)
"""Names of commands that change something, in the job that is open, or chosen among all; nodes are its nodes."""
OF_REPLAYS = (Command("at", "TIME", "go there: 12:30, 90s, 1h5m, start, end"),)
"""Commands that there are in a replay only."""
_NAMES = {alias: one.name for one in COMMANDS for alias in one.aliases}
"""Names of commands by their other names."""
_OF_A_NODE = tuple(one.name for one in COMMANDS if one.argument == "NODE")


def complete(
    text: str,
    jobs: Sequence[str],
    columns: Sequence[str] = (),
    nodes: Sequence[str] = (),
    themes: Sequence[str] = THEMES,
) -> str | None:
    """Complete a text to the whole of the first command that begins so; None where there is none."""
    name, space, argument = text.partition(" ")
    if not space:
        return next((one.name for one in COMMANDS if name and one.name.startswith(name)), None)
    by_command = {"job": jobs, "sort": columns, "theme": themes, **dict.fromkeys(_OF_A_NODE, nodes)}
    known = by_command.get(_NAMES.get(name, name), ())
    return next((f"{name} {one}" for one in known if argument and one.startswith(argument)), None)


def parse(
    text: str,
    jobs: Sequence[str],
    columns: Sequence[str] = (),
    nodes: Sequence[str] = (),
    themes: Sequence[str] = THEMES,
) -> tuple[str, str]:
    """Return command and argument, as they are known. A job's id, or the start of one, is a command too. Without a node the chosen one is
    meant.

    Raises UsageError, naming the nearest.
    """
    name, _, argument = text.strip().partition(" ")
    argument = argument.strip()
    name = _NAMES.get(name, name)
    command = next((one for one in (*COMMANDS, *OF_REPLAYS) if one.name == name), None)
    if command is None:
        found = [job for job in jobs if job == name] or [job for job in jobs if name and job.startswith(name)]
        if len(found) == 1:
            return "job", found[0]
        near = get_close_matches(name, [one.name for one in COMMANDS], n=1, cutoff=0.5)
        hint = f"did you mean :{near[0]}?" if near else f"known are {', '.join(one.name for one in COMMANDS)}"
        raise UsageError(f"There is no command {name!r}; {hint}")
    match command.name:
        case "job":
            argument = job_named(argument, jobs)
        case "sort":
            argument = _one_of(argument, columns, "column")
        case "theme":
            argument = _one_of(argument, themes, "theme")
        case "resize" | "drain" | "kill":
            _check_node(argument, nodes)
        case "logs":
            pass  # nodes that have ended have logs, too
        case "at":
            if not argument:
                raise UsageError(":at needs a time, such as 12:30, 90s, start or end")
        case _ if argument:
            raise UsageError(f":{command.name} takes no {argument!r}")
    return command.name, argument


def job_named(reference: str, jobs: Sequence[str]) -> str:
    """Find the newest job ("", or "last"), or the only one that begins so. Raises UsageError, naming the nearest."""
    if reference in ("", "last") and jobs:
        return jobs[0]
    found = [job for job in jobs if job == reference] or [job for job in jobs if job.startswith(reference)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} jobs begin with {reference!r}")
    near = get_close_matches(reference, jobs, n=1, cutoff=0.5)
    raise UsageError(f"There is no job {reference!r}" + (f"; did you mean {near[0]}?" if near else ""))


def _one_of(word: str, known: Sequence[str], what: str) -> str:
    if word in known:
        return word
    raise UsageError(f"There is no {what} {word!r} here; known are {', '.join(known)}")


def _check_node(argument: str, nodes: Sequence[str]) -> None:
    """Check the node, where nodes are known. Raises UsageError; there may be a thousand nodes, so not all are named."""
    if argument and nodes and argument not in nodes:
        near = get_close_matches(argument, nodes, n=1, cutoff=0.0)
        raise UsageError(f"There is no node {argument!r} that runs" + (f"; did you mean {near[0]}?" if near else ""))
