"""Jobs of a trace that the real brain decides for, with a real master each, while their nodes train as fluids."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dlrover_lite.brain.models.memory_model import index_bytes, row_bytes
from dlrover_lite.core.errors import TraceError
from dlrover_lite.core.units import GIB, MIB
from dlrover_lite.protocol.demands import demand_of
from dlrover_lite.protocol.features import features_of
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.simulation import brain_runs
from dlrover_lite.simulation.brain_runs import BrainRun, simulate_with_brain
from dlrover_lite.simulation.fluid_nodes.fluid_work import FluidWork
from dlrover_lite.simulation.job_recipe import recipe_of
from dlrover_lite.simulation.outcomes.records import Run
from dlrover_lite.simulation.traces.cluster import ClusterFile, MachineKind, NodePool, StartTimes
from dlrover_lite.simulation.traces.trace import Trace, TraceJob, TraceTable
from dlrover_lite.simulation.world import World

CLUSTER = ClusterFile(machines=[MachineKind(count=2, cores=4.0, memory=8 * GIB)], startup=StartTimes(image_mb=0))


def job(name: str, arrives_at: float, samples: float) -> TraceJob:
    return TraceJob(
        name=name,
        arrives_at=arrives_at,
        suspendable=False,
        workers=1,
        worker_cores=1.0,
        worker_memory=GIB,
        servers=1,
        server_cores=1.0,
        server_memory=GIB,
        samples=samples,
        epoch_samples=samples,
        batch_size=1024,
        worker_seconds=0.05,
        worker_request_seconds=0.001,
        parallel_share=0.8,
        all_servers_seconds=0.01,
        server_request_seconds=0.001,
        latency_seconds=0.003,
        variation=0.15,
        sample_bytes=1664.0,
        tables=(TraceTable(count=8, ids=100_000.0, dim=16),),
        server_base_memory=40 * MIB,
        worker_base_memory=60 * MIB,
        minibatch_memory=4 * MIB,
    )


TRACE = Trace.of([job("ads", 0.0, 9e6), job("../feed of/Ada", 60.0, 3e6)])


def run(seed: int) -> Run:
    return simulate_with_brain(TRACE, CLUSTER, seed=seed)


def test_jobs_end_and_use_the_machines_as_their_user_would_not_have() -> None:
    found = {one.name: one for one in run(1).jobs}
    assert {one.end for one in found.values()} == {"succeeded"}
    ads = found["ads"]
    assert ads.seconds is not None and ads.started_at == 0.0
    # with one worker of a core it would take 9e6 / 1024 * 0.051 s = 448 s
    assert ads.seconds < 300
    given = max(use.given_cores for use in ads.usage)
    assert 3.5 < given <= 8.0
    assert all(use.used_cores <= use.given_cores + 0.3 for use in ads.usage)
    trained = sum((use.stop - use.start) * use.used_cores for use in ads.usage)
    assert trained == pytest.approx(9e6 / 1024 * 0.063, rel=0.2), "CPU seconds aren't those of its minibatches"
    assert max(use.used_bytes for use in ads.usage) > 40 * MIB + 8 * 50_000 * 150


def test_intervals_are_closed_as_they_end(tmp_path: Path) -> None:
    """Real nodes report every second or so. Those here report seldom, and so at that moment."""
    run = BrainRun(TRACE, CLUSTER, tmp_path)
    ends = None
    try:
        while True:
            run.world.happen()
            job = run.world.jobs.get("job-00000")
            if job is None or job.master.run is None:
                continue
            profiler = job.master.run.profiling.profiler
            if profiler.has_measured:
                break
            ends = profiler.ends
        assert ends is not None and run.world.clock.now == pytest.approx(ends, abs=1.5)
    finally:
        run.world.close()


def test_a_recipe_tells_what_a_user_would_and_no_more() -> None:
    its = msgspec.structs.replace(job("ads", 0.0, 9e6), model="dcn", state_parts=2)
    recipe = recipe_of("job-1", its, heartbeat_seconds=100.0)
    features = features_of(recipe, rows=9_000_000)
    assert (features.model, features.tables, features.dims) == ("dcn", 8, 8 * 16)
    assert (features.batch_size, features.optimizer) == (1024, "adam")
    assert demand_of(recipe, [], samples=9_000_000).facts.most_ids is None, (
        "nobody's recipe says how many ids there are"
    )
    unlike = msgspec.structs.replace(its, tables=(*its.tables, TraceTable(count=1, ids=10.0, dim=4)))
    assert features_of(recipe_of("job-1", unlike, heartbeat_seconds=100.0), rows=1).dims == 0
    assert recipe_of("job-1", its, heartbeat_seconds=100.0) == check_again(recipe)


def check_again(recipe: Recipe) -> Recipe:
    """Read a recipe as a job's directory has it."""
    return msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe)


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    first, second, other = run(2), run(2), run(3)
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    assert msgspec.json.encode(first) != msgspec.json.encode(other)


def test_messages_that_are_handed_over_say_what_encoded_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    handed = run(2)
    monkeypatch.setattr(
        brain_runs, "World", lambda *positions, **words: World(*positions, **{**words, "hands_over": False})
    )
    assert msgspec.json.encode(run(2)) == msgspec.json.encode(handed)


def test_a_trace_without_jobs_is_refused() -> None:
    with pytest.raises(TraceError):
        simulate_with_brain(Trace(()), CLUSTER)


def test_machines_of_pools_come_for_jobs_with_the_brain() -> None:
    pool = NodePool(most=4, cores=4.0, memory=8 * GIB, grow_seconds=50.0)
    found = simulate_with_brain(TRACE, ClusterFile(pools=[pool], startup=CLUSTER.startup))
    assert {one.end for one in found.jobs} == {"succeeded"}
    ads = next(one for one in found.jobs if one.name == "ads")
    working = [use for use in ads.usage if use.used_cores > 0.5]
    assert working[0].stop > 50.0, "it trained before a machine was there"
    assert max(use.used_cores for use in ads.usage) > 4.0, "one machine is all that came"


@pytest.mark.parametrize("dims", [(8,), (32,), (8, 24)])
def test_servers_tell_a_dimension_of_rows_as_large_as_theirs(dims: tuple[int, ...]) -> None:
    tables = tuple(TraceTable(count=4, ids=100_000.0, dim=dim) for dim in dims)
    one = msgspec.structs.replace(TRACE.jobs[0], tables=tables)
    work = FluidWork(one.costs, one.memory)
    rows = 1_000_000
    foreseen = rows * row_bytes(work.dim, one.state_parts) + float(index_bytes(rows))
    assert work.row_bytes(rows) == pytest.approx(foreseen, rel=0.03)


def test_jobs_share_the_network_cards_of_their_machines_while_they_are_there(tmp_path: Path) -> None:
    machines = [MachineKind(count=2, cores=2.5, memory=8 * GIB, network_gbits=0.05)]
    simulated = BrainRun(TRACE, ClusterFile(machines=machines, startup=StartTimes(image_mb=0)), tmp_path, seed=1)
    cards, shared = simulated.world.machines.cards, []
    simulated.world.watchers.append(lambda _: shared.append(cards.is_shared))
    simulated.run(3 * 3600.0)
    assert {one.end for one in simulated.records()} == {"succeeded"}
    assert any(shared) and not shared[-1]
    simulated.world.close()
