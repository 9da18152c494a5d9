"""What a server leaves and finds: memory, header, configuration, minibatches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.failpoints import Died, armed
from dlrover_lite.core.records import TABLE_EPOCH
from dlrover_lite.protocol.messages import PsOrders, RestoreOrder
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, AppliedMinibatches, Part, mask_of, to_bitmap
from dlrover_lite.ps.journal.memory_check import ParametersLost, check_memory
from dlrover_lite.ps.journal.server_state import MAJOR, MINOR
from dlrover_lite.ps.journal.state_words import Header
from dlrover_lite.ps.memory.arena import Arena
from dlrover_lite.ps.memory.state_memory import PrivateMemory
from dlrover_lite.ps.server.engine import Engine, NotOwned
from dlrover_lite.ps.tables.row_arrays import INDEXED, NUMBERS, USED
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.layout import hashes_of, slots_of
from tests.ps.models import nothing_applied, read

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memory that outlives its process")

SGD = Optimizer(use="sgd", learning_rate=1.0)
CONFIGURATION = Configure(1, [TableSpec("a", 2, 0.0), TableSpec("b", 3, 0.0)], DenseSpec(0, 0), SGD, SGD)
LOWER = mask_of(slot_sets.pack(np.arange(slot_sets.SLOTS) < 2048))


@pytest.fixture
def memories() -> Iterator[list[PrivateMemory]]:
    """The last one is the one in use."""
    made = [PrivateMemory()]
    yield made
    for memory in made:
        memory.close()


def start(memories: list[PrivateMemory]) -> Engine:
    engine = Engine(owned=ALL_SLOTS, memory=memories[-1])
    engine.configure(CONFIGURATION, ALL_SLOTS)
    return engine


def follow(memories: list[PrivateMemory]) -> Engine:
    memories.append(memories[-1].hand_over())
    engine = Engine(memory=memories[-1])
    engine.own(ALL_SLOTS)
    return engine


def follow_nothing(memories: list[PrivateMemory]) -> Engine:
    """The memory of the one that it follows is gone, as with its machine."""
    memories.append(PrivateMemory())
    return Engine(memory=memories[-1], follows=True)


def words(memories: list[PrivateMemory]) -> np.ndarray:
    """Of the state that was left."""
    memories.append(memories[-1].hand_over())
    return Arena("state", fd=memories[-1].left()["state"]).bytes.view(np.uint64)


def push(engine: Engine, k: int, keys: range = range(300), covers: int = ALL_SLOTS) -> bool:
    """A gradient of one for each of these keys, in both tables."""
    groups = []
    for table, dim in (("a", 2), ("b", 3)):
        ids = np.array(keys, np.uint64)
        ids = ids[slot_sets.unpack(to_bitmap(covers))[slots_of(table, ids)]]
        groups.append((ids, [len(ids)], np.ones((len(ids), dim), np.float32)))
    return engine.push(0, k, 1.0, covers, groups).applied


def values(engine: Engine, keys: range = range(300)) -> list[np.ndarray]:
    ids = np.array(keys, np.uint64)
    return engine.pull([(ids, [len(ids)]), (ids, [len(ids)])])


def all_are(engine: Engine, value: float) -> bool:
    return all((found == value).all() for found in values(engine))


def dies_at(memories: list[PrivateMemory], failpoint: str, act: Callable[[Engine], object]) -> None:
    with armed(f"{failpoint}=raise"):
        engine = follow(memories)
        with pytest.raises(Died):
            act(engine)


def test_private_memory_hands_over_its_files(memories: list[PrivateMemory]) -> None:
    memory = memories[0]
    assert memory.left() == {}
    Arena("x", fd=memory.create("x", 1 << 20)).bytes[5] = 7
    assert memory.left() == {}, "it is its own"
    memories.append(memory.hand_over())
    left = memories[1].left()
    assert list(left) == ["x"]
    assert Arena("x", fd=left["x"]).bytes[5] == 7
    new = Arena("x", fd=memories[1].create("x", 1 << 20))
    assert (new.bytes[5], memories[1].left()) == (0, {})


def test_a_follower_goes_on_with_rows_applied_minibatches_and_configuration(memories: list[PrivateMemory]) -> None:
    engine = start(memories)
    for k in range(3):
        assert push(engine, k)
    minibatches = len(engine.applied_minibatches._applied)
    engine = follow(memories)
    assert (engine.version, engine.configuration, len(engine.applied_minibatches._applied)) == (
        3,
        CONFIGURATION,
        minibatches,
    )
    assert not push(engine, 2)
    assert push(engine, 3)
    assert all_are(engine, -4.0)
    engine = follow(memories)
    assert all_are(engine, -4.0)
    engine.groups[0].begin_snapshot()
    engine = follow(memories)
    assert engine.groups[0]._epoch == 2, "epochs go on"


def test_a_follower_owns_nothing_until_told_and_drops_other_slots(memories: list[PrivateMemory]) -> None:
    push(start(memories), 0)
    memories.append(memories[-1].hand_over())
    engine = Engine(memory=memories[-1])
    with pytest.raises(NotOwned):
        values(engine)
    assert engine.own(LOWER) == ALL_SLOTS & ~LOWER
    assert engine.own(LOWER) == 0
    assert engine.applied_minibatches.applied(0, 0) == LOWER


def test_a_follower_of_an_unconfigured_server_is_unconfigured(memories: list[PrivateMemory]) -> None:
    Engine(memory=memories[-1])
    engine = follow(memories)
    assert engine.configuration is None
    assert engine.own(0) == ALL_SLOTS
    engine.own(ALL_SLOTS)
    engine.configure(CONFIGURATION, ALL_SLOTS)
    assert push(engine, 0)


def test_logged_rows_are_logged_again_for_a_new_move(memories: list[PrivateMemory]) -> None:
    engine = start(memories)
    engine.track(ALL_SLOTS)
    push(engine, 0)
    assert engine.groups[0].logged() == 300
    engine = follow(memories)
    assert engine.groups[0].logged() == 0
    engine.track(ALL_SLOTS)
    push(engine, 1)
    assert engine.groups[0].logged() == 300


# --- what can't be taken up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value", "why"),
    [
        (Header.MAGIC, 1, "doesn't begin as one"),
        (Header.FORMAT, (MAJOR + 1) << 32, rf"format {MAJOR + 1}\.0, and this version reads {MAJOR}\.{MINOR}"),
        (Header.FORMAT, (MAJOR - 1) << 32, rf"format {MAJOR - 1}\.0, and this version reads {MAJOR}\.{MINOR}"),
        (Header.FORMAT, 0, "makes no sense"),
        (Header.UNDER_WAY, 2, "makes no sense"),
        (Header.ENTRIES, 1 << 40, "makes no sense"),
        (Header.CONFIGURATION_BYTES, 5, "checksum"),
        (Header.CONFIGURATION_BYTES, 1 << 50, "checksum"),
        (Header.CONFIGURATION_DIGEST, 5, "checksum"),
        (Header.CONFIGURATION, 5, "checksum"),
        (Header.PARTS, 7 << 32 | 5, "no such interrupted pushes"),
        (Header.PARTS, 5, "can't be read"),
        (Header.GROUPS + int(USED), 1 << 50, "group-0 is damaged"),
        (Header.GROUPS + int(USED), 301, None),
    ],
)
def test_a_damaged_state_is_refused(memories: list[PrivateMemory], word: int, value: int, why: str | None) -> None:
    push(start(memories), 0)
    words(memories)[word] = value
    if why is None:
        assert all_are(follow(memories), -1.0), "a number that no row has got yet"
        return
    with pytest.raises(JobError, match=why):
        follow(memories)


def test_a_newer_minor_version_is_read(memories: list[PrivateMemory]) -> None:
    push(start(memories), 0)
    words(memories)[Header.FORMAT] = MAJOR << 32 | (MINOR + 1)
    assert all_are(follow(memories), -1.0)


def test_a_damaged_journal_or_rows_of_no_table_are_refused(memories: list[PrivateMemory]) -> None:
    push(start(memories), 0)
    for progress, why in ((60_000, "journal is damaged"), (1, "row .* of 300"), (7 << 16, "7 keys were updated")):
        state = words(memories)
        journal = Arena("journal", fd=memories[-1].left()["journal"]).bytes.view(np.uint64)
        journal[0] = 1 << 40
        Arena("pushed", fd=memories[-1].left()["pushed"]).bytes.view(np.uint32)[6] = 300
        state[Header.UNDER_WAY], state[Header.PROGRESS] = 1, progress
        with pytest.raises(JobError, match=why):
            follow(memories)
    words(memories)[Header.UNDER_WAY] = 0
    row_words = follow(memories).groups[1].shape.words
    arena = Arena("records", fd=memories[-1].left()["group-1"])
    arena.bytes.view(np.uint32)[row_words * 17 + int(TABLE_EPOCH)] = 9 << 20
    words(memories)[Header.GROUPS + NUMBERS + int(INDEXED)] = 0  # its index is made from them
    with pytest.raises(JobError, match="row 17 of 300"):
        follow(memories)


def test_a_missing_arena_is_reported(memories: list[PrivateMemory]) -> None:
    push(start(memories), 0)
    left = memories[-1].hand_over().left()
    memories.append(PrivateMemory({name: fd for name, fd in left.items() if name != "group-1"}))
    with pytest.raises(JobError, match="gone: group-1"):
        follow(memories)


# --- minibatches of interrupted pushes --------------------------------------------------------------------------------------


def test_repeating_an_interrupted_push_does_only_the_rest(memories: list[PrivateMemory]) -> None:
    push(start(memories), 0)
    dies_at(memories, "ps.chunk.done", lambda engine: push(engine, 1))
    engine = follow(memories)
    (part,) = engine.applied_minibatches.parts(0, 1)
    assert (part.groups, len(part.done(0)), len(part.done(1)), engine.applied_minibatches.applied(0, 1)) == (
        0,
        128,
        0,
        0,
    )
    changed = [(found == -2.0).all(1).sum() for found in values(engine)]
    assert changed == [128, 0]
    assert engine.version == 1
    assert push(engine, 1, covers=LOWER)
    assert push(engine, 1)
    assert not push(engine, 1)
    assert all_are(engine, -2.0)
    assert engine.applied_minibatches.parts(0, 1) == []
    assert all_are(follow(memories), -2.0)


def test_an_interrupted_push_is_completed_after_other_pushes(memories: list[PrivateMemory]) -> None:
    push(start(memories), 0)
    dies_at(memories, "ps.chunk.done", lambda engine: push(engine, 1))
    engine = follow(memories)
    assert push(engine, 2)
    engine = follow(memories)
    assert push(engine, 3)
    assert push(engine, 1)
    assert all_are(engine, -4.0)


def test_a_push_interrupted_twice_is_applied_once(memories: list[PrivateMemory]) -> None:
    push(start(memories), 0)
    dies_at(memories, "ps.chunk.done", lambda engine: push(engine, 1))
    dies_at(memories, "ps.push.group", lambda engine: push(engine, 1, covers=LOWER))
    dies_at(memories, "ps.chunk.half", lambda engine: push(engine, 1))
    dies_at(memories, "ps.push.applied", lambda engine: push(engine, 1))
    engine = follow(memories)
    assert not push(engine, 1)
    assert engine.version == 2
    assert all_are(engine, -2.0)


def test_an_interrupted_push_moves_with_its_slots(memories: list[PrivateMemory]) -> None:
    push(start(memories), 0)
    dies_at(memories, "ps.chunk.done", lambda engine: push(engine, 1))
    source = follow(memories)
    target = Engine()
    target.configure(CONFIGURATION)
    for mine, other in zip(source.groups, target.groups, strict=True):
        rows, _ = mine.find(slot_sets.unpack(to_bitmap(LOWER)), 0, scan_limit=1000, row_limit=1000)
        other.write(read(mine, rows))
    target.applied_minibatches.unpack(source.applied_minibatches.parcel(LOWER))
    target.own(LOWER)
    source.own(ALL_SLOTS & ~LOWER)
    for engine in (source, target):
        assert push(engine, 1, covers=engine.owned)
        for group in engine.groups:
            found, _ = group.scan(0, 1000)
            assert (found.values == -2.0).all()
    assert source.rows + target.rows == 600


def part(slots: int, groups: int = 1, keys: int = 0) -> Part:
    hashes = hashes_of("a", np.arange(keys, dtype=np.uint64))
    return Part(0, 3, to_bitmap(slots), groups, np.zeros(keys, np.uint16).tobytes(), hashes.tobytes())


def test_parts_of_interrupted_pushes_go_with_their_minibatch_or_slots() -> None:
    for end in ("consumed", "below", "forgotten", "applied"):
        minibatches = nothing_applied()
        minibatches.add_part(part(ALL_SLOTS, keys=50))
        minibatches.add_part(part(ALL_SLOTS, keys=50))
        assert len(minibatches.parts(0, 3)) == 1
        minibatches.forget(LOWER)
        (left,) = minibatches.parts(0, 3)
        assert left.mask == ALL_SLOTS & ~LOWER
        assert 0 < len(left.done(0)) < 50
        match end:
            case "consumed":
                minibatches.consumed(0, [(0, [(3, 4)])])
            case "below":
                minibatches.consumed(1, [])
            case "forgotten":
                minibatches.forget(ALL_SLOTS)
            case "applied":
                minibatches.add(0, 3, ALL_SLOTS & ~LOWER)
        assert minibatches.parts(0, 3) == []


@pytest.mark.parametrize(
    "bad",
    [
        Part(0, 1, b"short", 1),
        Part(-1, 1, to_bitmap(1), 1),
        Part(0, 1, to_bitmap(1), 1, b"ab", b"12345"),
        Part(0, 1, to_bitmap(1), 1, b"abc", b"123456789012"),
    ],
)
def test_senseless_parts_are_refused(bad: Part) -> None:
    source = nothing_applied()
    source._parts = [bad]  # as a broken peer's
    minibatches = nothing_applied()
    with pytest.raises(ValueError, match=r"make no sense|a set of slots"):
        minibatches.unpack(_raw_parcel(source))
    assert minibatches.parts(0, 1) == []


def _raw_parcel(minibatches: AppliedMinibatches) -> bytes:
    import msgspec

    return msgspec.msgpack.encode([0, [], [], minibatches._parts])


OWNS = PsOrders(2, to_bitmap(ALL_SLOTS))


def test_a_server_that_found_nothing_leaves_nothing_to_the_next_one(memories: list[PrivateMemory]) -> None:
    """Found by seed 20071 of `make fuzz-sim`: it is killed before it could say so, and the next one finds its memory, which is empty."""
    start(memories)
    assert follow_nothing(memories).state.begun_empty
    memories.append(memories[-1].hand_over())
    following = Engine(memory=memories[-1], follows=True)
    with pytest.raises(ParametersLost, match=r"the parameters of ps-1 are lost: nothing of its memory is left"):
        check_memory(OWNS, following.state, "ps-1")
    check_memory(PsOrders(0), following.state, "ps-1")  # it hasn't been told yet


def test_memory_that_was_begun_with_nothing_is_whole_when_nothing_was_to_be_there(
    memories: list[PrivateMemory],
) -> None:
    state = follow_nothing(memories).state
    check_memory(PsOrders(2, bytes(512)), state, "ps-0")
    check_memory(OWNS, state, "ps-0")  # slots have moved here since
    assert not state.begun_empty


def test_memory_that_is_to_be_restored_is_not_lost(memories: list[PrivateMemory]) -> None:
    state = follow_nothing(memories).state
    check_memory(msgspec.structs.replace(OWNS, restore=RestoreOrder("there", 1, 1)), state, "ps-0")
    assert state.begun_empty, "until it is restored"


def test_memory_that_was_left_is_taken_up(memories: list[PrivateMemory]) -> None:
    start(memories)
    memories.append(memories[-1].hand_over())
    check_memory(OWNS, Engine(memory=memories[-1], follows=True).state, "ps-0")
