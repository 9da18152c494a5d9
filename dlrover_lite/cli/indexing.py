"""Progress of long work on data files and models, on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlrover_lite.cli.output import Reporter
    from dlrover_lite.core.progress import Steps, Unit
    from dlrover_lite.data.files import Progress

__all__ = ["TerminalDisplay", "indexing"]


@contextmanager
def indexing() -> Iterator[Progress]:
    """Show a progress bar for each thing that is worked on, from its first report on."""
    from dlrover_lite.cli.output import progress

    with ExitStack() as stack:
        current: tuple[str, Reporter] | None = None

        def report(what: str, done: int, total: int) -> None:
            nonlocal current
            if current is None or current[0] != what:
                stack.close()
                current = what, stack.enter_context(progress(what, total))
            current[1](done)

        yield report


class TerminalDisplay:
    """Shows on stderr how long work gets on: a ``client.trained_models.Display``."""

    def indexing(self) -> AbstractContextManager[Progress]:
        return indexing()

    @contextmanager
    def steps(self) -> Iterator[Steps]:
        """Yield a progress line for each step, one after the other."""
        from dlrover_lite.cli.output import progress

        with ExitStack() as stack:
            current: tuple[str, Reporter] | None = None

            def report(what: str, done: float, total: float, unit: Unit) -> None:
                nonlocal current
                if current is None or current[0] != what:
                    stack.close()
                    current = what, stack.enter_context(progress(what, total, unit=unit))
                current[1](done)

            yield report

    def note(self, text: str) -> None:
        from dlrover_lite.cli.output import note

        note(text)
