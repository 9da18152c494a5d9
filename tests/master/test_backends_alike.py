"""A master carries out a plan in the same way wherever its nodes run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.protocol.brain_messages import Report
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.schema import Cluster
from tests.master.rig import Rig
from tests.master.test_executor_with_brain import Brain, advise


@pytest.mark.parametrize("count", [2, 3])
def test_a_plan_is_carried_out_alike_on_all_backends(tmp_path: Path, make: Any, count: int) -> None:
    backends: list[Any] = ["local", Cluster(k8s=Kubernetes(image="any"))]
    done = []
    for number, runs_on in enumerate(backends):
        place = tmp_path / f"{number}"
        place.mkdir()
        brain = Brain(place / "brain.sqlite")
        rig: Rig = make(place, ps=1, workers=1, samples=4000, brain=brain.link, mode="on", runs_on=runs_on)
        assert (rig.recipe.kubernetes is None) == (runs_on == "local")
        rig.beside.append(brain.step)
        rig.up("ps-0", "worker-0")
        rig.follow("ps-0", until=lambda status: status.slot_map_version and status.slots_settled)
        advise(brain, 1, count)
        for node in range(1, count):
            rig.up(f"worker-{node}")
        rig.step_until(brain.done)
        standing = [one.standing for one in brain.told if isinstance(one, Report) and one.standing is not None]
        done.append(msgspec.json.encode([rig.backend.launched, rig.backend.resized, brain.done(), standing]))
        brain.die()
    assert msgspec.json.decode(done[0])[0] and done[0] == done[1]
