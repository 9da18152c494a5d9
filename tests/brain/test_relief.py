"""Parameter servers far from their limits are left alone without a closer look: it would come to the same."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.healing import memory_relief
from dlrover_lite.brain.healing.mitigation import HealInputs
from dlrover_lite.brain.healing.policies import HealthPolicy
from dlrover_lite.core.units import MIB
from tests.brain.test_health import inputs, windows


def growing(growth: float, limit: int, *, count: int = 6, **fields: Any) -> HealInputs:
    return inputs(windows(count, growth=growth), limit=limit * MIB, least={}, **fields)


def treated(found: HealInputs) -> list[Any]:
    room = memory_relief.HostCapacity(found.free)
    return memory_relief.treat_memory(found, found.nodes, room)


def looks(found: HealInputs) -> int:
    """Count how many parameter servers are looked at closely."""
    with patch.object(memory_relief, "oom_risk", wraps=memory_relief.oom_risk) as risk:
        treated(found)
    return int(risk.call_count)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0, 1),
    st.integers(190, 1500),
    st.sampled_from([3.0, 10.0, 120.0]),
    st.sampled_from([None, 7e6, 1e9]),
    st.sampled_from([0.002, 0.02, 0.3]),
)
def test_nobody_is_left_alone_who_would_be_treated(
    growth: float, limit: int, seconds: float, total: float | None, chance: float
) -> None:
    policy = HealthPolicy(act_on_oom=chance)
    found = growing(growth, limit, seconds_to_act=seconds, total_samples=total, policy=policy)
    with patch.object(memory_relief, "_is_far_from_full", return_value=False):
        closely = treated(found)
    assert treated(found) == closely


def test_only_who_may_be_full_soon_is_looked_at_closely() -> None:
    used, closely = 80 + 200 * 1_000_000 * 1.5 / 2 / MIB, []
    for limit in (1.02, 1.2, 1.35, 2.0):
        found = growing(0.1, int(limit * used))
        uses = {use.node: use for use in found.held[-1].ps}
        servers = [(node, uses[node.node]) for node in found.nodes[:2]]
        assert limit > 1.35 or not memory_relief._surely_fit(found, servers)
        closely.append(looks(found))
    assert closely[0] == 2 and closely[-1] == 0, closely
    assert 0 in closely[:3], "as if only what surely fits were left alone"
