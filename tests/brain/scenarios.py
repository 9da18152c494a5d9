"""Simulated jobs whose decisions are recorded. Each scenario gives its steps; its docstring says what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from dlrover_lite.brain.healing.mitigation import HealInputs, Treatment
from dlrover_lite.brain.models.similarity import JobFeatures
from dlrover_lite.brain.models.throughput import fit
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.job_view import JobView, ModelData, Policy, RoundInputs
from dlrover_lite.brain.planning.observed_job import observe_job, observed_view
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, MemoryNeed, even_sizes
from dlrover_lite.brain.planning.prescale import PastJob, PastMemory, StartInputs
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.profiles import Profile
from tests.brain.queueing import PLANS, Costs, observations
from tests.brain.recording import Heal, Initial, Scale, Step, decided, recorded
from tests.brain.simulated import START, Job

SCENARIOS: dict[str, Callable[[], Iterator[Step]]] = {}
BOUNDS = Bounds(max_workers=16, max_servers=4, worker_sizes=even_sizes(2.0, 8), ps_sizes=even_sizes(1.0, 4))
NEED = MemoryNeed(worker=600 * MIB, ps=200 * MIB, tables=GIB)
FEATURES = JobFeatures(
    model="wide_deep",
    tables=26,
    dims=416,
    batch_size=1024,
    rows=20_000_000,
    optimizer="adagrad",
    owner="ann",
    name="ads-ctr",
)


def scenario(steps: Callable[[], Iterator[Step]]) -> Callable[[], Iterator[Step]]:
    SCENARIOS[steps.__name__.replace("_", "-")] = steps
    return steps


class Recorder:
    """Keeps the decisions of a scenario while it goes on."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def decide(self, step: Step) -> tuple[Decision, ...]:
        """From the inputs as they are stored."""
        self.steps.append(recorded(step))
        return decided(self.steps[-1])


def base_view(name: str, **fields: Any) -> JobView:
    return JobView(job=name, bounds=BOUNDS, model=ModelData("", {}), need=NEED, scale_seconds=5.0, **fields)


def running(job: Job, windows: int = 6, total: float = 4e7, **fields: Any) -> JobView:
    """A view of a job that has run for so many windows."""
    return observed_view(
        base_view(job.name, **fields),
        observe_job(job.windows(windows)),
        free_cores={"a": job.host_cores},
        total_samples=total,
    )


# --- stage 1 --------------------------------------------------------------------------------------------------------


def past(name: str, costs: Costs, features: JobFeatures, seed: int) -> PastJob:
    samples = np.geomspace(1e5, features.rows, 12)
    return PastJob(
        job=name,
        features=features,
        fit=fit(observations(costs, seed, PLANS[::4])),
        age_seconds=86400.0 * seed,
        memory=PastMemory(
            samples=tuple(samples.tolist()),
            rows=tuple((3.0 * samples**0.72).tolist()),
            bytes_per_row=190.0,
            base=95 * MIB,
            worker=520 * MIB,
        ),
    )


def starting(**fields: Any) -> StartInputs:
    known = {"at": START, "job": "new", "features": FEATURES, "bounds": BOUNDS, "capacity": Resources(8.0, 16 * GIB)}
    return StartInputs(**(known | {"total_samples": 2e7} | fields))


@scenario
def cold_start() -> Iterator[Step]:
    """A job that nothing is known of, on a small and on a large machine, and one whose history holds nothing like it."""
    other = replace_features(
        model="xdeepfm", tables=4, dims=8, batch_size=64, rows=5_000, optimizer="sgd", owner="bob", name="x"
    )
    for inputs in (
        starting(capacity=Resources(2.0, 8 * GIB)),
        starting(capacity=Resources(64.0, 256 * GIB)),
        starting(history=(past("unlike", Costs(worker=0.1), other, 1),)),
    ):
        yield recorded(Initial(inputs))


def replace_features(**fields: Any) -> JobFeatures:
    return msgspec.structs.replace(FEATURES, **fields)


@scenario
def warm_start() -> Iterator[Step]:
    """Jobs like it have run, with other batch sizes and data sets, beside one that only looks alike: on two capacities."""
    history = (
        past(
            "decoy", Costs(worker=0.2, ps=0.001), replace_features(model="dlrm", tables=3, owner="bob", name="other"), 5
        ),
        past("last-month", Costs(), replace_features(rows=5_000_000, name="ads-ctr-v1"), 4),
        past("larger-batches", Costs(batch_size=2048), replace_features(batch_size=2048), 3),
        past("yesterday", Costs(worker=0.022), FEATURES, 1),
    )
    for capacity in (Resources(4.0, 16 * GIB), Resources(24.0, 64 * GIB)):
        yield recorded(Initial(starting(history=history, capacity=capacity)))


# --- stage 2 --------------------------------------------------------------------------------------------------------


def alone(
    job: Job,
    capacity: Resources,
    *,
    rounds: int,
    total: float = 4e7,
    before: Sequence[Profile] = (),
    policy: Policy | None = None,
) -> Iterator[Step]:
    """Measured, decided on and changed, over and over."""
    recorder, profiles = Recorder(), list(before)
    for _ in range(rounds):
        profiles += job.windows(4)
        view = observed_view(
            base_view(job.name, ran_seconds=job.at - START),
            observe_job(profiles),
            free_cores={"a": job.host_cores},
            total_samples=total,
        )
        inputs = RoundInputs(at=job.at, capacity=capacity, jobs=(view,), policy=policy or Policy())
        (one,) = recorder.decide(Scale(inputs))
        if one.choice is not None:
            job.plan = one.choice
    return iter(recorder.steps)


@scenario
def scaling_up() -> Iterator[Step]:
    """A job that started small and has a machine to itself, until nothing more pays."""
    return alone(Job(Candidate(1, 1, 1.0, 0.5), seed=1, progress=4), Resources(12.0, 64 * GIB), rounds=5)


@scenario
def scaling_down() -> Iterator[Step]:
    """A job with far more workers than its PS can serve, which has been measured with fewer too; then most of the machine is gone."""
    job = Job(Candidate(2, 1, 1.0, 1.0), Costs(worker=0.006, ps=0.02), seed=2, progress=4, host_cores=32.0)
    profiles = list(job.windows(2))
    for plan in (Candidate(4, 1, 2.0, 1.0), Candidate(4, 2, 1.0, 0.5), Candidate(12, 4, 2.0, 1.0)):
        job.plan = plan
        profiles += job.windows(3)
    yield from alone(
        job, Resources(32.0, 64 * GIB), rounds=2, total=2e9, before=profiles, policy=Policy(exploration_share=0.0)
    )
    yield from alone(job, Resources(2.0, 64 * GIB), rounds=1, total=2e9, before=profiles)


@scenario
def several_jobs() -> Iterator[Step]:
    """Four jobs of different kinds and priorities share 16 cores; then one is done, and one comes."""
    kinds = [Costs(), Costs(worker=0.006, ps=0.012), Costs(worker=0.05), Costs(latency=0.02)]
    jobs = [Job(Candidate(2, 1, 1.0, 0.5), costs, name=f"job-{at}", seed=at) for at, costs in enumerate(kinds)]
    views = [running(job, priority=priority) for job, priority in zip(jobs, (1.0, 2.0, 1.0, 1.0), strict=True)]
    recorder = Recorder()
    found = recorder.decide(Scale(RoundInputs(at=START, capacity=Resources(16.0, 64 * GIB), jobs=tuple(views))))
    for job, one in zip(jobs, found, strict=True):
        job.plan = one.choice or job.plan
    left = [running(job, total=2e7) for job in jobs[1:]]
    new = msgspec.structs.replace(left[0], job="new", now=None, measured=None, last_change=None)
    recorder.decide(Scale(RoundInputs(at=START + 60, capacity=Resources(16.0, 64 * GIB), jobs=(*left, new))))
    yield from recorder.steps


@scenario
def preemption() -> Iterator[Step]:
    """Two small jobs fill a machine; one with three times their priority comes, and starts when one of them has given way, who goes on
    when it has ended. Then, of those that can't give way; and one comes with one and a half times their priority."""
    small = [
        running(Job(Candidate(1, 1, 0.25, 0.25), name=name, seed=at), ran_seconds=100.0 * at)
        for at, name in enumerate("ab")
    ]
    new = msgspec.structs.replace(small[0], job="new", now=None, measured=None, priority=3.0)
    gave_way = msgspec.structs.replace(small[0], now=None, measured=None, waited_seconds=20.0, ran_seconds=100.0)
    runs = msgspec.structs.replace(new, now=small[0].now)
    firm = [msgspec.structs.replace(one, stays="it takes no checkpoints") for one in small]
    for jobs in (
        (*small, new),
        (gave_way, small[1], new),
        (gave_way, small[1], runs),
        (gave_way, small[1]),
        (*firm, new),
        (*small, msgspec.structs.replace(new, priority=1.5)),
    ):
        yield recorded(Scale(RoundInputs(at=START, capacity=Resources(1.0, 64 * GIB), jobs=jobs)))


@scenario
def ageing_queue() -> Iterator[Step]:
    """A large job waits beside one that runs; small ones pass it, until it has waited too long; then there is room."""
    runs = running(Job(Candidate(1, 1, 1.0, 0.5), name="runs", seed=1))
    runs = msgspec.structs.replace(runs, need=MemoryNeed(worker=10 * GIB, ps=GIB))
    waits = msgspec.structs.replace(runs, now=None, measured=None, need=NEED)
    large = msgspec.structs.replace(waits, job="large", need=MemoryNeed(worker=12 * GIB, ps=12 * GIB))
    small = [msgspec.structs.replace(waits, job=f"small-{at}", priority=1.0 + at) for at in range(2)]
    for waited, memory in ((10.0, 32), (700.0, 32), (1900.0, 32), (1960.0, 64)):
        queue = [msgspec.structs.replace(large, waited_seconds=waited), *small]
        inputs = RoundInputs(
            at=START + waited, capacity=Resources(4.0, memory * GIB), jobs=(runs, *queue), policy=Policy()
        )
        yield recorded(Scale(inputs))


# --- stage 3 --------------------------------------------------------------------------------------------------------


def ill(job: Job, profiles: Sequence[Profile], **fields: Any) -> HealInputs:
    known = {
        "job": job.name,
        "at": job.at,
        "profiles": tuple(profiles),
        "nodes": job.nodes(),
        "total_samples": 1e8,
        "free": {"a": Resources(0.0, 2 * GIB), "b": Resources(4.0, 8 * GIB)},
    }
    return HealInputs(**(known | fields))


def effective(found: Sequence[Decision], at: float) -> tuple[Treatment, ...]:
    return tuple(msgspec.structs.replace(one.treatment, done_at=at) for one in found if one.treatment is not None)


@scenario
def straggler() -> Iterator[Step]:
    """One of four workers gets slow, and one window shows it: another one takes its place, on another host or where it is; smaller shards
    near the end, and no more than a word when they don't help; and one that its limit holds back."""
    job, recorder = Job(Candidate(4, 1, 1.0, 1.0), Costs(ps=0.002), seed=3), Recorder()
    profiles = list(job.windows(3))
    job.speeds["worker-2"] = 0.25
    profiles += job.windows(1)
    recorder.decide(Heal(ill(job, profiles)))
    recorder.decide(Heal(ill(job, profiles, free={"a": Resources(0.0, 2 * GIB)})))
    soon_over = job.samples + 1e5
    treated = effective(recorder.decide(Heal(ill(job, profiles, total_samples=soon_over))), job.at)
    profiles += job.windows(3)
    recorder.decide(Heal(ill(job, profiles, total_samples=soon_over, past=treated)))
    limited = Job(Candidate(4, 1, 0.5, 1.0), Costs(ps=0.002), seed=3)
    profiles = list(limited.windows(3))
    limited.speeds["worker-2"] = 0.35
    profiles += limited.windows(3)
    recorder.decide(Heal(ill(limited, profiles, free={"a": Resources(2.0, GIB)})))
    yield from recorder.steps


@scenario
def hot_ps() -> Iterator[Step]:
    """A PS with too many hot slots; one whose limit holds it back; one whose host gets slow, as one window shows, with room elsewhere,
    where it is, and nowhere; and as three windows show."""
    recorder, costs = Recorder(), Costs(worker=0.006, ps=0.02)
    uneven = Job(Candidate(4, 3, 1.0, 1.0), costs, seed=4, shares=[0.6, 0.2, 0.2])
    recorder.decide(Heal(ill(uneven, uneven.windows(4))))
    limited = Job(Candidate(4, 2, 1.0, 0.5), costs, seed=5, shares=[0.75, 0.25])
    recorder.decide(Heal(ill(limited, limited.windows(4), free={"a": Resources(1.0, GIB)})))
    slow = Job(Candidate(4, 2, 1.0, 1.0), costs, seed=6)
    profiles = list(slow.windows(4))
    slow.speeds["ps-1"] = 0.25
    profiles += slow.windows(1)
    recorder.decide(Heal(ill(slow, profiles)))
    recorder.decide(Heal(ill(slow, profiles, free={"a": Resources(0.0, 2 * GIB)})))
    recorder.decide(Heal(ill(slow, profiles, free={})))
    profiles += slow.windows(2)
    recorder.decide(Heal(ill(slow, profiles)))
    yield from recorder.steps


@scenario
def predicted_oom() -> Iterator[Step]:
    """Tables outgrow a PS: more memory in place, another PS, all the memory there is, nothing where there is none; and slots to another
    that has room."""
    recorder = Recorder()
    job = Job(Candidate(2, 1, 1.0, 1.0), seed=7, progress=40, rows_per_sample=4.0)
    profiles = job.windows(10)
    job.limits["ps-0"] = int(1.2 * job.used("ps-0"))
    known: dict[str, Any] = {"total_samples": 3 * job.samples}
    recorder.decide(Heal(ill(job, profiles, **known)))
    recorder.decide(Heal(ill(job, profiles, **known, resizable=False)))
    recorder.decide(Heal(ill(job, profiles, **known, free={"a": Resources(0.0, 200 * MIB)})))
    recorder.decide(Heal(ill(job, profiles, **known, free={})))
    uneven = Job(Candidate(2, 2, 1.0, 1.0), seed=8, progress=40, rows_per_sample=4.0, shares=[0.6, 0.4])
    profiles = uneven.windows(10)
    uneven.limits = {"ps-0": int(1.2 * uneven.used("ps-0")), "ps-1": 4 * uneven.used("ps-1")}
    recorder.decide(Heal(ill(uneven, profiles, total_samples=3 * uneven.samples, free={})))
    yield from recorder.steps


@scenario
def memory_to_spare() -> Iterator[Step]:
    """Nodes that were given far more than they need give it back, but for those whose memory was changed of late and for what the recipe
    fixes; and tables that will outgrow all that a job may have."""
    recorder = Recorder()
    job = Job(Candidate(2, 2, 1.0, 1.0), seed=11, progress=20, rows_per_sample=4.0)
    profiles = job.windows(4)
    nodes = tuple(
        msgspec.structs.replace(node, used_bytes=200 * MIB if node.role == "worker" else job.used(node.node))
        for node in job.nodes()
    )
    known: dict[str, Any] = {"nodes": nodes, "total_samples": 1.5 * job.samples}
    found = recorder.decide(Heal(ill(job, profiles, **known)))
    late = effective(found, job.at - 60.0)
    recorder.decide(Heal(ill(job, profiles, **known, past=late)))
    recorder.decide(Heal(ill(job, profiles, **known, least={"worker": 400 * MIB})))
    known["total_samples"] = 10 * job.samples
    recorder.decide(Heal(ill(job, profiles, **known, most=Resources(8.0, 900 * MIB))))
    yield from recorder.steps


__all__ = ["SCENARIOS", "replace"]
