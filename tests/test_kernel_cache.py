"""What is taken from the cache of compiled kernels is what was compiled: all else is passed over, said, and compiled anew."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlrover_lite.core.kernels import cache as kernel_cache
from dlrover_lite.core.kernels import compile as compile_module
from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.core.kernels.files import damaged_files, is_whole


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "kernels"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(directory))
    monkeypatch.setattr(kernel_cache, "_said", set())
    return directory


def double(x):  # type: ignore[no-untyped-def]
    return x + x


def files(cache: Path) -> dict[str, Path]:
    return {path.suffix: path for path in sorted(cache.rglob("*.nb?"))}


def compiled(argument: Any = 3) -> bool:
    """Whether it had to be, by a process that comes now."""
    anew: Any = kernel(double)
    np.testing.assert_array_equal(anew(argument), argument + argument)
    (misses,) = anew.stats.cache_misses.values() if anew.stats.cache_misses else (0,)
    return bool(misses)


def flipped(data: bytes) -> bytes:
    at = random.Random(len(data)).randrange(len(data))
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit": flipped,
    "its digest": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
    "zeros": lambda data: bytes(len(data)),
    "longer": lambda data: data + b"x",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_damaged_kernels_are_reported_and_compiled_anew(
    cache: Path, suffix: str, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert compiled() and not compiled()
    assert list(damaged_files(cache)) == [] and capfd.readouterr().err == ""
    path = files(cache)[suffix]
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert list(damaged_files(cache)) == [path]
    assert compiled()
    assert capfd.readouterr().err == f"The compiled kernel {path} is damaged: it is compiled anew\n"
    assert list(damaged_files(cache)) == []
    assert not compiled()
    assert capfd.readouterr().err == ""


def test_kernels_compiled_for_other_types_are_not_run(cache: Path) -> None:
    """Two processes that compile for different types at once may give their files the same name."""
    assert compiled(3)
    (data,) = cache.rglob("*.nbc")
    for_integers = data.read_bytes()
    shutil.rmtree(cache)
    assert compiled(0.5)
    (data,) = cache.rglob("*.nbc")
    data.write_bytes(for_integers)
    assert is_whole(data)
    assert compiled(0.5)
    assert not compiled(0.5)


def test_kernels_deleted_from_the_cache_are_compiled_anew(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The cache may be deleted at any time."""
    for suffix in (".nbi", ".nbc"):
        compiled()
        files(cache)[suffix].unlink()
        assert compiled() and not compiled()
    assert capfd.readouterr().err == ""


def test_kernels_stay_in_memory_if_the_disk_is_full(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert compiled() and compiled()
    assert capfd.readouterr().err.count("can't be kept: [Errno 28] No space left on device") == 1
    assert compiled() and not compiled()


def test_kernels_are_not_loaded_where_others_can_write(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert compiled() and not compiled()
    place = files(cache)[".nbi"].parent
    assert place.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
    place.chmod(0o775)  # ours: closed again
    assert not compiled() and place.stat().st_mode & 0o777 == 0o700
    if os.geteuid() == 0:
        os.chown(place, 12345, -1)
        assert compiled() and compiled()
        assert capfd.readouterr().err.count(f"Other users can write to {place}") == 1
        os.chown(place, 0, -1)


def test_a_cache_begins_with_kernels_that_were_compiled_before(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose image can't be written to."""
    assert compiled()
    shipped = tmp_path / "shipped"
    cache.rename(shipped)
    for path in [shipped, *shipped.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setenv("DLROVER_LITE_COMPILED_KERNELS", str(shipped))
    compile_module._cache_is_writable.cache_clear()
    assert compile_module._cache_is_writable()
    assert not compiled() and compiled(0.5), "and others can be added"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
