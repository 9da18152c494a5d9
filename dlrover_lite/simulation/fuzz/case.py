"""Simulated worlds that a seed draws: machines, and one or two jobs that are short, and checked as closely as can be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from dlrover_lite.backends.sim.clock import source_of_chance
from dlrover_lite.backends.sim.cluster import words_of
from dlrover_lite.brain.planning.job_view import Policy
from dlrover_lite.brain.policies import Policies, TrackingPolicy
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.master.cadence import Cadence
from dlrover_lite.master.profiling.profiler import Pace
from dlrover_lite.master.work.shard_plan import ShardPlan
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.recipe import schema
from dlrover_lite.simulation.job import JobSpec
from dlrover_lite.simulation.nodes.work import SteadyWork
from dlrover_lite.simulation.world import World

__all__ = ["Case"]

_HEALTH = schema.Health(startup_seconds=30.0, heartbeat_seconds=5.0, progress_seconds=60.0)
_BATCH = 100
_TRAINING_SECONDS = (13.0, 18.0)
"""Seconds that a job trains for that is left alone: faults begin until then."""
_CALM_SECONDS = (0.1, 0.3, 0.5)
"""Pauses of a master between two looks at what nobody tells it, where nothing is under way."""
_SHOW_SECONDS = 6.0
"""Seconds between two writings of a status, which only people read."""
_HASTY = Policies(
    planning=Policy(
        exploration_share=0.5,
        exploration_seconds=2.0,
        least_exploration_seconds=2.0,
        reversal_windows=1,
        saving_windows=1,
    ),
    tracking=TrackingPolicy(scale_seconds=0.2, change_seconds=1.0),
    decide_seconds=1.0,
)
"""What the brain goes by: jobs here last seconds, and it is to change their plans."""
_PACE_SECONDS = 0.5
"""Length in seconds of the intervals in which a job is measured that the brain may change."""

_NODE_BYTES = 512 * MIB
"""Memory of a node whose size is fixed."""
_UNLIKE_SHARE = 0.5
"""Share of the cases, of those in which the brain changes plans, whose machines differ in speed: it has servers go to faster ones."""
_SPEEDS = (0.7, 1.0, 1.4)
"""Speeds of these machines."""
_UNLIKE_CORES = (1.5, 2.0, 2.5, 3.0)
"""Cores of each: few, so that a job is on several of them."""
_FULL_SHARE = 0.5
"""Share of single machines, of jobs with fixed plans and three workers each, that have hardly more memory than these take."""


class Case:
    """A world that is still to be made."""

    def __init__(self, seed: int) -> None:
        chance = source_of_chance(seed, "case")
        self.seed = seed
        self.hosts = tuple(
            Host(f"host-{at}", Resources(chance.choice((4.0, 6.0, 8.0)), chance.choice((4, 8)) * GIB))
            for at in range(chance.choice((1, 1, 2, 3)))
        )
        jobs = 2 if chance.random() < 0.1 else 1
        self.specs = [_spec(chance, at) for at in range(jobs)]
        self.cadence = Cadence(calm_seconds=chance.choice(_CALM_SECONDS), show_seconds=_SHOW_SECONDS)
        self.takes_checkpoints = all(spec.recipe.checkpoint != "off" for spec in self.specs)
        self.autoscales = any(spec.recipe.autoscale == "on" for spec in self.specs)
        can_leave = all(role.count > 2 for spec in self.specs if (role := spec.recipe.resources.worker) and role.count)
        if len(self.hosts) == 1 and not self.autoscales and can_leave and chance.random() < _FULL_SHARE:
            self.hosts = (_filled(self.hosts[0], self.specs),)
        self.speeds = dict.fromkeys([host.name for host in self.hosts], 1.0)
        if self.autoscales and (unlike := source_of_chance(seed, "machine speeds")).random() < _UNLIKE_SHARE:
            self.hosts = tuple(
                Host(f"host-{at}", Resources(unlike.choice(_UNLIKE_CORES), 4 * GIB)) for at in range(len(_SPEEDS))
            )
            self.speeds = {host.name: speed for host, speed in zip(self.hosts, unlike.sample(_SPEEDS, 3), strict=True)}

    def world(self, directory: Path) -> World:
        """Make the world, with its jobs still to come."""
        world = World(directory, seed=self.seed, hosts=self.hosts, cadence=self.cadence, policies=_HASTY)
        for name, speed in self.speeds.items():
            world.machines.set_speed(name, speed)
        for spec in self.specs:
            world.add(spec)
        return world

    def start_another(self, world: World) -> None:
        """Have somebody start a job like the first one."""
        world.add(replace(self.specs[0], arrives_at=world.clock.now))

    def _machine(self, host: Host) -> str:
        speed = self.speeds[host.name]
        return words_of(host.resources) + ("" if speed == 1.0 else f" at {speed:g} times the usual speed")

    def describe(self) -> list[str]:
        """Return the jobs and machines in words, a line each."""
        lines = [
            f"machines: {', '.join(self._machine(host) for host in self.hosts)}; "
            f"masters look each {self.cadence.calm_seconds} s where nothing is under way"
        ]
        for spec in self.specs:
            recipe, plan = spec.recipe, spec.plan
            nodes = recipe.resources
            sizes = (
                f"{nodes.ps.count} ps, {nodes.worker.count} workers" if nodes.ps and nodes.worker else "planned nodes"
            )
            lines.append(
                f"{recipe.name} at {spec.arrives_at:.1f} s: {sizes}, {plan.minibatches(plan.samples)} minibatches x {plan.epochs}, "
                f"{plan.eval_samples} samples to evaluate on, autoscale {recipe.autoscale}, checkpoint {recipe.checkpoint}"
            )
        return lines


def _filled(host: Host, specs: Sequence[JobSpec]) -> Host:
    """Return a machine with no memory but for the nodes that jobs begin with, and a little: one that runs out of its own finds room once a
    worker has left."""
    roles = [role for spec in specs for role in (spec.recipe.resources.ps, spec.recipe.resources.worker) if role]
    nodes = sum(int(role.count or 0) for role in roles)
    return Host(host.name, Resources(host.resources.cores, nodes * _NODE_BYTES + _NODE_BYTES // 4))


def _spec(chance: random.Random, at: int) -> JobSpec:
    epochs, minibatches = chance.choice((1, 1, 2)), chance.randint(80, 130)
    samples = minibatches * _BATCH - chance.choice((0, 30))
    eval_samples = chance.choice((0, 500))
    plan = ShardPlan(
        samples=samples,
        batch_size=_BATCH,
        epochs=epochs,
        eval_samples=eval_samples,
        evaluate_every=chance.choice((0, samples // 2)) if eval_samples else 0,
        block_minibatches=chance.choice((0, 16)),
    )
    autoscale: Literal["on", "off"] = "on" if chance.random() < 0.25 else "off"
    checkpoint: schema.Checkpoint | Literal["off"] = "off"
    if chance.random() < 0.8:
        checkpoint = schema.Checkpoint(
            every_seconds=chance.uniform(3.0, 12.0), full_every=chance.choice((1, 2, 4)), keep=chance.choice((1, 2))
        )
    servers, workers = chance.randint(1, 3), chance.randint(1, 3)
    worker_seconds = chance.uniform(*_TRAINING_SECONDS) * workers / (minibatches * epochs)
    limits = schema.ResourceLimits(
        ps=schema.RoleResources(count=servers, cores=0.5, memory=_NODE_BYTES),
        worker=schema.RoleResources(count=workers, cores=1.0, memory=_NODE_BYTES),
    )
    recipe = schema.Recipe(
        version=1,
        name="ads" if at == 0 else "news",
        model=schema.Model(use="wide_deep"),
        data=schema.SyntheticData(samples=samples, eval_samples=eval_samples),
        training=schema.Training(batch_size=_BATCH, epochs=epochs, seed=7),
        resources=limits if autoscale == "off" else schema.ResourceLimits(),
        autoscale=autoscale,
        checkpoint=checkpoint,
        export=schema.Export(format=chance.choice(("npz", "npz", "none"))),
        health=_HEALTH,
    )
    work = SteadyWork(worker_seconds=worker_seconds, server_seconds=0.02, most_rows=1e5, old_share=0.99)
    pace = Pace.of(_PACE_SECONDS) if autoscale == "on" else None
    return JobSpec(recipe, plan, arrives_at=at * chance.uniform(0.0, 5.0), work=work, counted=True, pace=pace)
