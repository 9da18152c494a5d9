"""A ceiling that tables will outgrow is said beforehand, with what can be done; one that they won't isn't mentioned."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.explain.decision_text import explain
from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.healing.mitigation import HealInputs
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.acts import Tell
from tests.brain.simulated import Job
from tests.brain.test_spare_rules import inputs_of, job_of

WORKERS = 2


def growing(windows: int = 8) -> tuple[Job, HealInputs]:
    """With a ceiling to be set."""
    job = job_of(2, workers=WORKERS, rows_per_sample=8.0, slope=0.8, limit=64 * GIB)
    profiles = job.windows(windows)
    job.limits |= {f"worker-{at}": 300 * MIB for at in range(WORKERS)}
    return job, inputs_of(job, profiles=profiles, used=0, total_samples=6 * job.samples)


def at_end(job: Job) -> int:
    """What its PS hold together when all is trained."""
    samples = job.samples
    job.samples = 6 * samples
    found = sum(job.used(f"ps-{at}") for at in range(2))
    job.samples = samples
    return found


def said(inputs: HealInputs, ceiling: float, **fields: Any) -> list[Decision]:
    most = Resources(8.0, int(ceiling) + WORKERS * 300 * MIB)
    found = heal(msgspec.structs.replace(inputs, most=most, **fields))
    return [one for one in found if one.treatment is not None and one.treatment.cause == "ceiling"]


def test_too_small_a_ceiling_is_reported_with_figures_and_time() -> None:
    job, inputs = growing()
    (one,) = said(inputs, 0.6 * at_end(job))
    assert one.action == "tell" and isinstance(one.treatment.act, Tell)  # type: ignore[union-attr]
    assert one.memory is not None and one.memory.expected == pytest.approx(at_end(job), rel=0.15)
    assert one.memory.limit == int(0.6 * at_end(job))
    assert "resources.total" in one.reason and "are full in about" in one.reason and "by its end" in one.reason
    assert "all PS together" in explain(one)


def test_too_small_a_ceiling_is_reported_once() -> None:
    job, inputs = growing()
    (one,) = said(inputs, 0.6 * at_end(job))
    assert one.treatment is not None
    assert said(inputs, 0.6 * at_end(job), past=(one.treatment,)) == []


@pytest.mark.parametrize("ceiling", [1.1, 1.5, 10.0])
def test_a_large_enough_ceiling_is_not_mentioned(ceiling: float) -> None:
    job, inputs = growing()
    assert said(inputs, ceiling * at_end(job)) == []


def test_memory_that_workers_can_spare_counts_as_available() -> None:
    """By what they have used there is enough."""
    job, inputs = growing()
    nodes = tuple(
        msgspec.structs.replace(node, resources=Resources(1.0, 2 * at_end(job)), used_bytes=50 * MIB)
        if node.role == "worker"
        else node
        for node in inputs.nodes
    )
    assert said(inputs, 1.2 * at_end(job), nodes=nodes) == []
    unknown = tuple(msgspec.structs.replace(node, used_bytes=0) for node in nodes)
    assert len(said(inputs, 1.2 * at_end(job), nodes=unknown)) == 1


def test_no_ceiling_warning_after_few_profiles_or_without_a_ceiling() -> None:
    job, inputs = growing()
    assert said(inputs, 0.6 * at_end(job), profiles=inputs.profiles[:2]) == []
    found = heal(msgspec.structs.replace(inputs, most=None))
    assert not any(one.treatment is not None and one.treatment.cause == "ceiling" for one in found)
