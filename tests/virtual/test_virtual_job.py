"""A whole job on a virtual clock, with its brain: hours of events in seconds, and the same ones for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from dlrover_lite.backends.sim.backend import SimBackend
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.core.failpoints import Died
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.jobs import events
from dlrover_lite.master.nodes.reconciler import Reconciler
from dlrover_lite.master.work.shard_plan import ShardPlan
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.questions import StopRequest
from dlrover_lite.recipe import schema
from dlrover_lite.simulation.fuzz.person import Person
from dlrover_lite.simulation.job import JobSpec, SimulatedJob
from dlrover_lite.simulation.nodes.work import SteadyWork
from dlrover_lite.simulation.world import HOSTS, World

PLAN = ShardPlan(samples=700_000, batch_size=256, epochs=1, eval_samples=2560)
RECIPE = schema.Recipe(
    version=1,
    name="ads",
    model=schema.Model(use="wide_deep"),
    data=schema.SyntheticData(samples=PLAN.samples),
    autoscale="on",
    checkpoint="off",
)


class Run(NamedTuple):
    world: World
    job: SimulatedJob
    without_room: set[str]
    """Nodes that no machine had room for at some time."""


def run(directory: Path, seed: int, *, kill: bool = True, hosts: list[Host] | None = None) -> Run:
    """Run the job to its end; with ``kill`` a worker, and later its master, are killed on the way."""
    directory.mkdir()
    world = World(directory, seed=seed, hosts=hosts or HOSTS)
    world.add(JobSpec(RECIPE, PLAN, work=SteadyWork(push_seconds=1.0)))
    world.run(until=lambda: bool(world.jobs), most_seconds=1)
    job = world.jobs["ads-1"]
    without_room: set[str] = set()
    world.watchers.append(lambda _: without_room.update(_waiting(job.backend)))
    if kill:
        world.run(until=lambda: job.minibatches > 800, most_seconds=600)
        job.workers()[0].process.end(-9)
        world.run(until=lambda: job.minibatches > 1500, most_seconds=600)
        job.master.kill()
    world.run(until=lambda: world.is_over, most_seconds=3600)
    world.close()
    return Run(world, job, without_room)


def _waiting(backend: SimBackend) -> set[str]:
    return {name for name, node in backend.nodes.by_id.items() if node.observed.no_room}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_virtual_job_trains_every_sample_through_faults(tmp_path: Path, seed: int) -> None:
    world, job, _ = run(tmp_path / "job", seed)
    outcome, result = job.outcome, job.files.result()
    assert outcome is not None and outcome.state == "succeeded", outcome
    assert result is not None and result.status is not None
    assert (result.status["samples"], result.status["quarantined"]) == (PLAN.samples, 0)
    assert result.status["master_restarts"] == 1
    assert not world.said, "\n".join(world.said)
    with ConfigStore(tmp_path / "job" / "brain.sqlite") as store:
        (entry,) = queries.jobs(store)
        decisions = queries.decisions(store, "ads-1")
    assert entry.state == "succeeded"
    assert decisions[0].decision.action == "start"
    assert {"explore", "change"} & {one.decision.action for one in decisions}, "the brain never changed the plan"


def test_two_virtual_jobs_of_one_seed_have_the_same_events(tmp_path: Path) -> None:
    first, second, other = (
        run(tmp_path / name, seed).job.files.directory / events.FILE for name, seed in (("a", 7), ("b", 7), ("c", 8))
    )
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("seed", [3, 4])
def test_nodes_of_a_virtual_job_run_where_the_brain_has_placed_them(tmp_path: Path, seed: int) -> None:
    """Three hosts of which each holds a part of the plan: nothing that the brain decides is more than a host has."""
    hosts = [Host(name, Resources(cores, 8 * GIB)) for name, cores in (("a", 4.0), ("b", 2.0), ("c", 3.0))]
    world, job, without_room = run(tmp_path / "job", seed, hosts=hosts)
    assert job.outcome is not None and job.outcome.state == "succeeded"
    assert not without_room and not world.said
    with ConfigStore(tmp_path / "job" / "brain.sqlite") as store:
        placed = [one.decision for one in queries.decisions(store, "ads-1") if one.decision.placement]
    assert len({one.host for decision in placed for one in decision.placement}) == len(hosts), "it used one host only"


def test_a_master_killed_before_it_has_noted_its_nodes_waits_for_a_plan_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger is there, and nothing in it says what is to run; nor is there a machine just then, by which a plan could be made."""
    world = World(tmp_path, seed=1)
    world.add(JobSpec(RECIPE, PLAN))
    begin, lives = Reconciler.begin, [False, True]

    def dies_once(reconciler: Reconciler) -> None:
        if not lives.pop(0):
            for host in HOSTS:
                world.fail_machine(host.name)
            raise Died
        begin(reconciler)

    monkeypatch.setattr(Reconciler, "begin", dies_once)
    world.run(until=lambda: bool(world.jobs) and world.jobs["ads-1"].master.kills > 0, most_seconds=60)
    world.clock.after(5.0, lambda: [world.machines.repair(host.name) for host in HOSTS])
    job = world.jobs["ads-1"]
    world.run(until=lambda: not lives, most_seconds=60)
    world.run(until=lambda: job.master.run is not None, most_seconds=60)
    fleet = job.master.run.fleet if job.master.run is not None else None
    assert fleet is not None and fleet.by_id
    assert min(node.resources.memory for node in fleet.by_id.values()) > 0
    assert not world.said
    world.close()


@pytest.mark.parametrize("then", ["nothing", "its master is killed", "it is stopped and resumed"])
def test_workers_of_a_full_machine_leave_for_a_server_that_ran_out_of_memory(tmp_path: Path, then: str) -> None:
    """The job goes on with fewer, and trains every sample, whether or not the master is killed before they have left. When it is resumed,
    not all servers can have as much as one of them came to need."""
    memory = 512 * MIB
    sizes = schema.ResourceLimits(
        ps=schema.RoleResources(count=3, cores=1.0, memory=memory),
        worker=schema.RoleResources(count=2, cores=1.0, memory=memory),
    )
    checkpoint = schema.Checkpoint(every_seconds=60.0)
    recipe = msgspec.structs.replace(RECIPE, autoscale="off", resources=sizes, checkpoint=checkpoint)
    plan = ShardPlan(samples=100_000, batch_size=256, epochs=1, eval_samples=0)
    world = World(tmp_path, seed=5, hosts=[Host("full", Resources(8.0, 5 * memory + 64 * MIB))], brain=False)
    world.add(JobSpec(recipe, plan, work=SteadyWork(), counted=True))
    world.run(until=lambda: bool(world.jobs), most_seconds=1)
    job = world.jobs["ads-1"]
    world.run(until=lambda: job.minibatches > 50, most_seconds=600)
    server = job.servers()[0]
    server.extra_bytes = memory
    server.hold()
    world.run(until=lambda: job.master.run is not None and job.master.run.fleet.workers_wanted > 0, most_seconds=600)
    if then == "its master is killed":
        job.master.kill()
    if then == "it is stopped and resumed":
        world.run(until=lambda: len(job.servers()) == 3, most_seconds=600)
        Person(job, StopRequest())
        world.run(until=lambda: job.is_over, most_seconds=600)
        assert job.resume()
    world.run(until=lambda: world.is_over, most_seconds=3600)
    assert job.outcome is not None and job.outcome.state == "succeeded", job.outcome
    result = job.files.result()
    assert result is not None and result.status is not None
    assert (result.status["samples"], result.status["quarantined"]) == (plan.samples, 0)
    told = "\n".join(entry.text for entry in events.read(job.files.directory).entries)
    assert "gives its room to ps-" in told and "it needs more memory than its" in told
    world.close()
