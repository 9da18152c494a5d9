"""The progress line of a running job, on a terminal, in a notebook or in a file; and following a job with it until it ends."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from dlrover_lite.client.checkpoint_words import open_problem, problem_text, saving
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.unknown_ids import warnings_of
from dlrover_lite.core.words import cleaned, compact, count, metric, time_left

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.jobs.store import Result
    from dlrover_lite.protocol.questions import CheckpointProblem, EvaluationResult, NodeStatus, Status

__all__ = ["ProgressLine", "evaluation_text", "follow", "progress_text", "redraws"]

LIVE_SECONDS, PLAIN_SECONDS = 0.5, 1.0
"""Seconds between two looks at a job, where its line is redrawn and where not."""
PLAIN_INTERVAL_SECONDS = 5.0
PENDING_SECONDS = 10.0
"""Seconds after which it is worth a line that a node finds no place: most do within a few."""
_PENDING = "launched (pending: "
_NOTEBOOK_WIDTH = 100
"""Characters that the output of a notebook cell has room for."""
GAP = "  "


def progress_text(status: Status, width: int | None = None, *, now: float | None = None) -> str:
    """Return what the job is doing, in at most ``width`` characters: what matters least gives way first. ``now``: seconds since the
    epoch."""
    now = time.time() if now is None else now
    short = [part for part in _parts(status, compact, now) if part]
    full = [part for part in _parts(status, count, now) if part]
    if width is None or len(GAP.join(full)) <= width:
        return GAP.join(full)
    while len(short) > 1 and len(GAP.join(short)) > width:
        del short[-1]
    text = GAP.join(short)
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[:width]


def _parts(status: Status, number: Callable[[float], str], now: float) -> list[str]:
    """List the parts of the line, from the most to the least important."""
    share = status.samples / status.total_samples if status.total_samples else 0.0
    rate = status.samples_per_second
    waiting = f" ({status.message})" if status.state == "starting" and status.message else ""
    end = status.expected_end
    return [
        "waiting" if status.waits else "" if status.state == "training" else status.state + waiting,
        _working(status),
        "" if status.state == "starting" else f"{math.floor(share * 100)}%",
        "" if status.state == "starting" else f"{number(status.samples)}/{number(status.total_samples)}",
        f"{number(rate)}/s" if rate > 0 else "",
        "" if status.loss is None else f"loss {metric(status.loss)}",
        "" if status.auc is None else f"AUC {metric(status.auc)}",
        _nodes(status.nodes),
        _moving(status),
        saving(status),
        time_left(end.at, end.error_seconds, now) if end is not None and status.state == "training" else "",
    ]


def _working(status: Status) -> str:
    """Say what is done beside training, or instead of it, and how far it is. A job that is starting says so in its message."""
    if status.restoring is not None and status.restoring.text and status.state != "starting":
        return f"reading checkpoint {status.restoring.checkpoint}: {status.restoring.text}"
    return status.exporting.text if status.exporting is not None and status.state == "exporting" else ""


def _nodes(nodes: list[NodeStatus]) -> str:
    alive = [node for node in nodes if not node.state.startswith("ended")]
    up = sum(node.state == "up" for node in alive)
    if not alive:
        return ""
    return f"{up} nodes" if up == len(alive) and up != 1 else f"{up}/{len(alive)} nodes"


def _moving(status: Status) -> str:
    slots = sum(move.left for move in status.moves)
    return f"{slots:,} slots moving" if slots else ""


def evaluation_text(evaluation: EvaluationResult, width: int = 80) -> str:
    """Return the line of an evaluation; with rounded numbers where it would be longer than ``width``."""
    quality = f"AUC {metric(evaluation.auc)}, loss {metric(evaluation.loss)}"

    def line(number: Callable[[float], str]) -> str:
        return (
            f"evaluated at {number(evaluation.at_samples)} samples: {quality} (on {number(evaluation.samples)} samples)"
        )

    return line(count) if len(line(count)) <= width else line(compact)


def in_notebook(stream: IO[str]) -> bool:
    """Return whether a notebook shows what is written to ``stream``."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


def redraws(stream: IO[str]) -> bool:
    """Return whether a line that was written to ``stream`` can be replaced by another: on a terminal that isn't a dumb one, and in a
    notebook."""
    return in_notebook(stream) or (stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"))


def follow(
    handle: JobHandle,
    line: ProgressLine,
    timeout: float | None = None,
    *,
    on_closed: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Show how the job gets on until it has ended; return its result.

    When nobody reads the progress any more, ``on_closed`` is called once and the rest is silent.

    Raises TimeoutError after ``timeout`` seconds (the job goes on).
    """
    closed = False
    end = math.inf if timeout is None else clock() + timeout

    def shown(show: Callable[..., None], *arguments: Any) -> None:
        nonlocal closed
        if closed:
            return
        try:
            show(*arguments)
        except OSError:  # a pipe or terminal that is gone
            closed = True
            on_closed()

    while True:
        left = end - clock()
        try:
            result = handle.wait(min(max(0.0, left), LIVE_SECONDS if line.live else PLAIN_SECONDS), progress=False)
        except TimeoutError:
            with suppress(DlroverLiteError):  # the master is busy, or just ending
                shown(line.show, handle.status())
            if left <= 0:
                raise TimeoutError(f"{handle.id} still runs after {timeout:g} s") from None
            continue
        with suppress(DlroverLiteError):
            shown(line.show, handle.status())
        shown(line.clear)
        return result


class ProgressLine:
    """Redraws one line on a terminal or in a notebook; elsewhere writes a line every few seconds if something has changed.

    Methods raise OSError when the stream has been closed at its other end.
    """

    def __init__(self, stream: IO[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self.live = redraws(stream)
        self._notebook = in_notebook(stream)
        self._drawn = 0
        """Characters of the line that a notebook shows."""
        self._shown_at = -math.inf
        self._shown: tuple[object, ...] = ()
        self._evaluations: set[tuple[int, int, float | None, float | None]] = set()
        self._pending_since: dict[str, float] = {}
        """Since when nodes wait for a place; infinity: that was told."""
        self._ended: set[str] = set()
        self._problem: CheckpointProblem | None = None
        self._plan = self._queued = ""
        self._waited = False

    def show(self, status: Status) -> None:
        """Show the line, and before it a line of its own for each evaluation, each ended node and each trouble with checkpoints that is
        new; for the plan that it begins with, and for what it waits for."""
        self._tell_evaluations(status)
        if status.state not in ("succeeded", "failed", "stopped", "suspended", "lost"):
            self._tell_plan(status)
            self._tell_ended(status)
            self._tell_pending(status)
            self._tell_problem(status)
            self._tell_waits(status)
            self._draw(status)

    def _tell_evaluations(self, status: Status) -> None:
        """Tell those that are new. Where they lie in the list says nothing: a job that went back to a checkpoint has fewer, and the last
        status of one in a cluster has the newest ones only."""
        for evaluation in status.evaluations:
            told = (evaluation.at_samples, evaluation.samples, evaluation.loss, evaluation.auc)
            if told in self._evaluations:
                continue
            self._evaluations.add(told)
            self.say(evaluation_text(evaluation))
            for warning in warnings_of(evaluation.unknown_ids, evaluation.unusual_ids):
                self.say(f"Warning: {warning}")

    def _tell_pending(self, status: Status) -> None:
        """Tell once of each node what it waits for, in the cluster's words, when it has waited for a while."""
        now = self._clock()
        for node in status.nodes:
            if not node.state.startswith(_PENDING):
                self._pending_since.pop(node.id, None)
            elif now - self._pending_since.setdefault(node.id, now) >= PENDING_SECONDS:
                self._pending_since[node.id] = math.inf  # told
                self.say(f"{node.id} is pending: {node.state.removeprefix(_PENDING).removesuffix(')')}")

    def _tell_plan(self, status: Status) -> None:
        queued = status.message if status.state == "queued" else ""
        if queued and queued != self._queued:
            self.say(f"queued: {queued}")
        if not queued and status.plan and status.plan != self._plan:
            self.say(status.plan)
            self._plan = status.plan
        self._queued = queued

    def _tell_waits(self, status: Status) -> None:
        if bool(status.waits) != self._waited:
            self.say(status.waits or "it goes on")
        self._waited = bool(status.waits)

    def _tell_ended(self, status: Status) -> None:
        for node in status.nodes:
            if node.state.startswith("ended") and node.id not in self._ended:
                self._ended.add(node.id)
                if node.state != "ended (Succeeded)":
                    self.say(f"{node.id} {node.state}")

    def _tell_problem(self, status: Status) -> None:
        """Tell the problem of checkpoints, unless it is the same again: a destination that is gone may be so for hours."""
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
        """Print a line that stays."""
        self.clear()
        print(cleaned(text), file=self._stream, flush=True)

    def clear(self) -> None:
        """Clear the live line: nothing of it stays."""
        if self.live:
            self._live("")

    def _width(self) -> int:
        if self._notebook:
            return _NOTEBOOK_WIDTH
        from rich.console import Console

        return Console(file=self._stream).width - 1  # in the last column some terminals start a new line

    def _live(self, text: str) -> None:
        """Show the live line in place. rich's own live display would hide the cursor, and leave it so if this process is killed."""
        # Of control characters notebooks know the return to the beginning of the line only.
        erased = " " * self._drawn + "\r" if self._notebook else "\x1b[2K"
        self._stream.write(f"\r{erased}{cleaned(text)}")
        self._stream.flush()
        self._drawn = len(text)
