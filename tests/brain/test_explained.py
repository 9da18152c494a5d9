"""What decisions rest on: from their inputs and from what was measured, and what isn't kept any more is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.explain.explanation import explained, read
from dlrover_lite.brain.explain.explanation_data import Explained, MemoryAhead, MemoryCurve, Used
from dlrover_lite.brain.explain.explanation_text import memory, text_of
from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.healing.mitigation import HealInputs
from dlrover_lite.brain.planning.decision import Decision, decide
from dlrover_lite.brain.planning.job_view import JobView, RoundInputs
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry, profile_record
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.profiles import Profile
from dlrover_lite.protocol.records import NodeRecord
from tests.brain.advised import FEATURES, demand
from tests.brain.scenarios import base_view, running
from tests.brain.simulated import START, Job
from tests.brain.test_health import inputs as heal_inputs
from tests.brain.test_health import profile as window
from tests.brain.test_past import ended

TWO, ONE = Candidate(2, 1, 1.0, 0.5), Candidate(1, 1, 0.5, 0.5)


class Measured:
    """A job that was measured with two plans, and what is decided for it."""

    def __init__(self) -> None:
        self.job = Job(ONE, host_cores=8.0)
        first = self.job.windows(4)
        self.job.plan = TWO
        from dlrover_lite.brain.planning.observed_job import observe_job, observed_view

        self.profiles: tuple[Profile, ...] = (*first, *self.job.windows(5))
        self.view: JobView = observed_view(
            base_view("job"), observe_job(self.profiles), free_cores={"a": 8.0}, total_samples=4e7
        )
        other = running(Job(ONE, name="other", seed=3), priority=2.0)
        self.inputs = RoundInputs(at=self.job.at + 1, capacity=Resources(8.0, 16 * GIB), jobs=(self.view, other))
        self.decision: Decision = decide(self.inputs).of("job")


@pytest.fixture(scope="module")
def measured() -> Measured:
    return Measured()


def facts(shown: Explained) -> dict[str, str]:
    return {fact.name: fact.text for fact in shown.facts}


def test_the_model_is_shown_beside_each_interval_that_it_was_fitted_to(measured: Measured) -> None:
    model = explained(measured.decision, measured.inputs, profiles=measured.profiles).model
    assert model is not None
    assert (model.intervals, len(model.points)) == (9, 9)
    assert "a worker that its limit holds back gets 0.0" in model.formula
    rates = [profile.samples_per_second for profile in measured.profiles]
    assert [point.measured for point in model.points] == pytest.approx(rates)
    assert all(point.lower < point.predicted < point.upper for point in model.points)
    assert sum(point.inside for point in model.points) >= 7
    assert [(plan.plan, plan.intervals) for plan in model.plans] == [(ONE.describe(), 4), (TWO.describe(), 5)]
    assert all(abs(plan.error) < 0.2 for plan in model.plans)


def test_limits_are_those_of_the_chosen_plan_and_agree_with_its_prediction(
    measured: Measured,
) -> None:
    model = explained(measured.decision, measured.inputs, profiles=measured.profiles).model
    assert model is not None and measured.decision.choice is not None and measured.decision.predicted is not None
    assert model.plan == measured.decision.choice.describe()
    rates = [limit.samples_per_second for limit in model.limits]
    assert rates == sorted(rates) and len(rates) == 4
    assert rates[0] >= 0.9 * measured.decision.predicted.throughput.expected  # what was measured counts there, too
    assert {each.name for each in model.coefficients} >= {"worker_sample", "ps_sample", "latency"}
    assert all(each.meaning for each in model.coefficients)


def test_inputs_are_told_in_words(measured: Measured) -> None:
    shown = explained(measured.decision, measured.inputs, profiles=measured.profiles)
    assert measured.decision.room is not None
    assert shown.room_cores == measured.decision.room.cores
    known = facts(shown)
    assert known["plan"] == TWO.describe()
    assert "in 5 intervals since it had 1 worker" in known["measured"]
    assert known["capacity"] == "8 cores and 16 GiB for all jobs"
    assert known["other jobs"].startswith("other has 1 core (priority 2)")
    assert "samples" in known["left"] and "rows" in known
    assert "its nodes used" in known["CPU"]
    assert "of training" in known["a change"]


def test_memory_is_foreseen_from_what_was_known_then(measured: Measured) -> None:
    limits = {"ps-0": (Used(START, 512 * MIB),)}
    (curve,) = explained(
        measured.decision, measured.inputs, profiles=measured.profiles, limits=limits, demand=demand()
    ).memory
    assert (curve.node, curve.limit, len(curve.used)) == ("ps-0", 512 * MIB, 9)
    assert curve.to_the_end and curve.most is not None
    assert curve.most.lower <= curve.most.expected <= curve.most.upper
    assert curve.most.expected > curve.now
    assert curve.ahead[0].at > measured.profiles[-1].at
    expected = [one.expected for one in curve.ahead]
    assert expected == sorted(expected)


def test_inputs_and_profiles_no_longer_kept_are_named_as_missing(measured: Measured) -> None:
    assert explained(measured.decision, None) == Explained(
        missing=("What it was decided from isn't kept any more, or can't be read by this version.",)
    )
    shown = explained(measured.decision, measured.inputs)
    assert shown.model is not None and not shown.model.points
    assert shown.missing == ("What was measured until then isn't kept any more: the model is shown without it.",)
    view = msgspec.structs.replace(measured.view, model=msgspec.structs.replace(measured.view.model, kind="fit-99"))
    inputs = msgspec.structs.replace(measured.inputs, jobs=(view,))
    shown = explained(measured.decision, inputs, profiles=measured.profiles)
    assert shown.model is None and "fit-99" in shown.missing[0]
    assert shown.facts


def test_an_explanation_survives_json(measured: Measured) -> None:
    shown = explained(measured.decision, measured.inputs, profiles=measured.profiles)
    again = msgspec.json.decode(msgspec.json.encode(shown), type=Explained)
    assert msgspec.json.encode(again) == msgspec.json.encode(shown)
    assert text_of(again) == text_of(shown)


# --- nodes ----------------------------------------------------------------------------------------------------------


def healed(inputs: HealInputs) -> tuple[Decision, Explained]:
    decision = heal(inputs)[0]
    return decision, explained(decision, inputs)


def test_a_slow_worker_is_shown_beside_its_peers() -> None:
    windows = tuple(window(number, rates=(1.0, 0.3, 1.0)) for number in range(3))
    decision, shown = healed(heal_inputs(windows))
    assert decision.treatment is not None and decision.treatment.node == "worker-1"
    assert shown.cause == "slow worker"
    slow, *others = shown.peers
    assert (slow.node, slow.treated, slow.expected) == ("worker-1", True, pytest.approx(0.3))
    assert [one.node for one in others] == ["worker-0", "worker-2"]
    assert all((one.expected or 0.0) >= 1.0 and not one.treated for one in others)
    assert slow.rate == pytest.approx(30.0)
    assert any("* worker-1" in line and "30%" in line for line in text_of(shown))


def test_a_hot_server_is_shown_beside_its_peers() -> None:
    windows = tuple(window(number, busy=(0.9, 0.3), queue=(0.9, 0.1)) for number in range(3))
    decision, shown = healed(heal_inputs(windows))
    assert decision.treatment is not None and decision.treatment.cause == "hot ps"
    hot, other = shown.peers
    assert (hot.node, hot.treated, hot.busy, hot.waiting) == ("ps-0", True, pytest.approx(0.9), pytest.approx(1.8))
    assert (other.node, other.busy) == ("ps-1", pytest.approx(0.3))
    assert shown.memory == ()


def test_memory_that_will_run_out_is_shown_with_its_forecast_and_both_limits() -> None:
    windows = tuple(window(number, growth=0.4) for number in range(5))
    inputs = heal_inputs(windows, limit=350 * MIB, total_samples=2e7, free={"a": Resources(2.0, 4 * GIB)})
    decision, shown = healed(inputs)
    assert decision.treatment is not None and decision.treatment.cause == "memory ahead"
    (curve,) = shown.memory
    assert curve.node == decision.treatment.node
    assert curve.limits[0].bytes == 350 * MIB
    assert curve.limit > 350 * MIB
    assert curve.most is not None and curve.most.expected > curve.now
    assert {one.node for one in shown.peers} == {"ps-0", "ps-1"}
    assert "could still be given" in facts(shown)["room"]


# --- from the database ----------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConfigStore]:
    with ConfigStore(tmp_path / "brain.sqlite") as store:
        yield store


def kept(store: ConfigStore, measured: Measured, **fields: Any) -> Explained:
    """The decision, stored with all that is known of its job, and read again."""
    decision = msgspec.structs.replace(measured.decision, **fields)
    features = {**msgspec.to_builtins(FEATURES), "demand": msgspec.to_builtins(demand())}
    store.put_job(JobEntry(id="job", name="ads", state="running", created_at=START, features=features))
    store.add_node_event(NodeRecord(job="job", at=START, node="ps-0", event="launched", data={"memory": GIB}))
    for profile in measured.profiles:
        store.add_profile(profile_record(profile))
    later = msgspec.structs.replace(measured.profiles[-1], at=decision.at + 5)
    store.add_profile(profile_record(later))
    from dlrover_lite.brain.planning.decision import Round

    store.add_round(Round(measured.inputs, (decision,), Resources(1.0, GIB)), ["job"])
    store.commit()
    shown, policy = read(store, queries.decisions(store, "job")[0])
    assert policy == measured.inputs.policy
    return shown


def test_profiles_measured_after_the_decision_are_left_out(store: ConfigStore, measured: Measured) -> None:
    shown = kept(store, measured)
    assert shown.model is not None and len(shown.model.points) == 9
    (curve,) = shown.memory
    assert curve.limit == GIB and len(curve.used) == 9


def test_a_first_plan_names_the_past_jobs_that_it_is_from(store: ConfigStore, measured: Measured) -> None:
    ended(store, "ads-1", at=START)
    ended(store, "ads-2", at=measured.decision.at + 60)
    shown = kept(store, measured, stage="initial", reason="warm start, by the costs of 1 past job like it")
    (one,) = shown.like
    assert (one.job, one.distance, one.weight, one.intervals) == ("ads-1", 0.0, 1.0, 3)
    assert shown.memory == ()
    assert any(line.strip().startswith("ads-1") for line in text_of(shown))


def test_past_jobs_no_longer_kept_are_named_as_missing(store: ConfigStore, measured: Measured) -> None:
    shown = kept(store, measured, stage="initial", reason="warm start, by the costs of 1 past job like it")
    assert "The past jobs that it was made from aren't kept any more." in shown.missing


def test_inputs_that_can_not_be_read_leave_the_rest(store: ConfigStore, measured: Measured) -> None:
    kept(store, measured)
    with store.transaction():
        store.db.conn.execute("update rounds set inputs = x'00'")
    shown, policy = read(store, queries.decisions(store, "job")[0])
    assert policy is None and shown.missing and shown.model is None


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "ps-1: 310 MiB now, 480 MiB (±40) at the end, limit 512 MiB"),
        ({"to_the_end": False}, "ps-1: 310 MiB now, 480 MiB (±40) in an hour, limit 512 MiB"),
        ({"ahead": (), "limits": ()}, "ps-1: 310 MiB now"),
        (
            {"ahead": (MemoryAhead(START + 60, 480 * MIB, 480 * MIB - 400, 480 * MIB + 400),), "limits": ()},
            "ps-1: 310 MiB now, 480 MiB (±0) at the end",
        ),
    ],
)
def test_memory_forecast_is_put_in_words(fields: dict[str, Any], text: str) -> None:
    plain: dict[str, Any] = {
        "node": "ps-1",
        "used": (Used(START, 310 * MIB),),
        "ahead": (MemoryAhead(START + 60, 480 * MIB, 440 * MIB, 500 * MIB),),
        "limits": (Used(START, 256 * MIB), Used(START, 512 * MIB)),
    }
    curve = MemoryCurve(**(plain | fields))
    assert memory(curve) == text
    if curve.limit:
        assert memory(curve, short=True).startswith("ps-1: 310 of 512 MiB, 480 (±40) ")
    else:
        assert memory(curve, short=True) == text
