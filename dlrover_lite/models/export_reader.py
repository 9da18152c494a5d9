"""Opens an export: ``model.json``, and its other files, each compared with its digest before it is used. Nothing here needs torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec

from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import ModelError
from dlrover_lite.core.files.durable import UnsafeName, checked_name
from dlrover_lite.core.files.regular import read_file
from dlrover_lite.core.progress import Steps, no_steps
from dlrover_lite.core.units import MIB
from dlrover_lite.models.digests import EXPORT_AGAIN, Digests
from dlrover_lite.models.export import DENSE_FILE, FORMAT_VERSION, MANIFEST_FILE, MODEL_DIRECTORY, Manifest

__all__ = ["ExportReader", "Say"]

Say = Callable[[str], object]
"""A function that is told what a person should know, though nothing is wrong."""

_MOST_MANIFEST_BYTES = 64 * MIB


class ExportReader:
    """The export in ``directory``. ``manifest`` is its ``model.json``; others are compared with what was exported when they are asked for.

    ``say`` is told once if that can't be done, since the export was written by a version that kept no digests; by default it is a
    Python warning. Raises ModelError, naming the file, when ``model.json`` is missing, damaged, newer, or names files elsewhere.
    """

    def __init__(self, directory: Path, *, say: Say | None = None) -> None:
        self.directory = directory
        self._say = say
        self.manifest, self._digests = _read(directory)
        _check_names(directory, self.manifest)

    def files(self, *names: str, steps: Steps = no_steps) -> list[Path]:
        """Return the files' paths. Raises ModelError, naming the first that isn't as it was exported; which needs as long as reading them
        takes: ``steps`` is told how far it is."""
        self._digests.check(names, steps)
        if not self._digests.known and names:
            self._tell()
        return [self.directory / name for name in names]

    def dense(self) -> Path:
        """Return the file of dense parameters. Raises ModelError as ``files`` does."""
        return self.files(DENSE_FILE)[0]

    def code(self) -> Path:
        """Return the directory with the code of a user's model; empty for a model of ours. Raises ModelError as ``files`` does."""
        file, colon, _ = self.manifest.model.use.rpartition(":")
        if colon:
            self.files(f"{MODEL_DIRECTORY}/{file}", *self._digests.named(MODEL_DIRECTORY))
        return self.directory / MODEL_DIRECTORY

    def _tell(self) -> None:
        said = (
            f"The export in {self.directory} was written by a version that kept no digests: whether its files are as they were exported "
            "can't be known. Exported again, it has them."
        )
        if self._say is None:
            warnings.warn(said, stacklevel=4)
        else:
            self._say(said)
        self._say = lambda _: None


def _read(directory: Path) -> tuple[Manifest, Digests]:
    path = directory / MANIFEST_FILE
    try:
        text = read_file(path, _MOST_MANIFEST_BYTES)
    except FileNotFoundError as error:
        raise ModelError(
            f"{directory} holds no exported model: {path} is missing.", hint="Name the directory that an export wrote."
        ) from error
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error}", hint=EXPORT_AGAIN) from error
    digests = Digests.read(directory)
    digests.check_bytes(MANIFEST_FILE, text)
    try:
        version = from_json(text, dict[str, object]).get("version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise ModelError(
                f"{directory} is an export of format {version}; this dlrover-lite reads up to {FORMAT_VERSION}.",
                hint="Upgrade it: pip install --upgrade dlrover-lite",
            )
        manifest = from_json(text, Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} can't be read: {error}", hint=EXPORT_AGAIN) from error
    if manifest.digests and not digests.known:
        raise digests.missing()
    return manifest, digests


def _check_names(directory: Path, manifest: Manifest) -> None:
    code, colon, _ = manifest.model.use.rpartition(":")
    names = [entry.file for entry in manifest.tables] + ([code] if colon else [])
    names += [manifest.dense_blocks.file] if manifest.dense_blocks is not None else []
    try:
        for name in names:
            checked_name(name, folders=True)
    except UnsafeName as error:
        raise ModelError(
            f"{directory / MANIFEST_FILE} names what isn't in the export: {error}", hint=EXPORT_AGAIN
        ) from error
