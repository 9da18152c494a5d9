"""Each failpoint is known, and a process that is killed there costs no sample and leaves nothing."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlrover_lite.core import failpoints
from dlrover_lite.ps.journal.journal import STEPS
from tests.chaos.extent import LONG, OPTIMIZERS
from tests.chaos.points import POINTS
from tests.chaos.scenarios import SCENARIOS

_FOLLOWING = [name for name in POINTS if name.startswith(("ps.attach.", "master.relaunch."))]
NEEDS = {
    **{name: ["ps.push.begun"] for name in _FOLLOWING},
    "ps.attach.undone": ["ps.chunk.half"],
    "ps.attach.marked": ["ps.push.group"],
}
"""Points that are passed only after a death at another one."""
PACKAGE = Path(failpoints.__file__).parents[1]


def in_the_source() -> Iterator[str]:
    """Every failpoint's name, as often as it is there."""
    yield from STEPS
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "failpoint":
                (name,) = node.args
                assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: the name of a failpoint is written out"
                yield name.value


def test_every_failpoint_is_named_once() -> None:
    found = sorted(in_the_source())
    assert found == sorted(POINTS)


def test_every_failpoint_belongs_to_a_scenario() -> None:
    assert {point.scenario for point in POINTS.values()} <= SCENARIOS.keys()


def points_by_scenario() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, point in POINTS.items():
        found[point.scenario].append(name)
    return found


@contextmanager
def counted(faults: Counter[str], directory: Path, points: list[str], action: str) -> Iterator[None]:
    """Those of the points that were reached, also where the test fails: whoever is hit there has made a file of its name."""
    try:
        yield
    finally:
        made = {path.name for path in directory.rglob("*")}
        faults.update(f"{action} at {name}" for name in points if name in made)


@pytest.mark.timeout(700)
@pytest.mark.parametrize(("scenario", "points"), points_by_scenario().items(), ids=points_by_scenario())
def test_a_job_survives_deaths_at_all_failpoints_of_a_scenario(
    tmp_path: Path, scenario: str, points: list[str], faults: Counter[str]
) -> None:
    """In one job: each process dies at the first that it comes to and where nobody has died before."""
    with counted(faults, tmp_path, points, "kill"):
        SCENARIOS[scenario](tmp_path, points)


@pytest.mark.skipif(not LONG, reason="make chaos")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", POINTS)
def test_a_job_survives_a_death_at_the_failpoint(
    tmp_path: Path, name: str, optimizer: str, faults: Counter[str]
) -> None:
    points = [*NEEDS.get(name, []), name]
    with counted(faults, tmp_path, points, "kill"):
        SCENARIOS[POINTS[name].scenario](tmp_path, points, optimizer=optimizer)


@pytest.mark.skipif(not LONG, reason="make chaos")
@pytest.mark.parametrize("pause_seconds", [1.0, 5.0])
@pytest.mark.parametrize("name", [name for name in POINTS if name not in STEPS and name not in NEEDS])
def test_a_job_survives_a_pause_at_the_failpoint(
    tmp_path: Path, name: str, pause_seconds: float, faults: Counter[str]
) -> None:
    """Shorter, and longer, than the master's patience with a node that says nothing."""
    health = {"heartbeat_seconds": 3}
    with counted(faults, tmp_path, [name], "stop"):
        SCENARIOS[POINTS[name].scenario](tmp_path, [name], pause_seconds=pause_seconds, health=health)
