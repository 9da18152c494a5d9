"""Which cuts are kept: the newest, one every so many hours, and what these build on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.checkpoint.retention import retained
from dlrover_lite.checkpoint.store import CheckpointStore
from tests.checkpoint.cuts import keys, write_cut

HOUR = 3600.0


class Taken(NamedTuple):
    """What matters of a manifest."""

    cut: int
    at: float
    builds_on: int | None


@st.composite
def histories(draw: st.DrawFn) -> list[Taken]:
    """Of jobs: rising numbers, a clock that may jump, each cut on the one before or a base."""
    cuts: list[Taken] = []
    at = draw(st.floats(0, 1e6))
    for number in sorted(draw(st.sets(st.integers(0, 200), max_size=30))):
        at += draw(st.floats(-2 * HOUR, 5 * HOUR))
        base = not cuts or draw(st.booleans())
        cuts.append(Taken(number, at, None if base else cuts[-1].cut))
    return cuts


settings_of = st.tuples(st.integers(1, 5), st.none() | st.floats(0.5, 48))


@given(histories(), settings_of)
def test_newest_cuts_their_bases_and_one_per_hour_are_kept(
    cuts: list[Taken], settings: tuple[int, float | None]
) -> None:
    keep, hours = settings
    kept = retained(cuts, (), keep, hours)
    known = {cut.cut: cut for cut in cuts}
    assert set(sorted(known)[-keep:]) <= kept <= set(known)
    assert all(known[number].builds_on in (None, *kept) for number in kept)
    if hours is not None:
        hour = {cut.cut: cut.at // (hours * HOUR) for cut in cuts}
        assert {hour[number] for number in kept} == set(hour.values())


@given(histories(), settings_of)
def test_deleting_after_each_cut_keeps_the_same_cuts_as_deleting_once(
    cuts: list[Taken], settings: tuple[int, float | None]
) -> None:
    there: list[Taken] = []
    for cut in cuts:
        kept = retained([*there, cut], (), *settings)
        there = [one for one in [*there, cut] if one.cut in kept]
    assert {cut.cut for cut in there} == retained(cuts, (), *settings)


def test_retention_of_a_known_series_of_cuts() -> None:
    cuts = [Taken(n, n * HOUR / 2, None if n % 4 == 0 else n - 1) for n in range(12)]
    assert retained(cuts, (), 1) == {8, 9, 10, 11}
    assert retained(cuts[:10], (), 1) == {8, 9}
    assert retained(cuts[:9], (), 1, every_hours=2) == {0, 4, 8}


def test_abandoned_cuts_do_not_count_as_newest_and_go_once_outnumbered() -> None:
    """The job has gone on from 18 without 19 and 20."""
    there = [Taken(n, n * HOUR, 16 if n == 17 else 19 if n == 20 else None) for n in range(16, 21)]
    left = []
    for number in (21, 22, 23, 24):
        there.append(Taken(number, number * HOUR, None))
        kept = retained(there, (19, 20), 3)
        there = [one for one in there if one.cut in kept]
        left.append([one.cut for one in there])
    assert left == [[16, 17, 18, 19, 20, 21], [18, 19, 20, 21, 22], [21, 22, 23], [22, 23, 24]]
    hourly = retained([Taken(1, 0.0, None), Taken(2, 1.0, None), Taken(3, HOUR, None)], [1], 1, 1)
    assert hourly == {2, 3}
    assert retained([Taken(1, 0.0, None)], [1], 1) == {1}


def test_the_store_deletes_cuts_that_are_not_retained(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    versions = dict.fromkeys(keys(5), 1)
    for number in range(1, 7):
        write_cut(store, number, versions, builds_on=None if number in (1, 3, 5) else number - 1, at=number * HOUR)
    damaged = tmp_path / "cut-00000002" / "manifest.json"
    damaged.write_bytes(b"{}")
    assert store.retain(2) == [4, 3, 2, 1]
    assert [cut.number for cut in store.checkpoints()] == [6, 5]
    assert store.verify(6) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut-00000005", "cut-00000006"]


def test_a_damaged_cut_newer_than_what_is_kept_is_left_to_look_at(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    for number in (1, 2, 3):
        write_cut(store, number, {})
    (tmp_path / "cut-00000003" / "manifest.json").write_bytes(b"{}")
    assert store.retain(1) == [1]
    assert [(cut.number, cut.state) for cut in store.checkpoints()] == [(3, "damaged"), (2, "complete")]
