"""Generated traces: jobs drawn from ``Parameters`` by a seed; and what a trace doesn't say of its jobs, drawn alike."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from dlrover_lite.backends.sim.clock import source_of_chance
from dlrover_lite.backends.sim.physics.memory import MemoryCosts
from dlrover_lite.core.units import LEAST_CORES, MIB, MOST_CORES, MOST_MEMORY
from dlrover_lite.simulation.traces.columns import DURATION
from dlrover_lite.simulation.traces.parameters import ModelKind, Parameters, SizeClass
from dlrover_lite.simulation.traces.trace import Trace, TraceJob, TraceTable, limit_rate

__all__ = ["complete", "generate"]

T = TypeVar("T")
Habit = Literal["well", "too_much", "too_little", "few_servers", "little_memory"]
_HABITS: tuple[Habit, ...] = ("well", "too_much", "too_little", "few_servers", "little_memory")

_SERVER_ROOM = 0.6
"""The most of a machine's memory that a server's rows take in a plan that suits its job."""
_LEAST_MEMORY = 64 * MIB
_MOST_NODES = 512
_USUAL_BATCH = 1024


def generate(seed: int, parameters: Parameters | None = None) -> Trace:
    """Draw a trace. The same seed and parameters give the same jobs."""
    its = parameters or Parameters()
    times = _arrivals(source_of_chance(seed, "arrivals"), its)
    width = len(str(max(0, its.arrivals.jobs - 1)))
    jobs: list[TraceJob] = []
    recurring: list[TraceJob] = []
    for number, at in enumerate(times):
        chance = source_of_chance(seed, f"recurrence of job {number}")
        recurs = chance.random() < its.recurrence.share
        name = {"name": f"job-{number:0{width}}", "arrives_at": at}
        if recurs and recurring and chance.random() >= 1.0 / its.recurrence.runs:
            jobs.append(_run_again(chance, its, chance.choice(recurring), name))
            continue
        job = _draw(source_of_chance(seed, f"job {number}"), its, name)
        job = msgspec.structs.replace(job, most_cores=max(its.most_cores, job.asked_cores))
        jobs.append(job)
        if recurs:
            recurring.append(job)
    return Trace.of(jobs)


def _run_again(chance: random.Random, its: Parameters, first: TraceJob, name: Mapping[str, Any]) -> TraceJob:
    """Return another run of a job, on about as many new samples."""
    samples = float(max(1, round(first.samples * chance.uniform(*its.recurrence.samples_factor))))
    return msgspec.structs.replace(first, samples=samples, epoch_samples=samples / its.spread.epochs, **name)


def complete(values: Mapping[str, Any], seed: int, parameters: Parameters) -> TraceJob:
    """Return the job of which a trace says these values, the others drawn as a generated job's are. What is drawn depends on the seed and
    on the job's name, and on no other job. ``DURATION`` in the place of samples: how long it has taken with what was asked for."""
    return _draw(source_of_chance(seed, f"columns of {values['name']}"), parameters, values)


def _arrivals(chance: random.Random, its: Parameters) -> list[float]:
    """Draw moments whose density rises from the beginning to ``peak`` times as much in the middle, and falls again."""
    found: list[float] = []
    while len(found) < its.arrivals.jobs:
        at = chance.random()
        density = 1.0 + (its.arrivals.peak - 1.0) * math.sin(math.pi * at)
        if chance.random() * max(1.0, its.arrivals.peak) < density:
            found.append(round(at * its.arrivals.seconds, 3))
    return sorted(found)


def _draw(chance: random.Random, its: Parameters, known: Mapping[str, Any]) -> TraceJob:
    """Draw a job of which some values are ``known``. As much chance is used whatever is known."""
    model = _model(chance, its, known.get("model"))
    values: dict[str, Any] = {**_truth(chance, its, model), **_rest(chance, its), "model": model.name}
    size = _chosen(chance, its.sizes, [one.share for one in its.sizes])
    values |= {name: value for name, value in known.items() if name in values and name != "samples"}
    plan = _suits(chance, its, size, values)
    asked = {**plan, **{name: known[name] for name in plan if name in known}}
    seconds = known.get(DURATION, _between(chance, size.seconds))
    samples = known.get("samples") or _samples(values, asked if DURATION in known else plan, seconds)
    values |= {"samples": samples, "epoch_samples": known.get("epoch_samples", samples / its.spread.epochs)}
    values |= _asked(chance, its, values, plan)
    return TraceJob(**{**values, **{name: value for name, value in known.items() if name != DURATION}})


def _model(chance: random.Random, its: Parameters, name: str | None) -> ModelKind:
    """Return the kind of this name; costs of a model that isn't known are those of one that is drawn."""
    drawn = _chosen(chance, its.models, [one.weight for one in its.models])
    if name is None:
        return drawn
    return next((one for one in its.models if one.name == name), msgspec.structs.replace(drawn, name=name))


def _truth(chance: random.Random, its: Parameters, model: ModelKind) -> dict[str, Any]:
    """Draw what a minibatch costs, and what tables there are."""
    spread = its.spread
    batch_size = chance.choice(spread.batch_sizes)
    scale = batch_size / _USUAL_BATCH
    worker = model.worker_seconds * scale * math.exp(spread.worker_log_sd * chance.gauss(0.0, 1.0))
    servers = model.server_seconds * scale * math.exp(spread.server_log_sd * chance.gauss(0.0, 1.0))
    dim = chance.choice(model.dims)
    ids = float(round(_between(chance, spread.ids)))
    usual = MemoryCosts(())
    return {
        "batch_size": batch_size,
        "worker_seconds": _rounded(worker),
        "worker_request_seconds": _rounded(worker * spread.request_share),
        "parallel_share": round(chance.uniform(*spread.parallel_share), 3),
        "all_servers_seconds": _rounded(servers),
        "server_request_seconds": _rounded(servers * spread.answer_share),
        "latency_seconds": spread.latency_seconds,
        "variation": spread.variation,
        "sample_bytes": float(4 * dim * spread.tables),
        "tables": (TraceTable(spread.tables, ids, dim, spread.zipf_exponent),),
        "state_parts": usual.state_parts,
        "server_base_memory": usual.server_bytes,
        "worker_base_memory": usual.worker_bytes,
        "minibatch_memory": round(usual.minibatch_bytes * scale),
        "depth": 2,
        "read_samples_per_second": 1e12,
    }


def _rest(chance: random.Random, its: Parameters) -> dict[str, Any]:
    urgent, fixed = chance.random() < its.urgent_share, chance.random() < its.fixed_share
    owner = _chosen(chance, range(its.owners), [1.0 / (at + 1) for at in range(its.owners)])
    return {
        "owner": f"user-{owner:0{len(str(max(0, its.owners - 1)))}}",
        "priority": its.urgent_priority if urgent else 1.0,
        "suspendable": not fixed,
        "checkpoint_seconds": its.checkpoint_seconds,
    }


def _suits(chance: random.Random, its: Parameters, size: SizeClass, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan that suits a job: so many cores, divided between the roles as their work is."""
    cores = _between(chance, size.cores)
    worker_cores = min(chance.choice(its.worker_cores), max(1.0, cores / 3), its.largest_cores)
    share = values["all_servers_seconds"] / (values["all_servers_seconds"] + values["worker_seconds"])
    servers = max(1, round(cores * share))
    workers = max(1, round((cores - servers) / worker_cores))
    return {
        "workers": min(_MOST_NODES, workers),
        "worker_cores": round(worker_cores, 2),
        "servers": min(_MOST_NODES, servers),
        "server_cores": 1.0,
    }


def _samples(values: Mapping[str, Any], plan: Mapping[str, Any], seconds: float) -> float:
    """Return how many samples take so long with a plan."""
    costs = _job(values, plan).costs
    rate = limit_rate(costs, plan["workers"], plan["worker_cores"], plan["servers"], plan["server_cores"])
    return float(max(1, round(rate * seconds)))


def _asked(
    chance: random.Random, its: Parameters, values: Mapping[str, Any], plan: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a job's user asks for instead of the plan that suits it."""
    habits = its.habits
    habit = _chosen(chance, _HABITS, [getattr(habits, name) for name in _HABITS])
    near = chance.uniform(0.9, 1.1)
    much, little = chance.uniform(*habits.too_much_factor), chance.uniform(*habits.too_little_factor)
    few = chance.uniform(*habits.few_servers_factor)
    memory_factors = [_between(chance, habits.memory_factor) for _ in range(2)]
    short = chance.uniform(*habits.little_memory_factor)

    its_memory = _job(values, plan).memory
    rows = its_memory.row_bytes(values["samples"])
    least_servers = max(1, math.ceil(rows / (_SERVER_ROOM * its.largest_memory)))
    workers, servers = plan["workers"], max(plan["servers"], least_servers)
    factor = 1.0
    if habit == "well":
        workers = max(1, round(workers * near))
    elif habit == "few_servers":
        servers, workers = max(least_servers, round(servers / few)), min(_MOST_NODES, math.ceil(workers * 1.5))
    elif habit in ("too_much", "too_little"):
        factor = much if habit == "too_much" else little
    factor *= habits.over_asking
    server_memory = its_memory.server(values["samples"], 1 / servers)
    return {
        "workers": workers,
        "worker_cores": _cores(plan["worker_cores"] * factor, its),
        "worker_memory": _memory(its_memory.worker(values["depth"]) * memory_factors[0], its),
        "servers": min(_MOST_NODES, servers),
        "server_cores": _cores(plan["server_cores"] * factor, its),
        "server_memory": _memory(server_memory * (short if habit == "little_memory" else memory_factors[1]), its),
    }


def _job(values: Mapping[str, Any], plan: Mapping[str, Any]) -> TraceJob:
    """Return a job whose costs and tables are known, for what is worked out from them."""
    some = {"samples": 1.0, "epoch_samples": math.inf, "worker_memory": 0, "server_memory": 0}
    return TraceJob(name="", arrives_at=0.0, **{**some, **values, **plan})


def _cores(cores: float, its: Parameters) -> float:
    return min(max(round(cores, 2), LEAST_CORES), its.largest_cores, MOST_CORES)


def _memory(size: float, its: Parameters) -> int:
    """Round up to whole MiB, as people write it."""
    return min(max(math.ceil(size / MIB) * MIB, _LEAST_MEMORY), its.largest_memory, MOST_MEMORY)


def _between(chance: random.Random, bounds: tuple[float, float]) -> float:
    """Draw a number whose logarithm is evenly distributed."""
    least, most = bounds
    return float(least * (most / least) ** chance.random())


def _chosen(chance: random.Random, among: Sequence[T], weights: Sequence[float]) -> T:
    return chance.choices(among, weights)[0]


def _rounded(number: float) -> float:
    """Keep six digits: what a file is to say."""
    return float(f"{number:.6g}")
