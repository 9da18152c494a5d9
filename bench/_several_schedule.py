"""The jobs of ``bench/several.py``, when they come, and how each policy without the brain divides the cores among those that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from _plan_job import recipe_of, resources_of

from dlrover_lite.brain.planning.plan_grid import Candidate

__all__ = [
    "BASELINES",
    "CORES",
    "MODEL_FILE",
    "POLICIES",
    "QUICK",
    "SCHEDULE",
    "WITH_ERROR",
    "Form",
    "PolicyName",
    "Workload",
    "scaled",
    "shares",
]

PolicyName = Literal["brain", "static", "equal", "fcfs"]
POLICIES: tuple[PolicyName, ...] = ("brain", "static", "equal", "fcfs")
BASELINES: tuple[PolicyName, ...] = POLICIES[1:]
CORES = 2.0
"""Cores of all jobs together."""
QUICK = 0.4
"""Factor on all samples and times of arrival with ``--quick``."""
_LEAST_CORES = 0.25
"""The fewest cores that a job has, however many share them."""
_LEAST_NODE_CORES = 0.05
MODEL_FILE = "own_model.py"
"""A copy of ``_several_model.py``, beside the recipes."""
WITH_ERROR = "a deliberate error of bench/several.py"
_NEVER = 3600.0
"""Seconds between checkpoints. A job takes one when it gives way; it is over before the first one is due."""


@dataclass(frozen=True)
class Form:
    """How a job divides its cores among its nodes, however many cores it has."""

    workers: int
    servers: int
    ps_share: float
    """Share of the cores that all parameter servers get together."""

    def plan(self, cores: float) -> Candidate:
        ps = max(_LEAST_NODE_CORES, round(cores * self.ps_share / self.servers, 3))
        worker = max(_LEAST_NODE_CORES, round((cores - ps * self.servers) / self.workers, 3))
        return Candidate(self.workers, self.servers, worker, ps)


@dataclass(frozen=True)
class Workload:
    """One job. Nothing of it depends on the policy but its resources."""

    name: str
    arrives: float
    """Seconds after the first job."""
    samples: int
    asked: Candidate
    """The plan that its user asks for."""
    form: Form
    """The form of a good plan of its own, as ``--scan`` has found it."""
    model: str = "wide_deep"
    options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 1024
    ids: int = 20_000
    """Distinct ids of each field."""
    priority: float = 1.0
    fixed: bool = False
    """It can't shrink: its recipe says what it has, whatever the policy."""
    fails_at: float | None = None
    """Share of its samples after which it fails; None: it succeeds."""

    @property
    def counts(self) -> bool:
        """Whether its completion counts: of one that fails there is none."""
        return self.fails_at is None

    @property
    def is_census(self) -> bool:
        return self.model == "census"

    def once(self, home: Path) -> Path:
        """Return the file that makes it fail."""
        return home / f"{self.name}.fails"

    def recipe(self, home: Path, policy: PolicyName, plan: Candidate) -> dict[str, Any]:
        """Return its recipe under a policy. ``plan``: what it begins with, where that isn't the brain's choice."""
        data: dict[str, Any] = {"samples": self.samples, "ids_per_field": self.ids}
        options = dict(self.options)
        more: dict[str, Any] = {}
        if self.is_census:
            data = {"format": "census", "samples": self.samples}
            more["export"] = {"optimizer_state": True}
        if self.fails_at is not None:
            options |= {"error": WITH_ERROR, "once": str(self.once(home))}
        if policy != "brain":
            more |= {"resources": resources_of(plan), "autoscale": "off"}
        elif self.fixed:
            more["resources"] = resources_of(self.asked)
        recipe = recipe_of(
            home,
            self.name,
            model={"use": self.model, "options": options},
            data=data,
            training={"batch_size": self.batch_size, "optimizer": {"use": "adagrad", "learning_rate": 0.02}},
            checkpoint={"every_seconds": _NEVER},
            priority=self.priority,
            **more,
        )
        if self.is_census:
            del recipe["data"]["eval_samples"]  # it has none
        return recipe


SCHEDULE = (
    Workload(
        "ads-history",
        arrives=0.0,
        samples=4_915_200,
        asked=Candidate(4, 2, 1.0, 1.0),
        form=Form(3, 1, 0.25),
        options={"embedding_dim": 16, "hidden": [256, 128]},
    ),
    Workload(
        "feed-ranking",
        arrives=4.0,
        samples=614_400,
        asked=Candidate(3, 1, 1.0, 1.0),
        form=Form(2, 1, 0.125),
        model="dcn",
        options={"embedding_dim": 16},
        batch_size=512,
        ids=10_000,
    ),
    Workload(
        "search-nightly",
        arrives=8.0,
        samples=3_932_160,
        asked=Candidate(1, 1, 0.5, 0.25),
        form=Form(1, 1, 1 / 3),
        options={"embedding_dim": 8, "hidden": [128]},
        batch_size=2048,
        fixed=True,
    ),
    Workload(
        "ads-urgent",
        arrives=14.0,
        samples=737_280,
        asked=Candidate(4, 2, 1.0, 1.0),
        form=Form(2, 1, 0.25),
        model="dlrm",
        options={"embedding_dim": 16},
        priority=4.0,
    ),
    Workload(
        "feed-new-model",
        arrives=20.0,
        samples=2_150_400,
        asked=Candidate(2, 1, 1.0, 1.0),
        form=Form(2, 1, 0.125),
        model=f"{MODEL_FILE}:WithError",
        fails_at=0.5,
    ),
    Workload(
        "count-samples",
        arrives=30.0,
        samples=1 << 21,
        asked=Candidate(2, 1, 1.0, 1.0),
        form=Form(2, 1, 0.4),
        model="census",
        batch_size=1024,
    ),
)
"""Six jobs that come within half a minute, as a team's do in the morning: two minutes and a half of work for two cores.

- The longest comes first, and one half as long soon after it: whoever serves in order of arrival lets all others wait for them, whoever
  shares evenly ends both late.
- One can't shrink: its recipe fixes its plan, as that of a job does which was tuned by hand long ago. It is small, so that whoever comes
  beside it finds room.
- One is short and urgent (priority 4), and comes when the machine is full.
- One is a person's own model, and fails in mid-run with what it has trained lost. Its completion isn't counted; its cores come free.
- The last one is short, and has nothing but parameters: a census, whose count is checked bit for bit.
- Models, batch sizes and numbers of ids differ, so that none has the costs of another.

What users ask for is as in the traces of the paper (DLRover-RM, section 2: most jobs use less than half of the CPU that they have asked
for): one and a half times to three times of what there is, since none knows what the others ask for, nor what the job can use.
"""


def scaled(schedule: Sequence[Workload], factor: float) -> tuple[Workload, ...]:
    """Return the same schedule with all samples and times of arrival so many times as large."""
    return tuple(
        replace(
            one,
            arrives=one.arrives * factor,
            samples=max(1, round(one.samples * factor / one.batch_size)) * one.batch_size,
        )
        for one in schedule
    )


def shares(policy: PolicyName, present: Sequence[Workload], cores: float = CORES) -> dict[str, Candidate]:
    """Decide which plan each job that is there is to have under a policy without the brain; those that aren't named wait.

    ``present``: jobs that have come and haven't ended, in the order of their arrival. One that can't shrink has its own plan, always.

    - ``static``: each has what its user asks for from its arrival on, and the kernel shares out the cores. It gives each job the same part
      of what they all want, and what one doesn't use to the others.
    - ``equal``: what jobs that can't shrink leave is divided evenly among the others.
    - ``fcfs``: the first has all that it can use, what it leaves goes to the next one, and so on until nothing is left.
    """
    if policy == "static":
        return {one.name: one.asked for one in present}
    if policy == "equal":
        left = cores - sum(one.asked.cores for one in present if one.fixed)
        each = max(_LEAST_CORES, left / max(1, sum(not one.fixed for one in present)))
        return {one.name: one.asked if one.fixed else one.form.plan(each) for one in present}
    if policy == "fcfs":
        return _in_order(present, cores)
    raise ValueError(f"the policy {policy} doesn't divide the cores beforehand")


def _in_order(present: Sequence[Workload], cores: float) -> dict[str, Candidate]:
    found: dict[str, Candidate] = {}
    left = cores
    for one in present:
        least = one.asked.cores if one.fixed else _LEAST_CORES
        if found and left < least:
            break
        found[one.name] = one.asked if one.fixed else one.form.plan(left)
        left -= found[one.name].cores
    return found
