"""Who has been silent for too long is found in the same turn, however few of the turns look at every node."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.master.nodes.liveness import Liveness
from dlrover_lite.recipe.schema import Health

HEALTH = Health(heartbeat_seconds=5.0, startup_seconds=8.0, progress_seconds=20.0)
NAMES = ("ps-0", "worker-0", "worker-1")
TURNS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(NAMES)),
        st.sampled_from([0.0, 0.0, 25.0]),
        st.sampled_from([None, None, None, "launched", "up"]),
        st.floats(0.1, 3.0),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(TURNS)
def test_turns_that_look_at_nobody_miss_nobody(turns: list[tuple[set[str], float, str | None, float]]) -> None:
    each, seldom = (Liveness(HEALTH, 0.0, longest_turn_seconds=2.0) for _ in range(2))
    nodes = [Node(name, "ps" if name == "ps-0" else "worker", Resources(1.0, GIB), since=0.0) for name in NAMES[:2]]
    now, fresh = 0.0, True
    for heard, stuck_seconds, newcomer, pause in turns:
        if newcomer is not None:
            state = "up" if newcomer == "up" else "launched"
            nodes = [*nodes[:2], Node(NAMES[2], "worker", Resources(1.0, GIB), state=state, since=now)]
            fresh = True
        for name in heard:
            for one in (each, seldom):
                one.heard(name, "a pull", stuck_seconds)
        now += pause
        assert seldom.judge(nodes, now, same=not fresh) == each.judge(nodes, now)
        fresh = False
