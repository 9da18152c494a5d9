"""The config database: what was committed is there, whoever else writes and whoever is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.brain.effect import judge
from dlrover_lite.brain.planning.decision import decide, replay
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.errors import HistoryError, UsageError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.plans import Plan, RolePlan
from tests.brain.models import load, view

pytest.importorskip("sqlite_utils")

from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.preferences import Preferences
from dlrover_lite.brain.store.prune import prune
from dlrover_lite.brain.store.records import FitRecord, JobEntry, ProfileRecord
from dlrover_lite.brain.store.schema import migrations
from dlrover_lite.protocol.records import NodeRecord, PlanRecord

DAY = 86400.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "brain.sqlite"


@pytest.fixture
def store(path):
    with ConfigStore(path) as store:
        yield store


def a_job(number=0, **fields) -> JobEntry:
    given = {"id": f"ads-{number:03}", "name": "ads", "state": "running", "created_at": 100.0 + number, **fields}
    return JobEntry(**given)


def a_profile(job, at, **fields) -> ProfileRecord:
    return ProfileRecord(job=job, at=at, seconds=15.0, samples_per_second=1e5, workers=2, servers=1, **fields)


INPUTS = RoundInputs(
    at=5.0, capacity=Resources(4.0, 8 * GIB), jobs=(view("a", now=Candidate(1, 1, 0.25, 0.25)), view("b"), view("c"))
)


# --- what comes back ------------------------------------------------------------------------------------------------------


def test_stored_records_are_read_back_unchanged(store):
    job = a_job(features={"tables": 26, "dims": [16]}, model="dcn", owner="me", started_at=1.5)
    plan = Plan(ps=RolePlan(1, Resources(0.5, GIB)), worker=RolePlan(2, Resources(1.0, GIB)))
    profiles = [a_profile(job.id, 10.0 * at, data={"cpu": [0.5, at]}) for at in range(3)]
    event = NodeRecord(job=job.id, at=3.0, node="worker-1", event="ended", reason="OOMKilled", data={"code": -9})
    fits = [FitRecord(job=job.id, at=at, kind="bottleneck", error=0.02, windows=9, data={"x": at}) for at in (1.0, 2.0)]
    store.put_job(job)
    for profile in profiles:
        store.add_profile(profile)
    for kind, at, number in (("desired", 1.0, 6), ("desired", 2.0, 7), ("granted", 3.0, 7)):
        store.add_plan(PlanRecord(job=job.id, at=at, kind=kind, plan=plan, decision=number))
    store.add_node_event(event)
    for fit in fits:
        store.add_fit(fit)
    assert queries.jobs(store) == []
    store.commit()
    assert store.waiting == 0
    assert queries.jobs(store) == [job]
    assert queries.profiles(store, job.id) == profiles
    assert queries.profiles(store, job.id, since=10.0, newest=1) == profiles[2:]
    assert queries.plans(store, job.id, kind="desired", newest=1)[0].at == 2.0
    assert queries.jobs_with_plans(store, queries.JobsQuestion()) == [(job, plan)]
    assert queries.plans(store, "nobody") == []
    assert queries.node_events(store, job.id) == [event]
    assert queries.fitted_jobs(store, "bottleneck") == [(job, fits[1])]
    assert queries.fitted_jobs(store, "memory") == []


def test_uncommitted_jobs_are_forgotten(path):
    with ConfigStore(path) as store:
        store.put_job(a_job())
    with ConfigStore(path) as store:
        assert queries.jobs(store) == []


def test_a_job_is_replaced_by_what_is_newer(store):
    store.put_job(a_job())
    store.put_job(a_job(created_at=999.0, state="succeeded", ended_at=400.0))
    store.commit()
    (job,) = queries.jobs(store)
    assert (job.created_at, job.state, job.ended_at) == (100.0, "succeeded", 400.0)


def test_decisions_are_numbered_replayed_and_judged(store):
    decided = decide(INPUTS, load)
    assert store.add_round(decided, ["a", "b"]) == {"a": 1, "b": 1}
    assert store.add_round(decided, ["a"]) == {"a": 2}
    assert store.add_round(decided, []) == {}
    assert store.add_round(decided, ["b"], heard={"b": 17}) == {"b": 18}  # of a database that is gone
    first, second = queries.decisions(store, "a")
    assert (first.number, second.number) == (1, 2)
    assert first.decision == decided.of("a")
    assert replay(first.decision, queries.inputs_of(store, first), load).same
    effect = judge(first.decision, Band(1.0, 0.9, 1.1), windows=3, at=60.0)
    store.put_effect("a", 1, effect)
    store.commit()
    (judged,) = queries.decisions(store, "a", number=1)
    assert judged.effect == effect
    assert [one.number for one in queries.decisions(store, "a", newest=1)] == [2]
    assert queries.decisions(store, "c") == []


def test_inputs_of_the_version_before_are_decided_from_as_they_were(store):
    """They don't name hosts."""
    decided = decide(INPUTS, load)
    store.add_round(decided, ["a"])
    told = msgspec.to_builtins(INPUTS)
    del told["hosts"]
    with store.transaction():
        store.db.conn.execute("update rounds set inputs = ?", (zlib.compress(msgspec.json.encode(told)),))
    (stored,) = queries.decisions(store, "a")
    inputs = queries.inputs_of(store, stored)
    assert inputs == INPUTS and inputs.hosts == ()
    assert replay(stored.decision, inputs, load).same


# --- looking for jobs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], [3, 2, 1, 0]),
        (["model=d*"], [3, 1]),
        (["state=failed,lost"], [2, 1]),
        (["name=search", "model=dlrm"], [3]),
        (["since=2h"], [3, 2]),
        (["until=2h"], [1, 0]),
        (["limit=1"], [3]),
        (["CRITEO"], [0]),
        (["out", "memory"], [1]),
        (["id=ads-00[12]"], [2, 1]),
    ],
)
def test_filters_choose_jobs_by_word_state_and_limit(store, words, found):
    jobs = [
        a_job(0, model="wide_deep", state="succeeded", features={"data": "criteo"}, created_at=0.0),
        a_job(1, model="dcn", state="failed", message="out of memory", created_at=1600.0),
        a_job(2, model="xdeepfm", state="lost", created_at=9000.0),
        a_job(3, model="dlrm", name="search", created_at=9500.0),
    ]
    for job in jobs:
        store.put_job(job)
    store.commit()
    which = queries.parse_filter(words, now=10_000.0)
    assert queries.jobs(store, which) == [jobs[at] for at in found]


@pytest.mark.parametrize(
    ("word", "says"), [("since=yesterday", "no span of time"), ("limit=0", "no number"), ("colour=red", "'colour'")]
)
def test_senseless_filters_are_refused(word, says):
    with pytest.raises(UsageError, match=says):
        queries.parse_filter([word], now=0.0)


# --- forgetting -------------------------------------------------------------------------------------------------------------


def test_pruning_removes_old_jobs_with_their_records(store):
    runs, old, recent = (a_job(0), a_job(1, ended_at=10 * DAY), a_job(2, ended_at=390 * DAY))
    for job in (runs, old, recent):
        store.put_job(job)
        for at in (1.0, 2.0):
            store.add_profile(a_profile(job.id, at))
        store.add_fit(FitRecord(job=job.id, at=1.0, kind="bottleneck", error=0.1, windows=2, data={}))
    store.commit()
    store.add_round(decide(INPUTS, load), ["a"])
    assert prune(store, Preferences(), now=400 * DAY) == (1, 3)
    assert [job.id for job in queries.jobs(store)] == [recent.id, runs.id]
    assert queries.profiles(store, old.id) == []
    prune(store, Preferences(profile_days=5), now=400 * DAY)
    assert queries.profiles(store, recent.id) == []
    assert len(queries.profiles(store, runs.id)) == 2
    assert [job.id for job, _ in queries.fitted_jobs(store, "bottleneck")] == [recent.id, runs.id]
    assert queries.inputs_of(store, queries.decisions(store, "a")[0]) == INPUTS
    prune(store, Preferences(keep_jobs=0), now=400 * DAY)
    assert [job.id for job in queries.jobs(store)] == [runs.id]


def test_pruning_shrinks_the_database_file(store, path):
    store.put_job(a_job(ended_at=1.0))
    for at in range(2000):
        store.add_profile(a_profile("ads-000", float(at), data={"pad": "x" * 300}))
    store.commit()
    store.db.conn.execute("pragma wal_checkpoint(truncate)")
    before = path.stat().st_size
    prune(store, Preferences(keep_jobs=0), now=10.0)
    store.db.conn.execute("pragma wal_checkpoint(truncate)")
    assert path.stat().st_size < before / 3


# --- several at once, and killed ones -----------------------------------------------------------------------------------------

WRITE = """
import sys
from pathlib import Path
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import ProfileRecord

path, job, commits = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = ConfigStore(path)
print("open", flush=True)
sys.stdin.readline()
for commit in range(commits):
    for i in range(10):
        at = commit * 10.0 + i
        store.add_profile(ProfileRecord(job=job, at=at, seconds=1.0, samples_per_second=1.0, workers=1, servers=1))
    store.commit()
    print(commit, flush=True)
store.close()
"""


def start(path, job, commits):
    return subprocess.Popen(
        [sys.executable, "-c", WRITE, str(path), job, str(commits)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_several_processes_create_and_write_the_database_at_once(path):
    writers = [start(path, f"job-{i}", 20) for i in range(3)]
    try:
        for writer in writers:
            assert writer.stdout.readline() == "open\n"
        for writer in writers:
            writer.stdin.write("\n")
            writer.stdin.flush()
        with ConfigStore(path) as store:
            for writer in writers:
                writer.communicate()
                assert writer.returncode == 0
            for i in range(3):
                assert [p.at for p in queries.profiles(store, f"job-{i}")] == [float(at) for at in range(200)]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def test_committed_records_survive_kill_9(path):
    writer = start(path, "job", 100_000)
    try:
        assert writer.stdout.readline() == "open\n"
        writer.stdin.write("\n")
        writer.stdin.flush()
        while int(writer.stdout.readline()) < 30:
            pass
        os.kill(writer.pid, signal.SIGKILL)
        said = [int(line) for line in writer.communicate()[0].splitlines() if line.isdecimal()]
    finally:
        writer.kill()
        writer.wait()
    with ConfigStore(path) as store:
        found = [profile.at for profile in queries.profiles(store, "job")]
        assert store.db.conn.execute("pragma integrity_check").fetchone()[0] == "ok"
    assert len(found) % 10 == 0
    assert len(found) >= 10 * (max(said, default=30) + 1)
    assert found == [float(at) for at in range(len(found))]


def test_a_writer_waits_for_another_writers_lock(path):
    """The lock is let go 50 ms after it was taken, whenever the other begins to wait."""
    with ConfigStore(path) as store:
        store.put_job(a_job())
        locked = threading.Event()

        def hold():
            with ConfigStore(path) as other, other.transaction():
                locked.set()
                other.db.conn.execute("update jobs set state = 'x' where 0")
                threading.Event().wait(0.05)

        thread = threading.Thread(target=hold)
        thread.start()
        locked.wait()
        store.commit()
        thread.join()
        assert len(queries.jobs(store)) == 1


def test_a_held_lock_is_reported_and_waiting_rows_are_kept(path):
    with ConfigStore(path, busy_seconds=0.01) as store, ConfigStore(path) as other:
        other.db.conn.execute("begin immediate")
        store.put_job(a_job())
        with pytest.raises(HistoryError, match="locked by another process"):
            store.commit()
        other.db.conn.execute("rollback")
        assert store.waiting == 1
        store.commit()
        assert len(queries.jobs(store)) == 1


# --- files of others --------------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_refused(path):
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(HistoryError, match="damaged or no database"):
        ConfigStore(path)


def test_a_database_of_another_application_is_refused(path):
    with sqlite3.connect(path) as db:
        db.execute("create table other (x)")
    with pytest.raises(HistoryError, match="not a database of dlrover-lite's brain"):
        ConfigStore(path)


def test_a_database_of_a_newer_version_is_refused(path):
    with ConfigStore(path) as store, store.transaction():
        store.db.table(migrations.migrations_table).insert(
            {"migration_set": migrations.name, "name": "m999_far_ahead", "applied_at": "later"}
        )
    with pytest.raises(HistoryError, match=r"newer version of dlrover-lite \(m999_far_ahead\)"):
        ConfigStore(path)


def test_a_missing_directory_of_the_database_is_an_error(tmp_path):
    with pytest.raises(HistoryError, match="can't be read or written"):
        ConfigStore(tmp_path / "no" / "brain.sqlite")


def test_unreadable_stored_decisions_are_an_error(store):
    store.add_round(decide(INPUTS, load), ["a"])
    with store.transaction():
        store.db.conn.execute("update decisions set data = '{}'")
    with pytest.raises(HistoryError, match="Decision 1 of a can't be read"):
        queries.decisions(store, "a")
