"""The application: which screen is shown, what is read for it, and what is done on its behalf."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from textual.app import App, SystemCommand
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from dlrover_lite.errors import DlroverLiteError
from dlrover_lite.tui.actions import Actions
from dlrover_lite.tui.explanation_page import lines_of
from dlrover_lite.tui.feed import Feed
from dlrover_lite.tui.model import JobDetail, JobRow, JobsView
from dlrover_lite.tui.screens.acting import ActingPage
from dlrover_lite.tui.screens.decisions import DecisionsScreen
from dlrover_lite.tui.screens.job import JobScreen
from dlrover_lite.tui.screens.jobs import JobsScreen
from dlrover_lite.tui.screens.page import Page
from dlrover_lite.tui.source import Source
from dlrover_lite.tui.table import text_of
from dlrover_lite.tui.text import Line

__all__ = ["TuiApp"]

DARK, LIGHT = "textual-dark", "textual-light"
Severity = Literal["information", "warning", "error"]
R = TypeVar("R")
_COPIED_WIDTH = 100
"""Characters of the lines of an explanation that is copied."""


class TuiApp(App[None]):
    """``actions``: None for what can't be changed from here, such as a recording. Two threads read for it: one all jobs, the other the
    job that is looked at, so that a master that doesn't answer holds up nothing else."""

    TITLE = "dlrover-lite"
    BINDINGS: ClassVar[list[Any]] = []
    ENABLE_COMMAND_PALETTE = True
    WITHOUT: ClassVar[frozenset[str]] = frozenset()
    """Actions of screens that there aren't."""

    class Arrived(Message):
        """Something new was read, of all jobs or of one."""

        def __init__(self, *, of_all: bool) -> None:
            super().__init__()
            self.of_all = of_all

    class Came(Message):
        """What a thread was to find out, or do; ``follows`` is for this one."""

        def __init__(self, follows: Callable[[], None]) -> None:
            super().__init__()
            self.follows = follows

    def __init__(
        self,
        source: Source,
        *,
        job: str | None = None,
        actions: Actions | None = None,
        period_seconds: float = 0.5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._source = source
        self._first = job
        self.actions = actions
        self.now = clock
        self.readonly = actions is None
        self.view: JobsView | None = None
        self._job: str | None = None
        """That is looked at."""
        self.jobs_feed: Feed[JobsView] = Feed(
            source.jobs, lambda: self._arrived(of_all=True), name="jobs", period_seconds=period_seconds
        )
        self.job_feed: Feed[JobDetail | None] = Feed(
            self._read_job, lambda: self._arrived(of_all=False), name="job", period_seconds=period_seconds
        )

    # --- what is read -----------------------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        return JobsScreen()

    def on_mount(self) -> None:
        self.jobs_feed.start()
        self.job_feed.start()
        self.set_interval(1.0, self._tell_ages)
        if self._first is not None:
            self.open_job(self._first)

    def on_unmount(self) -> None:
        ended = [feed.stop() for feed in (self.jobs_feed, self.job_feed)]
        if all(ended):
            self._source.close()

    def _read_job(self) -> JobDetail | None:
        """On the thread of ``job_feed``."""
        job = self._job
        if job is None:
            self._source.forget()
            return None
        return self._source.job(job)

    def _arrived(self, *, of_all: bool) -> None:
        """From the threads that read."""
        self.post_message(self.Arrived(of_all=of_all))

    def on_tui_app_arrived(self, event: Arrived) -> None:
        if event.of_all:
            before, self.view = self.view, self.jobs_feed.take()
            self._tell_failed(before)
        else:
            self.job_feed.take()
        self._show(self.screen)

    def _tell_failed(self, before: JobsView | None) -> None:
        """Of jobs that have failed, or were lost, since they were seen last."""
        if before is None or self.view is None or before.jobs is self.view.jobs:
            return
        for job, row in self.view.jobs.items():
            was = before.jobs.get(job)
            if was is not None and was is not row and not was.over and row.state in ("failed", "lost"):
                why = row.message.partition("\n")[0]
                self.notify(
                    f"{job} {'has failed' if row.state == 'failed' else 'was lost'}: {why}",
                    severity="error",
                    markup=False,
                )

    def _show(self, screen: Screen[Any]) -> None:
        if isinstance(screen, JobsScreen):
            screen.put(self.view)
        elif isinstance(screen, JobScreen | DecisionsScreen):
            screen.put(self.job_feed.take())

    def _tell_ages(self) -> None:
        if isinstance(self.screen, Page):
            self.screen.tell_age()

    @property
    def job_ids(self) -> Sequence[str]:
        """The newest first."""
        return tuple(self.view.jobs) if self.view else ()

    def below(self) -> Iterable[Widget]:
        """What is at the bottom of each screen, above the keys."""
        return ()

    # --- screens ----------------------------------------------------------------------------------------------------

    def open_job(self, job: str) -> None:
        """In place of another job that is open."""
        self._pop_to_jobs()
        row = self.view.jobs.get(job) if self.view else None
        self._job = job
        self.job_feed.read_now()
        self.push_screen(JobScreen(job, row))

    def on_screen_resume(self) -> None:
        self._show(self.screen)

    def _pop_to_jobs(self) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def pop_screen(self) -> Any:
        gone = super().pop_screen()
        if not any(isinstance(screen, JobScreen) for screen in self.screen_stack):
            self._job = None
        self._show(self.screen)
        return gone

    def read(self, title: str, lines: Sequence[Line], *, again: Callable[[], Sequence[Line]] | None = None) -> None:
        """``again``: makes them anew, every second."""
        from dlrover_lite.tui.screens.reading import ReadingScreen

        self.push_screen(ReadingScreen(title, lines, again=again))

    def copy(self, text: str, what: str) -> None:
        """To the clipboard, by the terminal: it needn't be on this machine."""
        self.copy_to_clipboard(text)
        self.notify(f"copied {what}", timeout=3, markup=False)

    def open_decisions(self, detail: JobDetail) -> None:
        self.push_screen(DecisionsScreen(detail))

    def open_log(self, row: JobRow, process: str) -> None:
        from dlrover_lite.tui.log_tail import LogTail
        from dlrover_lite.tui.screens.reading import LogScreen

        path = Path(row.directory, "logs", f"{process}.log") if row.directory else None
        if path is None or not path.is_file():
            self.notify(f"{process} of {row.id} has no log on this machine", severity="warning", markup=False)
            return
        self.push_screen(LogScreen(f"{row.id} {process}", LogTail(path)))

    def command(self, name: str, argument: str) -> None:
        """One that ``commands.parse`` has understood."""
        match name:
            case "jobs":
                self._pop_to_jobs()
            case "job":
                self.open_job(argument)
            case "decisions":
                self._open_decisions()
            case "theme":
                self.theme = DARK if argument == "dark" else LIGHT
            case "at":
                self.notify("Nothing is replayed here: see dlrover-lite tui --replay", severity="warning", markup=False)
            case "help":
                from dlrover_lite.tui.screens.reading import help_lines

                self.read("Keys and commands", help_lines(readonly=self.readonly))
            case "quit":
                self.exit()

    def explain(self, job: str, number: int, *, otherwise: Sequence[Line], copy: bool = False) -> None:
        """Reads it on a thread of its own, and shows it, or copies it; ``otherwise`` is taken where it isn't kept."""
        width = _COPIED_WIDTH if copy else max(20, self.size.width - 6)

        def read() -> None:
            try:
                found = self._source.explain(job, number)
            except DlroverLiteError as error:
                self.call_from_thread(self.notify, error.message, severity="error", markup=False)
                return
            lines = lines_of(found, width) if found is not None else otherwise
            if copy:
                self.call_from_thread(self.copy, text_of(lines), f"the explanation of decision {number}")
            else:
                self.call_from_thread(self.read, f"Decision {number} for {job}", lines)

        self.run_worker(read, thread=True, exclusive=True, group="explain")

    def _open_decisions(self) -> None:
        detail = self.job_feed.take()
        if detail is None or detail.row.id != self._job:
            self.notify("Open a job first", severity="warning", markup=False)
        elif not isinstance(self.screen, DecisionsScreen):
            self.open_decisions(detail)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        yield SystemCommand("Jobs", "All jobs", lambda: self.command("jobs", ""))
        if isinstance(screen, ActingPage):
            yield from screen.acting_commands()
        for job in self.job_ids[:50]:
            yield SystemCommand(f"Job {job}", "Open this job", lambda job=job: self.open_job(job))
        yield SystemCommand("Help", "The keys and commands", lambda: self.command("help", ""))
        yield SystemCommand("Dark", "Dark colours", lambda: self.command("theme", "dark"))
        yield SystemCommand("Light", "Light colours", lambda: self.command("theme", "light"))
        yield SystemCommand("Quit", "Leave", self.exit)

    # --- acting -----------------------------------------------------------------------------------------------------

    def tell(self, what: str, severity: Severity = "information") -> None:
        """A notice, which stays the longer the more there is to read."""
        self.notify(what, severity=severity, timeout=4 + len(what) / 15, markup=False)

    def fetch(
        self, what: Callable[[], R], then: Callable[[R], None], otherwise: Callable[[str], None] | None = None
    ) -> None:
        """``what`` is called on a thread of its own, as it may wait, and ``then`` with what it has found; ``otherwise`` (which by default
        tells it) with why there is nothing. Who leaves meanwhile isn't held up by it."""
        wrong = otherwise or (lambda why: self.tell(why, "error"))

        def work() -> None:
            try:
                follows = partial(then, what())
            except DlroverLiteError as error:
                follows = partial(wrong, str(error))
            except BaseException as bug:  # noqa: BLE001 - it is raised where it is seen
                follows = partial(_raise, bug)
            self.post_message(self.Came(follows))

        threading.Thread(target=work, name="act", daemon=True).start()

    def on_tui_app_came(self, event: Came) -> None:
        event.follows()

    def done(self, what: str) -> None:
        """Something was done to a job: what follows from it is told, and looked for at once."""
        self.tell(what)
        self.job_feed.read_now()
        self.jobs_feed.read_now()


def _raise(bug: BaseException) -> None:
    raise bug
