"""The brain at its decisions: what parameter servers hold is acted on at once, and what an earlier brain decided is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.advisor import Advisor, Arrival
from dlrover_lite.brain.job_tracker import Numbered
from dlrover_lite.brain.models.memory_model import index_bytes, row_bytes
from dlrover_lite.brain.models.similarity import JobFeatures
from dlrover_lite.brain.policies import USUAL, Policies
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.acts import Act, Replace, Resize, SmallerShards, Tell
from dlrover_lite.protocol.demands import DecisionOutcome, Demand, Standing, StandingNode, TableFacts
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import Level, PsLevel, TableUse
from tests.brain.simulated import hosts
from tests.brain.test_health import profile

JOB, START = "job", 1_000_000.0
BASE = 80 * MIB
PLAN = Plan(ps=RolePlan(2, Resources(0.5, 200 * MIB)), worker=RolePlan(1, Resources(1.0, GIB)))
DEMAND = Demand(
    hosts=hosts(here=Resources(4.0, 4 * GIB)),
    ps=PLAN.ps,
    worker=PLAN.worker,
    total_samples=4e6,
    epoch_samples=4e6,
    facts=TableFacts(state_parts=1),
)
FEATURES = JobFeatures(model="wide_deep", tables=1, dims=16, batch_size=512, rows=4_000_000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConfigStore]:
    with ConfigStore(tmp_path / "brain.sqlite") as store:
        store.put_job(JobEntry(id=JOB, name=JOB, state="running", created_at=START))
        store.commit()
        yield store


def standing(**fields: Any) -> Standing:
    nodes = (
        *(StandingNode(f"ps-{i}", "ps", "here", PLAN.ps.each) for i in range(2)),
        StandingNode("worker-0", "worker", "here", PLAN.worker.each),
    )
    return Standing(**({"plan": PLAN, "nodes": nodes} | fields))


def used(rows: int) -> int:
    return int(rows * row_bytes(16, 1) + float(index_bytes(rows)))


def level(second: float, rate: float = 20_000.0, rows_per_sample: float = 10.4) -> Level:
    """Of two PS that grow alike, as Heaps' law has it."""
    samples = int(rate * second)
    rows = int(rows_per_sample * samples**0.9)
    held = tuple(PsLevel(f"ps-{i}", rows // 2, used(rows // 2), BASE + used(rows // 2)) for i in range(2))
    tables = (TableUse("t", 16, {"ps-0": rows // 2, "ps-1": rows - rows // 2}),)
    return Level(START + second, samples, rate, held, tables)


def adviser(store: ConfigStore, **demand: Any) -> Advisor:
    found = Advisor(store)
    wanted = msgspec.structs.replace(DEMAND, **demand)
    features = msgspec.to_builtins(FEATURES)
    found.arrived(Arrival(job=JOB, features=features, demand=wanted, began=START, plan=PLAN), START)
    return found


def hear(brain: Advisor, *levels: Level, at: float, **fields: Any) -> None:
    fields = {"standing": standing(), "done": (), **fields}
    brain.reported(JOB, samples=0, profiles=(), levels=levels, **fields)
    brain.turn(START + at)


def relief(brain: Advisor) -> tuple[int, Resize]:
    (waits,) = brain.waiting().values()
    assert isinstance(waits, Numbered) and waits.decision.treatment is not None
    assert isinstance(waits.decision.treatment.act, Resize), waits.decision.reason
    return waits.number, waits.decision.treatment.act


def grown(brain: Advisor, **fields: Any) -> float:
    """Level by level, until something is decided; when."""
    for second in range(1, 60):
        hear(brain, level(float(second)), at=second + 0.5, **fields)
        if brain.waiting():
            return float(second)
    raise AssertionError("nothing was decided")


def test_all_servers_filling_up_get_memory_in_time_without_a_profile(store: ConfigStore) -> None:
    brain = adviser(store)
    second = grown(brain)
    at = level(second)
    assert at.ps[0].used_bytes < 0.9 * PLAN.ps.each.memory  # there is some time left
    _, act = relief(brain)
    given = {"a": act.resources, **act.others}
    assert len(given) == 2
    soon = level(second + 6.0)
    assert all(one.memory > soon.ps[0].used_bytes for one in given.values())
    assert all(one.memory < 1.4 * level(3 * second + 20).ps[0].used_bytes for one in given.values())


@pytest.mark.parametrize("fields", [{"paused": "by request"}, {"busy": True}])
def test_a_person_is_not_overruled_and_a_suggestion_waits(store: ConfigStore, fields: Any) -> None:
    brain = adviser(store, autoscale="suggest" if "busy" in fields else "on")
    with pytest.raises(AssertionError, match="nothing was decided"):
        grown(brain, standing=standing(**fields))


def test_memory_does_not_wait_for_a_change_that_is_under_way(store: ConfigStore) -> None:
    brain = adviser(store)
    grown(brain, standing=standing(busy=True))
    relief(brain)


def test_a_server_growing_from_the_start_gets_not_far_too_much_memory(store: ConfigStore) -> None:
    """From a second of training nobody can tell how rows grow: what nearly all courses may need is far more than they do."""
    brain = adviser(store, total_samples=300_000.0, epoch_samples=300_000.0)
    second = 0.0
    while not brain.waiting():
        second += 0.5
        hear(brain, level(second, rows_per_sample=20.0), at=second + 0.5)
    assert second < 3.0
    _, act = relief(brain)
    at_end = level(15.0, rows_per_sample=20.0).ps[0].used_bytes
    assert PLAN.ps.each.memory < act.resources.memory < 1.4 * at_end


def test_tables_that_do_not_grow_get_no_more_memory(store: ConfigStore) -> None:
    brain = adviser(store)
    for second in range(1, 40):
        still = msgspec.structs.replace(level(4.0), at=START + second, samples_so_far=100_000 * second)
        hear(brain, still, at=second + 0.1)
    assert not brain.waiting()


def test_a_restarted_brain_knows_treatments_under_way_and_done(store: ConfigStore) -> None:
    before = adviser(store)
    second = grown(before)
    number, _ = relief(before)
    # its master is at it: nothing else is decided meanwhile
    after = adviser(store)
    hear(after, level(second + 1), at=second + 1.5, standing=standing(busy=True, heard=number))
    assert not after.waiting() and after._jobs[JOB].treated[number].done_at is None
    # what it says of that reaches the database, and the next brain
    done = DecisionOutcome(job=JOB, number=number, at=START + second + 2, state="done", seconds=1.0)
    store.put_done(done)
    store.commit()
    last = adviser(store)
    assert last._jobs[JOB].treated[number].done_at == done.at
    hear(last, level(second + 3), at=second + 3.5, standing=standing(heard=number))
    assert relief(last)[0] > number  # by what stands there, it was not enough


def test_a_decision_that_was_never_heard_is_made_again_after_a_restart(store: ConfigStore) -> None:
    before = adviser(store)
    second = grown(before)
    number, _ = relief(before)
    after = adviser(store)
    hear(after, level(second + 1), at=second + 1.5, standing=standing(heard=number - 1))
    again, _ = relief(after)
    assert again > number


def test_lack_of_memory_for_relief_is_told_once(store: ConfigStore) -> None:
    brain = adviser(store, hosts=hosts(here=Resources(4.0, 2 * PLAN.ps.each.memory + GIB)))
    for second in range(1, 12):
        hear(brain, level(float(second)), at=second + 0.5)
    assert not any(one.decision.acts for one in brain.waiting().values())
    told = [one for one in brain._jobs[JOB].treated.values() if isinstance(one.act, Tell)]
    assert 1 <= len(told) <= 2  # of each PS


# --- nodes that are slow --------------------------------------------------------------------------------------------


class Slow:
    """A job whose measurements come one after the other, and whose master does at once what it is told."""

    def __init__(
        self,
        store: ConfigStore,
        *,
        least: int = GIB,
        there: tuple[Host, ...] = hosts(a=Resources(8.0, 16 * GIB)),
        policies: Policies = USUAL,
        **measured: Any,
    ) -> None:
        """``least``: bytes that the recipe gives each node; all have 1 GiB, and are on ``a``."""
        workers, servers = (RolePlan(count, Resources(cores, GIB)) for count, cores in ((3, 1.0), (2, 0.5)))
        self.plan = Plan(ps=servers, worker=workers)
        nodes = [StandingNode(f"ps-{i}", "ps", "a", servers.each) for i in range(2)]
        nodes += [StandingNode(f"worker-{i}", "worker", "a", workers.each) for i in range(3)]
        self.standing = Standing(plan=self.plan, nodes=tuple(nodes))
        self.brain = Advisor(store, policies=policies)
        fixed = [RolePlan(role.count, Resources(role.each.cores, least)) for role in (servers, workers)]
        demand = Demand(hosts=there, ps=fixed[0], worker=fixed[1], total_samples=1e9, epoch_samples=1e9)
        features = msgspec.to_builtins(FEATURES)
        self.brain.arrived(Arrival(job=JOB, features=features, demand=demand, began=90.0, plan=self.plan), 90.0)
        self.measured = measured
        self._windows = 0

    def uses(self, bytes_of_workers: int, **memory: int) -> None:
        """At most; and nodes have so much ``memory``, if another one."""
        self.standing = msgspec.structs.replace(
            self.standing,
            nodes=tuple(
                msgspec.structs.replace(
                    node,
                    used=bytes_of_workers,
                    resources=Resources(node.resources.cores, memory.get(node.node, node.resources.memory)),
                )
                for node in self.standing.nodes
            ),
        )
        self._told()

    def decided(self, windows: int) -> list[Act]:
        """In so many more of them."""
        acts = []
        for _ in range(windows):
            self._windows += 1
            found = profile(self._windows, **self.measured)
            self._told(profiles=(found,))
            self.brain.turn(found.at)
            for one in self.brain.waiting().values():
                assert one.decision.treatment is not None, one.decision.reason
                acts.append(one.decision.treatment.act)
                self.standing = msgspec.structs.replace(self.standing, heard=one.number)
                done = DecisionOutcome(job=JOB, number=one.number, at=found.at + 1, state="done", seconds=1.0)
                self._told(done=(done,))
        return acts

    def _told(self, **news: Any) -> None:
        self.brain.reported(
            JOB, **{"samples": 0, "profiles": (), "done": (), "standing": self.standing, "levels": (), **news}
        )


def test_slow_worker_is_replaced_a_few_times_then_gets_smaller_shards(
    store: ConfigStore,
) -> None:
    job = Slow(store, rates=(0.3, 1.0, 1.0))
    assert job.decided(2) == []
    *replaced, last = job.decided(13)
    assert [type(act) for act in replaced] == [Replace] * 3 and replaced[0].resources == job.plan.worker.each
    assert isinstance(last, SmallerShards) and last.factor == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize(("free_on_b", "host"), [(4.0, "b"), (0.5, "a")])
def test_a_slow_worker_is_replaced_on_another_host_that_has_room(
    store: ConfigStore, free_on_b: float, host: str
) -> None:
    there = hosts(a=Resources(8.0, 16 * GIB), b=Resources(free_on_b, 16 * GIB))
    (act,) = Slow(store, there=there, rates=(0.3, 1.0, 1.0)).decided(3)
    assert act == Replace(Resources(1.0, GIB), host)


def test_a_much_slower_worker_is_replaced_at_the_first_profile(store: ConfigStore) -> None:
    """Though plans have been looked at a moment before."""
    job = Slow(store)
    assert job.decided(3) == []
    job.measured = {"rates": (0.2, 1.0, 1.0), "seconds": 3.0}
    (act,) = job.decided(1)
    assert isinstance(act, Replace)


def test_the_time_a_replacement_takes_is_measured(store: ConfigStore) -> None:
    job = Slow(store, rates=(0.3, 1.0, 1.0))
    known = job.brain._jobs[JOB]
    before = known.seconds_to_replace
    (_,) = job.decided(3)
    assert known.seconds_to_replace == 1.0 != before


def test_a_throttled_hot_server_gets_more_cores(store: ConfigStore) -> None:
    job = Slow(store, busy=(0.5, 0.2), cpu=(0.4, 0.2), queue=(0.9, 0.1), throttled=7.0)
    act = job.decided(3)[0]
    assert isinstance(act, Resize) and act.resources.cores == pytest.approx(1.0)


# --- memory that isn't needed ---------------------------------------------------------------------------------------


def test_spare_memory_is_taken_back_for_others(store: ConfigStore) -> None:
    job = Slow(store, least=100 * MIB, growth=0.05)
    job.uses(300 * MIB)
    before = job.brain._room().total.memory
    (act,) = job.decided(1)
    less = Resources(1.0, 375 * MIB)
    assert act == Resize(less, {"worker-1": less, "worker-2": less})  # of the servers too little is known yet
    job.uses(300 * MIB, **{f"worker-{at}": less.memory for at in range(3)})
    assert job.brain._room().total.memory - before == 3 * (GIB - less.memory)
    (act,) = job.decided(5)  # now more is known of these; and nothing is undone
    assert isinstance(act, Resize) and set(act.others) == {"ps-1"} and act.resources.memory < 0.45 * GIB


@pytest.mark.parametrize(("seconds", "waits"), [(60.0, 0), (15.0, 1)])
def test_spare_memory_comes_back_between_looks_at_plans_if_there_is_time(
    store: ConfigStore, seconds: float, waits: int
) -> None:
    job = Slow(store, least=100 * MIB, growth=0.05, policies=Policies(decide_seconds=seconds))
    assert job.decided(1) == []  # what workers use isn't known yet; plans are looked at again after so many seconds
    job.uses(300 * MIB)
    assert job.decided(waits) == []
    assert len(job.decided(1)) == 1


def test_a_plan_is_changed_before_memory_is_taken(store: ConfigStore) -> None:
    """Stage 2 is asked first; what it decides changes who there is."""
    job = Slow(store, least=100 * MIB)
    job.uses(300 * MIB)
    rounds: list[float] = []
    carry = job.brain._carry

    def carries(found: Any, at: float) -> None:
        assert not job.brain.waiting()
        rounds.append(at)
        carry(found, at)

    job.brain._carry = carries  # type: ignore[method-assign]
    assert len(job.decided(1)) == len(rounds) == 1


def test_warnings_about_memory_follow_the_treatments_carried_out(store: ConfigStore) -> None:
    """Of a job whose tables outgrow all that it may have."""
    least = 2 * PLAN.ps.each.memory + PLAN.worker.each.memory
    brain = adviser(store, hosts=hosts(here=Resources(4.0, least + 60 * MIB)))
    heard = 0
    said: list[str] = []
    for second in range(1, 20):
        hear(brain, level(float(second)), at=second + 0.5, standing=standing(heard=heard))
        for one in brain.waiting().values():
            assert one.number > heard
            heard = one.number
            said.append(f"{one.decision.treatment.cause}: {one.decision.action}")  # type: ignore[union-attr]
            done = DecisionOutcome(job=JOB, number=heard, at=START + second + 0.6, state="done", seconds=0.1)
            hear(brain, at=second + 0.7, standing=standing(heard=heard), done=(done,) if one.decision.acts else ())
    assert said.count("ceiling: tell") == 1 and "memory ahead: heal" in said
