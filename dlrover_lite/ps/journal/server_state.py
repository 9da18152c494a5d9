"""What a parameter server knows beside its rows, in memory that outlives its process: the arena ``state``.

Words are uint64; a page of header, then the groups' numbers, the configuration, and the applied minibatches. The journal,
and the rows of the push under way, have arenas of their own.
Everything that becomes true at one moment does so by one store of one word, made last: processes are killed between two of them.
"""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.decoding import from_msgpack
from dlrover_lite.core.errors import JobError, UsageError
from dlrover_lite.core.slot_sets import BITMAP_BYTES
from dlrover_lite.protocol.ps_messages import Configure
from dlrover_lite.ps.journal.applied_minibatches import AppliedEntries, mask_of, to_bitmap
from dlrover_lite.ps.journal.journal import Journal
from dlrover_lite.ps.journal.state_words import Header, damaged
from dlrover_lite.ps.memory.state_memory import Arenas
from dlrover_lite.ps.tables.row_arrays import NUMBERS

__all__ = ["GROUPS_MOST", "MAJOR", "MINOR", "State"]

MAJOR, MINOR = 2, 2
"""Major and minor version of this layout. A newer minor version has more in places that were zero; of another major version nothing is
known."""

_MAGIC = int.from_bytes(b"dl-state", "little")


GROUPS_MOST = (Header.CONFIGURATION - Header.GROUPS) // NUMBERS
_CONFIGURATION_MOST = 8 * (Header.APPLIED - Header.CONFIGURATION)
_BITMAP_WORDS = BITMAP_BYTES // 8


class State:
    """The state that was left in ``arenas``, or a new one, of a server that ``follows`` another or not. Raises JobError for a state that
    can't be read."""

    def __init__(self, arenas: Arenas, *, follows: bool = False) -> None:
        self._words: NDArray[np.uint64] = arenas.open("state", 8 * Header.END).bytes.view(np.uint64)
        if self._words[Header.MAGIC]:
            _check(self._words)
        else:
            self._words[Header.BEGUN_EMPTY] = int(follows)
            self._words[Header.FORMAT] = MAJOR << 32 | MINOR
            self._words[Header.MAGIC] = _MAGIC
        self.applied_entries = AppliedEntries(self._words)
        self.journal = Journal(
            arenas.open("journal"), arenas.open("pushed"), self._words[Header.PROGRESS : Header.PROGRESS + 1]
        )

    def numbers(self, group: int) -> NDArray[np.uint64]:
        """Return the numbers of a group (``row_arrays.USED`` and so on)."""
        start = Header.GROUPS + group * NUMBERS
        return self._words[start : start + NUMBERS]

    # --- configuration --------------------------------------------------------------------------------------------------

    def configuration(self) -> Configure | None:
        """Return the configuration; None: there is none yet. Raises JobError when it is damaged."""
        size = int(self._words[Header.CONFIGURATION_BYTES])
        if not size:
            return None
        encoded = self._configuration_bytes(min(size, _CONFIGURATION_MOST)).tobytes()
        if size > _CONFIGURATION_MOST or _digest(encoded) != int(self._words[Header.CONFIGURATION_DIGEST]):
            raise damaged("its configuration's checksum is wrong")
        try:
            return from_msgpack(encoded, Configure)
        except msgspec.MsgspecError as error:
            raise damaged(f"its configuration can't be read: {error}") from error

    def configure(self, configuration: Configure, groups: int) -> None:
        """Store the configuration, before anything else of these groups is written. Raises UsageError for more than there is room for."""
        encoded = msgspec.msgpack.encode(configuration)
        if groups > GROUPS_MOST or len(encoded) > _CONFIGURATION_MOST:
            raise UsageError(f"{groups} groups of tables, {len(encoded)} bytes of configuration: too many")
        self._configuration_bytes(len(encoded))[:] = np.frombuffer(encoded, np.uint8)
        self._words[Header.CONFIGURATION_DIGEST] = _digest(encoded)
        self._words[Header.CONFIGURATION_BYTES] = len(encoded)

    def _configuration_bytes(self, size: int) -> NDArray[np.uint8]:
        return self._words[Header.CONFIGURATION : Header.APPLIED].view(np.uint8)[:size]

    # --- what it was restored from ----------------------------------------------------------------------------------------

    @property
    def restored(self) -> int:
        """Generation whose checkpoint is here as a whole; 0: none."""
        return int(self._words[Header.RESTORED])

    @restored.setter
    def restored(self, generation: int) -> None:
        self._words[Header.RESTORED] = generation

    @property
    def begun_empty(self) -> bool:
        """A server that was to take up the memory of another one has begun this state, as it found nothing; and it has neither been told
        that it owns nothing, nor restored a checkpoint. Whoever takes this up has nothing of what was to be there either."""
        return bool(self._words[Header.BEGUN_EMPTY])

    @begun_empty.setter
    def begun_empty(self, begun_empty: bool) -> None:
        self._words[Header.BEGUN_EMPTY] = int(begun_empty)

    # --- the push under way ---------------------------------------------------------------------------------------------

    @property
    def pushes(self) -> int:
        """Number of pushes applied so far."""
        return int(self._words[Header.PUSHES])

    def begin_push(self, epoch: int, k: int, slots: int) -> None:
        """Note that this push is under way in these slots. Raises OverflowError for epochs and numbers that don't fit."""
        words = self._words
        words[Header.EPOCH], words[Header.K], words[Header.BEFORE] = epoch, k, self.pushes
        covers = np.frombuffer(to_bitmap(slots), np.uint64)
        words[Header.COVERS : Header.COVERS + _BITMAP_WORDS] = covers
        self.journal.begin(0)
        words[Header.UNDER_WAY] = 1

    def push_under_way(self) -> tuple[int, int, int] | None:
        """Return the epoch, number and slots of the push under way, if there is one."""
        words = self._words
        if not words[Header.UNDER_WAY]:
            return None
        covers = words[Header.COVERS : Header.COVERS + _BITMAP_WORDS].tobytes()
        return int(words[Header.EPOCH]), int(words[Header.K]), mask_of(covers)

    def end_push(self, *, applied: bool) -> None:
        """End the push under way, which is among the applied minibatches already. If the process is killed in between, another one does the
        push again, with the same result."""
        if applied:
            self._words[Header.PUSHES] = self._words[Header.BEFORE] + np.uint64(1)
        self._words[Header.UNDER_WAY] = 0


def _check(words: NDArray[np.uint64]) -> None:
    if int(words[Header.MAGIC]) != _MAGIC:
        raise damaged("it doesn't begin as one does")
    major, minor = divmod(int(words[Header.FORMAT]), 1 << 32)
    if major not in (0, MAJOR):
        raise JobError(
            f"the memory of a parameter server has format {major}.{minor}, and this version reads {MAJOR}.{MINOR}",
            hint="Run the job with the version of dlrover-lite that it was started with.",
        )
    if not major or int(words[Header.UNDER_WAY]) > 1 or int(words[Header.ENTRIES]) > AppliedEntries.MOST:
        raise damaged("its header makes no sense")


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
