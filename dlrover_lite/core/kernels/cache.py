"""numba's cache of compiled kernels with files that are checked before anything is made of them (``kernel_files``).

numba itself runs and unpickles whatever it finds there: a flipped bit ends the process, a file that was cut off every process that comes.
A file that isn't as it was written is passed over, which is said, and replaced when its kernel has been compiled anew.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, UserProvidedCacheLocator

from dlrover_lite.core.files.durable import make_private
from dlrover_lite.core.kernels.files import INDEX, is_ours, is_whole, seal
from dlrover_lite.core.kernels.sources import digest

__all__ = ["cache_of"]


def cache_of(function: Callable[..., Any]) -> FunctionCache | None:
    """Return the kernel's cache in NUMBA_CACHE_DIR, which can be written; None where others may write to its directory there, which is
    said."""
    try:
        return _Cache(function)
    except RuntimeError:  # numba's way to say that the locator below finds no place
        return None


class _Locator(UserProvidedCacheLocator):
    """A directory for the kernels of each directory of sources. numba looks at NUMBA_CACHE_DIR when it is imported, which may have been
    before it was set."""

    def __init__(self, function: Callable[..., Any], source: str) -> None:
        super().__init__(function, source)
        self._cache_path = str(Path(os.environ["NUMBA_CACHE_DIR"]) / self.get_suitable_cache_subpath(source))

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> Any:
        return super(UserProvidedCacheLocator, cls).from_function(function, source)

    def get_source_stamp(self) -> str:
        """Return the digest of the sources: what is compiled from other sources is compiled anew, and replaced."""
        return _digest(self._py_file)

    def ensure_cache_path(self) -> None:
        path = Path(self.get_cache_path())
        make_private(path)
        if not is_ours(path):
            _say(f"Other users can write to {path}: kernels aren't kept there, and are compiled by each process")
            raise PermissionError(path)
        super().ensure_cache_path()


@cache
def _digest(file: str) -> str:
    """Compute the digest of what all kernels of a file are compiled from."""
    return digest([Path(file)])


class _Sealed(IndexDataCacheFile):
    """Checked files of compiled kernels. Several processes may write the same files: each appears whole, and one that is missing is
    compiled."""

    def __init__(self, cache_path: str, filename_base: str, source_stamp: Any) -> None:
        super().__init__(cache_path, filename_base + INDEX.removesuffix(".nbi"), source_stamp)

    def load(self, key: Any) -> Any:
        """Load a kernel; None: it must be compiled."""
        found = super().load(key)
        if found is None:
            return None
        compiled_for, data = found
        # Of two processes that compile for other types at once, each may have given its file the other's name.
        return data if compiled_for == key else None

    def save(self, key: Any, data: Any) -> None:
        try:
            super().save(key, (key, data))
        except OSError as error:
            _say(f"Compiled kernels can't be kept: {error}")

    def _load_index(self) -> Any:
        return super()._load_index() if self._is_whole(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        path = self._data_path(name)
        if not self._is_whole(path):
            raise FileNotFoundError(path)  # which numba takes as a file that was removed meanwhile
        return super()._load_data(name)

    def _is_whole(self, name: str) -> bool:
        """Say whether a file is there, and as it was written. One that isn't is replaced when its kernel has been compiled; it isn't
        removed, since another process may have replaced it by now."""
        path = Path(name)
        try:
            if is_whole(path):
                return True
        except FileNotFoundError:
            return False
        except OSError as error:
            _say(f"The compiled kernel {path} can't be read ({error}): it is compiled anew")
            return False
        _say(f"The compiled kernel {path} is damaged: it is compiled anew")
        return False

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        data = io.BytesIO()
        yield data
        with super()._open_for_write(filepath) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data.getvalue())
            file.write(seal(data.getvalue()))


class _Implementation(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 - numba's


class _Cache(FunctionCache):
    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        made = self._cache_file
        self._cache_file = _Sealed(made._cache_path, self._impl.filename_base, made._source_stamp)


_said: set[str] = set()


def _say(text: str) -> None:
    """Write a line to the log, once by each process."""
    if text not in _said:
        _said.add(text)
        print(text, file=sys.stderr, flush=True)
