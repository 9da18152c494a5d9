"""Slots and their moves as a state machine: events in, one owner for each slot out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core import slot_sets
from dlrover_lite.master.slots.slot_state import Batch, SlotState

BOTH = {"ps-0", "ps-1"}
ALL = {"ps-0", "ps-1", "ps-2"}


def begun(*nodes: str) -> SlotState:
    return SlotState().begin(nodes or ("ps-0", "ps-1"))[0]


def wanted(state: SlotState, source: str, target: str, *members: int) -> SlotState:
    return state.want([(source, target, slot_sets.of(members))])[0]


def ready_of(state: SlotState, move: int, *members: int) -> dict[int, Batch]:
    """Slots of a move that its target has, by default all that are left."""
    left = next((one.members for one in state.moves if one.id == move), ~slot_sets.none())
    return {move: Batch(slot_sets.of(members) if members else left, rows=len(members), bytes=100 * len(members))}


def states(state: SlotState) -> list[tuple[int, str]]:
    return [(move.id, move.state) for move in state.moves]


def test_the_first_slot_map_is_even_and_in_whole_pieces() -> None:
    state, notes = SlotState().begin(["ps-0", "ps-1", "ps-2"])
    assert state.version == 1
    assert list(state.counts().values()) == [1366, 1365, 1365]
    assert (np.diff(state.positions().astype(int)) >= 0).all()
    assert notes[1].text == "owns slots 1366-2730 (map 1)"
    assert state.begin(["ps-7"]) == (state, [])


def test_a_move_is_queued_copied_committed_and_ended() -> None:
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
    assert copying.ready("ps-0", ready_of(copying, 1), 11.0)[0] is copying  # only its target may say so
    assert copying.ready("ps-2", ready_of(copying, 7), 11.0)[0] is copying
    done, notes = copying.ready("ps-2", ready_of(copying, 1), 11.5)
    assert done.version > copying.version
    assert notes[1].text == f"move 1 is done in 1.50 s, map {done.version}: 2 slots from ps-0"
    assert slot_sets.describe(done.owned("ps-2")) == "3-4"
    assert done.counts() == {"ps-0": 2046, "ps-1": 2048, "ps-2": 2}
    assert done.ready("ps-2", ready_of(done, 1), 12.0)[0] is done  # said again
    assert done.report("ps-2", done.version - 1, True)[0] is done  # tidy before it has heard
    assert done.report("ps-0", done.version, False)[0] is done
    half, _ = done.report("ps-2", done.version, True)
    assert states(half) == [(1, "committed")]
    over, _ = half.report("ps-0", done.version + 1, True)
    assert over.moves == []
    assert over.version == done.version


def _moved(state: SlotState, source: str, target: str, *members: int) -> SlotState:
    state = wanted(state, source, target, *members).start(ALL, 1.0)[0]
    state = state.ready(target, ready_of(state, state.next_move - 1), 2.0)[0]
    for node in (source, target):
        state = state.report(node, state.version, True)[0]
    return state


def test_a_slot_that_left_and_came_back_has_moved() -> None:
    state = begun()
    assert not state.moved_since(0).any()
    away = _moved(state, "ps-0", "ps-1", 3, 4)
    back = _moved(away, "ps-1", "ps-0", 3)
    assert back.owned("ps-0")[3]
    assert slot_sets.describe(back.moved_since(state.version)) == "3-4"
    assert slot_sets.describe(back.moved_since(away.version)) == "3"
    assert not back.moved_since(back.version).any()


def test_a_server_takes_part_in_one_move_at_a_time_until_both_are_tidy() -> None:
    state = begun("ps-0", "ps-1", "ps-2", "ps-3")
    state = wanted(wanted(wanted(state, "ps-0", "ps-1", 1), "ps-1", "ps-2", 1100), "ps-2", "ps-3", 2100)
    up = {f"ps-{i}" for i in range(4)}
    state, _ = state.start(up, 0.0)
    assert states(state) == [(1, "copying"), (2, "queued"), (3, "copying")]
    state, _ = state.ready("ps-1", ready_of(state, 1), 1.0)
    state, _ = state.report("ps-1", state.version, True)
    assert state.start(up, 1.0) == (state, [])  # ps-0 isn't tidy, and ps-2 at work
    state, _ = state.report("ps-0", state.version, True)
    assert state.start(up, 1.0) == (state, [])
    state, _ = state.cancel("why not", [3])
    assert states(state) == [(2, "queued"), (3, "cancelled")]
    for node in ("ps-2", "ps-3"):
        state, _ = state.report(node, state.version, True)
    assert states(state.start(up, 2.0)[0]) == [(2, "copying")]


def test_a_committed_move_cannot_be_cancelled() -> None:
    state = wanted(wanted(begun(), "ps-0", "ps-1", 1), "ps-0", "ps-1", 2)
    state, _ = state.start(BOTH, 0.0)
    state, _ = state.ready("ps-1", ready_of(state, 1), 0.0)
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
def test_senseless_moves_raise_a_bug(source: str, target: str, members: list[int]) -> None:
    state = wanted(begun(), "ps-0", "ps-1", 6)
    with pytest.raises(ValueError, match="can't move"):
        wanted(state, source, target, *members)


def test_moves_to_a_target_that_ends_are_cancelled() -> None:
    state = wanted(wanted(begun(), "ps-0", "ps-2", 1), "ps-1", "ps-2", 3000)
    state, _ = state.start(ALL, 0.0)
    state, _ = state.gone("ps-2")
    assert states(state) == [(1, "cancelled")]
    assert state.rebalance
    state, _ = state.report("ps-0", state.version, True)
    assert state.moves == []
    with pytest.raises(ValueError, match="owns slots"):
        state.gone("ps-1")


def test_a_source_without_slots_may_end() -> None:
    state = begun("ps-0")
    state, _ = state.leave(["ps-0"], "drained")
    state = wanted(state, "ps-0", "ps-1", *range(4096))
    state, _ = state.start(BOTH, 0.0)
    state, _ = state.ready("ps-1", ready_of(state, 1), 0.0)
    state, _ = state.report("ps-1", state.version, True)
    state, _ = state.gone("ps-0")
    assert (state.moves, state.leaving, state.rebalance) == ([], [], False)
    state.validate()


def test_no_moves_to_a_leaving_server_or_off_one_that_stays() -> None:
    state = wanted(wanted(begun(), "ps-0", "ps-1", 1), "ps-1", "ps-0", 3000)
    state, notes = state.leave(["ps-1"], "scaled to 1 parameter server")
    assert states(state) == [(2, "queued")]
    assert notes[-1].text == "leaves: scaled to 1 parameter server"
    assert state.leave(["ps-1"], "again") == (state, [])
    state, _ = state.stay(["ps-1"], "by request")
    assert (state.moves, state.leaving) == ([], [])


def test_only_slots_of_a_slow_server_move_at_once() -> None:
    state, _ = begun().leave(["ps-0"], "replaced", slow=True)
    assert state.slow == ["ps-0"] and state.leave(["ps-0"], "again", slow=True) == (state, [])
    moving, _ = state.want([("ps-0", "ps-1", slot_sets.of([1]))], at_once=state.slow)
    assert [move.at_once for move in moving.moves] == [True]
    assert not wanted(state, "ps-0", "ps-1", 1).moves[0].at_once
    assert begun().leave(["ps-0"], "drained")[0].slow == []
    assert state.stay(["ps-0"], "by request")[0].slow == []
    assert state.replaced("ps-0", "ps-2")[0].slow == []  # who follows it needn't be slow


def test_a_follower_takes_over_slots_moves_and_leaving() -> None:
    state = wanted(wanted(wanted(begun(), "ps-0", "ps-1", 1, 2), "ps-1", "ps-0", 3000), "ps-0", "ps-1", 7)
    state, _ = state.leave(["ps-0"], "drained")
    state, _ = state.start(BOTH, 0.0)
    assert states(state) == [(1, "copying"), (3, "queued")]
    before = state.owned("ps-0")
    down, notes = state.down("ps-0")
    assert states(down) == [(1, "cancelled"), (3, "queued"), (4, "queued")]
    assert slot_sets.describe(down.moves[2].members) == "1-2"
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


def test_a_follower_tidies_up_for_its_predecessor() -> None:
    state, _ = wanted(begun(), "ps-0", "ps-1", 1).start(BOTH, 0.0)
    state, _ = state.ready("ps-1", ready_of(state, 1), 1.0)
    state, _ = state.report("ps-1", state.version, True)
    state, _ = state.replaced("ps-1", "ps-2")
    assert state.owned("ps-2")[1]
    state, _ = state.replaced("ps-0", "ps-3")
    assert states(state) == [(1, "committed")]
    assert state.report("ps-2", state.version, True)[0] == state
    assert state.report("ps-3", state.version, True)[0].moves == []


@pytest.mark.parametrize(("old", "new"), [("ps-2", "ps-3"), ("ps-0", "ps-1"), ("ps-0", "ps-2")])
def test_a_server_without_slots_gets_no_follower_and_none_follows_two(old: str, new: str) -> None:
    state = wanted(begun(), "ps-1", "ps-2", 3000)
    with pytest.raises(ValueError, match="can't take the place"):
        state.replaced(old, new)


def test_slot_state_survives_as_text() -> None:
    state, _ = wanted(begun(), "ps-0", "ps-2", 3, 4).start(ALL, 10.0)
    assert msgspec.json.decode(msgspec.json.encode(state), type=SlotState) == state


NODES = [f"ps-{i}" for i in range(5)]
node = st.sampled_from(NODES)
EVENTS = st.one_of(
    st.tuples(st.just("want"), node, node, st.integers(0, 4000), st.integers(1, 96)),
    st.tuples(st.just("start")),
    st.tuples(st.just("ready"), node, st.lists(st.integers(1, 12), max_size=3)),
    st.tuples(st.just("ready, its target says"), st.integers(0, 5), st.sampled_from([1, 2, 2, 3])),
    st.tuples(st.just("ready, its target says"), st.integers(0, 5), st.sampled_from([1, 2, 2, 3])),
    st.tuples(st.just("ready once more"), st.integers(0, 20)),
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


Said = list[tuple[str, dict[int, Batch]]]
"""Who has said what is ready."""


def _apply(state: SlotState, alive: set[str], event: tuple[Any, ...], said: Said) -> SlotState:
    """As the master would: it never wants what can't be, and nobody who owned slots is forgotten."""
    match event:
        case ("want", source, target, first, count):
            taken = np.any([slot_sets.none(), *(move.members for move in state.open_moves())], axis=0)
            members = slot_sets.of(range(first, first + count)) & state.owned(source) & ~taken
            if source != target and members.any() and target in alive and target not in state.leaving:
                return state.want([(source, target, members)])[0]
            return state
        case ("start",):
            return state.start(alive, 1.0)[0]
        case ("ready", who, ids):
            return state.ready(who, {move: Batch(~slot_sets.none()) for move in ids}, 2.0)[0]
        case ("ready, its target says", i, part) if state.moves:
            move = state.moves[i % len(state.moves)]
            batch = Batch(slot_sets.of(np.flatnonzero(move.members)[::part].tolist()), 1, 10)
            said.append((move.target, {move.id: batch}))
            return state.ready(*said[-1], 2.0)[0]
        case ("ready once more", i) if said:
            return state.ready(*said[i % len(said)], 2.0)[0]
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
            return _apply(state, alive, ("gone", state.moves[i % len(state.moves)].target), said)
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


def _open(state: SlotState) -> dict[int, slot_sets.SlotSet]:
    return {move.id: move.members for move in state.moves if move.state == "copying"}


def _check_step(state: SlotState, after: SlotState, event: tuple[Any, ...]) -> None:
    """What became of slots with one event: they change their owner only by a batch of a move under way, to its target."""
    after.validate()
    assert after.version >= state.version
    others = {node for node in {*state.ps, *after.ps} if (state.owned(node) != after.owned(node)).any()}
    assert after.differing(state) == others
    if (after.owners, [*_open(after)]) != (state.owners, [*_open(state)]):
        assert after.version > state.version  # who follows the newest orders misses nothing
    known = {move.id: move for move in after.moves}
    for move in state.moves:
        same = known.get(move.id)
        if same is not None:
            assert same.count == move.count, "of the slots that it was of, none is forgotten"
            assert same.moved >= move.moved
            if event[0] != "dies":
                gone = move.members & ~same.members
                assert (after.owned(move.target)[gone]).all(), "what is no longer to be moved is where it was to go"
    if not state.version or event[0] == "dies":
        return
    named = [np.array(one.ps)[one.positions()] for one in (state, after)]
    moved = named[0] != named[1]
    assert not moved.any() or event[0].startswith("ready")
    under_way = list(_open(state).values())
    assert not (moved & ~np.any([slot_sets.none(), *under_way], axis=0)).any()


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3), st.lists(EVENTS, min_size=20, max_size=60))
def test_any_history_keeps_one_owner_and_comes_to_rest(count: int, history: list[tuple[Any, ...]]) -> None:
    state, alive, said = begun(*NODES[:count]), set(NODES), Said()
    for event in history:
        after = _apply(state, alive, event, said)
        _check_step(state, after, event)
        state = after
    assert sum(state.counts().values()) == slot_sets.SLOTS
    wishes = [(move.target, move.members) for move in state.open_moves() if {move.source, move.target} <= alive]
    for _ in range(3 * len(state.moves) + 1):  # everybody does what he is told
        state, _ = state.start(alive, 1.0)
        for move in state.moves:
            half = Batch(slot_sets.of(np.flatnonzero(move.members)[: -(-move.left // 2)].tolist()))
            state, _ = state.ready(move.target, {move.id: half}, 2.0)
            state, _ = state.ready(move.target, ready_of(state, move.id), 2.0)
        for who in alive:
            state, _ = state.report(who, state.version, True)
    assert state.moves == []
    for target, members in wishes:
        assert state.owned(target)[members].all(), "every slot of the wish is at its target"


def test_a_move_goes_batch_by_batch_each_with_a_version_of_its_own() -> None:
    state, _ = wanted(begun(), "ps-0", "ps-1", 1, 2, 3, 4, 5).start(BOTH, 10.0)
    half, notes = state.ready("ps-1", ready_of(state, 1, 2, 4), 10.5)
    assert notes == [] and states(half) == [(1, "copying")]
    (move,) = half.moves
    assert (half.version, slot_sets.describe(move.members), move.moved, move.count) == (
        state.version + 1,
        "1, 3, 5",
        2,
        5,
    )
    assert slot_sets.describe(half.moved_since(state.version)) == "2, 4"
    assert half.ready("ps-1", ready_of(state, 1, 2, 4), 11.0)[0] is half  # said again
    assert half.ready("ps-1", {1: Batch(slot_sets.of([2, 4, 3000]))}, 11.0)[0] is half, "what isn't the move's stays"
    assert half.report("ps-1", half.version, True)[0] is half, "it is under way still"
    more, _ = half.ready("ps-1", ready_of(state, 1, 1, 2), 11.0)  # some of it is new
    (move,) = more.moves
    assert (slot_sets.describe(move.members), move.moved) == ("3, 5", 3)
    done, notes = more.ready("ps-1", ready_of(more, 1), 12.0)
    assert notes[0].text == f"move 1 is done in 2.00 s, map {done.version}: 5 slots to ps-1"
    assert (
        states(done) == [(1, "committed")] and slot_sets.describe(done.owned("ps-0") ^ begun().owned("ps-0")) == "1-5"
    )


def test_a_cancelled_move_keeps_the_slots_that_have_moved() -> None:
    state, _ = wanted(begun(), "ps-0", "ps-1", 1, 2, 3).start(BOTH, 0.0)
    state, _ = state.ready("ps-1", ready_of(state, 1, 2), 1.0)
    after, notes = state.cancel("by request")
    assert notes[0].text == "move 1 is cancelled, by request: 2 of 3 slots to ps-1; 1 has moved and stays"
    assert after.owned("ps-1")[2] and after.owned("ps-0")[[1, 3]].all()
    assert after.ready("ps-1", ready_of(state, 1), 2.0)[0] is after


def test_a_move_goes_on_with_the_rest_after_its_source_dies() -> None:
    state, _ = wanted(begun(), "ps-0", "ps-1", 1, 2, 3).start(BOTH, 0.0)
    state, _ = state.ready("ps-1", ready_of(state, 1, 1, 2), 1.0)
    down, _ = state.down("ps-0")
    assert states(down) == [(1, "cancelled"), (2, "queued")]
    assert slot_sets.describe(down.moves[1].members) == "3" and down.owned("ps-1")[[1, 2]].all()
    assert down.ready("ps-1", ready_of(state, 1), 2.0)[0] is down, "the source that had frozen it is no more"


def test_the_rate_of_moves_is_that_of_the_rows_that_were_committed() -> None:
    state, _ = wanted(begun(), "ps-0", "ps-1", 1, 2, 3).start(BOTH, 10.0)
    assert state.move_rate is None and state.moves[0].bytes_per_second == 0
    state, _ = state.ready("ps-1", {1: Batch(slot_sets.of([1]), 5, 1000)}, 12.0)
    assert (state.move_rate, state.moves[0].bytes_per_second) == (500.0, 500.0)
    state, _ = state.ready("ps-1", {1: Batch(slot_sets.of([2, 3]), 5, 200)}, 13.0)
    assert (state.move_rate, state.moves[0].moved_rows) == (400.0, 10)


def test_slot_state_from_before_batches_is_read() -> None:
    old = msgspec.to_builtins(wanted(begun(), "ps-0", "ps-1", 1, 2).start(BOTH, 10.0)[0])
    for name in ("moved", "moved_rows", "moved_bytes", "newest_at"):
        del old["moves"][0][name]
    for name in ("moved_bytes", "moving_seconds"):
        del old[name]
    state = msgspec.convert(old, SlotState)
    state.validate()
    state, _ = state.ready("ps-1", ready_of(state, 1, 2), 11.0)
    assert slot_sets.describe(state.moves[0].members) == "1"
    old["moves"][0] |= {"state": "committed", "ended_at": 2}
    state = msgspec.convert(old, SlotState)
    assert (state.moves[0].count, state.report("ps-0", 2, True)[0].moves[0].tidied) == (2, ["ps-0"])
