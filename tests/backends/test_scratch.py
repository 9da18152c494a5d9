"""What a pod's only directory that can be written to is used for."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.backends.keeper import scratch
from dlrover_lite.backends.keeper.scratch import make_places, scratch_variables


def test_what_the_environment_says_stays_and_what_it_lacks_is_below_scratch() -> None:
    given = {"TMPDIR": "/elsewhere", "XDG_CACHE_HOME": "", "HOME": "/home/somebody"}
    found = scratch_variables(given, Path("/scratch"), home_is_usable=True)
    assert "TMPDIR" not in found and "HOME" not in found
    assert found["XDG_CACHE_HOME"] == "/scratch/cache"
    assert found["NUMBA_CACHE_DIR"] == "/scratch/numba"
    assert scratch_variables(given, Path("/scratch"), home_is_usable=False)["HOME"] == "/scratch"


def test_directories_below_scratch_are_made_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "HOME",
        "TMPDIR",
        "NUMBA_CACHE_DIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
    ):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "given" / "tmp"))
    make_places(tmp_path)
    assert (tmp_path / "given" / "tmp").is_dir() and not (tmp_path / "tmp").exists()
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "numba").exists()  # the kernels of an image are copied to where nothing is yet
    assert scratch.os.environ["HOME"] == str(tmp_path)
