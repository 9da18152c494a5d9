"""Copies of what nodes print, in their job's directory: they are there when the pods are gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dlrover_lite.backends.k8s.nodes.agents import LogWish
from dlrover_lite.core.files.durable import open_private

__all__ = ["LogFiles"]


class LogFiles:
    """``path_of``: the file of a node's log. ``say`` is told of what can't be written, once until it can again."""

    def __init__(self, path_of: Callable[[str], Path], say: Callable[[str], None]) -> None:
        self._path_of, self._say = path_of, say
        self._offsets: dict[str, int] = {}
        self._whole: set[str] = set()
        self._complained = False

    def wish(self, node: str, *, ended: bool) -> LogWish | None:
        """Return what is to be read on of a node's log; None: all of it is here."""
        return None if node in self._whole else LogWish(node, self._offset(node), ended)

    def add(self, wish: LogWish, data: bytes, size: int) -> None:
        """Add what was read. What can't be written now is read again later."""
        if wish.offset != self._offset(wish.node):
            return  # of a request that was repeated
        if data and not self._write(wish.node, data):
            return
        self._offsets[wish.node] = offset = wish.offset + len(data)
        if wish.ended and offset >= size:
            self._whole.add(wish.node)

    def is_whole(self, node: str) -> bool:
        return node in self._whole

    def _offset(self, node: str) -> int:
        """Return how much of a log is here: what an earlier master has copied, too."""
        if node not in self._offsets:
            try:
                self._offsets[node] = self._path_of(node).stat().st_size
            except OSError:
                self._offsets[node] = 0
        return self._offsets[node]

    def _write(self, node: str, data: bytes) -> bool:
        try:
            descriptor = open_private(self._path_of(node), os.O_WRONLY)
            try:
                os.lseek(descriptor, self._offset(node), os.SEEK_SET)
                while data:
                    data = data[os.write(descriptor, data) :]
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._complained:
                self._say(f"The log of {node} can't be copied for now: {self._path_of(node)}: {error.strerror}")
            self._complained = True
            return False
        self._complained = False
        return True
