from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from dlrover_lite.backends.keeper.runtime_directories import (
    create_runtime_directory,
    remove_runtime_directory,
    sweep_runtime,
)
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.processes.identity import ProcessIdentity, identify
from tests.jobs.test_store import gone

JOB = Path("/nowhere/quick-01234567")


def swept(own_directories: Path) -> list[Path]:
    """By a sweep, of what these tests have made: elsewhere under the temp directory, jobs of others may have been killed."""
    return [directory for directory in sweep_runtime() if directory.is_relative_to(own_directories)]


def me() -> ProcessIdentity:
    identity = identify(os.getpid())
    assert identity is not None
    return identity


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short temp directory, and no XDG runtime directory."""
    directory = Path(tempfile.mkdtemp(prefix="dlt-"))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    yield directory
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    directory.rmdir()


def test_runtime_directory_is_private_and_short(own_directories: Path) -> None:
    directory = create_runtime_directory(JOB, "01234567", me())
    assert directory == own_directories / "r" / "dlrover-lite" / "01234567"
    assert directory.stat().st_mode & 0o777 == 0o700
    other = create_runtime_directory(JOB, "01234567", me())
    assert other != directory
    remove_runtime_directory(directory)
    remove_runtime_directory(other)
    assert list((own_directories / "r").iterdir()) == []


def test_runtime_directory_without_xdg_is_under_the_temp_directory(short: Path) -> None:
    directory = create_runtime_directory(JOB, "0", me())
    assert directory == short / f"dlrover-lite-{os.geteuid()}" / "0"
    assert directory.parent.stat().st_mode & 0o777 == 0o700
    remove_runtime_directory(directory)


@pytest.mark.parametrize("trap", ["open", "link", "file"])
def test_directories_that_others_could_have_made_are_not_used(
    short: Path, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = short / f"dlrover-lite-{os.geteuid()}"
    if trap == "open":
        base.mkdir()
        base.chmod(0o777)
    elif trap == "link":
        (short / "elsewhere").mkdir(mode=0o700)
        base.symlink_to(short / "elsewhere")
    else:
        base.write_text("")
    directory = create_runtime_directory(JOB, "0", me())
    assert not directory.is_relative_to(short)
    remove_runtime_directory(directory)


def test_an_unusable_or_long_xdg_directory_is_passed_over(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = short / ("x" * 80)
    long.mkdir(mode=0o700)
    for runtime in (long, short / "missing", Path("relative")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        directory = create_runtime_directory(JOB, "0", me())
        assert directory.parent.parent == short
        remove_runtime_directory(directory)


def test_no_usable_place_for_runtime_directories_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dlrover_lite.backends.keeper.runtime_directories._bases", lambda: iter([Path("/proc/nowhere")])
    )
    with pytest.raises(JobError, match="/proc/nowhere"):
        create_runtime_directory(JOB, "0", me())


def test_sweep_removes_runtime_directories_of_dead_processes(own_directories: Path) -> None:
    alive = create_runtime_directory(JOB, "alive", me())
    dead = create_runtime_directory(JOB, "dead", gone())
    (dead / "keeper.sock").write_text("")
    unfinished = alive.parent / ".new-x"
    unfinished.mkdir()
    assert swept(own_directories) == [dead]
    assert unfinished.exists()
    os.utime(unfinished, (0, 0))
    assert swept(own_directories) == [unfinished]
    assert alive.exists()
    boot, _, ticks = me().started.split()
    other_container = create_runtime_directory(JOB, "other", ProcessIdentity(1, f"{boot} pid:[1] {ticks}"))
    assert swept(own_directories) == []
    for directory in (alive, other_container):
        remove_runtime_directory(directory)
