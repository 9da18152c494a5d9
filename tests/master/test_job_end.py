"""What a master's estimate of the end of training goes by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dlrover_lite.core.expected_end import ExpectedEnd, PredictedRate
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.jobs.profiles import Gap
from dlrover_lite.master.autoscale.autoscaler import Autoscaler, Goal, NodeNow, PlanPrediction, World
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.profiling.job_end import EvaluationPauses, PlanRates, job_end, note_evaluations, predicted_rate
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, WorkerUse

NOW = 1_000_000.0
BAND = PredictedRate(300.0, 250.0, 375.0)


def plan(workers: int, cores: float = 1.0) -> Plan:
    return Plan(ps=RolePlan(1, Resources(0.5, GIB)), worker=RolePlan(workers, Resources(cores, GIB)))


def profile(workers: int, rate: float, *, seconds: float = 10.0, cores: float = 1.0) -> Profile:
    return Profile(
        job="a",
        at=NOW,
        seconds=seconds,
        batch_size=10,
        samples=round(rate * seconds),
        samples_so_far=0,
        workers=tuple(WorkerUse(f"worker-{i}", "h", cores, 1, 1.0) for i in range(workers)),
        ps=(PsUse("ps-0", "h", 0.5, 1, 1.0),),
        hosts=(HostUse("h", 8.0),),
    )


class Job:
    """A master that trains 30,000 samples, of which 10,000 are left, with one worker and nothing measured."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.state = Autoscaler(job="a", mode="on")
        self.recent = 50.0
        self.master: Any = SimpleNamespace(
            outcome=None,
            stopping="",
            beginning=None,
            shards=SimpleNamespace(
                trained=False,
                consumed_samples=20_000,
                plan=SimpleNamespace(samples=15_000, epochs=2, evaluate_every=0, eval_samples=100),
            ),
            servers=SimpleNamespace(state=SimpleNamespace(leaving=())),
            progress=SimpleNamespace(rate=lambda now: self.recent),
            profiling=SimpleNamespace(profiler=SimpleNamespace(disturbed=""), usual=SimpleNamespace(is_usual=False)),
            rounds=SimpleNamespace(open=[]),
            plan_rates=PlanRates(),
            evaluation_pauses=EvaluationPauses(),
            now=lambda: self.clock,
        )
        self.has(plan(1))

    def has(self, now: Plan) -> None:
        self.master.fleet = Fleet(now, Resources(64.0, 64 * GIB)).begin(0.0)[0]

    def measures(self, workers: int, *rates: float) -> None:
        for rate in rates:
            self.master.plan_rates.keep(profile(workers, rate))

    @property
    def end(self) -> ExpectedEnd | None:
        self.master.executor = SimpleNamespace(state=self.state)
        return job_end(self.master, now=NOW)

    @property
    def seconds(self) -> float:
        found = self.end
        assert found is not None
        return found.at - NOW


@pytest.fixture
def job() -> Job:
    return Job()


def test_expected_end_follows_the_intervals_of_the_plan(job: Job) -> None:
    job.measures(1, 100.0, 100.0, 100.0)
    assert job.end == ExpectedEnd(NOW + 100.0, 0.0)


def test_intervals_before_a_change_of_plan_count_no_more(job: Job) -> None:
    job.measures(1, *[100.0] * 12)
    job.has(plan(3))
    job.state = msgspec.structs.replace(job.state, prediction=PlanPrediction(plan(3), BAND))
    assert job.end == ExpectedEnd(NOW + 10_000 / 300, (10_000 / 250 - 10_000 / 375) / 2)
    job.measures(3, 200.0, 200.0)
    assert job.seconds == pytest.approx(10_000 / 300)
    job.measures(3, 200.0)
    assert job.end == ExpectedEnd(NOW + 50.0, 0.0)


def test_a_change_under_way_counts_for_the_end_from_its_beginning(job: Job) -> None:
    job.measures(1, *[100.0] * 5)
    job.state, _ = job.state.advised(Goal(number=4, target=plan(3), predicted=BAND), 0.0, 0)
    assert job.seconds == pytest.approx(10_000 / 300)
    job.state = job.state.pause("by hand")
    assert job.seconds == pytest.approx(100.0)


def test_a_suggestion_does_not_change_the_expected_end(job: Job) -> None:
    job.measures(1, *[100.0] * 5)
    job.state = Autoscaler(job="a", mode="suggest")
    job.state, _ = job.state.advised(Goal(number=4, target=plan(3), predicted=BAND), 0.0, 0)
    assert job.seconds == pytest.approx(100.0)


def test_a_change_of_memory_alone_keeps_the_intervals(job: Job) -> None:
    job.measures(1, *[100.0] * 5)
    more = Plan(ps=RolePlan(1, Resources(0.5, 2 * GIB)), worker=RolePlan(1, Resources(1.0, 2 * GIB)))
    job.state, _ = job.state.advised(Goal(number=4, target=more, predicted=BAND), 0.0, 0)
    assert job.seconds == pytest.approx(100.0)


def test_a_prediction_does_not_outlast_its_plan(job: Job) -> None:
    """By hand the job was given something else since."""
    job.state = msgspec.structs.replace(job.state, prediction=PlanPrediction(plan(3), BAND))
    job.has(plan(2))
    assert job.end == ExpectedEnd(NOW + 200.0, None)  # by the last seconds


def test_a_node_that_comes_back_does_not_change_the_plan(job: Job) -> None:
    job.has(plan(2))
    job.measures(2, *[100.0] * 3)
    for node in job.master.fleet.running:
        job.master.fleet, _ = job.master.fleet.hello(node.id, "inproc://a", 0.0)
    job.master.fleet = job.master.fleet.kill("worker-1", 1.0)[0]
    assert job.seconds == pytest.approx(100.0)


def test_the_last_seconds_count_only_while_training_is_undisturbed(job: Job) -> None:
    """In an evaluation hardly anything is trained: that says nothing of the rest."""
    assert job.end == ExpectedEnd(NOW + 200.0, None)
    job.master.profiling.profiler.disturbed, job.recent = "an evaluation is under way", 1.0
    assert job.end is None
    job.measures(1, *[100.0] * 3)
    assert job.seconds == pytest.approx(100.0)


def test_a_gap_in_the_profile_is_no_interval(job: Job) -> None:
    job.measures(1, *[100.0] * 3)
    job.master.plan_rates.keep(Gap(NOW, 10.0, "why"))
    assert job.seconds == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("name", "value"), [("outcome", object()), ("stopping", "by request"), ("beginning", object())]
)
def test_an_ending_job_has_no_expected_end(job: Job, name: str, value: object) -> None:
    setattr(job.master, name, value)
    assert job.end is None


def test_no_expected_end_once_all_is_trained(job: Job) -> None:
    job.master.shards.trained = True
    assert job.end is None


def _evaluates(job: Job, seconds: float, samples: int) -> None:
    """An evaluation of so long, beside which so many samples are trained on."""
    job.master.rounds.open = ["one"]
    note_evaluations(job.master)
    job.clock += seconds
    job.master.shards.consumed_samples += samples
    note_evaluations(job.master)
    job.master.rounds.open = []
    note_evaluations(job.master)


def test_coming_evaluations_are_expected_to_take_as_long_as_past_ones(job: Job) -> None:
    job.measures(1, *[100.0] * 3)
    job.master.shards.plan.evaluate_every = 3_000
    job.master.shards.consumed_samples = 18_500
    assert job.seconds == pytest.approx(115.0)  # nothing is known of evaluations so far
    _evaluates(job, 20.0, 500)  # which take 5 s otherwise
    assert job.master.shards.consumed_samples == 19_000
    assert job.seconds == pytest.approx(110.0 + 15.0 * 3)  # at 21,000, 24,000 and 27,000
    job.master.profiling.usual.is_usual = True  # what is measured has them in it
    assert job.seconds == pytest.approx(110.0)


def test_the_rest_of_an_evaluation_under_way_counts(job: Job) -> None:
    job.measures(1, *[100.0] * 3)
    job.master.shards.plan.evaluate_every = 14_000
    job.master.shards.consumed_samples = 28_500
    _evaluates(job, 20.0, 500)
    assert job.seconds == pytest.approx(10.0)
    job.master.rounds.open = ["one"]
    note_evaluations(job.master)
    job.clock += 4.0
    assert job.seconds == pytest.approx(10.0 + 11.0)
    job.clock += 100.0
    assert job.seconds == pytest.approx(10.0)


def test_a_finished_change_leaves_its_prediction() -> None:
    state, _ = Autoscaler(job="a", mode="on").advised(Goal(number=4, target=plan(1), predicted=BAND), 0.0, 0)
    nodes = (NodeNow("ps-0", "ps", Resources(0.5, GIB), True), NodeNow("worker-0", "worker", Resources(1.0, GIB), True))
    turn = state.turn(World(plan(1), nodes), 1.0)
    assert turn.done is not None
    assert (turn.done.state, turn.state.prediction) == ("done", PlanPrediction(plan(1), BAND))


def test_the_next_generation_has_the_prediction_of_its_plan() -> None:
    before = Autoscaler(job="a", mode="on", prediction=PlanPrediction(plan(1), BAND))
    assert before.goes_on(0, "", by_itself=True).prediction == before.prediction
    after = PlanPrediction(plan(2), BAND)
    assert before.goes_on(7, "with", by_itself=True, prediction=after).prediction == after


@pytest.mark.parametrize(
    ("predicted", "found"),
    [
        ({"throughput": [300, 250.0, 375.0], "seconds": 1.0}, BAND),
        (None, None),
        ({}, None),
        ({"throughput": [1.0, 2.0]}, None),
        ({"throughput": [0.0, 0.0, 0.0]}, None),
    ],
)
def test_predicted_rate_is_read_unless_it_makes_no_sense(
    predicted: dict[str, Any] | None, found: PredictedRate | None
) -> None:
    assert predicted_rate(predicted) == found
