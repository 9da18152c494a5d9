"""Text to be read: the keys, all that is known of something, a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.widget import Widget

from dlrover_lite.core.words import plural
from dlrover_lite.tui.commands import COMMANDS
from dlrover_lite.tui.keys import EVERYWHERE, READING, SCREENS, Key
from dlrover_lite.tui.model import JobRow
from dlrover_lite.tui.screens.page import Page, bindings, old
from dlrover_lite.tui.sources.job_log import JobLogTail
from dlrover_lite.tui.sources.log_tail import KEPT_LINES, LogTail
from dlrover_lite.tui.sources.poller import Feed
from dlrover_lite.tui.table import text_of
from dlrover_lite.tui.text import Line, Write, line, side_by_side, wrapped
from dlrover_lite.tui.widgets.pager import Pager

__all__ = ["LogScreen", "ReadingScreen", "command_lines", "help_lines", "named"]


class ReadingScreen(Page, inherit_bindings=False):
    """A screen of lines that are written for the room that there is, and, if they are live, again every second."""

    DEFAULT_CSS = """
    ReadingScreen Pager { height: 1fr; padding: 1 2; }
    """
    KEYS: ClassVar[tuple[Sequence[Key], ...]] = (READING[:-1], EVERYWHERE)
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)

    def __init__(self, title: str, write: Write, *, live: bool = False, follow: bool = False) -> None:
        super().__init__()
        self._title = title
        self.write, self._live = write, live
        self.pager = Pager((), follow=follow)
        self._lines: list[Line] = []

    def body(self) -> ComposeResult:
        yield self.pager

    def main(self) -> Widget:
        return self.pager

    def on_mount(self) -> None:
        self.set_focus(self.pager)
        self.tell_head()
        self.draw()

    @property
    def lines(self) -> Sequence[Line]:
        """All lines, whether or not a search leaves them out."""
        return self._lines

    def is_about(self, title: str) -> bool:
        return self._title == title

    def put(self, lines: Sequence[Line], *, gone: int = 0) -> None:
        """Show these lines in place of those that were there, the first ``gone`` of which are gone."""
        self._lines = list(lines)
        self.pager.put(lines, gone=gone)
        if self.is_mounted:
            self.tell_head()

    def rewrite(self, write: Write) -> None:
        """Show other lines in place of those that were there."""
        self.write = write
        if self.is_mounted:
            self.draw()

    def draw(self) -> None:
        """Write the lines for the room that text has: a margin, the scroll bar, headline and keys are taken off."""
        width, height = self.app.size
        lines = list(self.write(max(20, width - 5), max(5, height - 5)))
        if lines != self._lines:
            self.put(lines)

    def on_resize(self) -> None:
        self.draw()

    def tell_head(self) -> None:
        self.head([line((self._title, "title"), *self._searched())])

    def _searched(self) -> Line:
        """Say what was searched for, and what was found."""
        text = self.pager.text
        if not text.looked_for:
            return ()
        if not text.found:
            how = "in no line"
        else:
            how = f"in {plural(len(text.found), 'line')}" if text.at is None else f"{text.at + 1} of {len(text.found)}"
        only = f", only these of {plural(len(text.lines), 'line')}" if text.only else ""
        return line(("  with ", "dim"), (self.filter_text, "accent"), (f" ({how}{only})", "dim"))

    def tell_age(self) -> None:
        super().tell_age()
        if self._live:
            self.draw()

    # --- keys -----------------------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        self.pager.look_for(self.filter_text, begins=True)
        super().action_filter()

    def filter_changed(self, text: str) -> None:
        self.pager.look_for(text)
        if not text:
            self.pager.show_only(False)
        self.tell_head()
        self.tell_keys()

    def why_not(self, action: str) -> str:
        if action == "only" or action.startswith("match"):
            if not self.filter_text.strip():
                return "Nothing is searched for: / does"
            if not self.pager.text.found:
                return f"No line has {self.filter_text.strip()}"
        return super().why_not(action)

    def offers(self, key: Key) -> bool:
        """Say whether a key makes sense: while something is searched for, n isn't what it is in a replay."""
        return super().offers(key) and not (key.action == "replay_decision(1)" and self.filter_text)

    def label_of(self, key: Key) -> str:
        match key.action:
            case "only":
                return "All " if self.pager.text.only else "Only"
            case "wrap":
                return "Cut " if self.pager.wraps else "Wrap"
            case "follow":
                return "Stay  " if self.pager.follow else "Follow"
        return super().label_of(key)

    def action_match(self, step: int) -> None:
        if not self.refused("match"):
            self.pager.go_to_match(step)
            self.tell_head()

    def action_only(self) -> None:
        if self.pager.text.only or not self.refused("only"):
            self.pager.show_only(not self.pager.text.only)
            self.tell_head()
            self.tell_keys()

    def action_wrap(self) -> None:
        self.pager.wrap(not self.pager.wraps)
        self.tell_keys()

    def to_copy(self) -> tuple[str, str] | None:
        """Return all lines; those that were found, where others are left out."""
        lines = self.pager.shown
        return text_of(lines), plural(len(lines), "line")


class LogScreen(ReadingScreen, inherit_bindings=False):
    """A log, or several as one, followed."""

    KEYS = (READING, EVERYWHERE)
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)

    def __init__(self, row: JobRow, process: str, tail: LogTail | JobLogTail) -> None:
        """``process``: that of the job which wrote it; empty: it is of all of them."""
        super().__init__(f"{row.id} {process or 'all nodes'}", lambda _width, _height: (), follow=True)
        self._row = row
        self._feed = Feed(tail.read, self._arrived, name="log")
        self._gone = 0

    def on_mount(self) -> None:
        super().on_mount()
        self._feed.start()

    def on_unmount(self) -> None:
        self._feed.stop()

    def _arrived(self) -> None:
        """Tell that lines have arrived, from the thread that reads."""
        self.app.call_later(self._put)

    def _put(self) -> None:
        if (log := self._feed.take()) is not None:
            gone, self._gone = log.gone - self._gone, log.gone
            self.put(log.lines, gone=gone)
        self.tell_age()

    def tell_head(self) -> None:
        """Say which log it is, and whether its end stays in sight."""
        if self.pager.follow:
            how = line(("  ↓ follows", "good"))
        else:
            below = self.pager.below
            how = line(("  ‖ stays here", "warn"), (f", {plural(below, 'row')} below; f follows", "dim"))
        last = line((f"  the last {KEPT_LINES:,} lines", "dim")) if len(self.lines) >= KEPT_LINES else ()
        self.head([line((self._title, "title"), *how, *last, *self._searched())])

    def tell_age(self) -> None:
        super().tell_age()
        self.tell_head()

    def draw(self) -> None:
        """Leave the lines as they are: they don't depend on the room."""

    def stale(self) -> Line:
        return old("this", self._feed.age_seconds or 0.0, self._feed.problem) if self._feed.problem else ()

    def to_copy(self) -> tuple[str, str] | None:
        """Return the lines in sight: a log may be long."""
        lines = self.pager.in_sight
        return text_of(lines), plural(len(lines), "line")

    def on_pager_stopped(self, event: Pager.Stopped) -> None:
        event.stop()
        self._followed()

    def action_recipe(self) -> None:
        self.tui.open_recipe(self._row)

    def command_logs(self, process: str) -> None:
        self.tui.open_log(self._row, process)

    def action_follow(self) -> None:
        self.pager.follow_end(not self.pager.follow)
        self._followed()

    def _followed(self) -> None:
        self.tell_head()
        self.tell_keys()


def help_lines(width: int, *, readonly: bool) -> list[Line]:
    """Write all keys and commands."""
    found: list[Line] = []
    for heading, keys in SCREENS.items():
        found += [line((heading, "title")), ()]
        for key in keys:
            if not (key.acts and readonly):
                found += named(f"  {key.label}", key.what, 16, width)
        found.append(())
    found += command_lines(width, readonly=readonly)
    found += [
        (),
        *wrapped(
            "The mouse: a click chooses a row, a second one opens it; a heading sorts; the wheel scrolls; keys can be "
            "clicked.",
            width,
        ),
    ]
    return found


def named(name: str, what: str, column: int, width: int) -> list[Line]:
    """Write what something is beside its name, over several lines where it is long."""
    return side_by_side(((column, [line((name, "accent"))]), (width - column, wrapped(what, width - column))), gap="")


def command_lines(width: int, *, readonly: bool) -> list[Line]:
    """Write all commands with their short names."""
    found = [line(("Commands", "title"), ("  and their short names", "dim")), ()]
    listed = [one for one in COMMANDS if not (one.acts and readonly)]
    for one in listed:
        found += named(f"  {one.written:<18}{one.short}", one.what, 34, width)
    return found
