"""Which parameter server owns which slots, and the moves between them, as a pure state machine: events in, the next state and notes out.

::

                       ┌─ready─┐
                       ▼       │ batch by batch
    queued ──start──▶ copying ─┴─ready, the last──▶ committed ──both tidy──▶ gone
       │                 │                                                    ▲
       └─────cancel──────┼──cancel──▶ cancelled ──both tidy───────────────────┤
                         └─────────── queued ones at once ────────────────────┘

A move is carried out in batches of slots, which its PS choose: a batch that its target has all of is committed at once, with a version of
its own, and the slots that are left are the move's. What is committed stays, whatever becomes of the rest.

``version`` counts every change of the map and of the moves; it never falls, and PS follow the newest orders they have heard. A PS takes
part in one move at a time: the next one begins when both PS of the last have heard that it ended, and are tidy.

The state is kept with the ledger before anything that follows from it is told to anybody, so a master that was restarted gives the
same orders again, and takes a report that it had taken before for what it is: nothing new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core import slot_sets
from dlrover_lite.core.slot_sets import SLOTS, SlotSet
from dlrover_lite.core.words import plural
from dlrover_lite.master.nodes.fleet import Note

__all__ = ["Batch", "Move", "SlotState", "Transfer"]

MoveState = Literal["queued", "copying", "committed", "cancelled"]
Transfer = tuple[str, str, SlotSet]
"""Source, target, and the slots to move."""


_RATE_SECONDS = 60.0
"""Seconds of copying after which what was measured before counts half."""


class Batch(NamedTuple):
    """Slots of a move that its target has all of."""

    members: SlotSet
    rows: int = 0
    bytes: int = 0
    """Memory of the rows in bytes."""


class Move(msgspec.Struct, frozen=True):
    id: int
    """Number of the move, never used again within the job."""
    source: str
    target: str
    slots: bytes
    """Slots that are still to be moved, 512 bytes: ``slot_sets.pack``. Of a move that is committed by a master of before batches, all."""
    state: MoveState = "queued"
    began: float = 0.0
    """Time when the copying began, in seconds since the epoch."""
    ended_at: int = 0
    """Version of the map in which the move was committed or cancelled."""
    tidied: list[str] = []
    """PS of the move that have tidied up since, or are no more."""
    at_once: bool = False
    """The slots of the move are frozen from its beginning."""
    moved: int = 0
    """Number of slots that have been committed."""
    moved_rows: int = 0
    moved_bytes: int = 0
    """Memory of the committed rows in bytes."""
    newest_at: float = 0.0
    """Time when the last batch was committed, in seconds since the epoch."""

    @property
    def open(self) -> bool:
        return self.state in ("queued", "copying")

    @property
    def members(self) -> SlotSet:
        return slot_sets.unpack(self.slots)

    @property
    def left(self) -> int:
        """Number of slots that are still to be moved."""
        return int(self.members.sum())

    @property
    def count(self) -> int:
        """Number of slots of the move, those that have been committed included."""
        return self.moved + self.left

    @property
    def bytes_per_second(self) -> float:
        """Bytes/s of the move: memory of the rows committed, over the time that it took; 0: nothing has been committed."""
        return self.moved_bytes / max(1e-3, self.newest_at - self.began) if self.moved else 0.0

    def involves(self, node: str) -> bool:
        return node == self.source or node == self.target  # noqa: PLR1714 - asked for all moves, for each report


Next = tuple["SlotState", list[Note]]


class SlotState(msgspec.Struct, frozen=True):
    """Methods return the next state and what to tell. ``now`` is seconds since the epoch. Before ``begin`` there is no map."""

    version: int = 0
    owners: bytes = b""
    """Owner of each slot as a position in ``ps``: 4,096 uint16, little-endian."""
    ps: list[str] = []
    """Every PS that has ever owned a slot."""
    moves: list[Move] = []
    """Moves that are not over for both of their PS, in the order they were wanted."""
    leaving: list[str] = []
    """PS to be emptied and ended."""
    slow: list[str] = []
    """PS of ``leaving`` that leave because they are slow."""
    rebalance: bool = False
    """Whether slots are to be placed anew as soon as all PS of the plan are up."""
    next_move: int = 1
    came: bytes = b""
    """Version with which each slot came to its owner by a move: 4,096 uint32, little-endian; empty: none has."""
    moved_bytes: float = 0.0
    """Memory in bytes of rows that have moved of late."""
    moving_seconds: float = 0.0
    """Seconds that moving ``moved_bytes`` took."""

    # --- what there is --------------------------------------------------------------------------------------------------

    def positions(self) -> NDArray[np.uint16]:
        """Return the position of each slot's owner [4096] in ``ps``; read only."""
        return np.frombuffer(self.owners, "<u2")

    def moved_since(self, version: int) -> SlotSet:
        """Return the slots that have come to their owner by a move after this version, though perhaps from itself, by way of another."""
        if not self.came:
            return slot_sets.none()
        return np.asarray(np.frombuffer(self.came, "<u4") > version)

    def owned(self, node: str) -> SlotSet:
        if node not in self.ps:
            return slot_sets.none()
        return np.asarray(self.positions() == self.ps.index(node))

    def owns(self, node: str) -> bool:
        return node in self.ps and self._held[self.ps.index(node)] > 0

    def differing(self, before: SlotState) -> set[str]:
        """Return the PS that own other slots than in the state ``before``."""
        if before.owners == self.owners and before.ps == self.ps:
            return set()
        if not before.version or not self.version:
            return {*self.ps, *before.ps}
        if self.ps[: len(before.ps)] != before.ps:  # one has taken another's place
            return {node for node in {*self.ps, *before.ps} if (self.owned(node) != before.owned(node)).any()}
        now, then = self.positions(), before.positions()
        changed = now != then
        return {self.ps[at] for at in {*now[changed].tolist(), *then[changed].tolist()}}

    def counts(self) -> dict[str, int]:
        """Return how many slots each PS owns; only of those that own any."""
        if not self.version:
            return {}
        return {node: count for node, count in zip(self.ps, self._held, strict=True) if count}

    @property
    def _held(self) -> tuple[int, ...]:
        """Number of slots of each of ``ps``."""
        return _counted(self.owners, len(self.ps))

    def future(self) -> tuple[list[str], NDArray[np.uint16]]:
        """Return PS and positions as they will be when all open moves are committed."""
        ps, positions = list(self.ps), self.positions().copy()
        for move in self.moves:
            if move.open:
                if move.target not in ps:
                    ps.append(move.target)
                positions[move.members] = ps.index(move.target)
        return ps, positions

    def open_moves(self) -> list[Move]:
        return [move for move in self.moves if move.open]

    def busy(self, node: str) -> bool:
        """Return whether a PS takes part in a move that isn't over."""
        return any(move.involves(node) for move in self.moves)

    @property
    def move_rate(self) -> float | None:
        """Bytes/s of moves, measured with the rows that have moved of late; None: none have."""
        return self.moved_bytes / max(1e-3, self.moving_seconds) if self.moved_bytes else None

    # --- events ---------------------------------------------------------------------------------------------------------

    def begin(self, nodes: Sequence[str]) -> Next:
        """Begin with the first map: as many slots for each, in one piece."""
        if self.version or not nodes:
            return self, []
        positions = (np.arange(SLOTS) * len(nodes) // SLOTS).astype("<u2")
        state = self._with(version=1, ps=list(nodes), owners=positions.tobytes())
        told = [Note(node, f"owns slots {slot_sets.describe(state.owned(node))} (map 1)") for node in nodes]
        return state, told

    def want(self, transfers: Iterable[Transfer], *, at_once: Collection[str] = ()) -> Next:
        """Queue moves; those of sources ``at_once`` are frozen from their beginning. Raises ValueError for one whose slots aren't all its
        source's, or are in another open move."""
        moves, told, number = list(self.moves), list[Note](), self.next_move
        taken = _union(self.open_moves())
        for source, target, members in transfers:
            if (
                source == target
                or not members.any()
                or (members & ~self.owned(source)).any()
                or (members & taken).any()
            ):
                raise ValueError(f"slots {slot_sets.describe(members)} can't move from {source} to {target}")
            taken |= members
            move = Move(number, source, target, slot_sets.pack(members), at_once=source in at_once)
            moves.append(move)
            told += _told(move, f"move {move.id} is queued: {plural(move.left, 'slot')}")
            number += 1
        if not told:
            return self, []
        return self._with(version=self.version + 1, moves=moves, next_move=number), told

    def start(self, up: Collection[str], now: float) -> Next:
        """Begin what is queued between PS that are up and take part in no other move."""
        occupied = {node for move in self.moves if move.state != "queued" for node in (move.source, move.target)}
        moves, told = list[Move](), list[Note]()
        for move in self.moves:
            pair = {move.source, move.target}
            if move.state == "queued" and not pair & occupied and all(node in up for node in pair):
                occupied |= pair
                move = _changed(move, state="copying", began=now)
                told += _told(move, f"move {move.id} begins: {plural(move.left, 'slot')}")
            moves.append(move)
        if not told:
            return self, []
        return self._with(version=self.version + 1, moves=moves), told

    def ready(self, node: str, ready: Mapping[int, Batch], now: float) -> Next:
        """Record that the target holds all there is of these slots: from now on they are its own. Those that are so already, or no longer
        the move's, change nothing."""
        state, told = self, list[Note]()
        for move in self.moves:
            batch = ready.get(move.id)
            if batch is None or move.state != "copying" or move.target != node:
                continue
            if (members := batch.members & move.members).any():
                state, more = state._commit(move, batch._replace(members=members), now)
                told += more
        return state, told

    def report(self, node: str, version: int, tidy: bool) -> Next:
        """Record that a PS follows the orders of ``version``. Moves are over when both of their PS are tidy after their end."""
        if not tidy:
            return self, []
        heard = [
            move.id
            for move in self.moves
            if move.involves(node) and not move.open and move.ended_at <= version and node not in move.tidied
        ]
        return (self._tidied(node, heard) if heard else self), []

    def cancel(self, why: str, which: Collection[int] | None = None) -> Next:
        """Give up open moves, by default all of them; what is committed stays so."""
        found = [move for move in self.open_moves() if which is None or move.id in which]
        if not found:
            return self, []
        told = [note for move in found for note in _told(move, _cancelled(move, why), _rest(move))]
        version = self.version + 1
        moves = []
        for move in self.moves:
            if move not in found:
                moves.append(move)
            elif move.state == "copying":
                moves.append(_changed(move, state="cancelled", ended_at=version))
        return self._with(version=version, moves=moves), told

    def gone(self, node: str) -> Next:
        """Record that a PS has ended that owned nothing; what was to move to it is placed anew. Raises ValueError for one that owned
        slots."""
        if self.owns(node):
            raise ValueError(f"{node} owns slots")
        state, told = self.cancel(f"{node} has ended", [move.id for move in self.moves if move.involves(node)])
        state = state._tidied(node, [move.id for move in state.moves])
        if told:  # all open moves it took part in were to it
            state = state.place_anew(True)
        if node in state.leaving:
            state = state._not_leaving([node])
        return state, told

    def down(self, node: str) -> Next:
        """Record that a PS that owns slots has ended, and will be followed: its moves under way are called off, and wait to begin anew."""
        broken = [move for move in self.moves if move.state == "copying" and move.involves(node)]
        state, told = self.cancel(f"{node} has ended", [move.id for move in broken])
        state, more = state.want([(move.source, move.target, move.members) for move in broken])
        return state, told + more

    def replaced(self, old: str, new: str) -> Next:
        """Let ``new`` be from now on all that ``old`` was. Raises ValueError for one that owned nothing, and for a name that is known."""
        if not self.owns(old) or new in self.ps or self.busy(new):
            raise ValueError(f"{new} can't take the place of {old}")
        state, told = self.down(old)

        def renamed(nodes: Iterable[str]) -> list[str]:
            return [new if node == old else node for node in nodes]

        moves = []
        for move in state.moves:
            source, target = renamed([move.source, move.target])
            moves.append(_changed(move, source=source, target=target, tidied=renamed(move.tidied)))
        version, ps, leaving = state.version + 1, renamed(state.ps), renamed(state.leaving)
        slow = [node for node in state.slow if node != old]  # the other one needn't be
        state = state._with(version=version, ps=ps, moves=moves, leaving=leaving, slow=slow)
        count = plural(int(state.owned(new).sum()), "slot")
        return state, [*told, Note(new, f"owns what {old} owned: {count} (map {version})")]

    def leave(self, nodes: Collection[str], why: str, *, slow: bool = False) -> Next:
        """Have these PS emptied and ended, because they are ``slow`` or for another reason: nothing more moves to them."""
        fresh = [node for node in nodes if node not in self.leaving]
        bound = [move.id for move in self.open_moves() if move.target in fresh]
        state, told = self.cancel("its target is to leave", bound)
        if not fresh:
            return state, told
        leaves = [Note(node, f"leaves: {why}") for node in fresh]
        hurry = [*state.slow, *fresh] if slow else state.slow
        return state._with(leaving=[*state.leaving, *fresh], slow=hurry), told + leaves

    def stay(self, nodes: Collection[str], why: str) -> Next:
        """Let these PS stay after all: nothing more moves off them."""
        kept = [node for node in self.leaving if node in nodes]
        bound = [move.id for move in self.open_moves() if move.source in kept]
        state, told = self.cancel("its source is to stay", bound)
        if not kept:
            return state, told
        return state._not_leaving(kept), told + [Note(node, f"stays: {why}") for node in kept]

    def place_anew(self, wanted: bool) -> SlotState:
        return self if wanted == self.rebalance else self._with(rebalance=wanted)

    # --- how ------------------------------------------------------------------------------------------------------------

    def _not_leaving(self, nodes: Collection[str]) -> SlotState:
        leaving, slow = ([one for one in names if one not in nodes] for names in (self.leaving, self.slow))
        return self._with(leaving=leaving, slow=slow)

    def _commit(self, move: Move, batch: Batch, now: float) -> Next:
        version, members = self.version + 1, batch.members
        ps = self.ps if move.target in self.ps else [*self.ps, move.target]
        positions = self.positions().copy()
        positions[members] = ps.index(move.target)
        came = np.frombuffer(self.came or bytes(4 * SLOTS), "<u4").copy()
        came[members] = version
        after = _changed(
            move,
            slots=slot_sets.pack(move.members & ~members),
            moved=move.moved + int(members.sum()),
            moved_rows=move.moved_rows + batch.rows,
            moved_bytes=move.moved_bytes + batch.bytes,
            newest_at=max(now, move.began),
        )
        told = list[Note]()
        if not after.left:
            after = _changed(after, state="committed", ended_at=version)
            seconds = max(0.0, now - move.began)
            told = _told(
                move, f"move {move.id} is done in {seconds:.2f} s, map {version}: {plural(after.count, 'slot')}"
            )
        moves = [after if other.id == move.id else other for other in self.moves]
        state = self._with(version=version, ps=ps, owners=positions.tobytes(), came=came.tobytes(), moves=moves)
        return state._measured(batch.bytes, max(0.0, now - max(move.began, move.newest_at))), told

    def _measured(self, moved: int, seconds: float) -> SlotState:
        kept = 0.5 if self.moving_seconds > _RATE_SECONDS else 1.0
        return self._with(
            moved_bytes=kept * self.moved_bytes + moved, moving_seconds=kept * self.moving_seconds + seconds
        )

    def _tidied(self, node: str, ids: Collection[int]) -> SlotState:
        """Note that ``node`` has nothing more to do for these moves, if they have ended."""
        moves = []
        for move in self.moves:
            if not move.open and move.id in ids and move.involves(node) and node not in move.tidied:
                move = _changed(move, tidied=[*move.tidied, node])
            if len(move.tidied) < 2:
                moves.append(move)
        return self if moves == self.moves else self._with(moves=moves)

    def _with(self, **changes: object) -> SlotState:
        return msgspec.structs.replace(self, **changes)

    def validate(self) -> None:
        """Check the state. Raises ValueError when a slot hasn't one owner, or the moves contradict the map or each other."""
        if not self.version:
            if self.owners or self.moves:
                raise ValueError("there are owners or moves before there is a map")
            return
        if (
            len(self.owners) != 2 * SLOTS
            or int(self.positions().max()) >= len(self.ps)
            or len({*self.ps}) < len(self.ps)
        ):
            raise ValueError("not every slot has one owner")
        if len(self.came) not in (0, 4 * SLOTS):
            raise ValueError("it isn't known of every slot when it came to its owner")
        if not {*self.slow} <= {*self.leaving}:
            raise ValueError(f"{self.slow} are slow, and {self.leaving} leave")
        if len(ids := [move.id for move in self.moves]) != len({*ids}) or any(
            number >= self.next_move for number in ids
        ):
            raise ValueError(f"moves are numbered {ids}, and the next one {self.next_move}")
        taken, at_work = slot_sets.none(), list[str]()
        for move in self.moves:
            if move.open and (move.members & (taken | ~self.owned(move.source))).any():
                raise ValueError(
                    f"move {move.id} is of slots that are not, or not only, for it to take from {move.source}"
                )
            if move.open and move.target in self.leaving:
                raise ValueError(f"move {move.id} goes to {move.target}, which is to leave")
            if move.open == bool(move.ended_at) or move.ended_at > self.version or len(move.tidied) > 1:
                raise ValueError(f"move {move.id} is {move.state}, and ended in {move.ended_at}")
            taken |= move.members if move.open else slot_sets.none()
            at_work += [move.source, move.target] if move.state != "queued" else []
        if len(at_work) != len({*at_work}):
            raise ValueError(f"a PS takes part in several moves: {at_work}")


@lru_cache(maxsize=256)
def _counted(owners: bytes, count: int) -> tuple[int, ...]:
    """Count how many slots each of so many PS owns."""
    return tuple(np.bincount(np.frombuffer(owners, "<u2"), minlength=count).tolist())


def _changed(move: Move, **changes: object) -> Move:
    return msgspec.structs.replace(move, **changes)


def _union(moves: Iterable[Move]) -> SlotSet:
    members = slot_sets.none()
    for move in moves:
        members |= move.members
    return members


def _told(move: Move, text: str, rest: str = "") -> list[Note]:
    """Return a text as a note for both PS of a move."""
    return [
        Note(move.source, f"{text} to {move.target}{rest}"),
        Note(move.target, f"{text} from {move.source}{rest}"),
    ]


def _cancelled(move: Move, why: str) -> str:
    slots_left = f"{move.left:,} of {plural(move.count, 'slot')}" if move.moved else plural(move.left, "slot")
    return f"move {move.id} is cancelled, {why}: {slots_left}"


def _rest(move: Move) -> str:
    return (
        f"; {move.moved:,} {'have' if move.moved > 1 else 'has'} moved and stay{'s' * (move.moved == 1)}"
        if move.moved
        else ""
    )
