"""One node's life: the table says what may follow what."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.units import Resources
from dlrover_lite.master.nodes.lifecycle import TRANSITIONS, EventKind, Node, State, step

STATES, EVENTS = get_args(State), get_args(EventKind)


def node(state: State = "launched") -> Node:
    return Node("worker-0", "worker", Resources(1.0, 100), state, since=1.0)


def test_a_node_is_started_up_draining_and_ended() -> None:
    life = node()
    states = []
    for now, kind in enumerate(("started", "hello", "drain", "exited"), start=2):
        found = step(life, kind, float(now))  # type: ignore[arg-type]
        assert found is not None
        life, _ = found
        assert life.since == now
        states.append(life.state)
    assert states == ["started", "up", "draining", "ended"]


@pytest.mark.parametrize("state", STATES)
def test_an_exit_ends_a_node_from_any_state(state: State) -> None:
    found = step(node(state), "exited", 2.0)
    if state == "ended":
        assert found is None
    else:
        assert found is not None
        assert (found[0].state, found[1]) == ("ended", ("judge_end",))


def test_given_up_nodes_are_killed_and_drained_ones_asked_to_leave() -> None:
    for (_, kind), (state, actions) in TRANSITIONS.items():
        assert ("kill" in actions) == (kind in ("overdue", "stuck", "kill")) == (state == "ending")
        assert ("ask_to_leave" in actions) == (kind == "drain") == (state == "draining")
    assert all(state in STATES and kind in EVENTS for state, kind in TRANSITIONS)


@given(st.sampled_from(STATES), st.lists(st.sampled_from(EVENTS), max_size=20))
def test_states_of_a_node_only_move_forward(state: State, history: list[EventKind]) -> None:
    order = {"launched": 0, "started": 1, "up": 2, "draining": 3, "ending": 4, "ended": 5}
    life = node(state)
    for kind in history:
        found = step(life, kind, 2.0)
        if found is None:
            continue
        assert order[found[0].state] > order[life.state]
        life = found[0]
