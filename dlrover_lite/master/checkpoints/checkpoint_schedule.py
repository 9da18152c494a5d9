"""When a job's cuts are taken and when they are given up, as a pure state machine: what has happened in, the next state and what to do out.

::

    idle ──due──▶ opening ──opened──▶ waiting ──all tidy──▶ taking ──all parts──▶ committing ──committed──▶ idle
     ▲               │                   │                    │                       │
     └──── failed ───┴── moves waited ───┴─ a PS ended, … ────┴───────── failed ──────┘

``opening`` and ``committing`` are the destination's: slots move meanwhile. From the noting of what is consumed until all parts are written
(``taking``) they don't; moves that are to begin wait, and a cut that keeps one waiting for too long is given up, as is one that loses a
parameter server or can't be written. Then another one is tried, with a new number: numbers rise, and none is used twice.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from dlrover_lite.protocol.messages import SnapshotReport

__all__ = [
    "CheckpointSchedule",
    "Commit",
    "Drop",
    "Hurry",
    "Instruction",
    "Next",
    "Open",
    "Phase",
    "Problem",
    "Server",
    "Take",
    "Tell",
    "View",
]

HOLD_SECONDS = 2.0
"""Seconds that a cut waits for parameter servers to be tidy, before it keeps moves from beginning."""
MOVES_WAIT_SECONDS = 30.0
"""Longest wait in seconds of a move that is to begin for a cut."""
AFTER_MOVES_SECONDS = 5.0
"""Seconds that moves which have waited get to begin, before the next cut is tried."""
STALLED_SECONDS = 300.0
"""Seconds without anything written, after which a cut is given up."""
HANGS_SECONDS = 60.0
"""Seconds without an answer of the destination, after which that is reported."""
FIRST_DELAY_SECONDS = 5.0
"""Seconds before the next try after the destination has failed; doubles with each further failure."""
LAST_CUT_SECONDS = 60.0
"""Longest wait in seconds of a job that is to stop for its last cut."""
_FAILURES_TO_STOP = 2
PACE = 0.8
"""Share of the time until the next cut that a cut may take when nobody waits for it."""

Phase = Literal["idle", "opening", "waiting", "taking", "committing"]


class Server(msgspec.Struct, frozen=True):
    """A PS that owns slots."""

    node: str
    up: bool
    ready: bool
    """The PS follows the newest orders, has tidied up, and holds all it has to hold."""


class View(msgspec.Struct, frozen=True):
    """What the machine sees of the job."""

    begun: bool
    """Something has been trained on, so there is something to keep."""
    at_rest: bool
    """There is a slot map, and no slot is on its way. Moves that haven't begun don't count."""
    queued: bool
    """Moves of slots are to begin."""
    servers: list[Server]
    reports: dict[str, SnapshotReport]
    """Last report of each PS, about whichever cut."""


class Open(msgspec.Struct, frozen=True):
    """Make room for a cut at the destination; then say ``opened``, ``refused`` or ``failed``. The number must be durable before."""

    cut: int


class Take(msgspec.Struct, frozen=True):
    """Note what is consumed, then have these PS write their parts, within some ``seconds`` (0: as soon as they can)."""

    cut: int
    servers: list[str]
    seconds: float = 0.0


class Hurry(msgspec.Struct, frozen=True):
    """Somebody waits for the cut under way: the PS are to write their parts as soon as they can."""


class Drop(msgspec.Struct, frozen=True):
    """Nothing more is asked of any PS."""


class Commit(msgspec.Struct, frozen=True):
    """Write the manifest of these parts; then say ``committed`` or ``failed``."""

    cut: int
    parts: dict[str, SnapshotReport]


class Tell(msgspec.Struct, frozen=True):
    """Write a line to the story."""

    text: str


class Problem(msgspec.Struct, frozen=True):
    """See ``CheckpointProblem``."""

    cut: int
    why: str
    hint: str = ""
    failures: int = 0


Instruction = Open | Take | Hurry | Drop | Commit | Tell
Next = tuple["CheckpointSchedule", list[Instruction]]


class CheckpointSchedule(msgspec.Struct, frozen=True):
    """Methods return the next state and what to do; what is said too late or twice changes nothing. ``now``: seconds of a steady clock."""

    every_seconds: float
    due_at: float
    """Time when the schedule wants the next cut."""
    next: int = 1
    newest: int = 0
    """Number of the newest complete cut; 0: there is none."""
    phase: Phase = "idle"
    since: float = 0.0
    """Time when this phase began."""
    cut: int = 0
    """Number of the cut under way; 0 when idle."""
    wanted: bool = False
    """A cut is wanted whose consumed set isn't noted yet."""
    hurried: bool = False
    """Somebody waits for the cut, or the one before was given up."""
    seconds: float = 0.0
    """Seconds that the cut under way may take; 0: no longer than need be."""
    not_before: float = -math.inf
    """Earliest time of the next cut, after one that was given up."""
    failures: int = 0
    """Number of failures of the destination in a row."""
    problem: Problem | None = None
    servers: list[str] = []
    """Ids of the PS that take part in the cut."""
    parts: dict[str, SnapshotReport] = {}
    """Reports of the parts that are written, by PS."""
    written: tuple[int, int, int] = (0, 0, 0)
    """Rows and bytes written so far, and number of PS that have reported."""
    written_at: float = 0.0
    move_waits_since: float | None = None
    hangs: bool = False
    """The destination hangs, and that has been reported."""
    stop_until: float | None = None
    """Time when a job that is to stop does so at last; None: it isn't to stop."""
    last: int = 0
    """Number of the last cut that a job which is to stop waits for."""
    over: bool = False

    # --- what there is --------------------------------------------------------------------------------------------------

    def holds_moves(self, now: float) -> bool:
        """Return whether no move may begin."""
        waited = self.phase == "waiting" and now - self.since >= HOLD_SECONDS
        return self.phase == "taking" or waited

    def may_stop(self, now: float) -> bool:
        """Return whether a job that is to stop needn't, or can't, wait for its last cut any longer."""
        if self.stop_until is None or self.newest >= self.last or now >= self.stop_until or self.over:
            return True
        problem = self.problem
        return problem is not None and problem.cut >= self.last and problem.failures >= _FAILURES_TO_STOP

    # --- events ---------------------------------------------------------------------------------------------------------

    def request(self, now: float) -> tuple[CheckpointSchedule, int]:
        """Request a cut of all there is by now. Return its number: the first complete cut from this number on holds it."""
        if self.phase in ("opening", "waiting"):
            return self._with(hurried=True), self.cut
        return self._with(wanted=True, hurried=True, not_before=min(self.not_before, now)), self.next

    def stop(self, now: float, *, begun: bool) -> CheckpointSchedule:
        """Let the job stop, after a last cut if there is something to keep. Said again it changes nothing."""
        if self.stop_until is not None or self.over:
            return self
        if not begun:
            return self._with(stop_until=now)
        cuts, last = self.request(now)
        return cuts._with(stop_until=now + LAST_CUT_SECONDS, last=last)

    def tick(self, now: float, view: View) -> Next:
        """Advance: time has passed, or something may be different from before."""
        if self.over:
            return self, []
        match self.phase:
            case "idle":
                return self._open(now, view)
            case "waiting":
                return self._take(now, view)
            case "taking":
                return self._collect(now, view)
            case _:
                return self._judge_destination(now)

    def found(self, newest: int, used: int) -> CheckpointSchedule:
        """Record what was at the destination when the job began, or went on: the newest complete cut, and the highest number used."""
        return self._with(newest=max(self.newest, newest), next=max(self.next, used + 1))

    def unreachable(self, why: str, hint: str) -> Next:
        """Note that the destination can't even be looked at."""
        if self.over:
            return self, []
        return self._with(problem=Problem(self.next - 1, why, hint, 1)), [
            Tell(f"can't take checkpoints for now: {why}")
        ]

    def opened(self, cut: int, now: float) -> CheckpointSchedule:
        if not self._is("opening", cut):
            return self
        return self._with(phase="waiting", since=now, hangs=False)

    def refused(self, cut: int, used: int) -> CheckpointSchedule:
        """Note that the number is in use at the destination, and those up to ``used`` too."""
        if not self._is("opening", cut):
            return self
        return self._idle(next=max(self.next, used + 1), wanted=True)

    def failed(self, cut: int, why: str, hint: str, now: float) -> Next:
        """Note that the destination has failed."""
        if self.phase not in ("opening", "committing") or cut != self.cut:
            return self, []
        return self._abandon(now, why, hint, failure=True)

    def committed(self, cut: int) -> CheckpointSchedule:
        """Note that the cut is durable."""
        if not self._is("committing", cut):
            return self
        return self._idle(newest=cut, failures=0)

    def end(self) -> Next:
        """Note that the job is over, or its nodes end as it goes back to another cut."""
        if self.over:
            return self, []
        told: list[Instruction] = []
        if self.phase != "idle":
            told = [Drop(), Tell(f"checkpoint {self.cut} is given up: its nodes end")]
        return self._idle(over=True, wanted=False), told

    # --- how ------------------------------------------------------------------------------------------------------------

    def _is(self, phase: Phase, cut: int) -> bool:
        return self.phase == phase and self.cut == cut

    def _open(self, now: float, view: View) -> Next:
        if not (self.wanted or now >= self.due_at) or now < self.not_before or not view.begun:
            return self, []
        cut = self.next
        return self._with(phase="opening", since=now, cut=cut, next=cut + 1, wanted=True), [Open(cut)]

    def _take(self, now: float, view: View) -> Next:
        if view.at_rest and view.servers and all(server.up and server.ready for server in view.servers):
            servers = [server.node for server in view.servers]
            seconds = 0.0 if self.hurried or view.queued else PACE * self.every_seconds
            after = self._with(
                phase="taking",
                hurried=False,
                seconds=seconds,
                since=now,
                due_at=now + self.every_seconds,
                wanted=False,
                servers=servers,
                parts={},
                written=(0, 0, 0),
                written_at=now,
                move_waits_since=None,
            )
            return after, [Take(self.cut, servers, seconds)]
        return self._judge_moves(now, view)

    def _collect(self, now: float, view: View) -> Next:
        """Collect the parts that are written, or give the cut up if one can't be."""
        up = {server.node for server in view.servers if server.up}
        reports = {node: report for node, report in view.reports.items() if report.cut == self.cut}
        parts = dict(self.parts)
        for node in self.servers:
            report = reports.get(node)
            if node in parts:
                continue
            if report is not None and report.state == "written":
                parts[node] = report
            elif report is not None and report.state == "failed":
                return self._abandon(now, f"{node}: {report.why}", report.hint, failure=True)
            elif node not in up:
                return self._abandon(now, f"{node} has ended")
        heard = [{**reports, **parts}[node] for node in self.servers if node in parts or node in reports]
        written = (sum(report.rows for report in heard), sum(report.bytes for report in heard), len(heard) + len(parts))
        after = self._with(parts=parts, written=written)
        if written != self.written:
            after = after._with(written_at=now)
        if len(parts) == len(self.servers):
            after = after._with(phase="committing", since=now, move_waits_since=None)
            return after, [Drop(), Commit(self.cut, parts)]
        if now - after.written_at > STALLED_SECONDS:
            slow = ", ".join(node for node in self.servers if node not in parts)
            why = f"nothing has been written for {STALLED_SECONDS:g} s by {slow}"
            return after._abandon(now, why, "Is the checkpoints' destination reachable?", failure=True)
        if after.seconds and (after.hurried or view.queued):
            after, told = after._with(seconds=0.0)._judge_moves(now, view)
            return after, [Hurry(), *told]
        return after._judge_moves(now, view)

    def _judge_moves(self, now: float, view: View) -> Next:
        if not view.queued or not self.holds_moves(now):
            return self._with(move_waits_since=None), []
        if self.move_waits_since is None:
            return self._with(move_waits_since=now), []
        if now - self.move_waits_since < MOVES_WAIT_SECONDS:
            return self, []
        why = f"moves of slots have waited for it for {MOVES_WAIT_SECONDS:g} s"
        return self._abandon(now, why, delay=AFTER_MOVES_SECONDS)

    def _judge_destination(self, now: float) -> Next:
        """Report a destination that hangs; nothing else can be done about it."""
        if self.hangs or now - self.since < HANGS_SECONDS:
            return self, []
        why = f"the destination hasn't answered for {HANGS_SECONDS:g} s"
        hint = "Training goes on. Is the destination reachable?"
        problem = Problem(self.cut, why, hint, self.failures + 1)
        return self._with(hangs=True, problem=problem), [Tell(f"checkpoint {self.cut} waits: {why}")]

    def _abandon(self, now: float, why: str, hint: str = "", *, failure: bool = False, delay: float = 0.0) -> Next:
        """Give the cut up; another one is wanted in its place."""
        cut, failures = self.cut, self.failures + failure
        if failure:
            delay = min(self.every_seconds, FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 32))
        told: list[Instruction] = [Drop()] if self.phase == "taking" else []
        again = f"; another one is tried {f'in {delay:.3g} s' if delay else 'as soon as it can be'}"
        told.append(Tell(f"checkpoint {cut} is given up: {why}{again}"))
        problem = Problem(cut, why, hint, failures if failure else 0)
        after = self._idle(wanted=True, hurried=True, not_before=now + delay, failures=failures, problem=problem)
        return after, told

    def _idle(self, **changes: object) -> CheckpointSchedule:
        return self._with(
            phase="idle", cut=0, servers=[], parts={}, written=(0, 0, 0), move_waits_since=None, hangs=False
        )._with(**changes)

    def _with(self, **changes: object) -> CheckpointSchedule:
        return msgspec.structs.replace(self, **changes)
