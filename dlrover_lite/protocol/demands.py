"""What a job asks for and how it stands, as its master tells the brain; and the plans that leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from dlrover_lite.core.bounds import Bytes, Count, Name, Rate, Row, Seconds, Text, Timestamp
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host, SharedRoom, total_of
from dlrover_lite.protocol.plans import Plan, RolePlan, fixed
from dlrover_lite.recipe.schema import CensusData, Recipe, SyntheticData

Autoscale = Literal["off", "suggest", "on"]
_STATE_PARTS = {"sgd": 0, "adagrad": 1, "adam": 2, "ftrl": 2}


class TableFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the recipe says of all the job's tables, so that their measurements needn't be asked for it."""

    state_parts: Count | None = None
    """Floats of optimizer state per value; None: not known."""
    counted: bool = False
    """Rows have a count of updates, whatever the optimizer."""
    most_ids: Rate | None = None
    """The most distinct ids that any table can come to have; None: not known."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks for. Nothing of it changes while the job runs."""

    hosts: Row[Host] = ()
    """What the job's nodes may use on each host that there is."""
    shared: SharedRoom | None = None
    """What all jobs may use, where ``hosts`` depend on what others have; None: ``hosts`` are the same for all of them."""
    capacity: Resources | None = None
    """What a master of the version before tells, which doesn't name its only host, and what it has left in the database: it becomes
    ``hosts``."""
    total: Resources | None = None
    """The recipe's ceiling for all nodes of the job; None: it sets none."""
    ps: RolePlan | None = None
    """The parameter servers as the recipe fixes them; None: left open."""
    worker: RolePlan | None = None
    total_samples: Rate | None = None
    """Number of samples to train on, over all epochs; None: not known."""
    epoch_samples: Rate | None = None
    autoscale: Autoscale = "on"
    facts: TableFacts = TableFacts()
    checkpoints: bool = False
    """The job takes checkpoints: it can give way to another job and go on later, and snapshots need memory of their own."""
    shared_cores: bool = False
    """The job's nodes share the cores that they have together."""

    def __post_init__(self) -> None:
        if self.capacity is not None:
            msgspec.structs.force_setattr(self, "hosts", (Host("", self.capacity),))
            msgspec.structs.force_setattr(self, "capacity", None)


class StandingNode(msgspec.Struct, frozen=True):
    """A node that runs, is up, and isn't about to leave."""

    node: Name
    role: Literal["ps", "worker"]
    host: Name
    resources: Resources
    used: Bytes = 0
    """The most bytes of memory that the node has been seen to use; 0: not known."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stands, as of one moment."""

    plan: Plan
    nodes: Row[StandingNode] = ()
    paused: Text = ""
    """Why the plan isn't to be changed for now; empty: it may be."""
    busy: bool = False
    """A change is under way, or waits to be accepted."""
    worker_peak: Bytes = 0
    """The most bytes of memory that any worker has used."""
    evaluated: bool = True
    """An evaluation has ended, so that ``worker_peak`` has what that takes; or the job has none to come."""
    heard: Count = 0
    """Number of the newest decision that has arrived."""
    hosts: Row[Host] = ()
    """What the job's nodes may use on each host, where that has changed since the job registered; empty: it hasn't."""
    shared: SharedRoom | None = None
    """What all jobs may use, where ``hosts`` depend on what others have."""
    move_rate: Rate = 0.0
    """Bytes/s at which rows have moved between PS of late, to two digits; 0: none have."""
    launch_seconds: Seconds = 0.0
    """Seconds that nodes took of late from their launch until they were up, to two digits; 0: none was seen to. Processes take a moment,
    pods may take minutes."""


class DecisionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a decision that arrived."""

    job: Name
    number: Count
    at: Timestamp
    """Seconds since the epoch."""
    state: Literal["done", "given up", "rejected", "superseded"]
    why: Text = ""
    seconds: Seconds = 0.0
    """Seconds from the decision's arrival until it came to this state."""
    samples: Count = 0
    """Number of samples trained on in that time."""


def within(demand: Demand) -> Resources:
    """Return the most that all the job's nodes may have together, if others give back what they have."""
    there, shared = total_of(demand.hosts), demand.shared
    if shared is not None and (shared.hosts or shared.most):
        there = total_of(shared.hosts) if shared.hosts else shared.most or there
        there = there if shared.most is None else there.within(shared.most)
    return there if demand.total is None else demand.total.within(there)


def autoscale_of(recipe: Recipe) -> Autoscale:
    """Return the recipe's autoscale mode; ``auto`` is on where the recipe leaves a role's resources open, else off."""
    if recipe.autoscale != "auto":
        return recipe.autoscale
    return "on" if recipe.resources.ps is None or recipe.resources.worker is None else "off"


def demand_of(
    recipe: Recipe, hosts: Sequence[Host], *, samples: int, shared: SharedRoom | None = None, shared_cores: bool = False
) -> Demand:
    """Make the demand of a job with this recipe. ``samples``: number of samples in one epoch; ``shared``: what all jobs may use, where
    ``hosts`` depend on what others have; ``shared_cores``: the job's nodes share the cores that they have together."""
    limits = recipe.resources
    return Demand(
        hosts=tuple(hosts),
        shared=shared,
        total=limits.total,
        ps=fixed(limits.ps),
        worker=fixed(limits.worker),
        total_samples=float(samples * recipe.training.epochs),
        epoch_samples=float(samples),
        autoscale=autoscale_of(recipe),
        facts=_facts(recipe),
        checkpoints=recipe.checkpoint != "off",
        shared_cores=shared_cores,
    )


def _facts(recipe: Recipe) -> TableFacts:
    """Collect what the recipe tells of the tables. A model of a person's own may have several columns in one table."""
    data, training = recipe.data, recipe.training
    most: float | None = None
    if ":" not in recipe.model.use:
        match data:
            case SyntheticData():
                most = float(data.ids_per_field)
            case CensusData():
                most = float(data.samples)
    return TableFacts(
        state_parts=_STATE_PARTS.get((training.embedding_optimizer or training.optimizer).use),
        counted=recipe.export.optimizer_state,
        most_ids=most,
    )
