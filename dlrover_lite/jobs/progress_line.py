"""The progress line of a running job, on stderr."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from dlrover_lite.jobs.checkpoint_words import open_problem, problem_text, saving
from dlrover_lite.words import cleaned, compact, count, metric, remaining

if TYPE_CHECKING:
    from rich.console import Console

    from dlrover_lite.wire.messages import CheckpointProblem, EvaluationResult, NodeStatus, Status

__all__ = ["ProgressLine", "evaluation_text", "progress_text"]

PLAIN_INTERVAL_SECONDS = 5.0
GAP = "  "


def progress_text(status: Status, width: int | None = None) -> str:
    """What the job is doing, in at most ``width`` characters: what matters least gives way first."""
    short = [part for part in _parts(status, compact) if part]
    full = [part for part in _parts(status, count) if part]
    if width is None or len(GAP.join(full)) <= width:
        return GAP.join(full)
    while len(short) > 1 and len(GAP.join(short)) > width:
        del short[-1]
    text = GAP.join(short)
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[:width]


def _parts(status: Status, number: Callable[[float], str]) -> list[str]:
    """From the most to the least important."""
    share = status.samples / status.total_samples if status.total_samples else 0.0
    rate = status.samples_per_second
    waiting = f" ({status.message})" if status.state == "starting" and status.message else ""
    left = (status.total_samples - status.samples) / rate if rate > 0 else 0.0
    return [
        "" if status.state == "training" else status.state + waiting,
        "" if status.state == "starting" else f"{math.floor(share * 100)}%",
        "" if status.state == "starting" else f"{number(status.samples)}/{number(status.total_samples)}",
        f"{number(rate)}/s" if rate > 0 else "",
        "" if status.loss is None else f"loss {metric(status.loss)}",
        "" if status.auc is None else f"AUC {metric(status.auc)}",
        _nodes(status.nodes),
        _moving(status),
        saving(status),
        f"{remaining(left)} left" if left and status.state == "training" else "",
    ]


def _nodes(nodes: list[NodeStatus]) -> str:
    alive = [node for node in nodes if not node.state.startswith("ended")]
    up = sum(node.state == "up" for node in alive)
    if not alive:
        return ""
    return f"{up} nodes" if up == len(alive) and up != 1 else f"{up}/{len(alive)} nodes"


def _moving(status: Status) -> str:
    slots = sum(move.slots for move in status.moves if move.state in ("queued", "copying"))
    return f"{slots:,} slots moving" if slots else ""


def evaluation_text(evaluation: EvaluationResult, width: int = 80) -> str:
    """A line; with rounded numbers where it would be longer than ``width``."""
    quality = f"AUC {metric(evaluation.auc)}, loss {metric(evaluation.loss)}"

    def line(number: Callable[[float], str]) -> str:
        return (
            f"evaluated at {number(evaluation.at_samples)} samples: {quality} (on {number(evaluation.samples)} samples)"
        )

    return line(count) if len(line(count)) <= width else line(compact)


class ProgressLine:
    """Redraws one line on a terminal; elsewhere writes a line every few seconds if something has changed.

    Methods raise OSError when the stream has been closed at its other end.
    """

    def __init__(self, stream: IO[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self.live = stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._shown_at = -math.inf
        self._shown: tuple[object, ...] = ()
        self._evaluations = 0
        self._ended: set[str] = set()
        self._problem: CheckpointProblem | None = None
        self._plan = self._queued = ""

    def show(self, status: Status) -> None:
        """The line, and before it a line of its own for each evaluation, each ended node and each trouble with checkpoints that is new;
        for the plan that it begins with, and for what it waits for."""
        for evaluation in status.evaluations[self._evaluations :]:
            self.say(evaluation_text(evaluation))
        self._evaluations = len(status.evaluations)
        if status.state not in ("succeeded", "failed", "stopped", "lost"):
            self._tell_plan(status)
            self._tell_ended(status)
            self._tell_problem(status)
            self._draw(status)

    def _tell_plan(self, status: Status) -> None:
        queued = status.message if status.state == "queued" else ""
        if queued and queued != self._queued:
            self.say(f"queued: {queued}")
        if not queued and status.plan != self._plan:
            self.say(status.plan)
            self._plan = status.plan
        self._queued = queued

    def _tell_ended(self, status: Status) -> None:
        for node in status.nodes:
            if node.state.startswith("ended") and node.id not in self._ended:
                self._ended.add(node.id)
                if node.state != "ended (Succeeded)":
                    self.say(f"{node.id} {node.state}")

    def _tell_problem(self, status: Status) -> None:
        """Of checkpoints, unless it is the same again: a destination that is gone may be so for hours."""
        problem, told = open_problem(status), self._problem
        if problem is not None and (told is None or told.why != problem.why):
            self.say(problem_text(problem))
        self._problem = problem

    def _draw(self, status: Status) -> None:
        if self.live:
            self._live(progress_text(status, self._width()))
            return
        now, news = self._clock(), (status.state, status.samples, status.message)
        if news != self._shown and now - self._shown_at >= PLAIN_INTERVAL_SECONDS:
            self._shown_at, self._shown = now, news
            print(progress_text(status), file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.live:
            self._live("")
        print(cleaned(text), file=self._stream, flush=True)

    def clear(self) -> None:
        """Nothing stays of the live line."""
        if self.live:
            self._live("")

    def _width(self) -> int:
        return self._console().width - 1  # in the last column some terminals start a new line

    def _live(self, text: str) -> None:
        """In place. rich's own live display would hide the cursor, and leave it so if this process is killed."""
        from rich.control import Control
        from rich.segment import ControlType
        from rich.text import Text

        console = self._console()
        console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
        if text:
            console.print(Text(text, no_wrap=True), end="", crop=False, soft_wrap=True)
        self._stream.flush()

    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=self._stream, highlight=False)
