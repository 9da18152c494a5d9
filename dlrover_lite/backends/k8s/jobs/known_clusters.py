"""Which clusters jobs were submitted to from here, and the keys of those jobs: kept in the state directory."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.files.durable import make_private, open_private, write_whole
from dlrover_lite.core.files.paths import cache_directory, make_state, state_directory
from dlrover_lite.core.files.regular import read_file
from dlrover_lite.transport.curve import JobKey

__all__ = ["ClusterName", "KnownCluster", "known_clusters"]

_CLUSTERS = "clusters"
_MOST_BYTES = 1 << 16


class ClusterName(msgspec.Struct, frozen=True):
    """A namespace of a cluster, by a context of the kubeconfig."""

    context: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.context or 'in-cluster'}/{self.namespace}"

    @property
    def directory(self) -> str:
        """Name of the directory of what is kept for it."""
        return hashlib.blake2b(f"{self.context}\0{self.namespace}".encode(), digest_size=8).hexdigest()


class KnownCluster:
    """What is kept here of one cluster's jobs."""

    def __init__(self, name: ClusterName) -> None:
        self.name = name
        self._state = state_directory() / _CLUSTERS / name.directory

    def note(self) -> None:
        """Keep that jobs are submitted there. Raises JobError."""
        try:
            make_state(_CLUSTERS, self.name.directory, "keys")
            write_whole(self._state / "cluster.json", msgspec.json.encode(self.name))
        except OSError as error:
            raise JobError(
                f"Can't write {self._state}: {error.strerror}", hint="DLROVER_LITE_HOME moves it."
            ) from error

    def key(self, job: str) -> JobKey | None:
        """Return the key of a job that was submitted from here; None of others."""
        file = self._state / "keys" / job
        with suppress(FileNotFoundError):
            return JobKey.parse(read_file(file, _MOST_BYTES).decode("ascii", "replace"), str(file))
        return None

    def keep_key(self, job: str, key: JobKey) -> None:
        """Keep the key of a job. Raises JobError."""
        self.note()
        try:
            with os.fdopen(open_private(self._state / "keys" / job, os.O_WRONLY | os.O_TRUNC), "w") as out:
                out.write(key.text())
        except OSError as error:
            raise JobError(f"Can't keep the job's key: {error}", hint="DLROVER_LITE_HOME moves it.") from error

    def forget_key(self, job: str) -> None:
        (self._state / "keys" / job).unlink(missing_ok=True)

    def copy_of(self, job: str) -> Path:
        """Return the directory for a copy of a job's files. Raises JobError where it can't be made."""
        directory = cache_directory() / _CLUSTERS / self.name.directory / job
        try:
            make_private(directory)
        except OSError as error:
            raise JobError(f"Can't make {directory}: {error.strerror}", hint="DLROVER_LITE_HOME moves it.") from error
        return directory


def known_clusters() -> list[ClusterName]:
    """List the clusters that jobs were submitted to from here."""
    found = []
    for file in sorted((state_directory() / _CLUSTERS).glob("*/cluster.json")):
        with suppress(OSError, msgspec.MsgspecError):
            found.append(from_json(read_file(file, _MOST_BYTES), ClusterName))
    return found
