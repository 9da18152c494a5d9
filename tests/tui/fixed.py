"""Data that stays the same, and a source that gives it."""

from __future__ import annotations

import math

import msgspec

from dlrover_lite.brain.explain.explanation_data import (
    Coefficient,
    Explained,
    Fact,
    FitPoint,
    Limit,
    MemoryAhead,
    MemoryCurve,
    ModelShown,
    Peer,
    PlanFit,
    Used,
    WeighedPlan,
)
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.expected_end import ExpectedEnd
from dlrover_lite.core.units import GIB, MIB
from dlrover_lite.core.unknown_ids import warnings_of
from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui.model import (
    Autoscaling,
    Checkpoint,
    Checkpoints,
    Cost,
    Evaluated,
    Explanation,
    JobDetail,
    JobRow,
    JobsView,
    LastDecision,
    Look,
    NodeRow,
    PsStrip,
    Rate,
    RoleNow,
    Room,
    Shards,
)

NOW = 1_795_356_000.0
"""2026-11-22 14:00:00 UTC."""

ADS = JobRow(
    id="ads-7f3k2m1p",
    name="ads",
    owner="mira",
    model="wide_deep",
    state="training",
    created_at=NOW - 900,
    started_at=NOW - 890,
    samples=4_210_000,
    total_samples=10_000_000,
    rate=52_310.0,
    rates=tuple(round(20_000 + 500.0 * i + 4_000 * math.sin(i), 1) for i in range(60)),
    expected=ExpectedEnd(NOW + 112, 9.0),
    workers=3,
    servers=1,
    cores=2.0,
    used_cores=1.83,
    memory=int(1.45 * GIB),
    used_memory=1_100 * MIB,
    cost=Cost(1780.0, 1300.0 * GIB, 2.0, int(1.45 * GIB), NOW),
    decision=LastDecision(
        3, NOW - 240, "change", "it changes to 3 worker x 0.5, 1 ps x 0.5 cores: 54,635 samples/s, 92 s to go"
    ),
    directory="/state/jobs/ads-7f3k2m1p",
    look=Look(NOW + 7.0),
)
FEED = JobRow(
    id="feed-7f3k2q8d",
    name="feed",
    owner="jo",
    model="dcn",
    state="queued",
    message="it waits, number 1 in the queue: its smallest plan (1.5 cores) doesn't fit",
    created_at=NOW - 60,
    total_samples=2_000_000,
    directory="/state/jobs/feed-7f3k2q8d",
)
BROKEN = JobRow(
    id="broken-7f3jzz01",
    name="broken",
    owner="mira",
    model="model.py:Net",
    state="failed",
    message="minibatch 17 of epoch 0 failed twice: ValueError: shapes differ",
    created_at=NOW - 7200,
    started_at=NOW - 7190,
    ended_at=NOW - 7000,
    samples=43_520,
    total_samples=1_000_000,
    rate=2_310.0,
    workers=2,
    servers=1,
    cores=2.0,
    memory=GIB,
    cost=Cost(380.0, 190.0 * GIB),
    directory="/state/jobs/broken-7f3jzz01",
)
OLD = JobRow(
    id="ads-7f3jxx90",
    name="ads",
    owner="mira",
    model="wide_deep",
    state="succeeded",
    created_at=NOW - 20_000,
    started_at=NOW - 19_990,
    ended_at=NOW - 18_000,
    samples=10_000_000,
    total_samples=10_000_000,
    rate=5_025.0,
    workers=1,
    servers=1,
    cores=1.0,
    memory=GIB,
    cost=Cost(1990.0, 1990.0 * GIB),
)
VIEW = JobsView({row.id: row for row in (FEED, ADS, BROKEN, OLD)}, "listens")


def _decision(number: int, seconds_ago: float, action: str, before: str, choice: str, **fields: object) -> Chosen:
    plain: dict[str, object] = {
        "grows": True,
        "predicted": 54_635.0,
        "lower": 41_102.0,
        "upper": 72_626.0,
        "gain_seconds": 318.0,
        "measured": None,
        "error": None,
    }
    return Chosen(
        number=number,
        at=NOW - seconds_ago,
        stage="scale",
        action=action,
        reason="it saves time",
        before=before,
        choice=choice,
        **(plain | fields),  # type: ignore[arg-type]
    )


MEMORY = MemoryCurve(
    node="ps-0",
    used=tuple(Used(NOW - 880 + 20 * i, int((52 + 96 * (i / 44) ** 0.7) * MIB)) for i in range(45)),
    ahead=tuple(
        MemoryAhead(NOW + 7 * i, (148 + 2 * i) * MIB, (148 + i) * MIB, (149 + 3 * i) * MIB) for i in range(1, 17)
    ),
    limits=(Used(NOW - 890, 96 * MIB), Used(NOW - 700, 151 * MIB), Used(NOW - 60, 210 * MIB)),
)

ONE, TWO = "1 worker x 0.25, 1 ps x 0.25", "3 worker x 0.5, 1 ps x 0.5"
DETAIL = JobDetail(
    row=ADS,
    rates=tuple(
        Rate(
            NOW - 870 + 10 * i, round((12_000 if i < 30 else 30_000 if i < 64 else 52_000) + 900 * math.sin(i), 1), 10.0
        )
        for i in range(88)
    ),
    decisions=(
        _decision(1, 885, "start", "", ONE, predicted=12_205.0, measured=12_400.0, error=0.016, done="done"),
        _decision(2, 580, "change", ONE, "3 worker x 0.25, 1 ps x 0.25", measured=30_100.0, error=-0.31, done="done"),
        _decision(3, 240, "change", "3 worker x 0.25, 1 ps x 0.25", TWO, done="done"),
        _decision(4, 90, "heal", TWO, "worker-1", predicted=None),
    ),
    nodes=(
        NodeRow(
            id="ps-0",
            role="ps",
            state="up",
            cores=0.5,
            used_cores=0.44,
            memory=151 * MIB,
            used_memory=148 * MIB,
            peak_memory=149 * MIB,
            slots=4096,
            throttled=0.02,
        ),
        NodeRow(
            id="worker-0",
            role="worker",
            state="up",
            cores=0.5,
            used_cores=0.5,
            memory=440 * MIB,
            used_memory=310 * MIB,
            rate=20_100.0,
            share=0.384,
            leased=64,
            throttled=0.31,
        ),
        NodeRow(
            id="worker-3",
            role="worker",
            state="up",
            cores=0.5,
            used_cores=0.47,
            memory=440 * MIB,
            used_memory=305 * MIB,
            rate=32_210.0,
            share=0.616,
            leased=96,
            throttled=0.0,
            restarts=2,
            note="waits for memory on the host",
        ),
        NodeRow(id="worker-1", role="worker", state="ended (OOMKilled)", cores=0.5, memory=440 * MIB),
    ),
    shards=Shards(8_223, 160, 11_149),
    slots=(PsStrip("ps-0", 4096, 0.31, tuple(0.02 + 0.98 * (i % 16 == 3) for i in range(128))),),
    slot_map_version=1,
    checkpoints=Checkpoints(
        newest=Checkpoint(12, NOW - 130, 2.31, 310_000, 84 * MIB, 0.0142, 0.0113),
        under_way="checkpoint 13 taking, 12 MiB written",
    ),
    memory=MEMORY,
    epoch=1,
    epochs=3,
    auc=0.7812,
    loss=0.4531,
    autoscale="on",
    autoscaling=Autoscaling("on"),
)
EVALUATED = Evaluated(
    at_samples=4_000_000,
    auc=0.7634,
    loss=0.4702,
    unknown="user 97.2%, item 61%, 24 more at most 3.1%",
    warnings=tuple(warnings_of({"user": 0.972, "item": 0.61}, {"user": 0.03, "item": None})),
)
SUGGESTED = Autoscaling("suggest", decision=5, what="it changes to 4 worker x 0.5, 1 ps x 0.5 cores")
ROOM = Room(RoleNow(2, 0.5, 440 * MIB), RoleNow(1, 0.5, 151 * MIB), 4 * GIB, 8.0, 4.0)


def _weighed(mark: str, workers: int, each: float, rate: float, verdict: str) -> WeighedPlan:
    cores = workers * each + 0.25
    seconds = round(5e6 / rate, 2)
    return WeighedPlan(mark, workers, each, 1, 0.25, cores, GIB, rate, rate * 0.8, rate * 1.2, seconds, verdict)


MODEL = ModelShown(
    form="bottleneck",
    formula="samples/s = batch size / time of a minibatch; that is as long as the slowest of four limits lets it be",
    exponent=6.0,
    intervals=34,
    error=0.021,
    noise=0.06,
    coefficients=(
        Coefficient("worker_sample", 1.62e-5, "a worker's CPU, by sample", "measured"),
        Coefficient("worker_minibatch", 9.1e-4, "a worker's CPU, by minibatch", "in a sum"),
        Coefficient("latency", 2e-3, "from pull to push, beside CPU", "not measured"),
    ),
    identifiable="Only sums of these were measured, since no plan told them apart: worker_minibatch + worker_request.",
    plan="3 worker x 0.25, 1 ps x 0.25 cores",
    limits=(
        Limit("workers", "cores of all workers", 55_900.0),
        Limit("ps", "cores of the busiest server", 93_000.0),
        Limit("host", "free cores of the machine", 148_000.0),
        Limit("pipeline", "minibatches under way at once", 310_000.0),
    ),
    points=(
        *(FitPoint(12_000.0 + 90 * i, 12_205.0, 9_000.0, 16_400.0) for i in range(6)),
        *(FitPoint(29_000.0 + 300 * i, 30_900.0, 24_000.0, 38_000.0) for i in range(7)),
        FitPoint(21_000.0, 30_900.0, 24_000.0, 38_000.0),
    ),
    plans=(
        PlanFit("1 worker x 0.25, 1 ps x 0.25 cores", 6, 12_225.0, 12_205.0, 9_000.0, 16_400.0),
        PlanFit("2 worker x 0.25, 1 ps x 0.25 cores", 8, 28_800.0, 30_900.0, 24_000.0, 38_000.0),
    ),
)
RESTS_ON = Explained(
    facts=(
        Fact("plan", "2 worker x 0.25, 1 ps x 0.25 cores"),
        Fact(
            "measured",
            "28,800 samples/s (80% band 27,900 to 29,700), in 8 intervals since it had 1 worker x 0.25, 1 ps x 0.25 cores",
        ),
        Fact("left", "7,100,000 samples; it has run for 5 min 2 s"),
        Fact("CPU", "its nodes used 0.72 cores, others 0.31, of 4"),
        Fact("other jobs", "feed-7f3k2q8d waits"),
    ),
    model=MODEL,
    memory=(MEMORY,),
    room_cores=1.25,
)
TREATED = Explanation(
    ADS.id,
    4,
    ("ads-7f3k2m1p: heal worker-1. It does 31% of the minibatches that its peers' rates let expect, for 12 s.",),
    rests_on=Explained(
        facts=(Fact("node", "worker-1: 0.5 cores, 440 MiB"),),
        cause="slow worker",
        peers=(
            Peer(node="worker-1", treated=True, cores=0.5, rate=6.2, expected=0.31, held=0.02),
            Peer(node="worker-0", treated=False, cores=0.5, rate=19.6, expected=1.0, held=0.31),
            Peer(node="worker-3", treated=False, cores=0.5, rate=20.1, expected=1.02, held=0.0),
        ),
        missing=("What was measured before isn't kept any more.",),
    ),
)
EXPLANATION = Explanation(
    ADS.id,
    2,
    (
        "ads-7f3k2m1p: change. It changes to 3 worker x 0.25, 1 ps x 0.25 cores: 54,635 samples/s, 92 s to go.",
        "Predicted: 54,635 samples/s (80% band 41,102 to 72,626), 92 s to go; against staying +318 s saved.",
        "What it brought: 37,698 samples/s measured, 54,635 predicted (-31%).",
    ),
    (
        _weighed("=", 1, 0.25, 12_205.0, "the present plan: ends 318 s later, for 0.5 cores less"),
        _weighed("", 2, 0.25, 23_990.0, "ends 117 s later, for 0.25 cores less"),
        _weighed("*", 3, 0.25, 54_635.0, "chosen"),
        _weighed("", 4, 0.5, 61_100.0, "ends 8.2 s sooner for 1.25 cores more, which are worth more to other jobs"),
    ),
    RESTS_ON,
)


class FixedSource:
    """Gives what it holds; ``fails`` says why it can't for now."""

    def __init__(self, view: JobsView = VIEW, *details: JobDetail) -> None:
        self.view = view
        self.details = {one.row.id: one for one in details or (DETAIL,)}
        self.fails = ""
        self.closed = False

    def jobs(self) -> JobsView:
        if self.fails:
            raise JobError(self.fails)
        return self.view

    def job(self, job: str) -> JobDetail | None:
        if self.fails:
            raise JobError(self.fails)
        if job not in self.details and job in self.view.jobs:
            self.details[job] = JobDetail(row=self.view.jobs[job])
        return self.details.get(job)

    def change(self, job: str, **fields: object) -> None:
        """Of one row; all others stay the same objects."""
        row = msgspec.structs.replace(self.view.jobs[job], **fields)
        self.view = msgspec.structs.replace(self.view, jobs={**self.view.jobs, job: row})

    def explain(self, job: str, number: int) -> Explanation | None:
        return {(ADS.id, 2): EXPLANATION, (ADS.id, 4): TREATED}.get((job, number))

    def forget(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
