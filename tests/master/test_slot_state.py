"""Slots and their moves as a state machine: events in, one owner for each slot out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite import slots
from dlrover_lite.master.slot_state import SlotState

BOTH = {"ps-0", "ps-1"}
ALL = {"ps-0", "ps-1", "ps-2"}


def begun(*nodes: str) -> SlotState:
    return SlotState().begin(nodes or ("ps-0", "ps-1"))[0]


def wanted(state: SlotState, source: str, target: str, *members: int) -> SlotState:
    return state.want([(source, target, slots.of(members))])[0]


def states(state: SlotState) -> list[tuple[int, str]]:
    return [(move.id, move.state) for move in state.moves]


def test_the_first_map_is_even_and_in_whole_pieces() -> None:
    state, notes = SlotState().begin(["ps-0", "ps-1", "ps-2"])
    assert state.version == 1
    assert list(state.counts().values()) == [1366, 1365, 1365]
    assert (np.diff(state.positions().astype(int)) >= 0).all()
    assert notes[1].text == "owns slots 1366-2730 (map 1)"
    assert state.begin(["ps-7"]) == (state, [])


def test_a_move_from_the_wish_to_its_end() -> None:
    state = wanted(begun(), "ps-0", "ps-2", 3, 4)
    assert states(state) == [(1, "queued")]
    assert state.start(BOTH, 10.0) == (state, [])  # its target isn't up
    copying, notes = state.start(ALL, 10.0)
    assert states(copying) == [(1, "copying")]
    assert copying.version > state.version > 1
    assert [(note.node, note.text) for note in notes] == [
        ("ps-0", "move 1 begins: 2 slots to ps-2"),
        ("ps-2", "move 1 begins: 2 slots from ps-0"),
    ]
    assert copying.ready("ps-0", [1], 11.0)[0] is copying  # only its target may say so
    assert copying.ready("ps-2", [7], 11.0)[0] is copying
    done, notes = copying.ready("ps-2", [1], 11.5)
    assert done.version > copying.version
    assert notes[1].text == f"move 1 is done in 1.50 s, map {done.version}: 2 slots from ps-0"
    assert slots.describe(done.owned("ps-2")) == "3-4"
    assert done.counts() == {"ps-0": 2046, "ps-1": 2048, "ps-2": 2}
    assert done.ready("ps-2", [1], 12.0)[0] is done  # said again
    assert done.report("ps-2", done.version - 1, True)[0] is done  # tidy before it has heard
    assert done.report("ps-0", done.version, False)[0] is done
    half, _ = done.report("ps-2", done.version, True)
    assert states(half) == [(1, "committed")]
    over, _ = half.report("ps-0", done.version + 1, True)
    assert over.moves == []
    assert over.version == done.version


def _moved(state: SlotState, source: str, target: str, *members: int) -> SlotState:
    state = wanted(state, source, target, *members).start(ALL, 1.0)[0]
    state = state.ready(target, [state.next_move - 1], 2.0)[0]
    for node in (source, target):
        state = state.report(node, state.version, True)[0]
    return state


def test_a_slot_that_left_and_came_back_has_moved() -> None:
    state = begun()
    assert not state.moved_since(0).any()
    away = _moved(state, "ps-0", "ps-1", 3, 4)
    back = _moved(away, "ps-1", "ps-0", 3)
    assert back.owned("ps-0")[3]
    assert slots.describe(back.moved_since(state.version)) == "3-4"
    assert slots.describe(back.moved_since(away.version)) == "3"
    assert not back.moved_since(back.version).any()


def test_a_server_takes_part_in_one_move_at_a_time_until_both_are_tidy() -> None:
    state = begun("ps-0", "ps-1", "ps-2", "ps-3")
    state = wanted(wanted(wanted(state, "ps-0", "ps-1", 1), "ps-1", "ps-2", 1100), "ps-2", "ps-3", 2100)
    up = {f"ps-{i}" for i in range(4)}
    state, _ = state.start(up, 0.0)
    assert states(state) == [(1, "copying"), (2, "queued"), (3, "copying")]
    state, _ = state.ready("ps-1", [1], 1.0)
    state, _ = state.report("ps-1", state.version, True)
    assert state.start(up, 1.0) == (state, [])  # ps-0 isn't tidy, and ps-2 at work
    state, _ = state.report("ps-0", state.version, True)
    assert state.start(up, 1.0) == (state, [])
    state, _ = state.cancel("why not", [3])
    assert states(state) == [(2, "queued"), (3, "cancelled")]
    for node in ("ps-2", "ps-3"):
        state, _ = state.report(node, state.version, True)
    assert states(state.start(up, 2.0)[0]) == [(2, "copying")]


def test_what_is_committed_cannot_be_cancelled() -> None:
    state = wanted(wanted(begun(), "ps-0", "ps-1", 1), "ps-0", "ps-1", 2)
    state, _ = state.start(BOTH, 0.0)
    state, _ = state.ready("ps-1", [1], 0.0)
    after, notes = state.cancel("by request")
    assert states(after) == [(1, "committed")]  # nobody had heard of the other
    assert notes[0].text == "move 2 is cancelled, by request: 1 slot to ps-1"
    assert after.owned("ps-1")[1] and not after.owned("ps-1")[2]
    assert after.cancel("again") == (after, [])


@pytest.mark.parametrize(
    ("source", "target", "members"),
    [
        ("ps-0", "ps-0", [1]),
        ("ps-1", "ps-0", [1]),
        ("ps-0", "ps-1", []),
        ("ps-9", "ps-0", [1]),
        ("ps-0", "ps-1", [5, 6]),
    ],
)
def test_moves_that_make_no_sense_are_a_bug(source: str, target: str, members: list[int]) -> None:
    state = wanted(begun(), "ps-0", "ps-1", 6)
    with pytest.raises(ValueError, match="can't move"):
        wanted(state, source, target, *members)


def test_a_target_that_ends_takes_its_moves_with_it() -> None:
    state = wanted(wanted(begun(), "ps-0", "ps-2", 1), "ps-1", "ps-2", 3000)
    state, _ = state.start(ALL, 0.0)
    state, _ = state.gone("ps-2")
    assert states(state) == [(1, "cancelled")]
    assert state.rebalance
    state, _ = state.report("ps-0", state.version, True)
    assert state.moves == []
    with pytest.raises(ValueError, match="owns slots"):
        state.gone("ps-1")


def test_a_source_that_has_nothing_left_may_end() -> None:
    state = begun("ps-0")
    state, _ = state.leave(["ps-0"], "drained")
    state = wanted(state, "ps-0", "ps-1", *range(4096))
    state, _ = state.start(BOTH, 0.0)
    state, _ = state.ready("ps-1", [1], 0.0)
    state, _ = state.report("ps-1", state.version, True)
    state, _ = state.gone("ps-0")
    assert (state.moves, state.leaving, state.rebalance) == ([], [], False)
    state.validate()


def test_nothing_moves_to_who_leaves_nor_off_who_stays_after_all() -> None:
    state = wanted(wanted(begun(), "ps-0", "ps-1", 1), "ps-1", "ps-0", 3000)
    state, notes = state.leave(["ps-1"], "scaled to 1 parameter server")
    assert states(state) == [(2, "queued")]
    assert notes[-1].text == "leaves: scaled to 1 parameter server"
    assert state.leave(["ps-1"], "again") == (state, [])
    state, _ = state.stay(["ps-1"], "by request")
    assert (state.moves, state.leaving) == ([], [])


def test_off_a_slow_one_slots_move_at_once_and_off_no_other() -> None:
    state, _ = begun().leave(["ps-0"], "replaced", slow=True)
    assert state.slow == ["ps-0"] and state.leave(["ps-0"], "again", slow=True) == (state, [])
    moving, _ = state.want([("ps-0", "ps-1", slots.of([1]))], at_once=state.slow)
    assert [move.at_once for move in moving.moves] == [True]
    assert not wanted(state, "ps-0", "ps-1", 1).moves[0].at_once
    assert begun().leave(["ps-0"], "drained")[0].slow == []
    assert state.stay(["ps-0"], "by request")[0].slow == []
    assert state.replaced("ps-0", "ps-2")[0].slow == []  # who follows it needn't be slow


def test_who_follows_is_all_that_the_other_was() -> None:
    state = wanted(wanted(wanted(begun(), "ps-0", "ps-1", 1, 2), "ps-1", "ps-0", 3000), "ps-0", "ps-1", 7)
    state, _ = state.leave(["ps-0"], "drained")
    state, _ = state.start(BOTH, 0.0)
    assert states(state) == [(1, "copying"), (3, "queued")]
    before = state.owned("ps-0")
    down, notes = state.down("ps-0")
    assert states(down) == [(1, "cancelled"), (3, "queued"), (4, "queued")]
    assert slots.describe(down.moves[2].members) == "1-2"
    assert "move 1 is cancelled, ps-0 has ended: 2 slots to ps-1" in [note.text for note in notes]
    assert down.down("ps-0") == (down, [])
    after, notes = down.replaced("ps-0", "ps-2")
    after.validate()
    assert after.version > down.version > state.version
    assert after == state.replaced("ps-0", "ps-2")[0]
    assert (after.owned("ps-2") == before).all() and not after.owns("ps-0")
    assert (after.leaving, after.ps) == (["ps-2"], ["ps-2", "ps-1"])
    assert {move.source for move in after.moves} == {"ps-2"}
    assert (notes[-1].node, notes[-1].text) == ("ps-2", f"owns what ps-0 owned: 2,048 slots (map {after.version})")
    assert after.start({"ps-0", "ps-1", "ps-2"}, 1.0)[0] == after  # neither is tidy yet
    for node in ("ps-1", "ps-2"):
        after, _ = after.report(node, after.version, True)
    assert states(after.start({"ps-1", "ps-2"}, 1.0)[0]) == [(3, "copying"), (4, "queued")]


def test_a_follower_tidies_up_what_the_other_had_to() -> None:
    state, _ = wanted(begun(), "ps-0", "ps-1", 1).start(BOTH, 0.0)
    state, _ = state.ready("ps-1", [1], 1.0)
    state, _ = state.report("ps-1", state.version, True)
    state, _ = state.replaced("ps-1", "ps-2")
    assert state.owned("ps-2")[1]
    state, _ = state.replaced("ps-0", "ps-3")
    assert states(state) == [(1, "committed")]
    assert state.report("ps-2", state.version, True)[0] == state
    assert state.report("ps-3", state.version, True)[0].moves == []


@pytest.mark.parametrize(("old", "new"), [("ps-2", "ps-3"), ("ps-0", "ps-1"), ("ps-0", "ps-2")])
def test_nobody_takes_the_place_of_one_without_slots_or_two_places(old: str, new: str) -> None:
    state = wanted(begun(), "ps-1", "ps-2", 3000)
    with pytest.raises(ValueError, match="can't take the place"):
        state.replaced(old, new)


def test_a_state_survives_as_text() -> None:
    state, _ = wanted(begun(), "ps-0", "ps-2", 3, 4).start(ALL, 10.0)
    assert msgspec.json.decode(msgspec.json.encode(state), type=SlotState) == state


NODES = [f"ps-{i}" for i in range(5)]
node = st.sampled_from(NODES)
EVENTS = st.one_of(
    st.tuples(st.just("want"), node, node, st.integers(0, 4000), st.integers(1, 96)),
    st.tuples(st.just("start")),
    st.tuples(st.just("ready"), node, st.lists(st.integers(1, 12), max_size=3)),
    st.tuples(st.just("ready, its target says"), st.integers(0, 5)),
    st.tuples(st.just("report"), node, st.integers(0, 3), st.booleans()),
    st.tuples(st.just("report of both"), st.integers(0, 5), st.integers(0, 1)),
    st.tuples(st.just("cancel"), st.none() | st.lists(st.integers(1, 12), max_size=3)),
    st.tuples(st.just("gone"), node),
    st.tuples(st.just("gone is the target"), st.integers(0, 5)),
    st.tuples(st.just("leave"), node),
    st.tuples(st.just("stay"), node),
    st.tuples(st.just("restart")),
    st.tuples(st.just("dies"), node, st.booleans()),
)


def _apply(state: SlotState, alive: set[str], event: tuple[Any, ...]) -> SlotState:
    """As the master would: it never wants what can't be, and nobody who owned slots is forgotten."""
    match event:
        case ("want", source, target, first, count):
            taken = np.any([slots.none(), *(move.members for move in state.open_moves())], axis=0)
            members = slots.of(range(first, first + count)) & state.owned(source) & ~taken
            if source != target and members.any() and target in alive and target not in state.leaving:
                return state.want([(source, target, members)])[0]
            return state
        case ("start",):
            return state.start(alive, 1.0)[0]
        case ("ready", who, ids):
            return state.ready(who, ids, 2.0)[0]
        case ("ready, its target says", i) if state.moves:
            move = state.moves[i % len(state.moves)]
            return state.ready(move.target, [move.id], 2.0)[0]
        case ("report of both", i, behind) if state.moves:
            move = state.moves[i % len(state.moves)]
            for who in {move.source, move.target} & alive:
                state, _ = state.report(who, state.version - behind, True)
            return state
        case ("report", who, behind, tidy):
            return state.report(who, max(0, state.version - behind), tidy)[0]
        case ("cancel", which):
            return state.cancel("so", which)[0]
        case ("gone is the target", i) if state.moves:
            return _apply(state, alive, ("gone", state.moves[i % len(state.moves)].target))
        case ("gone", who):
            if state.owns(who):
                return state
            alive.discard(who)
            return state.gone(who)[0]
        case ("dies", who, at_once) if state.owns(who):
            state, _ = state.down(who)
            if at_once:
                alive.discard(who)
                new = f"ps-{100 + state.version}"
                alive.add(new)
                state, _ = state.replaced(who, new)
            return state
        case ("leave", who):
            return state.leave([who], "so", slow=who == "ps-0")[0]
        case ("stay", who):
            return state.stay([who], "so")[0]
        case _:
            return msgspec.json.decode(msgspec.json.encode(state), type=SlotState)


def _copying(state: SlotState) -> set[int]:
    return {move.id for move in state.moves if move.state == "copying"}


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3), st.lists(EVENTS, min_size=20, max_size=60))
def test_any_history_keeps_one_owner_and_comes_to_rest(count: int, history: list[tuple[Any, ...]]) -> None:
    state, alive = begun(*NODES[:count]), set(NODES)
    for event in history:
        after = _apply(state, alive, event)
        after.validate()
        assert after.version >= state.version
        if (after.owners, _copying(after)) != (state.owners, _copying(state)):
            assert after.version > state.version  # who follows the newest orders misses nothing
        state = after
    assert sum(state.counts().values()) == slots.SLOTS
    for _ in range(len(state.moves) + 1):  # everybody does what he is told
        state, _ = state.start(alive, 1.0)
        for move in state.moves:
            state, _ = state.ready(move.target, [move.id], 2.0)
        for who in alive:
            state, _ = state.report(who, state.version, True)
    assert state.moves == []
