"""The ledger's file: what is committed comes back exactly, it stays small, and everything that can be wrong with it is said."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import DiskFull, JobError
from dlrover_lite.master.work import ledger_store
from dlrover_lite.master.work.ledger import Ledger
from dlrover_lite.master.work.ledger_data import LedgerData, Pass
from dlrover_lite.master.work.ledger_store import SCHEMA_VERSION, LedgerStore

EPOCH = Pass("train", 0, 40)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def lease(store: LedgerStore, ledger: Ledger, worker: str = "a", most: int = 5, of: Pass = EPOCH):
    got, changes = ledger.lease(of, worker, most)
    store.apply(changes)
    return got


def start(path: Path) -> tuple[LedgerStore, Ledger]:
    store = LedgerStore(path)
    ledger = store.load()
    store.apply(ledger.open_pass(EPOCH))
    return store, ledger


steps = st.lists(
    st.tuples(
        st.sampled_from(["lease", "consume", "part", "fail", "give back", "die", "commit"]),
        st.sampled_from("abc"),
        st.integers(0, 50),
        st.integers(1, 6),
    ),
    max_size=60,
)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_committed_ledger_is_read_back_exactly(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    store, ledger = start(path)
    committed = LedgerData()
    leases = []
    for what, worker, number, size in steps:
        old = leases[number % len(leases)] if leases else None
        changes = []
        if what == "lease":
            got, changes = ledger.lease(EPOCH, worker, size)
            leases += [got] if got else []
        elif what == "die":
            changes = ledger.expire(worker)
        elif what == "commit":
            store.commit()
            committed = ledger.data()
        elif old and what == "consume":
            _, changes = ledger.consumed(old.token, [(old.start, old.stop)])
        elif old and what == "part":
            _, changes = ledger.consumed(old.token, [(old.start + 1, old.start + size)])
        elif old and what == "fail":
            _, changes = ledger.failed(old.token, old.start + size // 2, "it broke")
        elif old:
            changes = ledger.give_back(old.token)
        store.apply(changes)
    store.close()
    with LedgerStore(path) as again:
        loaded = again.load()
    assert loaded.data() == committed
    loaded.validate()


@pytest.mark.parametrize("order", [range(8), range(7, -1, -1), (1, 3, 5, 7, 0, 2, 4, 6)])
def test_adjoining_consumed_ranges_are_stored_as_one_row(path, order):
    store, ledger = start(path)
    leases = [lease(store, ledger) for _ in range(8)]
    for i in order:
        store.apply(ledger.consumed(leases[i].token, [(leases[i].start, leases[i].stop)])[1])
        store.commit()
    store.close()
    database = sqlite3.connect(path)
    rows = database.execute("select start, stop, token from spans").fetchall()
    database.close()
    assert rows == [(0, 40, 0)]


def test_leases_survive_with_their_tokens_and_later_tokens_are_higher(path):
    store, ledger = start(path)
    first, second = lease(store, ledger), lease(store, ledger, "b")
    store.commit()
    store.close()
    with LedgerStore(path) as store:
        ledger = store.load()
        assert ledger.consumed(first.token, [(first.start, first.stop)])[0].accepted
        assert ledger.consumed(second.token, [(second.start, second.stop)])[0].accepted
        third = lease(store, ledger)
    assert third.token > second.token


def test_metrics_and_facts_are_written_with_the_ledger(path):
    store, ledger = start(path)
    store.put_metrics(EPOCH, b"old")
    store.put_fact("seed", "7")
    store.commit()
    got = lease(store, ledger)
    store.apply(ledger.consumed(got.token, [(got.start, got.stop)])[1])
    store.put_metrics(EPOCH, b"lost")
    store.put_fact("seed", "8")
    store.close()
    with LedgerStore(path) as store:
        assert (store.metrics(EPOCH), store.fact("seed")) == (b"old", "7")
        assert store.load().todo(EPOCH) == EPOCH.minibatches
        assert store.metrics(Pass("eval", 0, 1)) is None
        assert store.fact("colour") is None
        store.put_metrics(EPOCH, b"new")
        store.put_metrics(EPOCH, b"newer")
        store.commit()
        assert store.metrics(EPOCH) == b"newer"


def test_acknowledged_work_survives_kill_9(path):
    script = """
import sys
from pathlib import Path
from dlrover_lite.master.work.ledger_data import Pass
from dlrover_lite.master.work.ledger_store import LedgerStore
store = LedgerStore(Path(sys.argv[1]))
ledger, epoch = store.load(), Pass("train", 0, 10**9)
store.apply(ledger.open_pass(epoch))
while True:
    lease, changes = ledger.lease(epoch, "a", 1)
    store.apply(changes)
    store.apply(ledger.consumed(lease.token, [(lease.start, lease.stop)])[1])
    store.commit()
    print(lease.stop, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(2000)]
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    with LedgerStore(path) as store:
        ((begin, end),) = store.load().done(Pass("train", 0, 10**9))
    assert begin == 0
    assert said[-1] <= end <= said[-1] + 1


def test_ledger_file_stays_small_in_any_order_of_leases(path):
    of = Pass("train", 1, 10**7)
    files = (path, path.with_name(f"{path.name}-wal"))
    store, ledger = start(path)
    store.apply(ledger.open_pass(of))
    leases, largest = [lease(store, ledger, f"worker-{i}", 1, of) for i in range(64)], 0
    for turn in range(20_000):
        worker = turn * 37 % 64
        got = leases[worker]
        store.apply(ledger.consumed(got.token, [(got.start, got.stop)])[1])
        leases[worker] = lease(store, ledger, f"worker-{worker}", 1, of)
        if turn % 4 == 0:
            store.commit()
            largest = max(largest, sum(file.stat().st_size for file in files if file.exists()))
    store.close()
    assert largest < 800_000


def test_a_second_master_is_refused(path):
    store, _ = start(path)
    with pytest.raises(JobError, match="in use by another process"):
        LedgerStore(path)
    script = """
import sys
from pathlib import Path
from dlrover_lite.master.work.ledger_store import LedgerStore
LedgerStore(Path(sys.argv[1]))
"""
    other = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "in use by another process" in other.stderr
    store.commit()
    store.close()
    LedgerStore(path).close()


def test_a_full_disk_is_an_error_and_a_later_commit_catches_up(path):
    store, ledger = start(path)
    store.commit()
    database = store._db
    pages = database.execute("pragma page_count").fetchone()[0]
    database.execute(f"pragma max_page_count = {pages}")
    store.put_metrics(EPOCH, os.urandom(50_000))
    got = lease(store, ledger)
    with pytest.raises(JobError, match=r"disk of .* is full: the ledger ledger\.sqlite") as caught:
        store.commit()
    assert isinstance(caught.value, DiskFull) and caught.value.directory == path.parent
    assert "Make room there" in caught.value.hint
    database.execute(f"pragma max_page_count = {pages + 1000}")
    store.commit()
    store.close()
    with LedgerStore(path) as store:
        assert len(store.metrics(EPOCH)) == 50_000
        assert store.load().held(got.token)[0] == EPOCH


def test_a_failing_write_is_an_error_that_names_the_file(path):
    script = """
import resource, sys
from pathlib import Path
from dlrover_lite.core.errors import JobError
from dlrover_lite.master.work.ledger_data import Pass
from dlrover_lite.master.work.ledger_store import LedgerStore
store = LedgerStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
store.put_metrics(Pass("train", 0, 1), bytes(100_000))
try:
    store.commit()
except JobError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert str(path) in done.stdout
    LedgerStore(path).close()


def write_text(path: Path) -> None:
    path.write_text("this is a shopping list, and no database " * 100)


def write_foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("create table shopping (item)")
    database.close()


def write_newer_version(path: Path) -> None:
    LedgerStore(path).close()
    database = sqlite3.connect(path)
    database.execute(f"pragma user_version = {SCHEMA_VERSION + 1}")
    database.close()


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (write_text, "is not a ledger"),
        (write_foreign_database, "is not a ledger"),
        (write_newer_version, f"has ledger format {SCHEMA_VERSION + 1}"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused_and_left_unchanged(path, write, said):
    write(path)
    before = path.read_bytes()
    with pytest.raises(JobError, match=said) as caught:
        LedgerStore(path)
    assert caught.value.hint
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_ledger(path):
    path.touch()
    with LedgerStore(path) as store:
        assert store.load().data() == LedgerData()


def test_a_missing_directory_of_the_ledger_is_an_error(tmp_path):
    with pytest.raises(JobError, match="Can't write"):
        LedgerStore(tmp_path / "nowhere" / "ledger.sqlite")


def test_damaged_ledger_pages_are_an_error(path):
    store, ledger = start(path)
    for _ in range(8):
        lease(store, ledger)
    store.commit()
    store.close()
    content = bytearray(path.read_bytes())
    content[1024 * 2 :] = os.urandom(len(content) - 1024 * 2)
    path.write_bytes(content)
    with pytest.raises(JobError, match="is damaged"), LedgerStore(path) as store:
        store.load()


def test_contradicting_ledger_rows_are_an_error(path):
    store, ledger = start(path)
    lease(store, ledger)
    store.commit()
    store.close()
    database = sqlite3.connect(path)
    database.execute("insert into spans values (0, 2, 9, 0, '')")
    database.commit()
    database.close()
    with LedgerStore(path) as store, pytest.raises(JobError, match="is damaged"):
        store.load()


def test_a_used_up_quota_is_reported_as_a_full_disk(path, monkeypatch):
    """SQLite calls it an input/output error, as it does a disk that is broken: writing a little there tells which it is."""

    def refuses(_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR | (3 << 8)  # of a write
    assert not isinstance(ledger_store._job_error(path, error), DiskFull)
    monkeypatch.setattr(os, "fsync", refuses)
    assert isinstance(ledger_store._job_error(path, error), DiskFull)


def test_a_ledger_waits_for_the_disk_where_that_is_wanted(path: Path) -> None:
    for is_synced in (True, False):
        with LedgerStore(path, is_synced=is_synced) as store:
            assert store._db.execute("pragma synchronous").fetchone() == (int(is_synced),)
            assert store._db.execute("pragma journal_mode").fetchone() == ("wal",)
