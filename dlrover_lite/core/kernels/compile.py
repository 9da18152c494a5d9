"""``@kernel``: numba compilation as this project uses it (GIL released, compiled code cached where a cache can be written, and checked when
it is taken from there: ``kernel_cache``)."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from dlrover_lite.core.files.durable import make_private

_KEPT_SECONDS = 30 * 24 * 3600.0
"""Seconds for which kernels that were compiled from other sources are kept after they were last used: somebody may go back."""


COMPILED_VARIABLE = "DLROVER_LITE_COMPILED_KERNELS"
"""Environment variable with a directory of kernels that were compiled already, as an image has them, which need not be writable."""


@cache
def _cache_is_writable() -> bool:
    """Point numba at our own cache directory, which it reads when it is imported: to be called before. Return False where none can be
    written (kernels then compile in memory)."""
    if "NUMBA_CACHE_DIR" not in os.environ:
        from dlrover_lite.core.files.paths import cache_directory, make_cache

        ours = cache_directory() / "kernels" / _sources()
        os.environ["NUMBA_CACHE_DIR"] = str(ours)
        with suppress(OSError):  # a cache that can't be written is found out below
            make_cache("kernels")
            _use(ours, time.time())
    directory = Path(os.environ["NUMBA_CACHE_DIR"])
    if (compiled := os.environ.get(COMPILED_VARIABLE)) and not directory.exists():
        _copy(Path(compiled), directory)
    try:
        if (
            not directory.is_dir()
        ):  # one of a person's may be another user's, or shared: then each kernel's own must be ours
            make_private(directory)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _copy(compiled: Path, directory: Path) -> None:
    """Begin a cache with these kernels; where that can't be they are compiled. Another process may do the same meanwhile."""
    with suppress(OSError, shutil.Error):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".kernels-") as scratch:
            copied = Path(scratch) / "kernels"
            shutil.copytree(compiled, copied)
            copied.chmod(0o700)
            copied.rename(directory)


def _use(directory: Path, now: float) -> None:
    """Note that ``directory`` is used ``now``. When it is new, remove those beside it that haven't been for 30 days.

    Other processes may do the same meanwhile, or use one of those after all: where numba finds a file gone it compiles, and makes the
    directory anew. Raises OSError where nothing can be written.
    """
    is_new = not directory.exists()
    make_private(directory)
    os.utime(directory, (now, now))
    if not is_new:
        return
    for other in directory.parent.iterdir():
        with suppress(FileNotFoundError):  # another process was faster
            if other != directory and other.stat().st_mtime < now - _KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)


def _sources() -> str:
    """Name the state of our sources, so that the kernels of another one can be dropped as a whole. (``kernel_sources`` tells whether one in
    the cache is of its sources.)"""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parents[2].rglob("*.py")):
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


_cache_is_writable()
# These import numba, for which the directory must be named before.
import numba  # noqa: E402
from llvmlite import ir  # noqa: E402
from numba.core import cgutils, types  # noqa: E402
from numba.extending import intrinsic as _typed  # noqa: E402

from dlrover_lite.core.kernels.cache import cache_of  # noqa: E402


def _import_without_scipy() -> None:
    """Import what numba needs before it compiles or loads a first kernel, but for scipy, which takes more time than all the rest of it.

    numba imports scipy only to know whether kernels that correlate arrays may call BLAS; those that multiply matrices look again. Ours
    do neither."""
    linalg: Any = import_module("numba.np.linalg")

    def no_blas() -> None:
        raise ImportError("scipy is not looked for")

    ensure_blas = getattr(linalg, "ensure_blas", None)
    if ensure_blas is None or "scipy.linalg" in sys.modules:
        return
    linalg.ensure_blas = no_blas
    try:
        arraymath: Any = import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = ensure_blas
    arraymath.ensure_blas = ensure_blas


_import_without_scipy()

intrinsic: Any = _typed
"""numba's, whose types say nothing of what kernels call."""


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function`` on first use. Inside, arrays are not bounds-checked: callers check lengths."""
    compiled: Any = numba.njit(nogil=True, error_model="numpy")(function)
    if _cache_is_writable() and (kept := cache_of(function)) is not None:
        compiled._cache = kept  # as its ``enable_caching`` does with numba's own
    return compiled  # type: ignore[no-any-return]


def _pointer(context: Any, builder: Any, array: Any, place: Any, kind: Any) -> Any:
    """Return a pointer to a place in an ``array`` (1-d, contiguous), its value and an index, as one to values of another kind."""
    value, index = place
    data = cgutils.create_struct_proxy(array)(context, builder, value=value).data  # type: ignore[no-untyped-call]
    return builder.bitcast(builder.gep(data, [index]), kind.as_pointer())


@intrinsic
def prefetch(_context, array, index):  # type: ignore[no-untyped-def]
    """Start loading the cache line of ``array[index]`` (1-d, contiguous); harmless whatever the index is."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature.args[0], arguments, ir.IntType(8))
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])  # to read, keep in all caches, data
        return context.get_dummy_value()

    return types.none(array, types.int64), codegen


@intrinsic
def count_trailing_zeros(_context, bits):  # type: ignore[no-untyped-def]
    """Count the zeros below the lowest one of a uint64 that isn't 0."""

    def codegen(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


def _make_fence(order: str, scope: str | None = None) -> Any:
    @intrinsic
    def fence(_context):  # type: ignore[no-untyped-def]
        def codegen(context, builder, _signature, _arguments):  # type: ignore[no-untyped-def]
            builder.fence(order, targetscope=scope)
            return context.get_dummy_value()

        return types.none(), codegen

    return fence


fence = _make_fence("seq_cst", "singlethread")
"""Has stores before this done before those after it, as a process killed at any instruction leaves them.

For the compiler alone, and free: who reads such memory when its writer is dead finds the writer's stores as its program made them,
since an interrupt divides a program between two instructions, whatever the processor had reordered. It wouldn't do between threads
that run at the same time.
"""
publish = _make_fence("acq_rel")
"""Does as ``fence``, and for processes that run at the same time: another one that sees a store made after this, and has read in
order, sees all that were made before; and what was loaded before this was loaded before those stores.

An instruction on ARM; on x86 the processor does so anyway.
"""


def _make_copy(words: int) -> Any:
    @intrinsic
    def copy(_context, target, to, source, at):  # type: ignore[no-untyped-def]
        """Copy ``words`` values of 4 bytes from ``source[at]`` on to ``target[to]`` (1-d, contiguous), at once: a loop of so few would go
        one by one."""

        def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            kind = ir.VectorType(ir.IntType(32), words)
            into = _pointer(context, builder, signature.args[0], arguments[:2], kind)
            out_of = _pointer(context, builder, signature.args[2], arguments[2:], kind)
            builder.store(builder.load(out_of, align=4), into, align=4)
            return context.get_dummy_value()

        return types.none(target, types.uint64, source, types.uint64), codegen

    return copy


copy_1, copy_4, copy_16 = _make_copy(1), _make_copy(4), _make_copy(16)
