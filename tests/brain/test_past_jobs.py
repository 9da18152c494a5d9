"""Past jobs that another brain begins with: what it is given says the same as what was learnt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.job_history import past_jobs
from dlrover_lite.brain.models.similarity import THRESHOLD, distance
from dlrover_lite.brain.past_jobs import MOST_JOBS, add_similar_jobs, similar_jobs
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import FIT_KINDS, FitRecord
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.features import JobFeatures
from tests.brain.advised import FEATURES
from tests.brain.simulated import START
from tests.brain.test_past import ended, entry

NAMES = {"owner": "1000"}
"""What a new job is called in its pod, and past ones weren't."""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ConfigStore]:
    with ConfigStore(tmp_path / "here.sqlite") as found:
        yield found


@pytest.fixture
def there(tmp_path: Path) -> Iterator[ConfigStore]:
    with ConfigStore(tmp_path / "there.sqlite") as found:
        yield found


def like(**fields: Any) -> JobFeatures:
    return msgspec.structs.replace(FEATURES, **{**NAMES, **fields})


FITS: list[FitRecord] = []


def fits() -> list[FitRecord]:
    """What is learnt of a job, made once."""
    if not FITS:
        with TemporaryDirectory() as directory, ConfigStore(Path(directory, "brain.sqlite")) as store:
            ended(store, "any")
            FITS.extend(queries.fitted_jobs(store, kind)[0][1] for kind in FIT_KINDS)
    return FITS


def past(store: ConfigStore, job: str, at: float = START, **fields: Any) -> None:
    for one in fits():
        store.add_fit(msgspec.structs.replace(one, job=job, at=at))
    features = {**msgspec.to_builtins(FEATURES), "owner": "ann", "demand": {"any": "thing"}, **fields}
    store.put_job(entry(job, created_at=at, ended_at=at, owner="ann", features=features))
    store.commit()


def test_what_was_learnt_of_a_job_is_learnt_elsewhere_too(here: ConfigStore, there: ConfigStore) -> None:
    past(here, "ads-1")
    (known,) = past_jobs(here, at=START + 60)
    packed = similar_jobs(here, like())
    for _ in range(2):
        assert add_similar_jobs(there, packed, "workstation") == 1
    (found,) = past_jobs(there, at=START + 60)
    assert found == msgspec.structs.replace(known, features=msgspec.structs.replace(FEATURES, owner=""))
    assert distance(like(), found.features) == 0.0, "whose it was, there, doesn't make it another"
    (job,) = queries.jobs(there)
    assert (job.source, job.directory, job.owner, job.state) == ("workstation", "", "", "succeeded")
    ((count,),) = there.db.conn.execute("select count(*) from fits")
    assert count == 3


def test_a_models_file_is_the_same_wherever_it_lies(here: ConfigStore, there: ConfigStore) -> None:
    past(here, "ads-1", model="models/net.py:Net")
    add_similar_jobs(there, similar_jobs(here, like(model="net.py:Net")), "workstation")
    assert [one.features.model for one in past_jobs(there, at=START)] == ["net.py:Net"]


def test_a_job_that_is_known_there_stays_as_it_is(here: ConfigStore, there: ConfigStore) -> None:
    past(here, "ads-1")
    there.put_job(entry("ads-1", state="running"))
    there.commit()
    add_similar_jobs(there, similar_jobs(here, like()), "workstation")
    assert [(one.state, one.source) for one in queries.jobs(there)] == [("running", "")]
    assert not past_jobs(there, at=START)


def test_nothing_is_packed_where_nothing_is_known_and_what_is_no_history_is_refused(
    here: ConfigStore, there: ConfigStore
) -> None:
    assert similar_jobs(here, like()) == b""
    here.put_job(entry("ads-1", state="running"))
    past(here, "other-1", model="another", name="zzz", tables=0, dims=0, batch_size=0, rows=0)
    assert similar_jobs(here, like()) == b"", "one that is like it in nothing"
    with pytest.raises(HistoryError, match="can't be read"):
        add_similar_jobs(there, b'[{"job": 1}]', "workstation")


ROOMY = 1_000_000
"""Bytes that twenty jobs don't fill."""


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(4, 9), min_size=1, max_size=20), st.integers(1_000, 40_000) | st.just(ROOMY))
def test_the_nearest_go_along_as_far_as_there_is_room(sizes: list[int], most: int) -> None:
    with TemporaryDirectory() as directory, ConfigStore(Path(directory, "brain.sqlite")) as store:
        for number, size in enumerate(sizes):
            past(store, f"ads-{number}", at=START + number, batch_size=1 << size)
        packed = similar_jobs(store, like(batch_size=1 << 6), most_bytes=most)
        assert len(packed) <= most
        took = [row["job"][1] for row in msgspec.json.decode(packed)] if packed else []
        far = {one.job: distance(like(batch_size=1 << 6), one.features) for one in past_jobs(store, at=START + 99)}
        left = [name for name in far if name not in took]
        assert len(took) <= MOST_JOBS and all(far[name] <= THRESHOLD for name in took)
        assert [far[name] for name in took] == sorted(far[name] for name in took)
        if took and left:
            assert max(far[name] for name in took) <= min(far[name] for name in left) + 1e-9
        if most == ROOMY and len(took) < MOST_JOBS:
            assert all(far[name] > THRESHOLD for name in left)
