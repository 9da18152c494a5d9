"""Masters that look at what nobody tells them as seldom as their cadence has it, and miss nothing by that."""

from __future__ import annotations

from typing import Any

import pytest

from dlrover_lite.master.cadence import Cadence
from dlrover_lite.protocol.messages import LeaseRequest
from dlrover_lite.protocol.questions import ResizeRequest, ScaleRequest
from dlrover_lite.recipe.schema import Health
from tests.master.rig import Rig

RARE = Cadence(calm_seconds=15.0)


@pytest.fixture
def calm(make: Any) -> Rig:
    """A master of which all nodes are up, and nothing is under way."""
    health = Health(startup_seconds=3600.0, heartbeat_seconds=40.0, progress_seconds=3600.0)
    rig: Rig = make(samples=40_000, cadence=RARE, health=health)
    rig.up("ps-0", "worker-0", "worker-1")
    rig.step_until(lambda: rig.wakes_in > 1.0)
    return rig


def says(rig: Rig, node: str) -> None:
    if node == "ps-0":
        rig.report(node, version=rig.master.servers.state.version)
    else:
        rig.ask(node, LeaseRequest(node, want=False))


def test_a_calm_master_looks_seldom_however_often_it_is_asked(calm: Rig) -> None:
    looks, observe = [], calm.backend.observe

    def counted(*, after: int | None = None) -> Any:
        looks.append(calm.clock.now)
        return observe(after=after)

    calm.backend.observe = counted  # type: ignore[method-assign]
    for _ in range(60):
        calm.clock.now += 1.0
        for node in ("ps-0", "worker-0", "worker-1"):
            says(calm, node)
    assert 3 <= len(looks) <= 5, looks


@pytest.mark.parametrize("wish", [ScaleRequest(workers=3), ResizeRequest("worker-0", cores=0.5)])
def test_what_is_under_way_is_looked_at_as_often_as_ever(calm: Rig, wish: Any) -> None:
    calm.backend.refuses_to_resize = "not now"
    calm.ask("cli", wish)
    assert calm.wakes_in <= RARE.reconcile_seconds


def test_who_is_silent_is_found_by_seldom_looks_and_who_asks_for_work_is_not(calm: Rig) -> None:
    for second in range(90):
        calm.clock.now += 1.0
        if second % 10 == 0:
            says(calm, "ps-0")
            says(calm, "worker-0")
        calm.step()
    states = {node.id: node.state for node in calm.master.fleet.by_id.values()}
    assert (states["ps-0"], states["worker-0"]) == ("up", "up")
    assert states["worker-1"] == "ended"


def test_what_stays_as_it_is_is_not_written_again(rig: Rig) -> None:
    rig.up("ps-0", "worker-0", "worker-1")
    written, store = [], rig.master.shards.store
    put = store.put_fact

    def counted(name: str, value: str) -> None:
        written.append(name)
        put(name, value)

    rig.clock.now += 2.0
    rig.step()
    store.put_fact = counted  # type: ignore[method-assign]
    for _ in range(20):
        rig.clock.now += 1.0
        rig.step()
    assert not written
