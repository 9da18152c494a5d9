"""What all jobs have and use together, kept as they change: the same as added up anew, to the last digit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.brain.background_load import BackgroundLoad, UsedCores
from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.cluster_use import ClusterUse
from dlrover_lite.brain.job_tracker import RegisteredJob, used_of
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.demands import Demand, Standing, StandingNode
from dlrover_lite.protocol.hosts import Host, SharedRoom
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import Profile
from tests.brain.advised import FEATURES, Office, plan_of
from tests.brain.simulated import START, Job, hosts

THERE = hosts(a=Resources(16.0, 64 * GIB), b=Resources(8.0, 32 * GIB))
WHOLE = Capacity(Resources(24.0, 96 * GIB), THERE)


@st.composite
def registered(draw: st.DrawFn) -> RegisteredJob:
    """A job with nodes on two hosts, one of which may not be known."""
    name = draw(st.sampled_from(["one", "two", "three"]))
    told = draw(st.sampled_from([THERE, THERE[:1], ()]))
    known = RegisteredJob(job=name, features=FEATURES, demand=Demand(hosts=told), began=0.0)
    plan = Candidate(
        draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.sampled_from([0.1, 0.25, 1 / 3, 1.0])), 0.7
    )
    job = Job(plan, seed=draw(st.integers(0, 3)))
    nodes = [
        StandingNode(node.node, node.role, draw(st.sampled_from(["a", "b", ""])), node.resources)
        for node in job.nodes()[draw(st.integers(0, 2)) :]
    ]
    if told:
        known.stands(Standing(plan=plan_of(job), nodes=tuple(nodes)))
        known.add(job.window())
    return known


@given(st.lists(st.one_of(registered(), st.sampled_from(["one", "two"])), max_size=8))
def test_sums_are_those_of_the_jobs_that_are_there(changes: list[RegisteredJob | str]) -> None:
    use, jobs = ClusterUse(), dict[str, RegisteredJob]()
    for change in changes:
        if isinstance(change, str):
            jobs.pop(change, None)
            use.remove(change, at=0.0)
        else:
            jobs[change.job] = change
            use.put(change)
            use.left_of(WHOLE)
            if change.profiles:  # it has what it had, and uses more of it
                last = change.profiles[-1]
                workers = tuple(msgspec.structs.replace(one, cpu_seconds=2 * one.cpu_seconds) for one in last.workers)
                change.add(msgspec.structs.replace(last, at=last.at + 10.0, workers=workers))
                use.put(change)
    anew = ClusterUse()
    for _, job in sorted(jobs.items(), reverse=True):
        anew.put(job)
    assert use.left_of(WHOLE) == anew.left_of(WHOLE)
    left = WHOLE.without([one for job in jobs.values() for one in job.held()])
    assert use.left_of(WHOLE).total.memory == left.total.memory
    assert [h.resources.memory for h in use.left_of(WHOLE).hosts] == [h.resources.memory for h in left.hosts]
    cores = [host.resources.cores for host in use.left_of(WHOLE).hosts]
    assert cores == pytest.approx([host.resources.cores for host in left.hosts], abs=1e-5)
    for host in ("a", "b", ""):
        others = [job.cores_used(host) for job in jobs.values() if job.job != "one"]
        used = use.used(host, without="one", since=START)
        assert used.least == pytest.approx(sum(others), abs=1e-5)
        assert used.least == anew.used(host, without="one", since=START).least
        assert used.most >= used.least
    least = sum(job.least_cores for job in jobs.values() if job.job != "two")
    assert use.least_cores(without="two") == pytest.approx(least, abs=1e-5)
    assert use.hosts() == anew.hosts()


def test_hosts_are_as_large_as_any_master_tells() -> None:
    use = ClusterUse()
    for name, told in {"x": THERE, "y": hosts(a=Resources(4.0, 128 * GIB)), "z": THERE}.items():
        use.put(RegisteredJob(job=name, features=FEATURES, demand=Demand(hosts=told), began=0.0))
    assert use.hosts() == hosts(a=Resources(16.0, 128 * GIB), b=Resources(8.0, 32 * GIB))
    use.remove("x", at=0.0)
    assert use.hosts() == hosts(a=Resources(16.0, 128 * GIB), b=Resources(8.0, 32 * GIB))
    use.remove("z", at=0.0)
    assert use.hosts() == hosts(a=Resources(4.0, 128 * GIB))
    # an old master's only host has no name: it is the one that there is
    assert use.hosts(Demand(hosts=(Host("", Resources(32.0, GIB)),))) == hosts(a=Resources(32.0, 128 * GIB))
    assert use.capacity(Resources(2.0, 0)).total == Resources(2.0, 128 * GIB)


class Desk:
    """Two jobs on a host of 8 cores, the first of which runs."""

    def __init__(self, directory: Path) -> None:
        self.office = Office(directory)
        self.office.arrives()
        self.office.turn()
        self.first = self.office.begins(host_cores=8.0)

    def free(self, others: float) -> float:
        """What the brain takes to be free for the first job, once it has measured an interval in which others took so many cores."""
        self._says("ads-1", self.first.window(), others)
        (known,) = (one for one in self.office.adviser.inputs(self.office.now).jobs if one.job == "ads-1")
        return known.model.parameters["free_cores"]

    def comes(self, plan: Candidate) -> Job:
        """The second job, which has begun with this plan, and measured nothing so far."""
        self.office.arrives("ads-2")
        self.office.turn()
        self.office.now = self.first.at
        job = self.office.begins("ads-2", plan=plan, host_cores=8.0)
        self.office.says("ads-2")
        return job

    def measures(self, job: Job) -> float:
        """The second job's interval. Return the cores that its nodes used."""
        profile = job.window()
        self._says("ads-2", profile, 0.0)
        return sum(cores for _, cores in used_of(profile))

    def ends(self, at: float) -> None:
        self.office.adviser.ended("ads-2", JobOutcome(), at)

    def _says(self, job: str, profile: Profile, others: float) -> None:
        hosts = tuple(msgspec.structs.replace(host, other_cores=others) for host in profile.hosts)
        self.office.says(job, profiles=(msgspec.structs.replace(profile, hosts=hosts),))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path)
    yield found
    found.office.close()


@given(st.floats(0.0, 8.0), st.floats(0.0, 8.0), st.floats(0.0, 8.0), st.lists(st.floats(0.0, 8.0), max_size=5))
def test_background_load_comes_to_be_within_what_jobs_leave(
    others: float, least: float, unsure: float, before: list[float]
) -> None:
    load = BackgroundLoad()
    for one in before:
        load.measured(5.0, of=8.0, others=one, jobs=UsedCores(0.0, 0.0))
    for _ in range(8):
        load.measured(5.0, of=8.0, others=others, jobs=UsedCores(least, least + unsure))
    assert load.cores >= max(0.0, others - least - unsure) - 1 / 8
    assert load.cores <= max(0.0, others - least) + 1 / 8


def test_strangers_count_as_they_were_of_late(desk: Desk) -> None:
    assert desk.free(2.0) == 6.0
    assert desk.free(3.0) == 6.0
    assert desk.free(3.0) == 5.0
    assert [desk.free(3.1) for _ in range(4)] == [5.0] * 4  # noise
    assert [desk.free(3.2) for _ in range(4)][-1] == 4.8


def test_what_starts_beside_a_job_is_no_stranger(desk: Desk) -> None:
    assert desk.free(1.0) == 7.0
    assert desk.free(2.5) == 7.0
    assert desk.free(1.0) == 7.0


def test_a_job_that_has_just_come_is_no_stranger(desk: Desk) -> None:
    assert desk.free(0.0) == 8.0
    other = desk.comes(Candidate(2, 1, 1.0, 1.0))
    assert [desk.free(3.0) for _ in range(4)] == [8.0] * 4  # it has three cores, and may have used them
    used = desk.measures(other)
    assert 0.5 < used < 3.0
    assert [desk.free(3.0) for _ in range(4)][-1] == pytest.approx(8.0 - (3.0 - used))


def test_strangers_stay_beside_a_job_that_comes(desk: Desk) -> None:
    assert desk.free(2.0) == 6.0
    desk.comes(Candidate(2, 1, 1.0, 1.0))
    assert [desk.free(2.0) for _ in range(4)] == [6.0] * 4  # it has used nothing yet
    assert [desk.free(5.0) for _ in range(4)] == [6.0] * 4
    assert [desk.free(6.0) for _ in range(4)][-1] == 5.0  # more than both together


def test_a_job_that_takes_back_cores_may_have_used_them_before(desk: Desk) -> None:
    assert desk.free(0.0) == 8.0
    other = desk.comes(Candidate(3, 1, 1.0, 1.0))
    other.plan = Candidate(1, 1, 0.5, 0.5)
    desk.office.says("ads-2")
    assert [desk.free(4.0) for _ in range(4)] == [8.0] * 4


def test_a_job_that_has_ended_is_no_stranger_in_what_was_measured_before(desk: Desk) -> None:
    used = desk.measures(desk.comes(Candidate(2, 1, 1.0, 1.0)))
    desk.ends(at=desk.first.at + 1.0)
    assert desk.free(used) == 8.0
    assert [desk.free(used) for _ in range(4)][-1] == pytest.approx(8.0 - used)  # these intervals are after its end


# --- a quota that jobs share --------------------------------------------------------------------------------------------------

QUOTA = Resources(64.0, 64 * GIB)
NOBODYS = Resources(0.0, 0)


class Namespace:
    """Jobs below a quota, each with a master that tells the brain what the others leave to it; and what strangers have."""

    def __init__(self, use: ClusterUse, *, quota: Resources | None = QUOTA) -> None:
        self.use, self.quota = use, quota
        self.have: dict[str, int] = {}
        """Number of workers with a core and a GiB, by job."""
        self.known: dict[str, RegisteredJob] = {}
        self.strangers = 0

    def comes(self, job: str, ceiling: int = 99) -> None:
        self.have[job] = 0
        most = Resources(float(ceiling), ceiling * GIB)
        demand = Demand(hosts=(Host("", most),), shared=self.left(job))
        self.known[job] = RegisteredJob(job=job, features=FEATURES, demand=demand, began=0.0)
        self.use.put(self.known[job])

    def left(self, job: str) -> SharedRoom:
        if self.quota is None:
            return SharedRoom()
        left = int(self.quota.cores) - self.strangers - sum(self.have.values()) + self.have[job]
        return SharedRoom((), self.quota, Resources(float(left), left * GIB))

    def tells(self, job: str, *, reads: bool = True) -> None:
        """Tell how a job stands; with what quotas leave to it, as of now, or as of before."""
        one, known = Resources(1.0, GIB), self.known[job]
        nodes = tuple(StandingNode(f"worker-{i}", "worker", "host-a", one) for i in range(self.have[job]))
        plan = Plan(RolePlan(0, NOBODYS), RolePlan(len(nodes), one))
        known.stands(Standing(plan=plan, nodes=nodes, shared=self.left(job) if reads else known.demand.shared))
        self.use.put(known)

    def goes(self, job: str) -> None:
        del self.have[job], self.known[job]
        self.use.remove(job, at=0.0)

    def there_is(self) -> int:
        return int(self.use.capacity(NOBODYS).total.cores)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["comes", "goes", "has", "has", "strangers", "reads"]),
            st.integers(0, 3),
            st.integers(0, 12),
        ),
        max_size=30,
    )
)
def test_of_a_quota_there_is_for_all_jobs_what_strangers_leave(changes: list[tuple[str, int, int]]) -> None:
    """Though each master tells of it only what the other jobs leave, each at another time."""
    world = Namespace(ClusterUse())
    world.comes("first")
    for what, number, count in changes:
        job = f"job-{number}"
        before = world.there_is()
        match what:
            case "comes" if job not in world.have:
                world.comes(job)
            case "goes" if job in world.have:
                world.goes(job)
            case "has" if job in world.have:
                world.have[job] = count
                world.tells(job, reads=False)
                assert world.there_is() == before, "what a job takes or gives back is there all the same"
            case "strangers":
                world.strangers = count
            case "reads" if job in world.have:
                world.tells(job)
                if world.strangers == 0:
                    assert world.there_is() == QUOTA.cores
        assert world.there_is() <= QUOTA.cores
    for job in world.have:
        world.tells(job)
    assert world.there_is() == QUOTA.cores - world.strangers
    left = world.use.left_of(world.use.capacity(NOBODYS)).total
    assert left.cores == QUOTA.cores - world.strangers - sum(world.have.values())


def test_where_nothing_says_what_there_is_each_job_may_have_its_own() -> None:
    world = Namespace(ClusterUse(), quota=None)
    for job, ceiling in {"one": 4, "two": 6}.items():
        world.comes(job, ceiling)
    assert world.there_is() == 10
    coming = Demand(hosts=hosts(**{"": Resources(3.0, GIB)}), shared=SharedRoom())
    assert world.use.capacity(NOBODYS, coming).total.cores == 13.0
    world.goes("two")
    assert world.there_is() == 4


def test_hosts_are_those_of_all_jobs_and_no_more_of_them_than_the_quota() -> None:
    use = ClusterUse()
    for job, cores in {"one": 1.0, "two": 3.0}.items():
        shared = SharedRoom(THERE, Resources(20.0, 64 * GIB), Resources(18.0, 60 * GIB))
        demand = Demand(hosts=hosts(a=Resources(cores, GIB)), shared=shared)
        use.put(RegisteredJob(job=job, features=FEATURES, demand=demand, began=0.0))
    found = use.capacity(NOBODYS)
    assert found.hosts == THERE and found.total == Resources(18.0, 60 * GIB)
