"""The brain that jobs of a cluster share: at an address of the cluster, with a key of its own, which isn't the job's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlrover_lite.core.errors import BrainError, UsageError
from dlrover_lite.protocol.brain_mode import BRAIN_ADDRESS_VARIABLE, BRAIN_KEY_VARIABLE
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.curve import JobKey

__all__ = ["RemoteBrain"]


class RemoteBrain:
    """What a ``BrainLink`` finds such a brain, and connects to it, by. The key is read for each connection: the Secret that it is in may
    come, or be replaced, while the job runs."""

    def __init__(self, endpoint: str, key_file: Path) -> None:
        self._endpoint, self._key_file = endpoint, key_file
        self._connector: Connector | None = None

    @classmethod
    def of_this_process(cls) -> RemoteBrain | None:
        """Make the one that the environment names; None where it names none."""
        endpoint = os.environ.get(BRAIN_ADDRESS_VARIABLE)
        return cls(endpoint, Path(os.environ[BRAIN_KEY_VARIABLE])) if endpoint else None

    def find(self) -> str:
        """Return where the brain listens, if it runs. Raises BrainError where its key can't be used."""
        self._key()
        return self._endpoint

    def client(
        self, endpoint: str, replies: Any, *, peer: str = "", clock: Callable[[], float] = time.monotonic
    ) -> Client:
        """Connect in place of the connection before. Raises BrainError where the key can't be used."""
        key = self._key()
        self.close()
        self._connector = Connector(key)
        return self._connector.client(endpoint, replies, peer=peer, clock=clock)

    def close(self) -> None:
        if self._connector is not None:
            self._connector.close()
            self._connector = None

    def _key(self) -> JobKey:
        try:
            return JobKey.parse(self._key_file.read_text(encoding="ascii", errors="replace"), str(self._key_file))
        except OSError as error:
            raise BrainError(f"its key can't be read: {self._key_file}: {error.strerror}") from error
        except UsageError as error:
            raise BrainError(error.message) from error
