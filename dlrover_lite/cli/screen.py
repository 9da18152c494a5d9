"""A terminal that is drawn over with plain escape sequences, and left as it was, whatever ends it."""

from __future__ import annotations

import os
import select
import signal
import termios
import tty
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import IO, Any

from dlrover_lite.tui.text import ANSI, Line, Span, clean, for_terminal

__all__ = ["Screen", "coloured", "is_screen"]

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""The other screen, no cursor, no new line after the last column."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Sequences around what is shown at once, by terminals that know of it."""


def is_screen(stream: IO[str]) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def coloured(spans: Iterable[Span]) -> str:
    """Return the text of spans with their colours; with NO_COLOR: without any sequences."""
    plain, terminal = bool(os.environ.get("NO_COLOR")), os.environ.get("TERM", "")
    parts = []
    for span in spans:
        text, code = for_terminal(clean(span.text), terminal), "" if plain else ANSI[span.tone]
        parts.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    return "".join(parts)


class Screen:
    """A terminal screen. While it is entered, ``draw`` shows lines, and ``wait`` says which key was pressed.

    ctrl-C raises KeyboardInterrupt as ever; SIGTERM and SIGHUP raise SystemExit; ctrl-Z gives the terminal back until it goes on.
    """

    def __init__(self, out: IO[str], keys: IO[str]) -> None:
        self._out = out
        self._keys = keys.fileno() if keys.isatty() else None
        self._shown: list[str] = []
        self._size = (0, 0)
        self._before: list[Any] | None = None
        """Settings of the terminal for keys, as they were before."""
        self._handlers: dict[int, Any] = {}
        self._woken, self._waker = -1, -1

    def __enter__(self) -> Screen:
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        self._handle(signal.SIGWINCH, lambda *_: self.wake())
        self._handle(signal.SIGTERM, _end)
        self._handle(signal.SIGHUP, _end)
        self._handle(signal.SIGTSTP, self._pause)
        self._take()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._waker)

    def _handle(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        """Handle a signal, unless it is ignored (nohup): that stays so."""
        if signal.getsignal(number) != signal.SIG_IGN:
            self._handlers[number] = signal.signal(number, handler)

    def _take(self) -> None:
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._shown, self._size = [], (0, 0)
        self._write(_ENTER)

    def _give_back(self) -> None:
        with suppress(OSError, termios.error):  # the terminal is gone
            if self._keys is not None and self._before is not None:
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)
            self._write(_LEAVE)

    def _pause(self, _number: int, _frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self.wake()

    @property
    def size(self) -> tuple[int, int]:
        """Number of columns and lines, as of now."""
        size = os.get_terminal_size(self._out.fileno())
        return size.columns, size.lines

    def draw(self, lines: Sequence[Line]) -> None:
        """Draw the lines that differ from what is there, and nothing beyond the last line."""
        size, texts = self.size, [coloured(one) for one in lines]
        parts = []
        if size != self._size:
            self._size, self._shown = size, []
            parts.append("\x1b[2J")
        for y, text in enumerate(texts[: size[1]]):
            if y >= len(self._shown) or self._shown[y] != text:
                parts.append(f"\x1b[{y + 1};1H\x1b[2K{text}")
        if len(texts) < len(self._shown):
            parts.append(f"\x1b[{len(texts) + 1};1H\x1b[J")
        self._shown = texts
        if parts:
            self._write("".join([_BEGIN, *parts, _END]))

    def wake(self) -> None:
        """Let ``wait`` return. From any thread."""
        with suppress(BlockingIOError):  # it is told already
            os.write(self._waker, b"\0")

    def wait(self, seconds: float) -> str:
        """Wait until a key is pressed (returned), the size changes, somebody wakes it, or time is up ("")."""
        watched = [self._woken, *([] if self._keys is None else [self._keys])]
        ready = select.select(watched, [], [], seconds)[0]
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._keys is not None and self._keys in ready:
            typed = b""
            with suppress(OSError):  # the terminal is gone
                typed = os.read(self._keys, 1024)
            if not typed:
                self._keys = None
            return typed.decode(errors="replace")[:1]
        return ""

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
