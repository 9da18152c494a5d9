"""Text to be read: the keys, all that is known of something, a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.widget import Widget

from dlrover_lite.core.words import plural
from dlrover_lite.tui.commands import COMMANDS
from dlrover_lite.tui.keys import EVERYWHERE, READING, SCREENS, Key
from dlrover_lite.tui.screens.page import Page, bindings, old
from dlrover_lite.tui.sources.log_tail import LogTail
from dlrover_lite.tui.sources.poller import Feed
from dlrover_lite.tui.table import text_of
from dlrover_lite.tui.text import Line, line
from dlrover_lite.tui.widgets.pager import Pager

__all__ = ["LogScreen", "ReadingScreen", "command_lines", "help_lines"]


class ReadingScreen(Page, inherit_bindings=False):
    """A screen of lines that stay as they are, or, with ``again``, are made again every second."""

    DEFAULT_CSS = """
    ReadingScreen Pager { height: 1fr; padding: 1 2; }
    """
    KEYS: ClassVar[tuple[Sequence[Key], ...]] = (READING[:2], EVERYWHERE)
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)

    def __init__(self, title: str, lines: Sequence[Line], *, again: Callable[[], Sequence[Line]] | None = None) -> None:
        super().__init__()
        self._title = title
        self._lines, self._again = list(lines), again
        self.pager = Pager(lines)

    def body(self) -> ComposeResult:
        yield self.pager

    def main(self) -> Widget:
        return self.pager

    def on_mount(self) -> None:
        self.set_focus(self.pager)
        self.tell_head()

    @property
    def lines(self) -> Sequence[Line]:
        """All lines, whether or not a filter leaves them."""
        return self._lines

    def is_about(self, title: str) -> bool:
        return self._title == title

    def put(self, lines: Sequence[Line]) -> None:
        """Show these lines in place of those that were there."""
        self._lines = list(lines)
        self.pager.put(lines)
        if self.is_mounted:
            self.tell_head()

    def tell_head(self) -> None:
        shown, there = self.pager.counts
        head = line((self._title, "title"))
        if self.filter_text:
            head += line(("  with ", "dim"), (self.filter_text, "accent"), (f" ({shown} of {there} lines)", "dim"))
        self.head([head])

    def tell_age(self) -> None:
        super().tell_age()
        if self._again is not None and (lines := list(self._again())) != self._lines:
            self.put(lines)

    def filter_changed(self, text: str) -> None:
        self.pager.look_for(text)
        self.tell_head()
        self.tell_keys()

    def to_copy(self) -> tuple[str, str] | None:
        """Return all lines; with a filter, what that leaves."""
        lines = self.pager.shown
        return text_of(lines), plural(len(lines), "line")


class LogScreen(ReadingScreen, inherit_bindings=False):
    """A log, followed."""

    KEYS = (READING, EVERYWHERE)
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)

    def __init__(self, title: str, tail: LogTail) -> None:
        super().__init__(title, ())
        self.pager.follow = True
        self._feed = Feed(tail.read, self._arrived, name="log")

    def on_mount(self) -> None:
        super().on_mount()
        self._feed.start()

    def on_unmount(self) -> None:
        self._feed.stop()

    def _arrived(self) -> None:
        """Tell that lines have arrived, from the thread that reads."""
        self.app.call_later(self._put)

    def _put(self) -> None:
        lines = self._feed.take()
        if lines is not None:
            self.pager.put([line(text) for text in lines])
        self.tell_head()
        self.tell_age()

    def stale(self) -> Line:
        return old("this", self._feed.age_seconds or 0.0, self._feed.problem) if self._feed.problem else ()

    def to_copy(self) -> tuple[str, str] | None:
        """Return the lines in sight: a log may be long."""
        lines = self.pager.in_sight
        return text_of(lines), plural(len(lines), "line")

    def action_follow(self) -> None:
        self.pager.follow = not self.pager.follow
        self.tui.tell("stays at the end" if self.pager.follow else "stays where it is")
        self._put()


def help_lines(*, readonly: bool) -> list[Line]:
    """Write all keys and commands."""
    found: list[Line] = []
    for heading, keys in SCREENS.items():
        found += [line((heading, "title")), ()]
        found += [line((f"  {key.label:<14}", "accent"), key.what) for key in keys if not (key.acts and readonly)]
        found.append(())
    found += command_lines(readonly=readonly)
    found += [
        (),
        line(
            ("The mouse: ", "title"),
            "a click chooses a row, a second one opens it; a heading sorts; the wheel scrolls; keys can be clicked.",
        ),
    ]
    return found


def command_lines(*, readonly: bool) -> list[Line]:
    """Write all commands with their short names."""
    found = [line(("Commands", "title"), ("  and their short names", "dim")), ()]
    listed = [one for one in COMMANDS if not (one.acts and readonly)]
    return [
        *found,
        *(line((f"  {one.written:<18}", "accent"), (f"{one.short:<14}", "accent"), one.what) for one in listed),
    ]
