"""Several hosts: what there is on each, what is left there, and plans whose nodes fit on one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.job_tracker import RegisteredJob
from dlrover_lite.brain.node_health import heal_inputs
from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.plan_grid import Candidate, MemoryNeed
from dlrover_lite.brain.planning.prescale import initial_plan
from dlrover_lite.brain.store import preferences
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.demands import Standing
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.protocol.profiles import HostUse
from tests.brain.advised import FEATURES, Office, demand, nodes_of, plan_of, role
from tests.brain.models import load, view
from tests.brain.scenarios import starting
from tests.brain.simulated import START, Job, hosts

TWO = hosts(a=Resources(2.0, 4 * GIB), b=Resources(6.0, 12 * GIB))
WHOLE = Capacity(Resources(8.0, 16 * GIB), TWO)
PLAN = Candidate(2, 1, 1.0, 0.5)
ON_BOTH = {"ps-0": "b", "worker-0": "a", "worker-1": "b"}


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    yield office
    office.close()


# --- what there is ----------------------------------------------------------------------------------------------------


def test_a_ceiling_bounds_each_host_and_all_together() -> None:
    found = WHOLE.within(Resources(3.0, 64 * GIB))
    assert found.total == Resources(3.0, 16 * GIB)
    assert found.hosts == hosts(a=Resources(2.0, 4 * GIB), b=Resources(3.0, 12 * GIB))


def test_nodes_take_from_their_host_and_those_to_come_from_the_total() -> None:
    held = [("a", Resources(1.5, GIB)), ("b", Resources(1.0, 20 * GIB)), ("", Resources(1.0, GIB))]
    found = WHOLE.without(held)
    assert found.total == Resources(4.5, 0)
    assert found.hosts == hosts(a=Resources(0.5, 3 * GIB), b=Resources(5.0, 0))


def test_the_only_host_is_the_one_that_all_nodes_are_on() -> None:
    one = Capacity(Resources(8.0, 16 * GIB), hosts(a=Resources(8.0, 16 * GIB)))
    held = [("a", Resources(1.0, GIB)), ("another", Resources(2.0, GIB)), ("", Resources(1.0, GIB))]
    assert one.without(held).hosts == hosts(a=Resources(4.0, 13 * GIB))


@pytest.mark.parametrize("cores", [0.0, 3.0])
def test_hosts_of_all_jobs_count_once_each_with_the_most_that_is_told(office: Office, cores: float) -> None:
    preferences.change(office.store, {"capacity_cores": cores})
    office.arrives("ads-1", demand=demand(hosts=hosts(b=Resources(6.0, 12 * GIB), a=Resources(1.0, 4 * GIB))))
    office.arrives("ads-2", demand=demand(hosts=hosts(a=Resources(2.0, GIB), b=Resources(1.0, GIB))))
    inputs = office.adviser.inputs(office.now)
    assert inputs.hosts == TWO
    assert inputs.capacity == Resources(cores or 8.0, 16 * GIB)


# --- stages 1 and 2 ---------------------------------------------------------------------------------------------------


def test_a_first_plan_has_no_node_larger_than_a_host() -> None:
    """The only PS would be larger than any host, if it got what is to be spared for tables."""
    small = {f"host-{number}": Resources(2.0, GIB) for number in range(16)}
    found = initial_plan(starting(capacity=Resources(32.0, 32 * GIB), free=small))
    assert found.action == "start" and found.plan is not None and found.choice is not None
    assert max(found.choice.worker_cores, found.choice.ps_cores) <= 2.0
    assert max(found.plan.ps.each.memory, found.plan.worker.each.memory) <= GIB
    together = initial_plan(starting(capacity=Resources(32.0, 32 * GIB)))
    assert together.plan is not None and together.plan.ps.each.memory > GIB


def test_a_job_that_arrives_has_its_first_plan_on_several_hosts(office: Office) -> None:
    office.arrives(demand=demand(hosts=TWO))
    office.turn()
    first = office.told()
    assert first is not None and first.action == "start" and first.choice is not None
    assert first.choice.cores <= 8.0


@pytest.mark.filterwarnings("error")
def test_nothing_is_decided_while_no_host_is_left(office: Office) -> None:
    """Found by seeds 10033 and 10145 of `make fuzz-sim`: the machine fails, and the job is resumed before another one is there."""
    office.arrives(demand=demand(hosts=()), plan=Plan(ps=role(1), worker=role(2)))
    office.turn()
    assert office.told() is None and not office.decisions()
    office.arrives("ads-2", demand=demand(hosts=TWO))
    office.turn()
    told = office.told("ads-2")
    assert told is not None and told.action == "start"


@pytest.mark.parametrize("now", [None, Candidate(1, 1, 0.25, 0.25)])
def test_no_node_of_a_plan_is_larger_than_the_largest_host(now: Candidate | None) -> None:
    small = hosts(a=Resources(0.5, GIB), b=Resources(0.5, GIB), c=Resources(0.25, 2 * GIB))
    inputs = RoundInputs(at=0.0, capacity=Resources(8.0, 64 * GIB), jobs=(view(now=now),))
    (anywhere,), (placed,) = (
        decide(one, load).decisions for one in (inputs, msgspec.structs.replace(inputs, hosts=small))
    )
    assert anywhere.choice is not None and anywhere.choice.worker_cores > 0.5
    assert placed.choice is not None and max(placed.choice.worker_cores, placed.choice.ps_cores) <= 0.5


def test_tables_that_fit_on_no_host_are_spread_over_more_servers() -> None:
    small = hosts(a=Resources(4.0, 2 * GIB), b=Resources(4.0, 2 * GIB))
    job = view(need=MemoryNeed(tables=3 * GIB))
    (found,) = decide(RoundInputs(at=0.0, capacity=Resources(8.0, 64 * GIB), hosts=small, jobs=(job,)), load).decisions
    assert found.choice is not None and found.choice.servers >= 2


def test_a_job_with_nodes_that_fit_on_no_host_is_refused_with_the_reason(office: Office) -> None:
    office.arrives(demand=demand(hosts=TWO, worker=role(1, 7.0), ps=role(1, 0.5)))
    office.turn()
    refused = office.told()
    assert refused is not None and refused.action == "refuse"
    assert refused.reason.endswith("of 8 cores and 16 GiB, with 6 cores and 12 GiB on one host at the most")


def test_a_running_job_keeps_a_plan_that_fits_on_no_host_any_more() -> None:
    now = Candidate(1, 1, 1.0, 1.0)
    job = view(now=now, need=MemoryNeed(worker=3 * GIB))
    small = hosts(a=Resources(4.0, 2 * GIB), b=Resources(4.0, 2 * GIB))
    (found,) = decide(RoundInputs(at=0.0, capacity=Resources(2.0, 64 * GIB), hosts=small, jobs=(job,)), load).decisions
    assert found.action in ("stay", "change", "explore")


def test_cores_that_strangers_take_are_taken_from_their_host(office: Office) -> None:
    office.arrives(demand=demand(hosts=TWO))
    office.turn()
    job = office.begins(plan=PLAN)
    job.hosts = ON_BOTH

    def free(**strangers: float) -> tuple[float, float]:
        """Cores on a host, the mean of both, and how many hosts there are."""
        cores = {host.name: host.resources.cores for host in TWO}
        there = tuple(HostUse(name, cores[name], strangers[name]) for name in cores)
        for _ in range(3):
            office.says("ads-1", profiles=(msgspec.structs.replace(job.window(), hosts=there),))
        (found,) = office.adviser.inputs(office.now).jobs
        return found.model.parameters["free_cores"], found.model.parameters["hosts"]

    assert free(a=0.0, b=0.0) == (4.0, 2.0)
    assert free(a=0.0, b=2.0) == (3.0, 2.0)
    assert free(a=0.5, b=2.0) == (2.75, 2.0)
    assert free(a=0.5, b=5.0) == (2.25, 2.0)  # half of a host is to be had in any case


# --- stage 3 ------------------------------------------------------------------------------------------------------------


def running(**asked: Any) -> RegisteredJob:
    job = Job(PLAN, name="ads-1", hosts=ON_BOTH)
    stands = Standing(plan=plan_of(job), nodes=nodes_of(job))
    known = RegisteredJob("ads-1", FEATURES, demand(hosts=TWO, **asked), START, plan=plan_of(job), standing=stands)
    known.begin(WHOLE, START)
    for profile in job.windows(2):
        known.add(profile)
    return known


def test_nodes_may_have_what_is_left_on_their_host() -> None:
    known = running()
    inputs = heal_inputs(known, WHOLE.without(known.held()), at=START + 10)
    assert inputs is not None
    assert inputs.free == {"a": Resources(1.0, 3 * GIB), "b": Resources(4.5, 10 * GIB)}


def test_the_recipes_ceiling_bounds_what_is_left_on_each_host() -> None:
    known = running(total=Resources(3.25, 6 * GIB))
    inputs = heal_inputs(known, WHOLE.without(known.held()), at=START + 10)
    assert inputs is not None
    assert inputs.free == {"a": Resources(0.75, 3 * GIB), "b": Resources(0.75, 3 * GIB)}
