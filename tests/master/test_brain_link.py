"""A master's line to the brain: nothing is lost without a word, and nothing waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.core.errors import BrainError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.autoscale import brain_link
from dlrover_lite.master.autoscale.brain_link import BrainLink, Unsent
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.protocol import brain_messages
from dlrover_lite.protocol.brain_messages import Advice, BrainRequests, BrainWelcome, EndJob, Report
from dlrover_lite.protocol.demands import DecisionOutcome
from dlrover_lite.protocol.nodes import Observed
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import Level, Profile, PsLevel
from dlrover_lite.transport.memory import MemoryConnector
from tests.brain.service_rig import PATIENCE, Rig, event, profile, registration

END = EndJob("ads-1", "succeeded", 90.0, 4000, outcome=JobOutcome(seconds=5.0))
FLEET, _ = Fleet(
    Plan(ps=RolePlan(1, Resources(0.5, GIB)), worker=RolePlan(1, Resources(1.0, GIB))), Resources(8.0, 8 * GIB)
).begin(0.0)


class Line:
    """A link on a clock of its own, and the brain it finds: none, or that of ``rig``."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.now = 0.0
        self.alive = True
        self.said: list[str] = []
        self.advice: list[Advice] = []
        self.fleet = FLEET
        self.samples = 0
        self.link = self.another()

    def another(self) -> BrainLink:
        return BrainLink(
            registration(),
            self._find,
            connector=MemoryConnector(self.rig.network),
            say=self.said.append,
            advised=self.advice.append,
            clock=lambda: self.now,
            wall_clock=lambda: 1000.0 + self.now,
        )

    def _find(self) -> str:
        if not self.alive:
            raise BrainError("none runs")
        return self.rig.endpoint

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.link.turn(self.fleet, self.samples)

    def ends(self) -> bool:
        """Tell the brain that the job has ended. Return whether it knows."""
        phase = self.link.end(END, self.fleet, lambda _: None)
        try:
            while True:
                self.now = next(phase)
                if self.alive:
                    self.rig.service.turn(0.0)
        except StopIteration as over:
            return bool(over.value)

    def settle(self) -> None:
        """Until nothing is left to say."""
        for _ in range(20):
            self.turn(0.01)
            self.rig.service.turn(0.05)
            if self.link.state == "open" and not self.link.unsent and not self.link._asked:
                return
        raise AssertionError(self.link.state)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    rig = Rig(tmp_path / "brain.sqlite")
    line = Line(rig)
    yield line
    line.link.close()
    rig.close()


def events(line: Line) -> list[tuple[str, str, str]]:
    return [(one.node, one.event, one.reason) for one in queries.node_events(line.rig.store, "ads-1")]


# --- what it tells ------------------------------------------------------------------------------------------------------------


def test_plans_nodes_and_profiles_are_told_to_the_brain(line: Line) -> None:
    line.samples = 100
    line.settle()
    (job,) = queries.jobs(line.rig.store)
    assert (job.state, job.model, job.samples) == ("running", "dcn", 100)
    assert queries.plans(line.rig.store, "ads-1", kind="granted")[-1].plan == FLEET.plan
    line.link.keep(profile(5.0))
    line.fleet, _ = FLEET.hello("ps-0", "", 1.0)
    line.fleet, _ = line.fleet.resized("worker-0", Resources(0.5, GIB))
    line.fleet, _ = line.fleet.observed("worker-0", Observed(ended_at=0.0, reason="OOMKilled", detail="over"), 2.0)
    line.turn(brain_link.BEAT_SECONDS)
    line.settle()
    assert events(line) == [
        ("ps-0", "launched", ""),
        ("worker-0", "launched", ""),
        ("ps-0", "up", ""),
        ("worker-0", "resized", ""),
        ("worker-0", "ended", "OOMKilled"),
        ("worker-1", "launched", ""),
    ]
    assert len(queries.profiles(line.rig.store, "ads-1")) == 1
    line.rig.advice["ads-1"] = Advice(1, {"action": "change"})
    line.samples = 200
    line.turn(brain_link.BEAT_SECONDS)
    line.settle()
    assert line.advice == [Advice(1, {"action": "change"})]
    assert queries.jobs(line.rig.store)[0].samples == 200
    assert line.said == []


def test_a_restarted_master_tells_the_brain_everything_once(line: Line) -> None:
    line.settle()
    line.link.close()
    line.fleet, _ = FLEET.observed("ps-0", Observed(ended_at=0.0, reason="Killed"), 2.0)
    line.now += 100
    line.link = line.another()
    line.settle()
    assert events(line) == [
        ("ps-0", "launched", ""),
        ("worker-0", "launched", ""),
        ("ps-0", "ended", "Killed"),
        ("ps-1", "launched", ""),
    ]
    assert len(queries.plans(line.rig.store, "ads-1")) == 1


def test_end_of_the_job_is_told_with_everything_unsent(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.settle()
    monkeypatch.setattr(brain_link, "_AT_ONCE", 10)
    for at in range(35):
        line.link.keep(profile(float(at)))
    client = line.link.client
    assert line.ends()
    assert client is line.link.client
    assert len(queries.profiles(line.rig.store, "ads-1")) == 35
    (job,) = queries.jobs(line.rig.store)
    assert (job.state, job.ended_at, job.samples, job.outcome.seconds) == ("succeeded", 90.0, 4000, 5.0)


# --- a brain that is lost -------------------------------------------------------------------------------------------------------


def test_without_a_brain_nothing_waits_and_that_is_said_once(line: Line) -> None:
    line.alive = False
    for _ in range(50):
        line.turn(1.0)
    assert line.said == ["there is no brain (none runs): training goes on without its advice"]
    assert len(line.link.unsent) == 3  # the plan, and two nodes
    assert not line.ends()
    assert "3 of the last things" in line.said[-1]


def test_events_without_a_brain_are_told_to_the_next_one(line: Line) -> None:
    line.link.unsent = Unsent(most_profiles=5)
    line.settle()
    line.alive = False
    line.turn(brain_link.AGAIN_SECONDS)
    assert line.said == ["the brain is lost (none runs): training goes on without its advice"]
    for at in range(12):
        line.link.keep(profile(float(at)))
    line.alive = True
    line.turn(60.0)
    line.settle()
    assert line.said[1:] == ["the brain is there; of what happened meanwhile, the oldest 7 profiles are lost"]
    assert [one.at for one in queries.profiles(line.rig.store, "ads-1")] == [7.0, 8.0, 9.0, 10.0, 11.0]


def test_a_new_brain_at_the_same_endpoint_gets_the_job_registered(line: Line, tmp_path: Path) -> None:
    """The socket connects by itself: the new one knows nothing of the job, and says so."""
    line.settle()
    line.rig.service._jobs.clear()
    line.link.keep(profile(1.0))
    line.turn(brain_link.BEAT_SECONDS)
    line.settle()
    assert len(queries.profiles(line.rig.store, "ads-1")) == 1
    assert line.said == []


def test_a_new_brain_at_another_endpoint_is_found(line: Line, tmp_path: Path) -> None:
    line.settle()
    first, line.rig = line.rig, Rig(tmp_path / "another.sqlite", network=line.rig.network)
    try:
        line.link.keep(profile(1.0))
        line.turn(brain_link.AGAIN_SECONDS)
        line.settle()
        assert len(queries.profiles(line.rig.store, "ads-1")) == 1
        assert line.said == []
    finally:
        line.link.close()
        line.rig.close()
        line.rig = first


def test_a_brain_that_does_not_answer_is_given_up_in_the_end(line: Line) -> None:
    line.settle()
    line.turn(brain_link.BEAT_SECONDS)
    for _ in range(int(brain_link.LOST_SECONDS / 2) - 1):
        line.turn(2.0)
    assert line.said == []
    line.turn(4.0)
    assert line.said == ["the brain is lost (it doesn't answer): training goes on without its advice"]


def test_reports_are_kept_while_the_brain_can_not_write(line: Line) -> None:
    line.settle()
    with ConfigStore(line.rig.store.path) as other:
        other.db.conn.execute("begin immediate")
        line.link.keep(profile(1.0))
        line.turn(brain_link.BEAT_SECONDS)
        for _ in range(3):
            line.rig.service.turn(0.05)
            line.turn(0.1)
        other.db.conn.execute("rollback")
    assert len(line.said) == 1 and line.said[0].startswith("the brain can't keep what it is told: ")
    line.turn(brain_link.LATER_SECONDS)
    line.settle()
    assert line.said[1:] == ["the brain is there"]
    assert len(queries.profiles(line.rig.store, "ads-1")) == 1


def test_reports_refused_by_the_brain_are_dropped_and_named(line: Line) -> None:
    line.settle()
    line.link.keep(profile(float("nan")))
    line.turn(brain_link.BEAT_SECONDS)
    line.settle()
    assert len(line.said) == 1 and "which is dropped" in line.said[0]


@pytest.mark.parametrize(("protocol", "oldest"), [(brain_messages.PROTOCOL + 5, brain_messages.PROTOCOL + 1), (0, 0)])
def test_brains_of_incompatible_protocols_are_not_used(line: Line, protocol: int, oldest: int) -> None:
    endpoint = "memory://foreign"
    server = MemoryConnector(line.rig.network).server(endpoint, BrainRequests)
    line.rig.endpoint = endpoint
    line.turn()
    (request,) = server.receive()
    server.reply(request, BrainWelcome("9.0", protocol, oldest, 1, 0.0))
    line.turn()
    assert len(line.said) == 1 and "of version 9.0, which doesn't understand" in line.said[0]
    line.turn(20.0)
    assert line.link.state == "looking"


# --- what is kept ---------------------------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(["profile", "event"])),
        st.tuples(st.just("tell"), st.integers(1, 6)),
        st.tuples(st.just("lose"), st.integers(1, 6)),
    ),
    max_size=60,
)


@given(ACTIONS, st.integers(1, 5), st.integers(1, 5))
def test_reports_are_told_in_order_or_counted_as_dropped(
    actions: list[tuple[str, Any]], most_profiles: int, most_happenings: int
) -> None:
    unsent = Unsent(most_profiles=most_profiles, most_happenings=most_happenings)
    added: dict[str, int] = {"profile": 0, "event": 0}
    told: dict[str, list[float]] = {"profile": [], "event": []}
    under_way: tuple[Any, int] | None = None
    for action, value in actions:
        if action == "add":
            added[value] += 1
            at = float(added[value])
            unsent.add(profile(at) if value == "profile" else event("resized", at))
        elif action == "tell" and under_way is None:
            under_way = unsent.report("ads-1", 0, most=value)
        elif action == "tell" and under_way is not None:
            report, number = under_way
            told["profile"] += [one.at for one in report.profiles]
            told["event"] += [one.at for one in report.events]
            unsent.told(number)
            under_way = None
        else:
            under_way = None
    report, number = unsent.report("ads-1", 0, most=1000)
    assert len(report.profiles) <= most_profiles and len(report.events) <= most_happenings
    for kind, rest in (("profile", report.profiles), ("event", report.events)):
        everything = told[kind] + [one.at for one in rest]
        assert everything == sorted(set(everything))
        assert all(isinstance(one, Profile) == (kind == "profile") for one in rest)
        dropped = unsent.dropped_profiles if kind == "profile" else unsent.dropped_happenings
        # one that is told while it is dropped counts as both
        assert added[kind] - dropped <= len(everything) <= added[kind]
    unsent.told(number)
    assert len(unsent) == 0


def test_memory_levels_of_servers_are_told_to_the_brain_at_once(line: Line) -> None:
    told: list[Report] = []
    line.rig.service.tell = lambda body: told.append(body) if isinstance(body, Report) else None
    line.settle()
    line.turn(brain_link.SOON_SECONDS)
    level = Level(1000.0, 5, 1.0, (PsLevel("ps-0", 1, 2, 3),))
    line.link.keep_level(level)
    line.settle()
    assert [one.levels for one in told if one.levels] == [[level]]
    before = len(told)
    line.turn(brain_link.SOON_SECONDS)
    line.rig.service.turn(PATIENCE)
    assert len(told) == before + 1 and told[-1].levels == []


def test_profiles_and_ends_of_decisions_are_told_at_once(line: Line) -> None:
    told: list[Report] = []
    line.rig.service.tell = lambda body: told.append(body) if isinstance(body, Report) else None
    line.settle()
    for _ in range(6):  # with nothing to say, ever longer until the next word
        line.turn(brain_link.BEAT_SECONDS)
        line.settle()
    line.link.keep(profile(5.0))
    line.settle()
    assert len(told[-1].profiles) == 1
    line.link.done(DecisionOutcome(job="ads-1", number=1, at=6.0, state="done"))
    line.settle()
    assert [one.number for one in told[-1].done] == [1]
    before = len(told)
    line.turn(brain_link.SOON_SECONDS)
    line.rig.service.turn(PATIENCE)
    assert len(told) == before + 1


def test_without_a_brain_only_the_newest_memory_levels_are_kept(line: Line) -> None:
    line.alive = False
    for at in range(2 * brain_link.MOST_LEVELS):
        line.link.keep_level(Level(float(at), 5, 1.0, ()))
        line.turn()
    assert [one.at for one in line.link._levels][:: brain_link.MOST_LEVELS - 1] == [60.0, 119.0]
