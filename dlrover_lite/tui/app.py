"""The application: which screen is shown, what is read for it, and what is done on its behalf."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual import events
from textual.app import App
from textual.geometry import Size
from textual.screen import Screen
from textual.theme import Theme
from textual.widget import Widget
from textual.widgets import Input

from dlrover_lite.core.errors import DlroverLiteError, UsageError
from dlrover_lite.tui.actions import Actions
from dlrover_lite.tui.keys import Key
from dlrover_lite.tui.model import Explanation, JobDetail, JobRow, JobsView
from dlrover_lite.tui.pages.explanation_page import lines_of
from dlrover_lite.tui.pages.jobs_page import recipe_lines
from dlrover_lite.tui.pages.notices_page import Notice, Notices, Severity, notices_lines
from dlrover_lite.tui.pages.overview_page import pulse
from dlrover_lite.tui.screens.acting import ActingPage
from dlrover_lite.tui.screens.application import Application
from dlrover_lite.tui.screens.decisions import DecisionsScreen
from dlrover_lite.tui.screens.dialog import Dialog
from dlrover_lite.tui.screens.job import JobScreen
from dlrover_lite.tui.screens.jobs import JobsScreen
from dlrover_lite.tui.screens.overview import OverviewScreen
from dlrover_lite.tui.screens.page import Page
from dlrover_lite.tui.screens.palette import Choice, Palette
from dlrover_lite.tui.screens.reading import ReadingScreen, command_lines, help_lines
from dlrover_lite.tui.sources.poller import Feed
from dlrover_lite.tui.sources.source import Source
from dlrover_lite.tui.table import text_of
from dlrover_lite.tui.text import Line, Write, line, wrapped
from dlrover_lite.tui.themes import OWN, THEMES, ColourTheme, ThemeFiles
from dlrover_lite.tui.widgets.notice_line import NoticeLine

__all__ = ["TuiApp"]

DARK, LIGHT = "textual-dark", "textual-light"
_TEXTUAL_NAMES = {"dark": DARK, "light": LIGHT}
R = TypeVar("R")
S = TypeVar("S", bound=Screen[Any])
_COPIED_WIDTH = 100
"""Width of the lines of an explanation that is copied, in characters."""


class TuiApp(App[None]):
    """The terminal application. ``actions``: None for what can't be changed from here, such as a recording. Two threads read for it: one
    all jobs, the other the job that is looked at, so that a master that doesn't answer holds up nothing else."""

    TITLE = "dlrover-lite"
    BINDINGS: ClassVar[list[Any]] = []
    ENABLE_COMMAND_PALETTE = False
    """Textual's command palette is off: there is one of our own, ``Palette``."""
    WITHOUT: ClassVar[frozenset[str]] = frozenset()
    """Actions that screens of this application don't have."""
    FIRST_KEYS: ClassVar[Sequence[Key]] = ()

    def __init__(
        self,
        source: Source,
        *,
        job: str | None = None,
        actions: Actions | None = None,
        period_seconds: float = 0.5,
        clock: Callable[[], float] = time.time,
        themes: ThemeFiles | None = None,
    ) -> None:
        """``themes``: where a person's own themes are, and the chosen one is remembered; None: nowhere."""
        super().__init__()
        self._source = source
        self._first = job
        self.actions = actions
        self.now = clock
        self.view: JobsView | None = None
        self._job: str | None = None
        """Id of the job that is looked at; None: none is."""
        self.notices = Notices()
        self._pressed: deque[events.Key] = deque()
        """Keys that are still to be taken."""
        self._leaves = False
        self._before: tuple[Page, ...] | None = None
        """Screens above that of all jobs that were there before those there are; None: there were none others so far."""
        self._moves = False
        """Whether screens come and go that are one step together."""
        self.jobs_feed: Feed[JobsView] = Feed(
            source.jobs, lambda: self.call_later(self._arrived, of_all=True), name="jobs", period_seconds=period_seconds
        )
        self.job_feed: Feed[JobDetail | None] = Feed(
            self._read_job,
            lambda: self.call_later(self._arrived, of_all=False),
            name="job",
            period_seconds=period_seconds,
        )

        self._themes = themes
        self.theme_names: Sequence[str] = THEMES
        """Names of the themes that there are, also a person's own."""
        self._wrong_themes = self._add_themes()
        """What is wrong with a person's own themes, or the one that was remembered."""

    # --- what is read -----------------------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        return _sized(JobsScreen(), self.size)

    def on_mount(self) -> None:
        self.jobs_feed.start()
        self.job_feed.start()
        self.set_interval(1.0, self._tell_ages)
        for wrong in self._wrong_themes:
            self.tell(wrong, "warning")
        if self._first is not None:
            self.open_job(self._first)

    def on_unmount(self) -> None:
        ended = [feed.stop() for feed in (self.jobs_feed, self.job_feed)]
        if all(ended):
            self._source.close()

    def _read_job(self) -> JobDetail | None:
        """Read the job that is looked at, on the thread of ``job_feed``."""
        job = self._job
        if job is None:
            self._source.forget()
            return None
        return self._source.job(job)

    def _arrived(self, *, of_all: bool) -> None:
        """Take something new that was read, of all jobs or of one."""
        if of_all:
            before, self.view = self.view, self.jobs_feed.take()
            self._tell_failed(before)
        else:
            self.job_feed.take()
        self._show(self.shown_screen)

    def _tell_failed(self, before: JobsView | None) -> None:
        """Notify of jobs that have failed, or were lost, since they were seen last."""
        if before is None or self.view is None or before.jobs is self.view.jobs:
            return
        for job, row in self.view.jobs.items():
            was = before.jobs.get(job)
            if was is not None and was is not row and not was.over and row.state in ("failed", "lost"):
                why = row.message.partition("\n")[0]
                self.tell(f"{job} {'has failed' if row.state == 'failed' else 'was lost'}: {why}", "error")

    @property
    def shown_screen(self) -> Screen[Any] | None:
        """The screen that is seen; none while the app closes, when timers and calls that were on their way still come."""
        stack = self.screen_stack
        return stack[-1] if stack else None

    def _show(self, screen: Screen[Any] | None) -> None:
        if isinstance(screen, JobsScreen):
            screen.put(self.view)
        elif isinstance(screen, JobScreen | DecisionsScreen):
            screen.put(self.job_feed.take())

    def _tell_ages(self) -> None:
        self.notices.expire(time.monotonic())
        self._tell_notices()
        screen = self.shown_screen
        if isinstance(screen, Page):
            screen.tell_age()

    @property
    def job_ids(self) -> Sequence[str]:
        """Ids of all jobs, the newest first."""
        return tuple(self.view.jobs) if self.view else ()

    def below(self) -> Iterable[Widget]:
        """Make what is at the bottom of each screen, above the keys."""
        return ()

    # --- keys -------------------------------------------------------------------------------------------------------

    async def on_event(self, event: events.Event) -> None:
        """Take keys one after the other, each when all that the one before it does has been done: what is typed in one go after ``:`` is
        text. (Textual hands each to the widget that has the focus when it arrives, and what that does comes later.)"""
        if isinstance(event, events.Key) and not event.is_forwarded:
            if event.key == "ctrl+c":
                self._interrupt()
                return
            if not self._leaves:
                self._pressed.append(event)
            await self._take_keys()
        else:
            await super().on_event(event)

    @property
    def keys_to_take(self) -> int:
        """Number of keys that were pressed and wait for what came before them."""
        return len(self._pressed)

    async def _take_keys(self) -> None:
        while self._pressed and (screen := self.shown_screen) is not None:
            if isinstance(screen, Dialog):
                if not screen.takes(self._pressed[0]):
                    self._pressed.popleft()
                    continue
            elif not screen.is_mounted:
                screen.call_later(self.call_later, self._take_keys)  # once it has come
                return
            await self._take(self._pressed.popleft())

    async def _take(self, event: events.Key) -> None:
        """Write text where it is written; of any other key, do here and now what it is bound to."""
        self.app_focus = True
        writes = self.focused
        bound = self.screen.active_bindings.get(event.key)
        if isinstance(writes, Input) and event.is_printable and not (bound is not None and bound.binding.priority):
            writes.replace(event.character or "", *sorted(writes.selection))
        elif bound is not None and bound.enabled:
            await self.run_action(bound.binding.action, bound.node)

    def _interrupt(self) -> None:
        """Leave from whatever is shown, also from a question; but where text was selected by the mouse, copy that."""
        screen = self.shown_screen
        if screen is not None and (selected := screen.get_selected_text()):
            screen.clear_selection()
            self.copy(selected, "what was selected")
        else:
            self.exit()

    def exit(self, *arguments: Any, **settings: Any) -> None:
        """Leave. Keys that were pressed after it do nothing any more."""
        self._leaves = True
        self._pressed.clear()
        super().exit(*arguments, **settings)

    # --- screens ----------------------------------------------------------------------------------------------------

    def open_job(self, job: str) -> None:
        """Open a job, in place of another one that is open."""
        with self._one_step():
            self._pop_to_jobs()
            self._push_job(job)

    def _push_job(self, job: str) -> None:
        self._job = job
        row = self.view.jobs.get(job) if self.view else None
        screen, known = JobScreen(job, row), self.job_feed.take()
        if known is not None and known.row.id == job:
            screen.detail = known  # it was open until just now: nothing new is told of it before it changes
        self.job_feed.read_now()
        self._push(screen, partial(self._push_job, job))

    def _push(self, page: Page, reopen: Callable[[], object]) -> None:
        page.reopen = reopen
        self.push_screen(page)

    def on_screen_resume(self) -> None:
        self._show(self.shown_screen)

    def _pop_to_jobs(self) -> None:
        with self._one_step():
            while len(self.screen_stack) > 1:
                self.pop_screen()

    def push_screen(self, screen: Screen[Any] | str, *arguments: Any, **settings: Any) -> Any:
        if isinstance(screen, Screen):
            _sized(screen, self.size)
        with self._one_step():
            return super().push_screen(screen, *arguments, **settings)

    def pop_screen(self) -> Any:
        with self._one_step():
            gone = super().pop_screen()
        if not any(isinstance(screen, JobScreen) for screen in self.screen_stack):
            self._job = None
        self._show(self.shown_screen)
        return gone

    # --- the view before ----------------------------------------------------------------------------------------------

    def _pages(self) -> tuple[Page, ...]:
        """Return the screens above that of all jobs, without dialogs."""
        return tuple(screen for screen in self.screen_stack[1:] if isinstance(screen, Page))

    @contextmanager
    def _one_step(self) -> Iterator[None]:
        """Take all screens that come and go meanwhile as one step: what was there before it is the view before."""
        if self._moves:
            yield
            return
        self._moves, before = True, self._pages()
        try:
            yield
        finally:
            self._moves = False
            if self._pages() != before:
                self._before = before

    def _go_before(self) -> None:
        """Show the view before this one. Screens of it that are still there stay as they are, others are opened anew."""
        if (wanted := self._before) is None:
            self.tell("There was no other view before this one", "warning")
            return
        there = self._pages()
        kept = next((at for at, (one, other) in enumerate(zip(there, wanted, strict=False)) if one is not other), None)
        kept = min(len(there), len(wanted)) if kept is None else kept
        with self._one_step():
            while len(self._pages()) > kept:
                self.pop_screen()
            for page in wanted[kept:]:
                page.reopen()

    def read(self, title: str, write: Write, *, live: bool = False) -> ReadingScreen:
        """Show lines to be read, in place of what is shown under the same title. ``live``: written anew, every second."""
        shown = self.shown_screen
        if isinstance(shown, ReadingScreen) and shown.is_about(title):
            shown.rewrite(write)
            return shown
        screen = ReadingScreen(title, write, live=live)
        self._push(screen, lambda: self.read(title, screen.write, live=live))
        return screen

    def copy(self, text: str, what: str) -> None:
        """Copy a text to the clipboard, by the terminal: it needn't be on this machine."""
        self.copy_to_clipboard(text)
        self.tell(f"copied {what}")

    def open_decisions(self, detail: JobDetail) -> None:
        self._push(DecisionsScreen(detail), partial(self.open_decisions, detail))

    def open_log(self, row: JobRow, process: str = "") -> None:
        from dlrover_lite.tui.screens.reading import LogScreen
        from dlrover_lite.tui.sources.job_files import has_log, log_of

        if not row.source and not has_log(row, process):  # in a cluster that takes its time: the screen will say
            what = f"{process} of {row.id} has no log" if process else f"{row.id} has no logs"
            self.tell(f"{what} on this machine", "warning")
            return
        screen = LogScreen(row, process, log_of(row, process))
        self._push(screen, partial(self.open_log, row, process))

    def open_recipe(self, row: JobRow) -> None:
        """Read the recipe of a job as it was resolved on a thread of its own. Its screen is there at once."""
        from dlrover_lite.tui.sources.job_files import resolved_recipe

        screen = self._reading(f"Recipe of {row.id}", partial(self.open_recipe, row))
        self.fetch(
            lambda: resolved_recipe(row),
            lambda text: screen.rewrite(lambda _, __: recipe_lines(text)),
            partial(self._unread, screen),
        )

    def _reading(self, title: str, reopen: Callable[[], object]) -> ReadingScreen:
        """Show a screen for what is still to be read: one that came later would take keys that are meant for another."""
        screen = self.read(title, lambda _, __: [line(("reading…", "dim"))])
        screen.reopen = reopen
        return screen

    def _unread(self, screen: ReadingScreen, why: str) -> None:
        """Tell why there is nothing to be read on a screen."""
        self.tell(why, "error")
        screen.rewrite(lambda width, _: wrapped(f"It can't be read: {why}", width, "bad"))

    def command(self, name: str, argument: str) -> None:
        """Do a command that ``commands.parse`` has understood."""
        match name:
            case "jobs":
                self._pop_to_jobs()
            case "job":
                self.open_job(argument)
            case "overview":
                if not isinstance(self.screen, OverviewScreen):
                    self._push(OverviewScreen(), partial(self.command, "overview", ""))
            case "pulse":
                self.read("Pulse", partial(self._drawn, pulse), live=True)
            case "decisions":
                self._open_decisions()
            case "before":
                self._go_before()
            case "notices":
                self.read("Notices", lambda width, _: notices_lines(self.notices, width), live=True)
            case "theme":
                self._choose_theme(argument)
            case "at":
                self.tell("Nothing is replayed here: see dlrover-lite tui --replay", "warning")
            case "alias":
                self.read("Commands", lambda width, _: command_lines(width, readonly=self.actions is None))
            case "help":
                self.read("Keys and commands", lambda width, _: help_lines(width, readonly=self.actions is None))
            case "quit":
                self.exit()

    def explain(self, job: str, number: int, *, otherwise: Write, copy: bool = False) -> None:
        """Read a decision's explanation on a thread of its own, and show it, or copy it; ``otherwise`` is taken where it isn't kept."""
        again = partial(self.explain, job, number, otherwise=otherwise)
        screen = None if copy else self._reading(f"Decision {number} for {job}", again)

        def show(found: Explanation | None) -> None:
            write = otherwise if found is None else lambda width, _: lines_of(found, width)
            if screen is None:
                self.copy(text_of(write(_COPIED_WIDTH, 0)), f"the explanation of decision {number}")
            else:
                screen.rewrite(write)

        refuse = None if screen is None else partial(self._unread, screen)
        self.fetch(lambda: self._source.explain(job, number), show, refuse)

    def _drawn(self, draw: Callable[[JobsView, int, int, float], list[Line]], width: int, height: int) -> list[Line]:
        """Draw all jobs for the room that text has."""
        return draw(self.view, width, max(10, height), self.now()) if self.view else [line(("asking…", "dim"))]

    def take_picture(self) -> None:
        """Write what is shown to a file in the present directory, once the palette is gone."""
        self.call_after_refresh(self._take_picture)

    def _take_picture(self) -> None:
        name = f"dlrover-lite-{time.strftime('%Y%m%d-%H%M%S')}.svg"
        try:
            with Path(name).open("x", encoding="utf-8") as file:
                file.write(self.export_screenshot(title=self.TITLE))
        except OSError as error:
            self.tell(f"{name} can't be written: {error.strerror}", "error")
        else:
            self.tell(f"wrote {Path(name).resolve()}")

    def _open_decisions(self) -> None:
        detail = self.job_feed.take()
        if detail is None or detail.row.id != self._job:
            self.tell("Open a job first", "warning")
        elif not isinstance(self.screen, DecisionsScreen):
            self.open_decisions(detail)

    def open_palette(self) -> None:
        self.push_screen(Palette([*self.choices(self.screen)]))

    def choices(self, screen: Screen[Any]) -> Iterable[Choice]:
        """Yield all commands that can be done now."""
        yield Choice("Jobs", "All jobs", lambda: self.command("jobs", ""))
        yield Choice("Overview", "The machine, or the clusters, as a picture", lambda: self.command("overview", ""))
        yield Choice("Pulse", "How all is, in a few lines", lambda: self.command("pulse", ""))
        if isinstance(screen, ActingPage):
            yield from screen.acting_commands()
        for job in self.job_ids[:50]:
            yield Choice(f"Job {job}", "Open this job", partial(self.open_job, job))
        yield Choice("Notices", "All that was told here so far", lambda: self.command("notices", ""))
        yield Choice("Screenshot", "What is shown, as a picture in a file (SVG)", self.take_picture)
        yield Choice("Help", "The keys and commands", lambda: self.command("help", ""))
        for theme in self.theme_names:
            yield Choice(f"Theme {theme}", "Other colours", partial(self.command, "theme", theme))
        yield Choice("Quit", "Leave", self.exit)

    # --- colours ------------------------------------------------------------------------------------------------------

    def _add_themes(self) -> list[str]:
        """Add our own themes and those of this person, and use the one that was chosen last. Returns what is wrong."""
        for one in OWN:
            self.register_theme(_theme_of(one))
        if self._themes is None:
            return []
        found, wrong = self._themes.own()
        for one in found:
            self.register_theme(_theme_of(one))
        self.theme_names = (*THEMES, *(one.name for one in found))
        try:
            chosen = self._themes.chosen()
        except UsageError as error:
            return [*wrong, str(error)]
        if chosen and chosen not in self.theme_names:
            wrong.append(f"There is no theme {chosen} any more, which was chosen last: these are the colours of dark")
        elif chosen:
            self.theme = _TEXTUAL_NAMES.get(chosen, chosen)
        return wrong

    def _choose_theme(self, name: str) -> None:
        self.theme = _TEXTUAL_NAMES.get(name, name)
        if self._themes is not None:
            try:
                self._themes.choose(name)
            except UsageError as error:
                self.tell(str(error), "error")

    # --- acting -----------------------------------------------------------------------------------------------------

    def tell(self, what: str, severity: Severity = "information") -> None:
        """Show a notice, which stays the longer the more there is to read; an error until it is dismissed."""
        self.notices.add(Notice(what, severity, self.now()), now=time.monotonic(), seconds=4 + len(what) / 15)
        self._tell_notices()

    def notify(self, message: str, *, severity: Severity = "information", **_others: Any) -> None:
        """Tell what textual and its widgets have to tell, which would be boxes above everything else."""
        self.tell(message, severity)

    def _tell_notices(self) -> None:
        """Show the newest notice: a dialog doesn't hide the screen below it."""
        for screen in self.screen_stack:
            for shown in screen.query(NoticeLine):
                shown.tell()

    def action_dismiss_notice(self) -> None:
        self.notices.dismiss()
        self._tell_notices()

    def fetch(
        self, what: Callable[[], R], then: Callable[[R], None], otherwise: Callable[[str], None] | None = None
    ) -> None:
        """Call ``what`` on a thread of its own, as it may wait, and ``then`` with what it has found; ``otherwise`` (which by default tells
        it) with why there is nothing. Who leaves meanwhile isn't held up by it."""
        wrong = otherwise or (lambda why: self.tell(why, "error"))

        def work() -> None:
            try:
                follows = partial(then, what())
            except DlroverLiteError as error:
                follows = partial(wrong, str(error))
            except BaseException as bug:  # noqa: BLE001 - it is raised where it is seen
                follows = partial(_raise, bug)
            self.call_later(follows)

        threading.Thread(target=work, name="act", daemon=True).start()

    def done(self, what: str) -> None:
        """Tell what follows from what was done to a job, and look for it at once."""
        self.tell(what)
        self.job_feed.read_now()
        self.jobs_feed.read_now()


def _sized(screen: S, size: Size) -> S:
    """Give a screen the classes of its size before its styles are matched. (Textual does so once it's drawn, and matches all again.)"""
    for breakpoints, extent in (
        (screen.HORIZONTAL_BREAKPOINTS, size.width),
        (screen.VERTICAL_BREAKPOINTS, size.height),
    ):
        reached = [one for one in breakpoints or () if extent >= one[0]]
        if reached:
            screen.add_class(max(reached)[1], update=False)
    return screen


def _theme_of(one: ColourTheme) -> Theme:
    colours: dict[str, Any] = dict(one.colours)
    return Theme(one.name, dark=one.dark, variables=dict(one.texts), **colours)


def _raise(bug: BaseException) -> None:
    raise bug


if TYPE_CHECKING:

    def _as_its_screens_know_it(app: TuiApp) -> Application:
        return app
