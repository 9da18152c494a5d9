"""Files of machines: read as recipes are, and each mistake named by line and key."""

# ruff: noqa: E501 - an error is one line

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from dlrover_lite.backends.sim.physics.machines import STEADY, Machine
from dlrover_lite.backends.sim.physics.startup import CLUSTER
from dlrover_lite.core.errors import TraceError
from dlrover_lite.core.units import GIB
from dlrover_lite.simulation.traces.cluster import USUAL_CLUSTER, NodePool, parse_cluster, read_cluster

GOOD = "version: 1\nmachines:\n  - {count: 2, cores: 16, memory: 64GiB}\n"


def problem(text: str) -> str:
    with pytest.raises(TraceError) as caught:
        parse_cluster(text, source="c.yaml")
    return caught.value.message


def test_machines_are_those_of_the_file() -> None:
    found = parse_cluster(GOOD + "  - {count: 1, cores: 8, memory: 32GiB, speed: 0.5, network_gbits: 25}\n")
    usual = Machine(16.0, memory=64 * GIB)
    assert found.fixed == [usual, usual, Machine(8.0, 0.5, 3.125e9, 32 * GIB)]
    assert (found.disturbances, found.start) == (STEADY, CLUSTER)


def test_faults_start_times_and_pools_are_those_of_the_file() -> None:
    found = parse_cluster(
        GOOD
        + "pools:\n  - {least: 1, most: 8, cores: 4, memory: 16GiB, grow_seconds: 90}\n"
        + "startup: {starting_seconds: 60, image_mb: 0}\nfaults: {failing_seconds: 1e6, slow_speed: 0.25}\n"
    )
    assert found.pools == [NodePool(least=1, most=8, cores=4.0, memory=16 * GIB, grow_seconds=90.0)]
    assert (found.start.starting_seconds, found.start.image_bytes) == (60.0, 0.0)
    assert (found.disturbances.failing_seconds, found.disturbances.slow_speed) == (1e6, 0.25)
    assert math.isinf(found.disturbances.slowing_seconds)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "c.yaml: the file is empty"),
        ("- 1\n", "c.yaml:1: expected a section with machines; found a list"),
        ("a: [\n", "c.yaml:2: not YAML: expected the node content, but found '<stream end>'"),
        ("version: 1\n", "c.yaml:1: machines: missing; there is nothing to run jobs on"),
        (GOOD + "machine: 3\n", "c.yaml:4: machine: unknown key; did you mean machines?"),
        (GOOD + "zzz: 3\n", "c.yaml:4: zzz: unknown key; known are version, machines, pools, startup, faults"),
        (GOOD.replace("2", "0"), "c.yaml:3: machines.count: expected a whole number from 1 to 100,000, found 0"),
        (GOOD.replace("64GiB", "64"), "c.yaml:3: machines.memory: expected an amount of memory, as in 512MiB, from 16 MiB to 1024 TiB; found 64, in bytes"),
        (GOOD + "faults: {failing_seconds: 0}\n", "c.yaml:4: faults.failing_seconds: expected a number from 1 to 1,000,000,000,000, found 0"),
        (GOOD + "pools:\n  - {least: 3, most: 2, cores: 1, memory: 1GiB}\n", "c.yaml:5: pools.least: expected at most the 2 of most, found 3"),
    ],
)  # fmt: skip
def test_each_mistake_is_named_by_line_and_key(text: str, expected: str) -> None:
    assert problem(text) == expected


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_cluster(tmp_path / "none.yaml")


def test_the_example_in_the_docs_is_the_usual_cluster() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    found = parse_cluster(example)
    assert (found.fixed, found.disturbances) == (USUAL_CLUSTER.fixed, USUAL_CLUSTER.disturbances)
    assert found.start == USUAL_CLUSTER.start
