"""The machines of a simulation, as a YAML file says them (docs/simulation.md has its keys)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dlrover_lite.backends.sim.physics.machines import Disturbances, Machine
from dlrover_lite.backends.sim.physics.startup import CLUSTER, Startup
from dlrover_lite.backends.sim.pools import Pool
from dlrover_lite.core.errors import TraceError
from dlrover_lite.core.problems import Place, Problems
from dlrover_lite.core.units import GIB, LEAST_CORES, LEAST_MEMORY, MOST_CORES, MOST_MEMORY
from dlrover_lite.recipe.schema_reader import Given, Walker
from dlrover_lite.recipe.source import Node, Section, read_text
from dlrover_lite.recipe.words import found
from dlrover_lite.simulation.traces.files import read_text_file

__all__ = [
    "USUAL_CLUSTER",
    "ClusterFile",
    "Faults",
    "MachineKind",
    "NodePool",
    "StartTimes",
    "parse_cluster",
    "read_cluster",
]

_BYTES_PER_GBIT = 125e6
MOST_MACHINES = 100_000

Count = Annotated[int, Meta(ge=1, le=MOST_MACHINES)]
Counted = Annotated[int, Meta(ge=0, le=MOST_MACHINES)]
Cores = Annotated[float, Meta(ge=LEAST_CORES, le=MOST_CORES)]
Memory = Annotated[int, Meta(ge=LEAST_MEMORY, le=MOST_MEMORY)]
Factor = Annotated[float, Meta(ge=0.01, le=100)]
Gbits = Annotated[float, Meta(ge=0.001, le=100_000)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Interval = Annotated[float, Meta(ge=1, le=1e12)]


class MachineKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines that are alike, and always there."""

    count: Count
    cores: Cores
    memory: Memory
    speed: Factor = 1.0
    """Work that a core does in a second, over that of a core that CPU seconds of a trace are told of."""
    network_gbits: Gbits = 10.0
    """Gbit/s of its network card, each way."""

    @property
    def machine(self) -> Machine:
        return Machine(self.cores, self.speed, self.network_gbits * _BYTES_PER_GBIT, self.memory)


class NodePool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines that are alike, of which there are more while jobs wait for room, and fewer when they stand idle."""

    least: Counted = 0
    """Number of machines that stay."""
    most: Count
    cores: Cores
    memory: Memory
    speed: Factor = 1.0
    network_gbits: Gbits = 10.0
    grow_seconds: Seconds = 120.0
    """Seconds from when a job finds no room until another machine is there."""
    shrink_seconds: Seconds = 600.0
    """Seconds for which a machine stands idle until it is given back."""

    @property
    def pool(self) -> Pool:
        machine = Machine(self.cores, self.speed, self.network_gbits * _BYTES_PER_GBIT, self.memory)
        return Pool(machine, self.least, self.most, self.grow_seconds, self.shrink_seconds)


class StartTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What starting a node takes, on the median."""

    pending_seconds: Seconds = CLUSTER.pending_seconds
    """Seconds until whatever starts nodes on its machine has been told."""
    starting_seconds: Seconds = CLUSTER.starting_seconds
    """Seconds until its process runs."""
    joining_seconds: Seconds = CLUSTER.joining_seconds
    """Seconds until it has what it needs, rows aside."""
    image_mb: Annotated[float, Meta(ge=0, le=1e6)] = CLUSTER.image_bytes / 1e6
    """MB of the image, which a machine pulls once; 0: there is none."""
    pulled_mb_per_second: Annotated[float, Meta(ge=0.001, le=1e6)] = CLUSTER.pulled_bytes_per_second / 1e6
    variation: Annotated[float, Meta(ge=0, le=3)] = CLUSTER.variation
    """Standard deviation of the logarithm of each of them."""


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong with each machine. What isn't given never happens."""

    failing_seconds: Interval | None = None
    """Mean seconds from when it works until it fails, with all that runs on it."""
    repair_seconds: Annotated[float, Meta(ge=0.001, le=1e9)] = 600.0
    """Mean seconds until it works again."""
    slowing_seconds: Interval | None = None
    """Mean seconds between two phases in which it is slow."""
    slow_seconds: Annotated[float, Meta(ge=0.001, le=1e9)] = 300.0
    """Mean seconds of such a phase."""
    slow_speed: Annotated[float, Meta(ge=0.01, le=1)] = 0.5
    """Its speed then, over its usual one."""


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines, how nodes start on them, and what goes wrong with them."""

    version: Literal[1] = 1
    machines: list[MachineKind] = []
    pools: list[NodePool] = []
    startup: StartTimes = StartTimes()
    faults: Faults = Faults()

    @property
    def fixed(self) -> list[Machine]:
        """Machines that are always there."""
        return [kind.machine for kind in self.machines for _ in range(kind.count)]

    @property
    def start(self) -> Startup:
        its = self.startup
        return Startup(
            its.pending_seconds,
            its.starting_seconds,
            its.joining_seconds,
            image_bytes=its.image_mb * 1e6,
            pulled_bytes_per_second=its.pulled_mb_per_second * 1e6,
            variation=its.variation,
        )

    @property
    def disturbances(self) -> Disturbances:
        its = self.faults
        return Disturbances(
            math.inf if its.failing_seconds is None else its.failing_seconds,
            its.repair_seconds,
            math.inf if its.slowing_seconds is None else its.slowing_seconds,
            its.slow_seconds,
            its.slow_speed,
        )


DAY = 24 * 3600.0
USUAL_CLUSTER = ClusterFile(
    machines=[MachineKind(count=64, cores=16.0, memory=64 * GIB)],
    faults=Faults(failing_seconds=DAY / 0.015, slowing_seconds=DAY),
)
"""The cluster of a simulation that names none: 64 machines of 16 cores, the size of this project's figures. 1.5% of machines fail in a day:
DLRover-RM (VLDB 2024) has such a rate for pods, from memory and so unverified; a machine takes all of its pods along. A slow phase a day
for each is an assumption."""


def read_cluster(path: str | Path) -> ClusterFile:
    """Read a file of machines. Raises TraceError with a line for every problem."""
    return parse_cluster(read_text_file(Path(path), what="a cluster file"), source=str(path))


def parse_cluster(text: str, *, source: str = "cluster") -> ClusterFile:
    """Read machines from the text of a file. ``source`` names it in errors."""
    problems = Problems(TraceError)
    root = read_text(text, source, problems, kind="cluster file")
    if not isinstance(root, Section):
        if not len(problems):
            what = "the file is empty" if root is None else f"expected a section with machines; found {found(root)}"
            problems.add(Place(source) if root is None else root.place, "", what, hint=_HINT)
        problems.raise_if_any()
    assert isinstance(root, Section)
    value = Walker(problems, {ClusterFile: _check, NodePool: _check_pool}, ClusterFile).read(root)
    problems.raise_if_any()
    assert isinstance(value, ClusterFile)
    return value


_HINT = "docs/simulation.md has an example of such a file."


def _check(value: ClusterFile, given: Given, _: Node) -> None:
    if not value.machines and not value.pools:
        given.add("machines", "missing; there is nothing to run jobs on", hint=_HINT)
    together = sum(kind.count for kind in value.machines) + sum(pool.most for pool in value.pools)
    if together > MOST_MACHINES:
        given.add("", f"{together:,} machines together; expected {MOST_MACHINES:,} at most")


def _check_pool(value: NodePool, given: Given, _: Node) -> None:
    if value.least > value.most:
        given.add("least", f"expected at most the {value.most} of most, found {value.least}")
