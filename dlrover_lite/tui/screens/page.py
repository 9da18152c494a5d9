"""What all screens have: a headline, a line that says what is stale, a prompt, the keys that work now, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widget import Widget

from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.words import duration
from dlrover_lite.tui import commands
from dlrover_lite.tui.keys import EVERYWHERE, WRITING, Key
from dlrover_lite.tui.model import JobDetail, Problem
from dlrover_lite.tui.pages.key_line import KeyShown
from dlrover_lite.tui.screens.application import Application
from dlrover_lite.tui.sources.poller import Feed
from dlrover_lite.tui.table import Table
from dlrover_lite.tui.text import Line, line
from dlrover_lite.tui.widgets.grid import Grid
from dlrover_lite.tui.widgets.key_bar import KeyBar
from dlrover_lite.tui.widgets.notice_line import NoticeLine
from dlrover_lite.tui.widgets.prompt import Kind, Prompt
from dlrover_lite.tui.widgets.toned import Lines

__all__ = ["Page", "TablePage", "bindings", "old"]

STALE_SECONDS = 3.0
"""Seconds after which what was read is said to be old."""


def bindings(*groups: Sequence[Key]) -> list[Any]:
    """Make textual's bindings of keys that have an action; the others are those of the widgets."""
    return [
        Binding(key.key, key.does, key.short or key.what, show=bool(key.short), key_display=key.label)
        for group in groups
        for key in group
        if key.action
    ]


class Page(Screen[None]):
    """A screen. ``body`` is what it shows between its headline and the prompt; ``columns`` can be sorted by."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 - textual has it so
    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-high")]  # noqa: RUF012 - textual has it so
    DEFAULT_CSS = """
    Page { layout: vertical; }
    #head { height: auto; background: $boost; padding: 0 1; }
    #stale { height: auto; padding: 0 1; display: none; }
    #stale.-stale { display: block; }
    Page.-wide Columns { layout: horizontal; }
    Page.-wide Columns > .-first { width: 55%; }
    Page.-wide.-high Panel { border: round $foreground 35%; }
    """
    KEYS: ClassVar[tuple[Sequence[Key], ...]] = (EVERYWHERE,)
    """Groups of keys; screens with keys of their own have theirs, and these after them."""
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)
    columns: Sequence[str] = ()
    filter_text = ""
    reopen: Callable[[], object]
    """Function that opens another screen like this one, where this has gone."""

    def __init__(self) -> None:
        super().__init__()
        self._head_lines = Lines(id="head")
        self._stale_lines = Lines(id="stale")
        self._notice = NoticeLine(lambda: self.tui.notices.shown)
        self._key_bar = KeyBar()
        self.prompt = Prompt(lambda text: commands.complete(text, *self._known()), self.written)

    def body(self) -> ComposeResult:
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield self._head_lines
        yield self._stale_lines
        yield from self.body()
        yield from self.tui.below()
        yield self._notice
        yield self.prompt
        yield self._key_bar
        self.tell_keys()

    @property
    def tui(self) -> Application:
        return cast("Application", self.app)

    def main(self) -> Widget:
        """Return the widget that has the focus when the prompt hasn't."""
        raise NotImplementedError

    def head(self, lines: Sequence[Line]) -> None:
        self._head_lines.show(lines)

    def tell_age(self) -> None:
        """Show what is stale, once a second, and with what is new."""
        what = self.stale()
        self._stale_lines.show([what] if what else [])
        self._stale_lines.set_class(bool(what), "-stale")

    def stale(self) -> Line:
        """Say what is old, how old, and why; nothing while all is well."""
        return ()

    def stale_of(self, feed: Feed[Any], problem: Problem | None) -> Line:
        """Say what is old of what ``feed`` reads, which tells of a ``problem`` that its source has."""
        age = feed.age_seconds
        if feed.problem or (age is not None and age > STALE_SECONDS):
            return old("this", age or 0.0, feed.problem)
        if problem is not None:
            return old(f"what {problem.what} says", self.tui.now() - problem.since, problem.why)
        return ()

    def job_stale(self, detail: JobDetail | None) -> Line:
        return self.stale_of(self.tui.job_feed, detail.problem if detail else None)

    # --- the prompt -------------------------------------------------------------------------------------------------

    def filter_changed(self, text: str) -> None:
        """Show what another filter leaves, on a screen that can be filtered."""

    def action_command(self) -> None:
        self.prompt.open(":")
        self.tell_keys()

    def action_filter(self) -> None:
        self.prompt.open("/", self.filter_text)
        self.tell_keys()

    def written(self, kind: Kind, text: str, *, done: bool) -> None:
        """Take what is written into the prompt, whenever it gets more or less; ``done``: enter was pressed, and the prompt is gone
        again."""
        if kind == "/":
            self.filter_text = text
            self.filter_changed(text)
        if done:
            self.tell_keys()
            self.set_focus(self.main())
            if kind == ":" and text.strip():
                self._command(text)

    def _known(self) -> tuple[Sequence[str], ...]:
        """Return the jobs, columns, nodes and themes that a command may name."""
        return self.tui.job_ids, self.columns, self.node_ids, self.tui.theme_names

    def _command(self, text: str) -> None:
        try:
            name, argument = commands.parse(text, *self._known())
        except UsageError as error:
            self.tui.tell(error.message, "warning")
            return
        if name == "sort":
            self.action_sort(argument)
        elif name == "recipe":
            self.action_recipe()
        elif name == "logs":
            self.command_logs(argument)
        elif name in commands.ACTING:
            self.command_act(name, argument)
        else:
            self.tui.command(name, argument)

    @property
    def node_ids(self) -> Sequence[str]:
        """Ids of the nodes that commands may be about."""
        return ()

    def command_act(self, name: str, argument: str) -> None:
        """Do one of ``commands.ACTING``."""
        self.tui.tell(f"Go to a job first: :{name} is for one", "warning")

    def action_recipe(self) -> None:
        """Show the recipe of the job that is open, or chosen."""
        self.tui.tell("Go to a job first: :recipe is of one", "warning")

    def command_logs(self, process: str) -> None:
        """Show the log of a process of the job that is open, or chosen; of all as one where none is named."""
        self.tui.tell("Go to a job first: :logs is for one", "warning")

    def action_sort(self, column: str) -> None:
        """Sort the rows by a column, on a screen with rows."""

    # --- keys -------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Say whether an action is there at all. Textual passes over keys of what can't be done; here they are to say why (``refused``)."""
        if action in self.tui.WITHOUT:
            return False
        if action == "act":
            return self.tui.actions is not None
        if action == "back":
            return self.can_go_back()
        return True

    def has(self, key: Key) -> bool:
        """Say whether the action of a key is there at all."""
        return bool(self.check_action("act" if key.acts else key.action, ()))

    def why_not(self, action: str) -> str:
        """Say why an action can't be done just now; empty: it can. Asked for each key with each look."""
        return ""

    def refused(self, action: str) -> bool:
        """Say whether an action can't be done now; then why has been told."""
        if why := self.why_not(action):
            self.tui.tell(why, "warning")
        return bool(why)

    def label_of(self, key: Key) -> str:
        return key.short

    def offers(self, key: Key) -> bool:
        """Say whether a key makes sense here, if perhaps not now."""
        return True

    def tell_keys(self) -> None:
        """Show which keys work, which may have changed."""
        if self.prompt.is_open:
            self._key_bar.show([KeyShown(key, key.short) for key in WRITING[self.prompt.kind]])
            return
        self._key_bar.show(
            [
                KeyShown(key, self.label_of(key), self.why_not(key.action))
                for group in (self.tui.FIRST_KEYS, *self.KEYS)
                for key in group
                if key.short and self.has(key) and self.offers(key)
            ]
        )

    def can_go_back(self) -> bool:
        return len(self.app.screen_stack) > 1 or bool(self.filter_text) or self.prompt.is_open

    def action_back(self) -> None:
        if self.prompt.is_open or self.filter_text:
            self.prompt.close()
            if self.filter_text:
                self.filter_text = ""
                self.filter_changed("")
            self.set_focus(self.main())
            self.tell_keys()
        elif len(self.app.screen_stack) > 1:
            self.app.pop_screen()

    def to_copy(self) -> tuple[str, str] | None:
        """Return what is chosen as text, and what to call it; None: nothing is."""
        return None

    def action_copy(self) -> None:
        if (found := self.to_copy()) is not None:
            self.tui.copy(*found)

    def action_leave(self) -> None:
        self.app.exit()

    def action_before(self) -> None:
        self.tui.command("before", "")

    def action_palette(self) -> None:
        self.tui.open_palette()

    def action_keys(self) -> None:
        self.tui.command("help", "")


class TablePage(Page):
    """A page with one table, of which a row is chosen."""

    ROW: ClassVar[frozenset[str]] = frozenset({"open", "describe"})
    """Actions that need a row."""
    grid: Grid[Any]
    leaves_out_ended = False

    def __init__(self, table: Table[Any], *, id: str) -> None:
        super().__init__()
        self.grid = Grid(table, id=id)
        self.columns = [column.name for column in table.columns if column.sort is not None]

    def main(self) -> Widget:
        return self.grid

    def tell_head(self) -> None:
        """Write the headline, where it says what a filter leaves."""

    def filter_changed(self, text: str) -> None:
        self.grid.look_for(text)
        self.tell_head()
        self.tell_keys()

    def why_not(self, action: str) -> str:
        return "There is no row to choose" if action in self.ROW and self.grid.row is None else ""

    def action_sort(self, column: str) -> None:
        self.grid.sort_by(column)

    def has_ended(self, row: Any) -> bool:
        """Say whether a row is of something that has ended, on a screen where such rows can be left out."""
        raise NotImplementedError

    def action_ended(self) -> None:
        """Leave out what has ended, or show it again."""
        self.leaves_out_ended = not self.leaves_out_ended
        self.grid.leave_out(self.has_ended if self.leaves_out_ended else None)
        self.filter_changed(self.filter_text)

    def label_of(self, key: Key) -> str:
        if key.action == "ended":
            return "All " if self.leaves_out_ended else "Live"
        return super().label_of(key)

    def choose(self) -> None:
        """Do what is to be done with the row that is chosen."""
        raise NotImplementedError

    def action_open(self) -> None:
        if not self.refused("open"):
            self.choose()

    def on_grid_moved(self, event: Grid.Moved) -> None:
        event.stop()
        self.tell_keys()

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Do what is to be done with the row that was chosen by the mouse."""
        event.stop()
        self.choose()


def old(what: str, age_seconds: float, why: str) -> Line:
    """Write what is old: ``! this is as of 12 s ago: its master did not answer``."""
    return line((f"! {what} is as of {duration(age_seconds)} ago" + (f": {why}" if why else ""), "bad"))
