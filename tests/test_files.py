"""Our own files: nobody else's to read, whole after a loss of power, and where their names say."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.core.files import durable as files
from dlrover_lite.core.files.durable import (
    UnsafeName,
    checked_name,
    close_to_others,
    make_private,
    open_private,
    without_syncing,
    write_whole,
)
from tests.file_calls import recorded


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277], ids="umask {:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


PARTS = (
    st.text(st.sampled_from("ab.-%~*: /\\\0\n"), max_size=6) | st.text(max_size=6) | st.sampled_from(["..", ".", ""])
)


@given(st.lists(PARTS, min_size=1, max_size=5).map("/".join), st.booleans())
def test_a_checked_name_stays_below_its_directory(name: str, folders: bool) -> None:
    root = "/place/of its own"
    try:
        placed = f"{root}/{checked_name(name, folders=folders)}"
    except UnsafeName:
        return
    assert os.path.normpath(placed) == placed  # nothing in it means another place
    assert placed.startswith(f"{root}/") and "\0" not in placed
    if not folders:
        assert str(Path(placed).parent) == root


@given(st.lists(st.text(st.sampled_from("abZ09_-.%"), min_size=1, max_size=9).filter(str.strip(".").__ne__)))
def test_usual_file_names_are_accepted(parts: list[str]) -> None:
    for part in parts:
        if part.strip("."):
            assert checked_name(part) == part
            assert checked_name(f"tables/{part}", folders=True) == f"tables/{part}"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "\0", "a\nb", "x" * 256]
)
def test_file_names_that_lead_elsewhere_are_refused(name: str) -> None:
    for folders in (False, True):
        with pytest.raises(UnsafeName):
            checked_name(name, folders=folders)
    with pytest.raises(UnsafeName):
        checked_name("a/b")


def test_private_directories_and_files_are_readable_by_their_owner_only(umask: None, tmp_path: Path) -> None:
    place = tmp_path / "state" / "brain"
    make_private(place)
    assert [mode(path) for path in (place.parent, place)] == [0o700, 0o700]
    write_whole(place / "whole", b"1")
    write_whole(place / "first", b"1", replace=False)
    os.close(open_private(place / "opened", os.O_WRONLY))
    files.create_private(place / "created")
    store = ConfigStore(place / "brain.sqlite")
    assert {path.name: mode(path) for path in place.iterdir()} == dict.fromkeys(names(place), 0o600)
    store.close()


def test_permissions_left_open_by_older_versions_are_closed(tmp_path: Path) -> None:
    place = tmp_path / "brain"
    place.mkdir()
    ConfigStore(place / "brain.sqlite").close()
    (place / "log").write_text("older\n")
    for path in (*place.iterdir(), place):
        path.chmod(0o755 if path.is_dir() else 0o644)
    make_private(place)
    os.close(open_private(place / "log", os.O_WRONLY | os.O_APPEND))
    store = ConfigStore(place / "brain.sqlite")
    assert mode(place) == 0o700
    assert {path.name: mode(path) for path in place.iterdir()} == dict.fromkeys(names(place), 0o600)
    store.close()
    assert (place / "log").read_text() == "older\n"


def test_closing_permissions_of_missing_files(tmp_path: Path) -> None:
    close_to_others(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        close_to_others(tmp_path / "none", must_exist=True)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "file")


@pytest.mark.parametrize("links", [True, False], ids=["with links", "without links"])
@pytest.mark.parametrize("replace", [True, False], ids=["replacing", "the first"])
def test_a_file_written_whole_is_durable_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool, links: bool
) -> None:
    path = tmp_path / "result.json"
    if not links:

        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", refuse)
    with recorded() as calls:
        assert write_whole(path, [b"a" * 5000, b"b"], replace=replace)
    if links or replace:
        calls.check_durable(path)
    else:  # where a file can be made anew but not linked, it is synced under its name
        assert [call.path for call in calls.calls if call.what == "sync"][-2:] == [str(path), str(tmp_path)]
    assert path.read_bytes() == b"a" * 5000 + b"b"
    assert write_whole(path, b"second", replace=replace) is replace
    assert names(tmp_path) == ["result.json"]


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "x", b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write_whole(tmp_path / "x", b"new")
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() == b"old"


def test_where_no_machine_can_fail_nothing_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with without_syncing():
        write_whole(tmp_path / "here", b"all of it")
    assert (tmp_path / "here").read_bytes() == b"all of it"
    assert synced == []
    write_whole(tmp_path / "here", b"all of it")
    assert len(synced) == 2, "neither the file nor its name is durable again"
