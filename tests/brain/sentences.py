"""Cases of everything that the brain says: recorded decisions, and some made for what these don't say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from dlrover_lite.brain.effect import judge
from dlrover_lite.brain.explain.reasons import Reasons
from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.healing.mitigation import HealInputs, Treatment
from dlrover_lite.brain.models.bottleneck import LIMITS
from dlrover_lite.brain.planning.change_policy import Settled, Verdict
from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import (
    Exploration,
    JobView,
    LastChange,
    MeasuredPlan,
    Policy,
    RoundInputs,
    WorkShift,
)
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, MemoryNeed
from dlrover_lite.brain.planning.plan_values import options_of
from dlrover_lite.brain.planning.prescale import initial_plan
from dlrover_lite.brain.planning.shared_hosts import Placements
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.acts import Replace
from dlrover_lite.protocol.hosts import HostNodes
from tests.brain.explaining import explanations, of_step
from tests.brain.models import data
from tests.brain.models import load as load_sides
from tests.brain.models import view as plain_view
from tests.brain.queueing import Costs
from tests.brain.recording import DIRECTORY, Heal, Step, decided, load
from tests.brain.scenarios import FEATURES, past, starting
from tests.brain.simulated import hosts
from tests.brain.test_health import inputs as nodes
from tests.brain.test_health import windows
from tests.brain.test_reading import decided as decided_for
from tests.brain.test_reading import grown
from tests.brain.test_spare_rules import inputs_of, job_of

__all__ = ["examples"]

ROOMY = MemoryNeed(worker=100 * MIB, ps=100 * MIB)


def examples() -> Iterator[str]:
    """Reasons, effects and explanations, in whatever order."""
    for path in sorted(DIRECTORY.glob("*.jsonl")):
        for step in load(path).steps:
            yield from (one.reason for one in decided(step))
            yield from _of_nodes(step)
            yield from of_step(step)
    yield from explanations()
    yield from _alone()
    yield from _tries()
    yield from _shared()
    yield from _brought()
    yield from _by_the_paper()
    for more in (3, 6):
        yield decided_for(grown(large=more)).reason
    for busy, cpu in (((0.9, 0.6, 0.6), (0.62, 0.6, 0.6)), ((1.6, 1.0, 1.0), (1.6, 1.0, 1.0))):
        yield from (one.reason for one in heal(nodes(windows(busy=busy, cpu=cpu))))
    unlike = job_of()
    unlike.limits["worker-1"] = 2 * GIB
    yield from (one.reason for one in heal(inputs_of(unlike)))


def view(job: str, **fields: Any) -> JobView:
    return plain_view(job, **{"need": ROOMY, **fields})


def reasons(cores: float, *views: JobView, memory: int = 64 * GIB, **fields: Any) -> Iterator[str]:
    inputs = RoundInputs(at=0.0, capacity=Resources(cores, memory), jobs=views, **fields)
    for one in decide(inputs, load_sides).decisions:
        yield one.reason


def _alone() -> Iterator[str]:
    now = Candidate(2, 1, 0.75, 0.25)
    better = Candidate(2, 1, 1.0, 1.0)
    bounds = msgspec.structs.replace(plain_view().bounds, max_workers=2, max_servers=1)
    sure = {"now": now, "model": data(spread=0.01), "bounds": bounds}
    yield from reasons(3.0, view("ads", last_change=LastChange(left=better, fresh_windows=1), **sure))
    yield from reasons(3.0, view("ads", declined=(better,), **sure))
    yield from reasons(3.0, view("ads", fixed=True, held="autoscaling is paused for it (by request)", now=now))
    yield from reasons(3.0, view("ads", fixed=True, now=now))
    yield from reasons(
        3.0, view("ads", now=Candidate(4, 1, 0.5, 0.75), model=data(spread=0.7), scale_seconds=5.0, remaining_samples=1e8)
    )  # fmt: skip
    yield from reasons(4.0, view("ads", need=MemoryNeed(worker=100 * GIB)))
    two = hosts(a=Resources(2.0, 24 * GIB), b=Resources(2.0, 40 * GIB))
    yield from reasons(4.0, view("ads", need=MemoryNeed(worker=50 * GIB)), hosts=two)
    yield from reasons(4.0, view("ads", now=Candidate(4, 1, 0.5, 0.75)), memory=250 * MIB)
    few = hosts(a=Resources(2.0, 24 * GIB), b=Resources(1.0, 24 * GIB), c=Resources(1.0, 24 * GIB))
    for servers, there in ((1, two), (2, few)):
        slow = {"nodes": (HostNodes("a", 1, servers),), "host_speeds": {"a": 0.7, "b": 1.3, "c": 1.3}}
        yield from reasons(4.0, view("ads", now=Candidate(1, servers, 0.25, 0.25), **slow), hosts=there)


def _tries() -> Iterator[str]:
    """A try that goes on, one that is over; and a change after the job's work has changed."""
    now, before = Candidate(4, 1, 0.5, 0.75), Candidate(3, 1, 0.5, 0.5)
    exploration = Exploration(
        back=before, seconds=30.0, saves_seconds=20.0, chance=0.4, costs_seconds=6.0, costs_at_most_seconds=20.0
    )
    known = {
        "now": now,
        "exploration": exploration,
        "measured": Band(9e4, 8.9e4, 9.1e4),
        "measured_before": (MeasuredPlan(before, Band(9.1e4, 9e4, 9.2e4)),),
        "last_change": LastChange(left=before, fresh_windows=2),
        "remaining_samples": 1e8,
        "bounds": msgspec.structs.replace(
            plain_view().bounds, max_workers=4, max_servers=1, worker_sizes=(0.5,), ps_sizes=(0.5, 0.75)
        ),
    }
    yield from reasons(3.0, view("ads", tried_seconds=20.0, **known))
    yield from reasons(3.0, view("ads", tried_seconds=30.0, **known))
    for role, times in (("ps", 9.8), ("worker", 0.4)):
        shift = WorkShift(at=-40.0, windows=3, role=role, times=times)  # type: ignore[arg-type]
        yield from reasons(3.0, view("ads", now=Candidate(1, 1, 0.25, 0.25), shift=shift))
    yield from reasons(3.0, view("ads", now=now, remaining_samples=1e5, change_seconds=4.0))
    unsure = WorkShift(at=-5.0, windows=1, role="ps", times=9.8)
    yield from reasons(3.0, view("ads", now=now, suspected=unsure))


def _by_the_paper() -> Iterator[str]:
    """What is decided by the paper's policy: a first plan, and a change."""
    like = msgspec.structs.replace(past("ads-1", Costs(), FEATURES, 1), plan=Candidate(3, 1, 0.5, 1.0))
    yield initial_plan(starting(history=(like,), policy=Policy(name="paper"))).reason
    yield from reasons(3.0, view("ads", now=Candidate(1, 1, 0.25, 0.25)), policy=Policy(name="paper"))


def _shared() -> Iterator[str]:
    one = Candidate(1, 1, 0.25, 0.25)
    yield from reasons(0.5, view("ads", now=one), view("news", now=one, ran_seconds=60.0))  # no room for both
    large = {"need": MemoryNeed(worker=40 * GIB), "waited_seconds": 4000.0}
    yield from reasons(8.0, view("ads", now=one, need=MemoryNeed(worker=40 * GIB)), view("huge", **large), view("news"))
    held = {"need": MemoryNeed(worker=60 * GIB), "stays": "it takes no checkpoints", "now": one}
    yield from reasons(8.0, view("ads", **held), view("news", priority=4.0, need=MemoryNeed(worker=10 * GIB)))
    yield from reasons(
        11.25,
        view("ads", model=data(worker=0.03, server=0.05, spread=0.5), now=Candidate(4, 2, 1.0, 1.0), scale_seconds=30.0),
        view("news", model=data(worker=0.03, server=0.005, spread=0.5), now=Candidate(4, 1, 0.5, 0.5), scale_seconds=5.0),
        view("shop", model=data(server=0.005, spread=0.02), now=Candidate(4, 1, 0.5, 0.25), scale_seconds=30.0),
        policy=Policy(rho=1.5),
    )  # fmt: skip
    yield from _of_others()
    yield from _in_pieces()
    urgent = view("news", now=Candidate(2, 1, 0.5, 0.5), remaining_samples=1e5, model=data(spread=0.02))
    yield from reasons(1.5, urgent, view("ads", remaining_samples=1e9))
    yield from reasons(4.0, view("ads", now=Candidate(4, 1, 0.75, 0.75)), view("news"), view("shop"))
    many = [view(name, now=one) for name in ("ads", "news", "shop", "feed", "mail")]
    yield from reasons(8.0, *many, view("huge", need=MemoryNeed(worker=63 * GIB + 800 * MIB)))


def _in_pieces() -> Iterator[str]:
    """Cores that are free in pieces too small for a node."""
    two = hosts(a=Resources(4.0, 32 * GIB), b=Resources(4.0, 32 * GIB))
    fixed = Bounds(max_workers=2, max_servers=1, worker_sizes=(3.0,), ps_sizes=(0.5,))
    there = (HostNodes("a", 1, 1), HostNodes("b", 1, 0))
    resources = hosts(a=Resources(3.5, 0), b=Resources(3.0, 0))
    large = Candidate(2, 1, 3.0, 0.5)
    held = view("ads", now=large, bounds=fixed, fixed=True, nodes=there, node_resources=resources)
    for sizes in ((0.5, 1.25), (1.25,)):
        bounds = Bounds(max_workers=2, max_servers=1, worker_sizes=sizes, ps_sizes=(0.25,))
        yield from reasons(8.0, held, view("news", bounds=bounds), hosts=two)


def _of_others() -> Iterator[str]:
    """An exchange that two others would make, and that doesn't come about."""
    one = view("ads", now=Candidate(1, 1, 0.25, 0.25))
    inputs = RoundInputs(at=0.0, capacity=Resources(8.0, 64 * GIB), jobs=(one,), policy=Policy())
    options = options_of(one, load_sides(one.model), inputs.capacity, inputs.policy)
    assert options is not None and options.now is not None
    verdict = Verdict(options.now, "stay", "exchange")
    settled = Settled({"ads": verdict}, Resources(0.0, 0), {"news": 20.0, "shop": -30.0})
    said = Reasons(inputs, {"ads": options}, {}, Placements(settled))
    yield said.plan(options, verdict)[0]
    yield from (said.plan(options, Verdict(options.now, "change"), limit)[1] for limit in LIMITS)


def _brought() -> Iterator[str]:
    job = view("ads", now=Candidate(1, 1, 0.25, 0.25), scale_seconds=5.0)
    change = decide(RoundInputs(at=0.0, capacity=Resources(3.0, GIB), jobs=(job,)), load_sides).decisions[0]
    assert change.predicted is not None
    expected = change.predicted.throughput.expected
    for share in (1.0, 1.2, 0.5):
        rate = share * expected
        yield judge(change, Band(rate, 0.99 * rate, 1.01 * rate), windows=2, at=9.0).text


def _of_nodes(step: Step) -> Iterator[str]:
    """What would have been said of the same nodes under other circumstances."""
    if not isinstance(step, Heal):
        return
    inputs = step.inputs
    for one in heal(inputs):
        treatment = one.treatment
        if treatment is not None and treatment.cause == "ceiling":
            yield from _said(inputs, total_samples=None)
        if treatment is None or treatment.cause not in ("slow worker", "hot ps"):
            continue
        replaced = Treatment(
            at=0.0, node="gone", host="a", cause=treatment.cause, act=Replace(Resources(1.0, GIB)), reason="", done_at=1.0
        )  # fmt: skip
        yield from _said(inputs, past=(*inputs.past, *[replaced] * 3))
        yield from _said(inputs, free={})
        yield from _said(inputs, free={"a": Resources(0.0, 0)}, total_samples=None)
        if treatment.cause == "hot ps":
            yield from _said(_alone_on(inputs, treatment.node), free={})


def _alone_on(inputs: HealInputs, server: str) -> HealInputs:
    """The same job, as if it had no other parameter server."""
    return msgspec.structs.replace(
        inputs,
        profiles=tuple(
            msgspec.structs.replace(one, ps=tuple(use for use in one.ps if use.node == server))
            for one in inputs.profiles
        ),
        nodes=tuple(node for node in inputs.nodes if node.role == "worker" or node.node == server),
    )


def _said(inputs: HealInputs, **changed: Any) -> Iterator[str]:
    yield from (one.reason for one in heal(msgspec.structs.replace(inputs, **changed)))
