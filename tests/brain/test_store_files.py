"""The config database's file: of an older version, of a newer one, damaged, with no room left; and whatever is done to it in any order."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlite_utils import Database

from dlrover_lite.brain.store import preferences, queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.prune import prune, sizes
from dlrover_lite.brain.store.records import JobEntry, ProfileRecord
from dlrover_lite.brain.store.schema import APPLICATION_ID, migrations
from dlrover_lite.core.errors import HistoryError, RowRefused, UsageError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.records import NodeRecord, PlanRecord

PLAN = Plan(ps=RolePlan(1, Resources(0.5, GIB)), worker=RolePlan(2, Resources(1.0, GIB)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "brain.sqlite"


def a_job(number=0, **fields) -> JobEntry:
    return JobEntry(**{"id": f"ads-{number}", "name": "ads", "state": "running", "created_at": 100.0, **fields})


def a_profile(at, job="ads-0", **data) -> ProfileRecord:
    return ProfileRecord(job=job, at=at, seconds=1.0, samples_per_second=1.0, workers=1, servers=1, data=data)


def an_event(what, at, node="ps-0", job="ads-0") -> NodeRecord:
    return NodeRecord(job=job, at=at, node=node, event=what)


def fill(path: Path, profiles: int = 600) -> None:
    with ConfigStore(path) as store:
        for i in range(20):
            store.put_job(a_job(i, features={"tables": i}, outcome=JobOutcome(seconds=1.0 + i)))
        for at in range(profiles):
            store.add_profile(a_profile(float(at), pad="x" * 100))
        store.add_plan(PlanRecord(job="ads-0", at=1.0, kind="granted", plan=PLAN))
        store.add_node_event(an_event("launched", 1.0))
        store.commit()
        store.db.conn.execute("pragma wal_checkpoint(truncate)")


def read_all(store: ConfigStore) -> None:
    for job in queries.jobs(store):
        queries.profiles(store, job.id)
        queries.plans(store, job.id)
        queries.node_events(store, job.id)
        queries.decisions(store, job.id)
    preferences.read(store)


# --- other versions -------------------------------------------------------------------------------------------------------------


def test_a_database_of_the_first_version_is_brought_up_to_date(path):
    """With what is in it, and where it has said the same twice, once."""
    db = Database(path)
    migrations.apply(db, stop_before="m002_what_came_of_jobs_and_what_the_person_prefers")
    db.execute(f"pragma application_id = {APPLICATION_ID}")
    with db.conn:
        db.execute(
            "insert into jobs (id, name, owner, model, state, priority, created_at, samples, message, features) "
            "values ('ads-0', 'ads', 'ada', 'dcn', 'failed', 1.0, 5.0, 7, 'no memory', '{\"tables\": 3}')"
        )
        event = "insert into node_events (job, at, node, event, reason, data) values ('ads-0', ?, 'ps-0', 'resized', '', '{}')"
        db.conn.executemany(event, [(1.0,), (1.0,), (2.0,)])
        plan = msgspec.json.encode(PLAN).decode()
        db.conn.executemany(
            "insert into plans (job, at, kind, data) values ('ads-0', ?, 'granted', ?)", [(1.0, plan), (1.0, plan)]
        )
    db.close()
    with ConfigStore(path) as store:
        (job,) = queries.jobs(store)
        assert (job.owner, job.message, job.features, job.directory) == ("ada", "no memory", {"tables": 3}, "")
        assert job.outcome == JobOutcome()
        assert [one.at for one in queries.node_events(store, "ads-0")] == [1.0, 2.0]
        assert [one.plan for one in queries.plans(store, "ads-0")] == [PLAN]
        assert preferences.read(store) == preferences.Preferences()
        assert not migrations.pending(store.db)
    with ConfigStore(path) as store:
        assert len(queries.jobs(store)) == 1


def test_a_failed_migration_leaves_the_file_unchanged(path, monkeypatch):
    db = Database(path)
    migrations.apply(db, stop_before="m002_what_came_of_jobs_and_what_the_person_prefers")
    db.execute(f"pragma application_id = {APPLICATION_ID}")
    db.close()
    broken = migrations.__class__("dlrover-lite brain")
    monkeypatch.setattr(broken, "_migrations", [*migrations._migrations])

    @broken()
    def m003_fails(db):
        db.execute("create table half (x)")
        db.execute("no such statement")

    monkeypatch.setattr("dlrover_lite.brain.store.database.migrations", broken)
    with pytest.raises(HistoryError):
        ConfigStore(path)
    monkeypatch.undo()
    with sqlite3.connect(path) as left:
        names = {row[0] for row in left.execute("select name from sqlite_schema")}
    left.close()
    assert not {"half", "preferences"} & names
    with ConfigStore(path) as store:
        assert queries.jobs(store) == []


def test_a_newer_database_is_refused_and_left_unchanged(path):
    fill(path)
    with ConfigStore(path) as store, store.transaction():
        store.db.table(migrations.migrations_table).insert(
            {"migration_set": migrations.name, "name": "m999_far_ahead", "applied_at": "later"}
        )
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="newer version of dlrover-lite") as error:
        ConfigStore(path)
    assert "Update this one" in error.value.hint
    assert path.read_bytes() == before


# --- damage -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["head", "schema", "cut off", "text"])
def test_a_damaged_file_is_refused_with_advice_and_not_touched(path, damage):
    fill(path)
    content = path.read_bytes()
    path.write_bytes(
        {
            "head": b"\0" * 100 + content[100:],
            "schema": content[:100] + b"\xff" * 3996 + content[4096:],
            "cut off": content[:2000],
            "text": b"history: none\n" * 100,
        }[damage]
    )
    before = path.read_bytes()
    with pytest.raises(HistoryError) as error:
        ConfigStore(path)
    assert "Move it away" in error.value.hint
    assert path.read_bytes() == before


def test_a_damaged_page_is_an_error_or_does_no_harm(path):
    """Each page in turn is overwritten: reading everything, and writing, works or says what is wrong."""
    fill(path, profiles=100)
    content = path.read_bytes()
    said = 0
    for start in range(4096, len(content), 4096):
        path.write_bytes(content[:start] + b"\xa5" * 4096 + content[start + 4096 :])
        try:
            with ConfigStore(path) as store:
                read_all(store)
                store.put_job(a_job(99))
                store.add_profile(a_profile(1e6))
                store.commit()
        except HistoryError as error:
            said += 1
            assert "Move it away" in error.hint
        for beside in path.parent.glob("brain.sqlite-*"):
            beside.unlink()
    assert said > len(content) // 4096 // 2


def test_a_row_broken_by_hand_is_reported_with_advice(path):
    fill(path)
    with ConfigStore(path) as store:
        store.db.conn.execute("update jobs set outcome = '[' where id = 'ads-3'")
        with pytest.raises(HistoryError, match="can't be understood") as error:
            queries.jobs(store)
        assert "Move it away" in error.value.hint


# --- no room ----------------------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_reported_and_waiting_rows_are_kept(path):
    with ConfigStore(path) as store:
        store.put_job(a_job())
        store.commit()
        (pages,) = store.db.conn.execute("pragma page_count").fetchone()
        store.db.conn.execute(f"pragma max_page_count = {pages}")
        for at in range(200):
            store.add_profile(a_profile(float(at), pad="x" * 1000))
        with pytest.raises(HistoryError, match="is full") as error:
            store.commit()
        assert "Free some space" in error.value.hint
        assert store.waiting == 200
        assert queries.profiles(store, "ads-0") == []
        assert [job.id for job in queries.jobs(store)] == ["ads-0"]
        store.db.conn.execute("pragma max_page_count = 1000000")
        store.commit()
        assert len(queries.profiles(store, "ads-0")) == 200


def test_a_refused_row_is_told_from_one_that_can_not_be_written_now(path):
    with ConfigStore(path) as store:
        store.put_job(a_job())
        store.put_samples("ads-0", 2**64)
        with pytest.raises(RowRefused):
            store.commit()
        store.forget_waiting()
        assert queries.jobs(store) == []


# --- preferences ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    [
        "keep-jobs",
        "keep-jobs=",
        "keep-jobs=-1",
        "keep-jobs=nan",
        "colour=3",
        "=3",
        "policy=",
        "policy=ours",
        "policy=1",
    ],
)
def test_senseless_preferences_are_refused(word):
    with pytest.raises(UsageError):
        preferences.parse_changes([word])


def test_the_policy_is_kept_by_its_name(path):
    with ConfigStore(path) as store:
        assert preferences.change(store, preferences.parse_changes(["policy=paper"])).policy == "paper"
        assert preferences.change(store, {"keep_days": 3.0}).policy == "paper"
        preferences.change(store, {"policy": "lite"})
        assert preferences.read(store) == preferences.Preferences(keep_days=3.0)
        store.db.conn.execute("update preferences set value = 7 where name = 'policy'")
        assert preferences.read(store).policy == "lite", "one that only a newer version knows"


def test_preferences_of_a_newer_version_are_left_alone(path):
    with ConfigStore(path) as store:
        preferences.change(store, {"keep_days": 3.0, "colour": 7.0})
        assert preferences.read(store) == preferences.Preferences(keep_days=3.0)


# --- in any order -----------------------------------------------------------------------------------------------------------------

JOBS = st.integers(0, 3)
TIMES = st.integers(0, 9).map(float)


class Histories(RuleBasedStateMachine):
    """A store beside what it must hold: all that was committed, by whichever connection, and nothing else."""

    directory: Path

    def __init__(self) -> None:
        super().__init__()
        self.path = self.directory / f"{id(self)}.sqlite"
        self.stores = [ConfigStore(self.path), ConfigStore(self.path)]
        self.committed: dict[str, dict[object, object]] = {"jobs": {}, "profiles": {}, "events": {}}
        self.waiting: list[list[tuple[str, object, object]]] = [[], []]

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        for file in self.directory.glob(f"{id(self)}.*"):
            file.unlink()

    @rule(which=st.integers(0, 1), job=JOBS, samples=st.integers(0, 100), ended=st.none() | TIMES)
    def put_job(self, which, job, samples, ended):
        entry = a_job(job, samples=samples, ended_at=ended)
        self.stores[which].put_job(entry)
        self.waiting[which].append(("jobs", entry.id, entry))

    @rule(which=st.integers(0, 1), job=JOBS, at=TIMES, value=st.integers(0, 3))
    def add_profile(self, which, job, at, value):
        profile = a_profile(at, f"ads-{job}", value=value)
        self.stores[which].add_profile(profile)
        self.waiting[which].append(("profiles", (profile.job, at), profile))

    @rule(which=st.integers(0, 1), job=JOBS, at=TIMES, what=st.sampled_from(["launched", "up", "resized"]))
    def add_event(self, which, job, at, what):
        event = an_event(what, at, job=f"ads-{job}")
        self.stores[which].add_node_event(event)
        self.waiting[which].append(("events", (event.job, what, at if what == "resized" else None), event))

    @rule(which=st.integers(0, 1))
    def commit(self, which):
        self.stores[which].commit()
        for table, key, value in self.waiting[which]:
            if table == "events":
                self.committed[table].setdefault(key, value)
            else:
                self.committed[table][key] = value
        self.waiting[which] = []

    @rule(which=st.integers(0, 1))
    def killed_and_started_again(self, which):
        self.stores[which].db.close()
        self.stores[which] = ConfigStore(self.path)
        self.waiting[which] = []

    @rule(which=st.integers(0, 1), most=st.integers(0, 3), now=st.sampled_from([5.0, 15.0]))
    def prune(self, which, most, now):
        liked = preferences.Preferences(keep_jobs=most, keep_days=10.0 / 86400, profile_days=6.0 / 86400)
        prune(self.stores[which], liked, now=now)
        jobs = self.committed["jobs"]
        ended = sorted(
            (job for job in jobs.values() if job.ended_at is not None), key=lambda job: (-job.ended_at, job.id)
        )
        gone = {job.id for job in ended[most:]} | {job.id for job in ended if job.ended_at < now - 10.0}
        bare = gone | {job.id for job in ended if job.ended_at < now - 6.0}
        self.committed["jobs"] = {id: job for id, job in jobs.items() if id not in gone}
        for table in ("profiles", "events"):
            self.committed[table] = {key: row for key, row in self.committed[table].items() if row.job not in bare}

    @invariant()
    def holds_what_was_committed(self):
        store = self.stores[0]
        assert {job.id: job for job in queries.jobs(store)} == self.committed["jobs"]
        ids = {f"ads-{job}" for job in range(4)}
        profiles = [profile for job in ids for profile in queries.profiles(store, job)]
        assert {(one.job, one.at): one for one in profiles} == self.committed["profiles"]
        events = [event for job in ids for event in queries.node_events(store, job)]
        assert sorted(map(repr, events)) == sorted(map(repr, self.committed["events"].values()))
        assert sizes(store)["kept_jobs"] == len(self.committed["jobs"])


def test_any_history_of_writes_crashes_and_prunes_keeps_the_store_right(tmp_path):
    Histories.directory = tmp_path
    machine = Histories.TestCase()
    machine.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
    machine.runTest()
