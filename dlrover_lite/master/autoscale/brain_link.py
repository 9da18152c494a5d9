"""A master's line to the brain: what happens goes out, advice comes in, and nothing here ever holds up training.

What can't be told now is kept, up to a bound, and told later; what was dropped is said. A brain that is lost is looked for again. What
is told may be told twice, so a restarted master tells everything it finds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from dlrover_lite.core.errors import BrainError
from dlrover_lite.core.version import __version__
from dlrover_lite.jobs.profiles import Gap
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.master.phases import Phase
from dlrover_lite.protocol.brain_messages import (
    REFUSED,
    UNKNOWN_JOB,
    Advice,
    BrainHello,
    BrainReplies,
    BrainWelcome,
    EndJob,
    RegisterJob,
    Report,
    understand_each_other,
)
from dlrover_lite.protocol.demands import DecisionOutcome, Standing
from dlrover_lite.protocol.hosts import Host, SharedRoom
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.protocol.profiles import Level, Profile
from dlrover_lite.protocol.records import NodeRecord, PlanRecord
from dlrover_lite.transport.frames import INTERNAL, NOT_UNDERSTOOD, Failure, Reply, Request
from dlrover_lite.transport.interface import ClientFactory, MessageClient

__all__ = ["BrainLink", "Unsent"]

SOON_SECONDS = 0.1
"""Seconds until the next report after news that the brain may decide by; then twice as long each time, up to ``BEAT_SECONDS``."""
FIRST_PLAN_SECONDS = 30.0
"""Seconds to wait for the first plan of a brain that lives: it may have a lot to read first, or wait for the database."""
BEAT_SECONDS = 10.0
"""Seconds between two reports when only the number of samples is new."""
AGAIN_SECONDS = 2.0
"""Seconds between two checks whether the brain still lives; an unanswered request is then repeated."""
LOST_SECONDS = 40.0
"""Seconds without an answer after which the brain is lost: it may wait half a minute for a database that others write to."""
LATER_SECONDS = 10.0
"""Seconds before the next try after the brain couldn't write."""
_LONGEST_PAUSE_SECONDS = 30.0
_FIRST_BEAT_SECONDS, _PATIENT_BEAT_SECONDS = 0.2, 1.0
_TURN_SECONDS = 0.1
END_SECONDS = 3.0
MOST_PROFILES, MOST_HAPPENINGS = 2_000, 5_000
MOST_LEVELS = 60
_AT_ONCE = 500

State = Literal["looking", "greeting", "registering", "open"]
Happening = Profile | NodeRecord | PlanRecord | DecisionOutcome


class Unsent:
    """What is to be told, in its order, the newest of it. Profiles have a bound of their own: they are many, and each one tells little."""

    def __init__(self, *, most_profiles: int = MOST_PROFILES, most_happenings: int = MOST_HAPPENINGS) -> None:
        self.dropped_profiles = self.dropped_happenings = 0
        self._profiles: deque[tuple[int, Profile]] = deque()
        self._happenings: deque[tuple[int, NodeRecord | PlanRecord | DecisionOutcome]] = deque()
        self._most_profiles, self._most_happenings = most_profiles, most_happenings
        self._added = 0

    def __len__(self) -> int:
        return len(self._profiles) + len(self._happenings)

    def add(self, happening: Happening) -> None:
        self._added += 1
        if isinstance(happening, Profile):
            self._profiles.append((self._added, happening))
            if len(self._profiles) > self._most_profiles:
                self._profiles.popleft()
                self.dropped_profiles += 1
            return
        self._happenings.append((self._added, happening))
        if len(self._happenings) > self._most_happenings:
            self._happenings.popleft()
            self.dropped_happenings += 1

    def report(self, job: str, samples: int, *, most: int = _AT_ONCE) -> tuple[Report, int]:
        """Return the oldest of what is unsent as a report, and the number to call ``told`` with once it has arrived."""
        pairs = sorted([*self._profiles, *self._happenings], key=lambda pair: pair[0])[:most]
        items = [item for _, item in pairs]
        report = Report(
            job,
            samples,
            profiles=[item for item in items if isinstance(item, Profile)],
            events=[item for item in items if isinstance(item, NodeRecord)],
            plans=[item for item in items if isinstance(item, PlanRecord)],
            done=[item for item in items if isinstance(item, DecisionOutcome)],
        )
        return report, pairs[-1][0] if pairs else 0

    def told(self, number: int) -> None:
        for kept in (self._profiles, self._happenings):
            while kept and kept[0][0] <= number:
                kept.popleft()

    def what_was_dropped(self) -> str:
        """Return what was dropped since the last call, in words; empty: nothing."""
        counts = (self.dropped_profiles, "profiles"), (self.dropped_happenings, "events")
        self.dropped_profiles = self.dropped_happenings = 0
        return " and ".join(f"the oldest {count:,} {what}" for count, what in counts if count)


class _Asked(NamedTuple):
    body: msgspec.Struct
    sequence: int
    at: float
    told: int
    """Number to call ``Unsent.told`` with once this has arrived."""


@dataclass(eq=False)
class BrainLink:
    """``find`` gives the endpoint of a brain that lives; it raises BrainError, saying why there is none. ``say`` is told what a person
    should know, a line each. ``advised`` is given all advice."""

    job: RegisterJob
    find: Callable[[], str]
    connector: ClientFactory
    say: Callable[[str], None]
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    advised: Callable[[Advice], None] = lambda _: None
    version: str = __version__

    def __post_init__(self) -> None:
        self.unsent = Unsent()
        self._levels: list[Level] = []
        self.state: State = "looking"
        self.samples = self.job.samples
        self.client: MessageClient | None = None
        """The connection to the brain: a driver that waits has something to do as soon as a reply has come; None: there is none."""
        self._endpoint = ""
        self._asked: _Asked | None = None
        self._again_at = 0.0
        self._next_at = self.clock()
        self._pause = 0.0
        self._beat = BEAT_SECONDS
        self.trouble = ""
        """Why there is no brain to ask, in words, as last said; empty: there is one, or it isn't known yet."""
        self._fleet: Fleet | None = None
        self._plan: Plan | None = None
        self._nodes: dict[str, Node] = {}
        self._end: EndJob | None = None
        self.standing: Callable[[], Standing] | None = None
        """Function asked for the job's standing before each report; None while nobody knows it."""
        self.ended = False
        """The brain knows how the job has ended."""
        self._anew = False
        """The job is to be registered once more: it has a plan now, or none any more."""

    # --- what happens ---------------------------------------------------------------------------------------------------

    def turn(self, fleet: Fleet, samples: int) -> None:
        """Notice what is new, and send or receive whatever can be without waiting. To be called often."""
        self.samples = samples
        self._notice(fleet)
        self._serve()

    def keep(self, found: Profile | Gap) -> None:
        """Keep a profile to be told; the brain has no use for gaps. (``master.profiling.profile_intervals.Sink``)"""
        if isinstance(found, Profile):
            self.unsent.add(found)
            self._at_once()

    def keep_level(self, level: Level | None) -> None:
        """Keep what PS hold, told at once; older ones that can't be told give way."""
        if level is not None:
            self._levels = [*self._levels, level][-MOST_LEVELS:]
            self._at_once()

    def done(self, done: DecisionOutcome) -> None:
        """Keep what became of a decision, to be told."""
        self.unsent.add(done)
        self._at_once()

    def _at_once(self) -> None:
        """Report with the next turn, not with the next beat: something may be decided by it."""
        if self.state == "open" and not self.trouble:
            self._next_at = min(self._next_at, self.clock())

    def waits(self, since: float | None, *, hosts: Sequence[Host], shared: SharedRoom | None) -> None:
        """Tell that the job has no nodes, and is to be given a plan on these ``hosts``, and what of them is ``shared``; ``since``: it had
        nodes until then (seconds since the epoch)."""
        demand = self.job.demand
        if demand is not None:
            demand = msgspec.structs.replace(demand, hosts=tuple(hosts), shared=shared)
        self.job = msgspec.structs.replace(self.job, demand=demand, waits_since=since)
        self._plan, self.standing = None, None
        self._register_again()

    def first_advice(
        self,
        has_come: Callable[[], bool],
        give_up: Callable[[], bool],
        serve: Callable[[list[Request]], None],
        *,
        patient: bool,
    ) -> Phase[bool]:
        """Wait for what the brain says to a job that has no plan; return whether it came. No longer than a brain lives, and answers; with
        ``patient`` another brain is looked for. ``serve`` answers who asks the master meanwhile."""
        until = self.clock() + FIRST_PLAN_SECONDS
        beat = _PATIENT_BEAT_SECONDS if patient else _FIRST_BEAT_SECONDS
        while not has_come() and not give_up() and (now := self.clock()) < until:
            if self._asked is None and self.state == "open":
                self._next_at = min(self._next_at, now + beat)
            self._serve()
            if has_come():
                break
            if self.state == "looking" and self.trouble:
                if not patient:
                    break
                self._next_at = min(self._next_at, now + AGAIN_SECONDS)
            serve((yield now + _TURN_SECONDS))
        return has_come()

    def _register_again(self) -> None:
        self._anew = True
        if self.state == "open" and self._asked is None:
            self.state, self._next_at = "registering", self.clock()

    def end(self, end: EndJob, fleet: Fleet | None, serve: Callable[[list[Request]], None]) -> Phase[bool]:
        """Tell all that is untold, and how the job has ended; return whether that is done. Waits for a brain that lives, for a moment.
        ``fleet``: None: it has no nodes. ``serve`` answers who asks the master meanwhile."""
        if fleet is not None:
            self._notice(fleet)
        self._end = end
        self._next_at = now = self.clock()
        until = now + END_SECONDS
        while not self.ended and self.clock() < until:
            self._serve()
            if self.ended or (self.state == "looking" and self.trouble):
                break
            serve((yield self.clock() + _TURN_SECONDS))
        if untold := len(self.unsent):
            self.say(f"the brain wasn't told {untold:,} of the last things that happened")
        return self.ended

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    def _notice(self, fleet: Fleet) -> None:
        if fleet is self._fleet:
            return
        self._fleet = fleet
        now = self.wall_clock()
        if fleet.plan != self._plan:
            if self._plan is None:
                self._register_again()
            self._plan = fleet.plan
            self.unsent.add(PlanRecord(job=self.job.job, at=now, kind="granted", plan=fleet.plan))
        for node in fleet.by_id.values():
            if (before := self._nodes.get(node.id)) is not node:
                self._nodes[node.id] = node
                for event in _events(self.job.job, before, node, now):
                    self.unsent.add(event)

    # --- the line ---------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Take replies, and ask what is due; again as long as the answer leads to another question."""
        while self._step():
            pass

    def _step(self) -> bool:
        """Take one reply, and ask one question. Return whether there was a reply."""
        now = self.clock()
        if self.client is None:
            if now >= self._next_at:
                self._connect(now)
            if self.client is None:
                return False
        if (reply := self.client.receive(0.0)) is not None:
            self._take(reply)
        if self.state == "looking" or self.client is None:
            return False
        if now >= self._again_at and not self._is_there(self.client, now):
            return False
        if self._asked is None and (question := self._next(now)) is not None:
            body, told = question
            self._asked = _Asked(body, self.client.send(body), now, told)
            self._again_at = now + AGAIN_SECONDS
        return reply is not None

    def _connect(self, now: float) -> None:
        try:
            endpoint = self.find()
            self.client = self.connector.client(endpoint, BrainReplies, peer="the brain")
        except BrainError as error:
            self._lose(error.message, now)
            return
        self._endpoint = endpoint
        self.state, self._asked, self._next_at, self._again_at = "greeting", None, now, now + AGAIN_SECONDS

    def _next(self, now: float) -> tuple[msgspec.Struct, int] | None:
        if now < self._next_at:
            return None
        if self.state == "greeting":
            return BrainHello(self.version), 0
        if self.state == "registering":
            self._anew = False
            return msgspec.structs.replace(self.job, samples=self.samples, plan=self._plan), 0
        if self._end is not None and not self.unsent:
            return None if self.ended else (self._end, 0)
        report, told = self.unsent.report(self.job.job, self.samples)
        standing = self.standing() if self.standing is not None else None
        return msgspec.structs.replace(report, standing=standing, levels=self._levels), told

    def _is_there(self, client: MessageClient, now: float) -> bool:
        """Look, and ask again what isn't answered yet."""
        self._again_at = now + AGAIN_SECONDS
        try:
            endpoint = self.find()
        except BrainError as error:
            self._lose(error.message, now)
            return False
        if endpoint != self._endpoint:  # another one has taken over
            self.close()
            self.state, self._asked, self._next_at = "looking", None, now
            return False
        if self._asked is not None:
            if now - self._asked.at >= LOST_SECONDS:
                self._lose("it doesn't answer", now)
                return False
            client.send(self._asked.body, sequence=self._asked.sequence)
        return True

    def _take(self, reply: Reply) -> None:
        asked, now = self._asked, self.clock()
        if asked is None or reply.sequence != asked.sequence:
            return
        self._asked, body = None, reply.body
        if isinstance(body, Failure):
            self._take_failure(body, asked, now)
        elif isinstance(body, BrainWelcome):
            self._take_welcome(body, now)
        else:
            self._arrived(asked, now)
            if isinstance(body, Advice):
                self.advised(body)

    def _arrived(self, asked: _Asked, now: float) -> None:
        if isinstance(asked.body, EndJob):
            self.ended = True
            return
        self.state, self._pause = "registering" if self._anew else "open", 0.0
        if self.trouble:
            dropped = self.unsent.what_was_dropped()
            self.say("the brain is there" + (f"; of what happened meanwhile, {dropped} are lost" if dropped else ""))
            self.trouble = ""
        self.unsent.told(asked.told)
        if isinstance(asked.body, Report):
            self._levels = self._levels[len(asked.body.levels) :]
        news = isinstance(asked.body, Report) and bool(asked.body.profiles or asked.body.done)
        held = isinstance(asked.body, Report) and bool(asked.body.levels)
        self._beat = SOON_SECONDS if news or held else min(2 * self._beat, BEAT_SECONDS)
        waits = self.unsent or self._levels or self._anew or self._end is not None
        self._next_at = now if waits else now + self._beat

    def _take_welcome(self, welcome: BrainWelcome, now: float) -> None:
        if understand_each_other(welcome.protocol, welcome.oldest):
            self.state = "registering"
            return
        self._lose(f"it is of version {welcome.version}, which doesn't understand {self.version}", now)
        self._next_at = now + _LONGEST_PAUSE_SECONDS

    def _take_failure(self, failure: Failure, asked: _Asked, now: float) -> None:
        if failure.code == UNKNOWN_JOB:
            self.state, self._next_at = "registering", now
        elif isinstance(asked.body, RegisterJob):
            self._tell(f"the brain doesn't take this job: {failure.message}")
            self._next_at = now + LATER_SECONDS
        elif failure.code in (REFUSED, NOT_UNDERSTOOD, INTERNAL):
            self.say(f"the brain doesn't take what it was told, which is dropped: {failure.message}")
            self._arrived(asked, now)
        else:
            self._tell(f"the brain can't keep what it is told: {failure.message}")
            self._next_at = now + LATER_SECONDS

    def _lose(self, why: str, now: float) -> None:
        self.close()
        before, self.state, self._asked = self.state, "looking", None
        lost = "the brain is lost" if before == "open" else "there is no brain"
        self._pause = min(max(AGAIN_SECONDS, 2 * self._pause), _LONGEST_PAUSE_SECONDS)
        self._next_at = now + self._pause
        self._tell(f"{lost} ({why}): training goes on without its advice")

    def _tell(self, what: str) -> None:
        """Say ``what`` once, until there is a brain again."""
        if not self.trouble:
            self.say(what)
        self.trouble = what


def _events(job: str, before: Node | None, node: Node, at: float) -> list[NodeRecord]:
    """List what has happened to a node between two looks at it."""
    found = []

    def add(what: Literal["launched", "up", "resized", "ended"], data: dict[str, Any], reason: str = "") -> None:
        found.append(NodeRecord(job=job, at=at, node=node.id, event=what, reason=reason, data=data))

    size = {"cores": node.resources.cores, "memory": node.resources.memory}
    if before is None:
        add("launched", {"role": node.role, "follows": node.follows, **size})
    elif before.resources != node.resources:
        add("resized", size)
    if node.state == "up" and (before is None or before.state != "up"):
        add("up", {})
    if node.state == "ended" and (before is None or before.state != "ended"):
        add("ended", {"detail": node.detail}, node.reason or "Unknown")
    return found
