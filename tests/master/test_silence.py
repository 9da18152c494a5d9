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
NODE = Node("worker-0", "worker", Resources(1.0, GIB), state="up", since=0.0)
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


def _turns(liveness: Liveness, begin: float, seconds: int) -> list[str]:
    """One node that is at the same task all the time, told once a second, as is the master's turn; who is found."""
    found = []
    for second in range(1, seconds + 1):
        liveness.heard(NODE.id, "starting", begin + second)
        found += [one.why for one in liveness.judge([NODE], float(second))]
    return found


def test_a_node_that_waited_for_a_master_that_was_asleep_is_not_stuck() -> None:
    """The clock of a machine that sleeps stands still: only what nodes on others say tells that time has passed."""
    liveness = Liveness(HEALTH, 0.0)
    assert _turns(liveness, 0.0, 5) == []
    for seconds in range(6, 65):
        liveness.heard("worker-0", "starting", float(seconds))
    assert liveness.judge([NODE], 5.5) == []


def test_a_node_that_gets_nowhere_is_stuck_though_the_master_was_asleep_before() -> None:
    liveness = Liveness(HEALTH, 0.0)
    liveness.heard("worker-0", "starting", 1.0)
    found = _turns(liveness, 100.0, 25)
    assert len(found) == 4 and found[0] == "no progress for 20 s, in starting"


def _awake_for(seconds: int) -> Liveness:
    liveness = Liveness(HEALTH, 0.0)
    for second in range(1, seconds + 1):
        liveness.judge([], float(second))
    return liveness


def test_who_is_said_to_be_stuck_by_the_first_word_of_it_is() -> None:
    liveness = _awake_for(40)
    liveness.heard(NODE.id, "starting", 31.0)
    assert len(liveness.judge([NODE], 41.0)) == 1


def test_nobody_is_stuck_for_what_passed_before_the_master_began() -> None:
    """Found by seed 972564: the master before had slept, was killed, and its workers had waited for it."""
    assert _turns(Liveness(HEALTH, 0.0), 300.0, 15) == []
    assert len(_turns(Liveness(HEALTH, 0.0), 300.0, 25)) == 4


def test_nobody_is_stuck_at_what_was_begun_while_the_master_was_asleep() -> None:
    liveness = _awake_for(40)
    liveness.heard(NODE.id, "a minibatch", 0.1)
    liveness.judge([NODE], 41.0)
    liveness.heard(NODE.id, "a lease", 300.0)
    assert liveness.judge([NODE], 42.0) == []


def test_nobody_is_stuck_for_what_passes_while_a_server_is_missing() -> None:
    """Found by seed 972564: a server waited for room for a minute, and all workers for it."""
    liveness = _awake_for(1)
    for second in range(2, 60):
        liveness.heard(NODE.id, "a pull", float(second))
        assert liveness.judge([NODE], float(second), servers_up=False) == []
    for second in range(60, 79):
        liveness.heard(NODE.id, "a pull", float(second))
        assert liveness.judge([NODE], float(second)) == []
    liveness.heard(NODE.id, "a pull", 82.0)
    assert liveness.judge([NODE], 80.0) == liveness.judge([NODE], 81.0) == []
    liveness.heard(NODE.id, "a pull", 83.0)
    assert len(liveness.judge([NODE], 82.0)) == 1
