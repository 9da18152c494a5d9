"""A line that is written into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.widgets import Input

__all__ = ["LineInput"]


class LineInput(Input):
    """An input that says what it has to say before the next key is taken: ``changed`` is told what is written with each change, ``submit``
    is called when enter was pressed."""

    def __init__(self, changed: Callable[[str], None], submit: Callable[[], None], **settings: Any) -> None:
        super().__init__(compact=True, select_on_focus=False, **settings)
        self._changed, self._submit = changed, submit

    def watch_value(self, value: str) -> None:
        self._changed(value)

    async def action_submit(self) -> None:
        self._submit()
