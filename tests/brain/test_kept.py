"""What the advisor keeps from round to round changes no decision: each is made anew beside it, and compared byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dlrover_lite.brain import advisor as advisor_module
from dlrover_lite.brain.advisor import Advisor
from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.healing.mitigation import HealInputs
from dlrover_lite.brain.models.fitted_model import KeptModel
from dlrover_lite.brain.planning.decision import Decision, Round, decide
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.profiles import Profile, TableUse
from tests.brain.advised import MACHINE, Office, demand, done
from tests.brain.queueing import Costs
from tests.brain.simulated import hosts

TWO_HOSTS = hosts(a=MACHINE, b=Resources(4.0, 8 * GIB))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Has every decision of any advisor made anew too; counts decisions of rounds, and of nodes."""
    counts = [0, 0]

    def checked_round(self: Advisor, at: float) -> Round:
        inputs = self.inputs(at)
        found = decide(inputs, kept=self._options)
        for known in self._jobs.values():
            known.observed_view, known.model = None, KeptModel()
            known.levels.kept.clear()
        anew = self.inputs(at)
        assert msgspec.json.encode(inputs) == msgspec.json.encode(anew)
        assert msgspec.json.encode(found) == msgspec.json.encode(decide(anew))
        counts[0] += len(found.decisions)
        return found

    def checked_heal(inputs: HealInputs) -> tuple[Decision, ...]:
        stored = msgspec.json.decode(msgspec.json.encode(inputs.as_stored()), type=HealInputs)
        found = heal(inputs)
        assert msgspec.json.encode(found) == msgspec.json.encode(heal(stored))
        counts[1] += len(found)
        return found

    monkeypatch.setattr(Advisor, "round", checked_round)
    monkeypatch.setattr(advisor_module, "heal", checked_heal)
    yield counts


class Course:
    """Jobs that come, train, are changed, and go, as chance has it."""

    def __init__(self, directory: Path, seed: int, there: tuple[Host, ...]) -> None:
        self.office, self.random, self.there = Office(directory), np.random.default_rng(seed), there
        self.told: dict[str, int] = {}
        self.came = 0

    def step(self) -> None:
        office = self.office
        if self.came < 4 and self.random.random() < 0.4:
            self.comes()
        office.turn()
        for name, one in office.adviser.waiting().items():
            if one.number > self.told.get(name, 0):
                self.told[name] = one.number
                self.carries_out(name, one.number, one.decision)
        for name in [*office.jobs]:
            if self.random.random() < 0.7:
                self.trains(name)
        if len(office.jobs) > 1 and self.random.random() < 0.03:
            name = sorted(office.jobs)[0]
            del office.jobs[name]
            office.adviser.ended(name, JobOutcome(seconds=60.0), office.now)

    def comes(self) -> None:
        name = f"job-{self.came}"
        self.came += 1
        total = Resources(4.0, 6 * GIB) if self.random.random() < 0.5 else None
        asks = demand(hosts=self.there, total=total, checkpoints=bool(self.random.random() < 0.5))
        self.office.arrives(name, demand=asks, priority=float(self.random.choice([1.0, 2.0, 5.0])))

    def carries_out(self, name: str, number: int, decision: Decision) -> None:
        office = self.office
        if decision.plan is None or decision.choice is None:
            if name in office.jobs:
                office.says(name, heard=number, done=[done(name, number, office.now)])
            return
        if name not in office.jobs:
            job = office.begins(name, plan=decision.choice, costs=Costs(), host_cores=self.there[0].resources.cores)
            job.hosts = self.places(decision.choice)
            office.says(name, heard=number)
            return
        state = "done" if self.random.random() < 0.9 else "rejected"
        if state == "done":
            office.jobs[name].plan = decision.choice
            office.jobs[name].hosts = self.places(decision.choice)
        office.says(name, heard=number, done=[done(name, number, office.now, state)])

    def places(self, plan: Candidate) -> dict[str, str]:
        names = [f"worker-{at}" for at in range(plan.workers)] + [f"ps-{at}" for at in range(plan.servers)]
        return {name: str(self.random.choice([host.name for host in self.there])) for name in names}

    def trains(self, name: str) -> None:
        job = self.office.jobs[name]
        job.at = max(job.at, self.office.now - 5.0)
        profile = self.varied(job.window())
        self.office.says(name, profiles=(profile,), busy=bool(self.random.random() < 0.1))

    def varied(self, profile: Profile) -> Profile:
        """With strangers, and with tables."""
        others = tuple(
            msgspec.structs.replace(host, other_cores=float(self.random.uniform(0, 3))) for host in profile.hosts
        )
        tables = tuple(
            TableUse(f"t-{at}", 16, {use.node: int(use.rows * share) for use in profile.ps})
            for at, share in enumerate((0.6, 0.3, 0.1))
        )
        return msgspec.structs.replace(profile, hosts=others, tables=tables)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("there", [hosts(a=MACHINE), TWO_HOSTS], ids=["a host", "two hosts"])
def test_decisions_are_those_of_nothing_kept(tmp_path: Path, compared: list[int], seed: int, there: Any) -> None:
    course = Course(tmp_path, seed, there)
    for _ in range(40):
        course.step()
    course.office.close()
    assert compared[0] > 40
