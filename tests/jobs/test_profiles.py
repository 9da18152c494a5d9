"""Profiles in the job's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.profiles import FILE, Gap, ProfileLog, read
from dlrover_lite.protocol.profiles import Profile


def profile(number: int) -> Profile:
    return Profile("job", float(number), 10.0, 64, 640, 640 * number, (), (), ())


def test_kept_profiles_are_read_in_order(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    kept = [profile(1), Gap(2.0, None, "the master was killed"), profile(3)]
    ProfileLog(tmp_path).keep(kept[0])
    log = ProfileLog(tmp_path)  # of the next master
    for each in kept[1:]:
        log.keep(each)
    assert read(tmp_path) == kept


def test_many_profiles_are_thinned_out_from_the_oldest(tmp_path: Path) -> None:
    log = ProfileLog(tmp_path, kept=16)
    for number in range(100):
        log.keep(profile(number))
    found = [int(each.at) for each in read(tmp_path)]
    assert len(found) <= 16
    assert found[0] == 0  # curves over the whole job begin where it began
    assert found == sorted(set(found))
    assert found[-8:] == list(range(92, 100))
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_keeping_a_profile_in_a_removed_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=FILE):
        ProfileLog(tmp_path / "gone").keep(profile(1))
