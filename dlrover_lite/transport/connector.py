"""How the processes of a job reach each other: over unix sockets, or over TCP with the job's key."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from dlrover_lite.core.errors import UsageError, WireError
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.curve import JobKey, is_guarded
from dlrover_lite.transport.server import Server

__all__ = ["KEY_FILE_VARIABLE", "Connector", "read_key"]

KEY_FILE_VARIABLE = "DLROVER_LITE_KEY_FILE"
"""Holds the path of the job's key in the environment of its processes, where they talk over TCP."""


_MOST_SOCKETS = 16384
"""The most sockets of a process: a master has one for each pod of its job."""


class _Context(zmq.Context[Any]):
    """One that is never ended by the garbage collector: it would wait for sockets that were lost together with it, and that the collector
    hasn't got to yet, for ever. Who forgets to close a ``Connector`` leaves two idle threads behind."""

    def __del__(self) -> None:
        pass


class Connector:
    """Makes the servers and clients of one process. Over TCP they need the job's ``key``: without it they are refused, so that nothing is
    ever said in the open by mistake."""

    def __init__(self, key: JobKey | None = None, *, context: zmq.Context[Any] | None = None) -> None:
        """``context``: one that belongs to somebody else; by default one of its own."""
        self._key = key
        self._context: zmq.Context[Any] = _Context() if context is None else context
        self._owns_context = context is None
        if self._owns_context:
            self._context.set(zmq.MAX_SOCKETS, _MOST_SOCKETS)

    @classmethod
    def of_this_process(cls) -> Connector:
        """Make one with the key that the environment names. Raises UsageError for a key that can't be used."""
        path = os.environ.get(KEY_FILE_VARIABLE)
        return cls(read_key(Path(path)) if path else None)

    def server(self, endpoint: str, requests: Any, *, remember_replies: bool = False) -> Server:
        """Listen on ``endpoint``; ``requests`` is the protocol's union of structs. Raises WireError where that can't be."""
        return Server(
            endpoint, requests, context=self._context, remember_replies=remember_replies, key=self._key_for(endpoint)
        )

    def client(
        self, endpoint: str, replies: Any, *, peer: str = "", clock: Callable[[], float] = time.monotonic
    ) -> Client:
        """Connect to ``endpoint``, whether or not anybody listens there yet. Raises WireError for TCP without a key, and where no more
        connections can be had."""
        key = self._key_for(endpoint)
        try:
            return Client(endpoint, replies, context=self._context, peer=peer, clock=clock, key=key)
        except zmq.ZMQError as error:
            raise WireError(
                f"{endpoint} can't be connected to: {error}", hint="`ulimit -n` says how many may be."
            ) from error

    def _key_for(self, endpoint: str) -> JobKey | None:
        if is_guarded(endpoint) and self._key is None:
            raise WireError(
                f"{endpoint} can't be used without the job's key",
                hint=f"Processes that talk over TCP find it in the file that {KEY_FILE_VARIABLE} names.",
            )
        return self._key

    def close(self, *, linger_seconds: float = 0.0) -> None:
        """Close what is still open; what was sent has this long to arrive."""
        if self._owns_context:
            self._context.destroy(linger=int(linger_seconds * 1000))

    def __enter__(self) -> Connector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_key(path: Path) -> JobKey:
    """Read the job's key. Raises UsageError where there is none that can be used."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise UsageError(
            f"The job's key can't be read: {path}: {error.strerror}", hint="Only who has started the job may read it."
        ) from error
    return JobKey.parse(text, str(path))
