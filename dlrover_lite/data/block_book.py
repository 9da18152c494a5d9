"""Which blocks of remote files lie where in a cache of a fixed number of slots: a pure book of them, without bytes, threads or files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

__all__ = ["Block", "BlockBook"]


@dataclass(eq=False)
class Block:
    key: Hashable
    slot: int
    ready: bool = False
    """Its bytes are there."""
    readers: int = 0
    """Number of those who read it right now, or are loading it: its slot is given to no other."""


class BlockBook:
    """A block is begun, loaded or abandoned by one, and then used by any number. Those used longest ago give their slots away first."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a cache needs slots, found {slots}")
        self.slots = slots
        self._free = list(range(slots))[::-1]
        self._blocks: OrderedDict[Hashable, Block] = OrderedDict()
        """In the order of their last use."""

    def __contains__(self, key: Hashable) -> bool:
        """Return whether the block is there, or on its way."""
        return key in self._blocks

    def use(self, key: Hashable) -> Block | None:
        """Return a block that is ready, for a reader who calls ``leave`` afterwards; None if there is none."""
        block = self._blocks.get(key)
        if block is None or not block.ready:
            return None
        self._blocks.move_to_end(key)
        block.readers += 1
        return block

    def begin(self, key: Hashable) -> Block | None:
        """Return a block to be loaded by the caller; None while all slots are being read or loaded."""
        if key in self._blocks:
            raise ValueError(f"{key!r} is there already")
        slot = self._free.pop() if self._free else self._taken_back()
        if slot is None:
            return None
        block = self._blocks[key] = Block(key, slot, readers=1)
        return block

    def loaded(self, block: Block) -> None:
        """Note that a block's bytes are there; who has loaded it is its reader until ``leave``."""
        block.ready = True

    def abandoned(self, block: Block) -> None:
        """Give the slot of a block that couldn't be loaded back."""
        del self._blocks[block.key]
        self._free.append(block.slot)

    def leave(self, block: Block) -> None:
        block.readers -= 1

    def _taken_back(self) -> int | None:
        for key, block in self._blocks.items():
            if not block.readers:
                del self._blocks[key]
                return block.slot
        return None
