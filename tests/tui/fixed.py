"""Data that stays the same, and a source that gives it."""

from __future__ import annotations

import math

import msgspec

from dlrover_lite.brain.store.news import Chosen
from dlrover_lite.errors import JobError
from dlrover_lite.tui.model import (
    Autoscaling,
    Cost,
    Cut,
    Cuts,
    Expected,
    Explanation,
    JobDetail,
    JobRow,
    JobsView,
    LastDecision,
    NodeRow,
    PsStrip,
    Rate,
    RoleNow,
    Room,
    Shards,
    WeighedPlan,
)
from dlrover_lite.units import GIB, MIB

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
    rates=tuple(20_000 + 500.0 * i + 4_000 * math.sin(i) for i in range(60)),
    expected=Expected(NOW + 112, 9.0),
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


ONE, TWO = "1 worker x 0.25, 1 ps x 0.25", "3 worker x 0.5, 1 ps x 0.5"
DETAIL = JobDetail(
    row=ADS,
    rates=tuple(
        Rate(NOW - 880 + 10 * i, (12_000 if i < 30 else 30_000 if i < 64 else 52_000) + 900 * math.sin(i))
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
    cuts=Cuts(newest=Cut(12, NOW - 130, 2.31, 310_000, 84 * MIB), under_way="checkpoint 13 taking, 12 MiB written"),
    epoch=1,
    epochs=3,
    auc=0.7812,
    loss=0.4531,
    autoscale="on",
    autoscaling=Autoscaling("on"),
)
SUGGESTED = Autoscaling("suggest", decision=5, what="it changes to 4 worker x 0.5, 1 ps x 0.5 cores")
ROOM = Room(RoleNow(2, 0.5, 440 * MIB), RoleNow(1, 0.5, 151 * MIB), 4 * GIB, 4.0)


def _weighed(mark: str, workers: int, each: float, rate: float, verdict: str) -> WeighedPlan:
    cores = workers * each + 0.25
    return WeighedPlan(mark, workers, each, 1, 0.25, cores, GIB, rate, rate * 0.8, rate * 1.2, 5e6 / rate, verdict)


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
        return EXPLANATION if (job, number) == (ADS.id, 2) else None

    def forget(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
