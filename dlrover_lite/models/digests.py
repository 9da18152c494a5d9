"""``SHA256SUMS`` of an export: what each of its files must be, in the form that ``sha256sum -c`` reads.

It is written last, so that an export that was only half written, or half copied, isn't taken for one.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dlrover_lite.core.errors import ModelError
from dlrover_lite.core.files.durable import UnsafeName, checked_name
from dlrover_lite.core.files.regular import open_regular, read_file
from dlrover_lite.core.progress import Steps, Tally, no_steps
from dlrover_lite.core.units import MIB

__all__ = ["DIGESTS_FILE", "EXPORT_AGAIN", "Digests", "write_digests"]

DIGESTS_FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_MOST_THREADS = 4
_MOST_BYTES = 64 * MIB
_CHUNK_BYTES = MIB
EXPORT_AGAIN = (
    "Export it again, from the job or one of its checkpoints: dlrover-lite export JOB --to DIR, "
    "or dlrover-lite export --from JOB --to DIR"
)


def write_digests(directory: Path, steps: Steps = no_steps) -> Path:
    """Write ``SHA256SUMS`` of all files below ``directory``; returns its path. ``steps`` is told how far it is.

    Raises OSError, and ModelError for a file whose name can't stand in it.
    """
    files = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    names = sorted(name for name in files if name != DIGESTS_FILE)
    try:
        for name in names:
            checked_name(name, folders=True)
    except UnsafeName as error:
        raise ModelError(f"A file of the model can't be exported: {error}", hint="Rename it.") from error
    digests = _digests([directory / name for name in names], "computing digests", steps)
    path = directory / DIGESTS_FILE
    lines = [f"{digest}  {name}\n" for name, digest in zip(names, digests, strict=True)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


class Digests:
    """The digests of the export in ``directory``, or, with ``digests`` None, of one by a version that wrote none: nothing is compared
    then."""

    def __init__(self, directory: Path, digests: Mapping[str, str] | None) -> None:
        self.directory = directory
        self._digests = digests

    @classmethod
    def read(cls, directory: Path) -> Digests:
        """Read the digests of an export. Raises ModelError when the file is there but can't be read, or is damaged."""
        path = directory / DIGESTS_FILE
        try:
            text = read_file(path, _MOST_BYTES).decode()
        except FileNotFoundError:
            return cls(directory, None)
        except (OSError, UnicodeDecodeError) as error:
            raise _damaged(path, str(error)) from error
        digests: dict[str, str] = {}
        for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
            found = _LINE.fullmatch(line)
            if found is None:
                raise _damaged(path, f"line {number} is no digest and name")
            digests[found[2]] = found[1]
        return cls(directory, digests)

    @property
    def known(self) -> bool:
        """Whether there are digests; False for an export by a version that wrote none."""
        return self._digests is not None

    def missing(self) -> ModelError:
        """Make the error for an export that says that it has digests, and doesn't."""
        return _damaged(
            self.directory / DIGESTS_FILE, "it is missing: the export was only half written, or half copied"
        )

    def named(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of the export."""
        return [name for name in self._digests or () if name.startswith(f"{folder}/")]

    def check_bytes(self, name: str, data: bytes) -> None:
        """Check what was read of a whole file. Raises ModelError when it isn't what was exported."""
        if self._digests is not None:
            self._compare(name, hashlib.sha256(data).hexdigest())

    def check(self, names: Iterable[str], steps: Steps = no_steps) -> None:
        """Read these files, several at a time. ``steps`` is told how far it is. Raises ModelError for the first that isn't what was
        exported."""
        if self._digests is None:
            return
        wanted = list(dict.fromkeys(names))
        try:
            digests = _digests([self.directory / name for name in wanted], "comparing digests", steps)
            for name, digest in zip(wanted, digests, strict=True):
                self._compare(name, digest)
        except FileNotFoundError as error:
            raise _damaged(Path(error.filename), "it is missing") from error
        except OSError as error:
            raise _damaged(Path(error.filename or self.directory), error.strerror or str(error)) from error

    def _compare(self, name: str, digest: str) -> None:
        assert self._digests is not None
        if name not in self._digests:
            raise _damaged(self.directory / DIGESTS_FILE, f"it says nothing of {name}")
        if self._digests[name] != digest:
            raise _damaged(self.directory / name, f"it isn't what was exported ({DIGESTS_FILE} has another digest)")


def _digests(paths: list[Path], what: str, steps: Steps) -> list[str]:
    """Compute the digest of each file. Raises OSError with the file's name."""
    workers = max(1, min(_MOST_THREADS, os.cpu_count() or 1, len(paths)))
    total = sum(map(_size, paths))
    tally = Tally(total, lambda done, total: steps(what, done, total, "bytes"))
    with ThreadPoolExecutor(workers, thread_name_prefix="digest") as pool:
        return list(pool.map(lambda path: _digest(path, tally), paths))


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 for one that can't be looked at: reading it will say why."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _digest(path: Path, tally: Tally) -> str:
    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            while data := file.read(_CHUNK_BYTES):
                digest.update(data)
                tally.add(len(data))
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    return digest.hexdigest()


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"The export's file {path} can't be used: {why}.", hint=EXPORT_AGAIN)
