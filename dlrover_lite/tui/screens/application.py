"""The application as its screens know it: what they have read, done and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from textual.screen import Screen
from textual.widget import Widget

from dlrover_lite.tui.actions import Actions
from dlrover_lite.tui.keys import Key
from dlrover_lite.tui.model import JobDetail, JobRow, JobsView
from dlrover_lite.tui.pages.notices_page import Notices, Severity
from dlrover_lite.tui.sources.poller import Feed
from dlrover_lite.tui.text import Write

__all__ = ["Application"]

R = TypeVar("R")


class Application(Protocol):
    """``tui.app.TuiApp`` is it; a screen finds it as ``self.tui``."""

    WITHOUT: ClassVar[frozenset[str]]
    """Actions that screens of this application don't have."""
    FIRST_KEYS: ClassVar[Sequence[Key]]
    """Keys that come before those of screens, and are at the bottom before them."""
    actions: Actions | None
    """Actions on jobs; None where nothing can be changed, as in a recording."""
    now: Callable[[], float]
    notices: Notices
    view: JobsView | None
    theme_names: Sequence[str]
    jobs_feed: Feed[JobsView]
    job_feed: Feed[JobDetail | None]

    @property
    def job_ids(self) -> Sequence[str]: ...

    def below(self) -> Iterable[Widget]:
        """Make what stands at the bottom of every screen."""

    def push_screen(self, screen: Screen[Any], callback: Callable[[Any], Any] | None = None) -> Any:
        """Show a screen above the present one."""

    def tell(self, what: str, severity: Severity = "information") -> None:
        """Show a notice."""

    def fetch(
        self, what: Callable[[], R], then: Callable[[R], None], otherwise: Callable[[str], None] | None = None
    ) -> None:
        """Call ``what`` on a thread, and then, on the application's own, ``then`` with its result or ``otherwise`` with the error."""

    def done(self, what: str) -> None:
        """Say what was done, and read anew what has changed by it."""

    def command(self, name: str, argument: str) -> None:
        """Do what was written after ``:``."""

    def explain(self, job: str, number: int, *, otherwise: Write, copy: bool = False) -> None:
        """Show why a decision was made, or copy it."""

    def read(self, title: str, write: Write, *, live: bool = False) -> Any:
        """Show a text, as it is written for the room that there is; ``live``: written anew as time goes on."""

    def copy(self, text: str, what: str) -> None:
        """Put a text into the clipboard; ``what`` says which."""

    def open_job(self, job: str) -> None: ...

    def open_decisions(self, detail: JobDetail) -> None: ...

    def open_log(self, row: JobRow, process: str = "") -> None:
        """Show the log of a process, or of all as one."""

    def open_recipe(self, row: JobRow) -> None:
        """Show the recipe of a job as it was resolved."""

    def open_palette(self) -> None: ...
