"""Decisions in words: the chosen plan is marked, each other one says why it isn't, and nothing is said that wasn't decided."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.effect import judge
from dlrover_lite.brain.explain.decision_text import explain, weighed_plans
from dlrover_lite.brain.healing.mitigation import Treatment
from dlrover_lite.brain.planning.decision import Decision, decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Candidate, MemoryBand, MemoryNeed
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.acts import Resize
from tests.brain.models import data, load, view

NOW = Candidate(1, 1, 0.5, 0.25)


def decided(cores: float = 3.0, memory: int = 10**6, **fields: Any) -> Decision:
    one = view(model=data(worker=0.03, server=0.01), **fields)
    return decide(RoundInputs(at=0.0, capacity=Resources(cores, memory), jobs=(one,)), load).of("a")


def test_the_chosen_plan_is_marked_and_the_rest_has_a_verdict() -> None:
    one = decided(now=NOW)
    assert one.action == "change" and one.candidates is not None
    lines = weighed_plans(one, most=None)
    assert len(lines) == len(one.candidates.workers)
    assert [line.cores for line in lines] == sorted(line.cores for line in lines)
    (chosen,) = [line for line in lines if line.mark == "*"]
    (present,) = [line for line in lines if line.mark == "="]
    assert one.choice == Candidate(chosen.workers, chosen.servers, chosen.worker_cores, chosen.ps_cores)
    assert Candidate(present.workers, present.servers, present.worker_cores, present.ps_cores) == NOW
    assert chosen.verdict == "chosen"
    assert re.fullmatch(r"the present plan: ends [\d,.e+]+ s later, for [\d.]+ cores? less", present.verdict)
    assert all(line.verdict for line in lines)
    for line in lines:
        assert ("later" in line.verdict) == (line.seconds > chosen.seconds and line.cores <= 3.0)


def test_plans_too_large_say_how_much_more_they_need() -> None:
    one = decided(cores=2.0, now=Candidate(2, 1, 1.0, 0.5))  # what it has is more than there is now
    (present,) = [line for line in weighed_plans(one) if line.mark == "="]
    assert present.verdict == "the present plan: needs 0.5 cores more than it may have"
    need = MemoryNeed(worker=100, ps=100, tables=0)
    one = decided(memory=500, need=need, now=Candidate(5, 1, 0.25, 0.25))
    (present,) = [line for line in weighed_plans(one) if line.mark == "="]
    assert present.verdict == "the present plan: needs 100 B of memory more than it may have"


def test_a_long_table_of_plans_is_cut_but_keeps_the_marked_ones() -> None:
    one = decided(cores=6.0, now=NOW)
    everything, some = weighed_plans(one, most=None), weighed_plans(one, most=6)
    assert len(everything) > 6 and len(some) <= 8
    assert [line for line in everything if line.mark] == [line for line in some if line.mark]
    assert set(some) <= set(everything)
    text = explain(one, most=6)
    assert f"({len(everything) - len(some)} more plans between these)" in text
    assert "more plans" not in explain(one, most=None)


def test_explanation_shows_prediction_and_measured_effect() -> None:
    one = decided(now=NOW)
    assert one.predicted is not None
    rate = one.predicted.throughput
    text = explain(msgspec.structs.replace(one, index="abc123"), policy=None)
    assert text.startswith("a: change. It changes to ")
    assert f"Predicted: {rate.expected:,.0f} samples/s (80% band {rate.lower:,.0f} to {rate.upper:,.0f})" in text
    assert "It could have had 3 cores and" in text
    assert text.endswith("index abc123")
    assert "What it brought" not in text
    effect = judge(one, Band(rate.expected, rate.lower, rate.upper), windows=2, at=9.0)
    assert f"What it brought: {rate.expected:,.0f} samples/s measured" in explain(one, effect)


@pytest.mark.parametrize("most", [None, 1, 12])
def test_a_decision_without_candidates_is_a_sentence(most: int | None) -> None:
    refused = decided(cores=0.1)
    assert refused.action == "refuse" and weighed_plans(refused, most=most) == []
    text = explain(refused, most=most)
    assert text.startswith("a: refuse. Its smallest plan needs more than there is: 0.5 cores")
    assert "\n" not in text


def test_a_treatment_names_its_node_and_the_memory_it_will_need() -> None:
    treatment = Treatment(
        at=1.0, node="ps-1", host="h", cause="memory ahead", act=Resize(Resources(1.0, GIB)), reason="it grows"
    )
    one = Decision(
        job="a",
        at=1.0,
        stage="heal",
        action="heal",
        reason="ps-1 grows",
        treatment=treatment,
        memory=MemoryBand(600 * MIB, 500 * MIB, 700 * MIB, GIB),
    )
    assert explain(one).splitlines() == [
        "a: heal ps-1. ps-1 grows.",
        "Memory of ps-1: 600 MiB at its peak (80% band 500 MiB to 700 MiB), limit 1 GiB.",
    ]
