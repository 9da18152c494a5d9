"""Cases of what decisions rest on, of the plans that weren't chosen, and of why a job's plan stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.effect import judge
from dlrover_lite.brain.explain.decision_text import explain, weighed_plans
from dlrover_lite.brain.explain.explanation import explained
from dlrover_lite.brain.explain.explanation_data import Explained, Like, MemoryAhead, MemoryCurve, ModelShown, Used
from dlrover_lite.brain.explain.explanation_text import costs, likes, limits, measured, memory, model, peers, text_of
from dlrover_lite.brain.explain.inputs_text import facts_of_round, facts_of_treatment
from dlrover_lite.brain.explain.model_fit import model_shown
from dlrover_lite.brain.explain.what_if import Asked, KnownJob, foresee
from dlrover_lite.brain.explain.what_if_data import Measured, Prices
from dlrover_lite.brain.explain.what_if_text import basis as basis_text
from dlrover_lite.brain.explain.what_if_text import cells, columns, head, notes, of_plan
from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.healing.mitigation import HealInputs, Treatment
from dlrover_lite.brain.job_tracker import Numbered, RegisteredJob
from dlrover_lite.brain.models.fitted_model import load_model
from dlrover_lite.brain.models.throughput_forms import FORMS
from dlrover_lite.brain.planning.decision import Decision, decide, with_index
from dlrover_lite.brain.planning.job_view import Exploration, JobView, Policy, RoundInputs, WorkShift
from dlrover_lite.brain.planning.observed_job import fit_basis, observe_job, observed_view
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Candidate, MemoryNeed
from dlrover_lite.brain.planning.prescale import initial_view
from dlrover_lite.brain.policies import USUAL, TrackingPolicy
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.acts import Replace
from dlrover_lite.protocol.demands import Standing
from dlrover_lite.protocol.profiles import Level, Profile, TableUse
from tests.brain.advised import FEATURES, MACHINE, demand, nodes_of, plan_of
from tests.brain.models import data
from tests.brain.models import load as load_sides
from tests.brain.models import view as plain_view
from tests.brain.recording import Heal, Initial, Scale, Step, decided
from tests.brain.scenarios import base_view, running
from tests.brain.simulated import START, Job, hosts

__all__ = ["explanations", "of_step"]

ONE, TWO = Candidate(1, 1, 0.5, 0.5), Candidate(2, 1, 1.0, 0.5)


def explanations() -> Iterator[str]:
    yield from _stays()
    yield from _verdicts()
    yield from _measured()
    yield from _facts()
    yield from _facts_of_nodes()
    yield from _models()
    yield from _memory()
    yield from _what_ifs()


def of_step(step: Step) -> Iterator[str]:
    """What is said of recorded decisions beside their reasons."""
    for one in decided(step):
        match step:
            case Scale():
                yield from _said(one, step.inputs, policy=step.inputs.policy)
            case Heal():
                yield from _said(one, step.inputs)
            case Initial():
                jobs = (initial_view(step.inputs),)
                yield from _said(one, RoundInputs(at=step.inputs.at, capacity=step.inputs.capacity, jobs=jobs))


def _said(
    decision: Decision, inputs: RoundInputs | HealInputs | None, *, policy: Policy | None = None, **known: Any
) -> Iterator[str]:
    yield from (line.verdict for line in weighed_plans(decision, policy=policy, most=None))
    yield from _lines(explain(decision, policy=policy, most=2))
    yield from _shown(explained(decision, inputs, **known))


def _shown(shown: Explained) -> Iterator[str]:
    """Rows of tables as their cells."""
    yield from (line for line in text_of(shown) if "  " not in line)
    yield from (f"{fact.name}: {fact.text}" for fact in shown.facts)
    yield from shown.missing
    yield from map(memory, shown.memory)
    for rows in (likes(shown.like), peers(shown)):
        yield _row(rows.head)
    if shown.model is not None:
        yield from _of_model(shown.model)


def _lines(text: str) -> Iterator[str]:
    """Rows of tables as their cells."""
    yield from (_row(re.split(" {2,}", line)) for line in text.splitlines())


def _row(cells: Sequence[str]) -> str:
    return " | ".join(cell for cell in cells if cell)


def _of_model(shown: ModelShown) -> Iterator[str]:
    yield shown.formula
    yield from model(shown)
    for rows in (measured(shown), limits(shown), costs(shown)):
        yield from map(_row, (rows.head, *rows.rows))


# --- why a job stays ------------------------------------------------------------------------------------------------

UNCHANGING = msgspec.structs.replace(USUAL, tracking=TrackingPolicy(changes_plans=False))


def _stays() -> Iterator[str]:
    job = Job(TWO, name="ads")
    stands = Standing(plan=plan_of(job), nodes=nodes_of(job))
    wait = Numbered(1, Decision(job="ads", at=START, action="change", reason="it saves time"))
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"checkpoints": False}, {"standing": stands}),
        ({"autoscale": "off"}, {"standing": stands}),
        ({"autoscale": "suggest"}, {"standing": stands}),
        ({}, {}),
        ({}, {"standing": msgspec.structs.replace(stands, paused="by request")}),
        ({}, {"standing": msgspec.structs.replace(stands, busy=True)}),
        ({}, {"standing": stands, "waits": wait}),
        ({}, {"standing": stands, "stays_until": START + 60}),
        ({}, {"standing": stands, "policies": UNCHANGING}),
    ]
    for asked, fields in cases:
        wanted = demand(**{"checkpoints": True, **asked})
        known = RegisteredJob("ads", FEATURES, wanted, START, plan=plan_of(job), **fields)
        known.begin(Capacity(MACHINE, hosts(a=MACHINE)), START)
        view = known.view(free_cores={"a": 8.0}, at=START)
        yield f"it can't give way: {view.stays}"
        yield f"its plan can't be changed now: {view.held}"


# --- the table of plans ---------------------------------------------------------------------------------------------


def _verdicts() -> Iterator[str]:
    now = Candidate(2, 1, 0.75, 0.25)
    bounds = msgspec.structs.replace(plain_view().bounds, max_workers=2, max_servers=1)
    need = MemoryNeed(worker=100 * MIB, ps=100 * MIB)
    jobs = [
        (3.0, GIB, plain_view("ads", now=now, bounds=bounds, need=need, model=data(spread=0.01))),
        (3.0, 350 * MIB, plain_view("ads", now=now, bounds=bounds, need=need)),
        (4.0, 250 * MIB, plain_view("ads", now=Candidate(4, 1, 0.5, 0.75), need=need)),
        (1.0, GIB, plain_view("ads", now=now, bounds=bounds, need=need)),
        (3.0, GIB, plain_view("ads", now=now, bounds=bounds, need=need, fixed=True)),
        (8.0, GIB, plain_view("ads", now=Candidate(4, 1, 0.5, 0.75), model=data(spread=0.7), need=need)),
    ]
    for cores, memory_bytes, view in jobs:
        inputs = RoundInputs(at=0.0, capacity=Resources(cores, memory_bytes), jobs=(view,))
        yield from _of_round(inputs)
    tried = {"model": data(spread=0.7), "scale_seconds": 5.0, "remaining_samples": 1e8}
    view = plain_view("ads", now=Candidate(4, 1, 0.5, 0.75), need=need, **tried)
    yield from _of_round(RoundInputs(at=0.0, capacity=Resources(3.0, 64 * GIB), jobs=(view,)))
    shared = tuple(plain_view(name, now=ONE, need=need, priority=p) for name, p in (("ads", 1.0), ("news", 4.0)))
    yield from _of_round(RoundInputs(at=0.0, capacity=Resources(2.5, GIB), jobs=shared))


def _of_round(inputs: RoundInputs) -> Iterator[str]:
    for one in decide(inputs, load_sides).decisions:
        yield from (line.verdict for line in weighed_plans(one, policy=inputs.policy, most=None))
        effect = None
        if one.predicted is not None:
            rate = one.predicted.throughput.expected
            effect = judge(one, Band(rate, 0.99 * rate, 1.01 * rate), windows=2, at=9.0)
        yield from _lines(explain(with_index(one, inputs), effect, most=2))


# --- what was known -------------------------------------------------------------------------------------------------


def _two_plans() -> tuple[tuple[Profile, ...], JobView, RoundInputs]:
    job = Job(ONE, host_cores=8.0)
    first = job.windows(4)
    job.plan = TWO
    profiles = (*first, *job.windows(5))
    view = observed_view(base_view("job"), observe_job(profiles), free_cores={"a": 8.0}, total_samples=4e7)
    other = running(Job(ONE, name="other", seed=3), priority=2.0)
    return profiles, view, RoundInputs(at=job.at + 1, capacity=Resources(8.0, 16 * GIB), jobs=(view, other))


def _measured() -> Iterator[str]:
    profiles, view, inputs = _two_plans()
    decision = decide(inputs).of("job")
    known = {"profiles": profiles, "demand": demand()}
    yield from _said(decision, inputs, **known, limits={"ps-0": (Used(START, 512 * MIB),)})
    yield from _said(decision, None)
    yield from _said(decision, inputs)
    first = msgspec.structs.replace(decision, stage="initial", reason="warm start, by the costs of 1 past job like it")
    yield from _said(first, inputs)
    yield from _said(first, inputs, like=(Like("ads-1", 0.0, 1.0, 3),))
    unknown = msgspec.structs.replace(view, model=msgspec.structs.replace(view.model, kind="fit-99"))
    yield from _said(decision, msgspec.structs.replace(inputs, jobs=(unknown,)))


def _facts() -> Iterator[str]:
    profiles, view, inputs = _two_plans()
    band = (100 * MIB, 200 * MIB, 300 * MIB)
    tried = Exploration(
        back=ONE, seconds=30.0, saves_seconds=9.0, chance=0.4, costs_seconds=3.0, costs_at_most_seconds=8.0
    )
    others = (
        *(plain_view(f"news-{n}", now=ONE if n else None, priority=1.0 + n % 2) for n in range(4)),
        plain_view("shop", now=TWO, changes_from=ONE, fixed=True, busy=True),
    )
    cases: list[dict[str, Any]] = [
        {"now": None, "remaining_samples": None},
        {"now": None, "remaining_samples": 1e6, "waited_seconds": 240.0, "ran_seconds": 60.0},
        {"now": None, "remaining_samples": 1e6, "waited_seconds": 4.0, "room_promised": True},
        {"measured": None, "need": MemoryNeed(), "most": Resources(4.0, 8 * GIB)},
        {"need": MemoryNeed(worker=GIB, ps=GIB, tables=GIB), "most": Resources(1.0, 8 * GIB)},
        {"need": MemoryNeed(worker=GIB, ps=GIB, tables=GIB, tables_band=band, fixed_ps=2 * GIB)},
        {"doubt": 2.0, "explored_seconds": 12.0, "priority": 2.0, "declined": (TWO,)},
        {"fixed": True, "held": "autoscaling is paused for it (by request)"},
        {"fixed": True},
        {"shift": WorkShift(at=START + 40.0, windows=5, role="ps", times=9.8)},
        {"exploration": tried, "tried_seconds": 10.0},
        {"model": msgspec.structs.replace(view.model, parameters={**view.model.parameters, "free_cores": 1})},
    ]
    reading = {"phase_seconds": {"read": 2.0}, "phase_cpu_seconds": {"read": 1.5}, "read_delay_seconds": 0.25}
    workers = tuple(msgspec.structs.replace(use, **reading) for use in profiles[-1].workers)
    tables = (TableUse("item", 16, {"ps-0": 1000}),)
    last = msgspec.structs.replace(profiles[-1], workers=workers, tables=tables)
    for fields in cases:
        one = msgspec.structs.replace(view, **fields)
        for jobs in ((one,), (one, *others)):
            for capacity in (inputs.capacity, Resources(1.0, 16 * GIB)):
                for there in ((), hosts(a=capacity, b=capacity)):
                    round_ = msgspec.structs.replace(inputs, jobs=jobs, capacity=capacity, hosts=there)
                    yield from (f"{fact.name}: {fact.text}" for fact in facts_of_round(round_, one, last))


def _facts_of_nodes() -> Iterator[str]:
    from tests.brain.test_health import inputs as nodes
    from tests.brain.test_health import profile, windows

    slow = nodes(windows(rates=(1.0, 0.3, 1.0)), free={"a": Resources(1.0, 2 * GIB), "": Resources(4.0, GIB)})
    decision = heal(slow)[0]
    assert decision.treatment is not None
    before = Treatment(
        at=slow.at - 60.0,
        node=decision.treatment.node,
        host="a",
        cause="slow worker",
        act=Replace(Resources(1.0, GIB)),
        reason="",
        done_at=slow.at - 50.0,
    )
    used = tuple(msgspec.structs.replace(node, used_bytes=300 * MIB) for node in slow.nodes)
    levels = {"levels": tuple(map(Level.of, slow.profiles))}
    for fields in ({}, levels, {"past": (before,)}, {"past": (before, before)}, {"nodes": used}, {"shared": True}):
        inputs = msgspec.structs.replace(slow, **fields)
        yield from (f"{fact.name}: {fact.text}" for fact in facts_of_treatment(inputs, decision))
        yield from _said(decision, inputs)
    yield from _said(msgspec.structs.replace(decision, treatment=None), slow)
    hot = nodes(windows(busy=(0.9, 0.3), queue=(0.9, 0.1)))
    slower = [profile(number, busy=busy) for number, busy in enumerate([(0.3, 0.9)] * 4 + [(0.7, 0.95)] * 2)]
    larger = profile(6, busy=(0.9, 0.7))
    larger = msgspec.structs.replace(larger, ps=tuple(msgspec.structs.replace(use, cores=1.0) for use in larger.ps))
    as_much = nodes((*slower, larger))
    full = nodes(windows(5, growth=0.4), limit=350 * MIB, total_samples=2e7, free={"a": Resources(2.0, 4 * GIB)})
    for inputs in (hot, as_much, full):
        yield from _said(heal(inputs)[0], inputs)


# --- the model ------------------------------------------------------------------------------------------------------


def _models() -> Iterator[str]:
    profiles, view, _ = _two_plans()
    fitted = load_model(view.model)
    cases: list[dict[str, Any]] = [
        {},
        {"observations": 0},
        {"observations": 1},
        {"merged": [["worker_sample", "worker_minibatch"]], "unseen": []},
        {"merged": [], "unseen": ["latency"]},
        {"merged": [["worker_sample", "worker_minibatch"]], "unseen": ["latency"]},
        {"merged": [], "unseen": []},
        {"engine": msgspec.structs.replace(fitted.fit.engine, throttle_cores=0.0)},
    ]
    for fields in cases:
        known = msgspec.structs.replace(fitted, fit=msgspec.structs.replace(fitted.fit, **fields))
        yield from _of_model(model_shown(known, TWO, profiles))
    reading = {"reader_sample": 1e-4, "source_sample": 1e-6, "network_byte": 8e-10}
    fit = msgspec.structs.replace(fitted.fit, coefficients={**fitted.fit.coefficients, **reading})
    yield from _of_model(model_shown(msgspec.structs.replace(fitted, fit=fit, hosts=4.0), TWO, ()))
    yield from _of_model(model_shown(msgspec.structs.replace(fitted, shared_cores=True), TWO, ()))
    for form in FORMS.values():
        fit = msgspec.structs.replace(fitted.fit, form=form.name, coefficients=dict.fromkeys(form.coefficients, 1e-3))
        yield from _of_model(model_shown(msgspec.structs.replace(fitted, fit=fit), TWO, ()))


def _memory() -> Iterator[str]:
    used, ahead = (Used(START, 310 * MIB),), (MemoryAhead(START + 60, 480 * MIB, 440 * MIB, 500 * MIB),)
    limits = (Used(START, 512 * MIB),)
    yield memory(MemoryCurve(node="ps-1", used=used, ahead=ahead, limits=limits))
    yield memory(MemoryCurve(node="ps-1", used=used, ahead=ahead, limits=limits, to_the_end=False))
    yield memory(MemoryCurve(node="ps-1", used=used, ahead=ahead, limits=limits, full_at=START + 90))
    yield memory(MemoryCurve(node="ps-1", used=used, ahead=ahead, limits=limits), short=True)


# --- other plans ----------------------------------------------------------------------------------------------------


def _what_ifs() -> Iterator[str]:
    profiles, view, inputs = _two_plans()
    basis = fit_basis(profiles)
    assert basis is not None and view.now is not None
    room = inputs.capacity
    known = KnownJob(
        view=msgspec.structs.replace(
            view, need=MemoryNeed(worker=GIB, ps=GIB, tables=GIB, tables_band=(MIB, GIB, 2 * GIB))
        ),
        present=Asked(view.now, GIB, 2 * GIB),
        runs=True,
        samples=1e7,
        measured=Measured(9, 2, 0.01, 2, 0.02),
        most=room,
        hosts=hosts(a=room),
        free_cores=dict.fromkeys("ab", 2.0),
        worker_peak=700 * MIB,
    )
    asked = [
        Asked(Candidate(*plan))
        for plan in ((3, 1, 1.0, 0.5), (16, 3, 0.125, 4.0), (8, 1, 0.25, 0.1), (5, 1, 0.4, 0.5), (7, 9, 1.0, 1.0))
    ]
    asked += [Asked(ONE, 64 * MIB, 64 * MIB), Asked(TWO)]
    cases: list[dict[str, Any]] = [
        {},
        {"runs": False, "whole": True, "measured": Measured(1, 1, 0.0), "worker_peak": 0},
        {"samples": None},
        {"most": Resources(64.0, GIB)},
        {"most": Resources(64.0, 64 * GIB), "hosts": hosts(a=Resources(1.0, GIB), b=Resources(2.0, GIB))},
    ]
    for fields in cases:
        for prices in (Prices(), Prices(0.05, 0.01)):
            found = foresee(msgspec.structs.replace(known, **fields), asked, prices)
            yield from (head(found), basis_text(found), *notes(found))
            yield from map(_row, (columns(found), *cells(found)))
            yield from (sentence for one in found.plans for sentence in of_plan(one))
