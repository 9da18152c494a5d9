"""Nobody waits for a lock without limit, and who holds it is said."""

from __future__ import annotations

import fcntl
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.core.errors import HistoryError, JobError
from dlrover_lite.core.files.locks import Holder, Lock, held_by, holders
from dlrover_lite.master.work.ledger_store import LedgerStore

HOLD = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path) -> Iterator[int]:
    """By another process, that may only read it: its pid."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def stepping(step: float = 1.0) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def test_a_held_lock_is_waited_for_and_its_holder_named(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock") as lock, held(lock.path) as pid:
        assert not lock.take(2.0, clock=stepping().__next__)
        assert [holder.pid for holder in holders(lock.path)] == [pid]
        assert held_by(lock.path).startswith(f"held by process {pid} (python")
    with Lock(tmp_path / "lock") as lock:
        assert lock.take(0.0)
        assert held_by(lock.path).startswith(f"held by process {os.getpid()} (")


def test_a_history_whose_lock_is_held_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "brain.sqlite"
    ConfigStore(path).close()
    lock = tmp_path / "brain.sqlite.lock"
    with held(lock) as pid, pytest.raises(HistoryError, match="locked") as refused:
        ConfigStore(path, busy_seconds=0.05)
    assert str(lock) in refused.value.message and f"process {pid} (" in refused.value.message
    assert "End that process, or" in refused.value.hint and f"remove {lock}" in refused.value.hint
    ConfigStore(path, busy_seconds=0.05).close()


def test_a_locked_database_names_the_writing_process(tmp_path: Path) -> None:
    path = tmp_path / "brain.sqlite"
    with ConfigStore(path) as writer, writer.transaction(), ConfigStore(path, busy_seconds=0.05) as other:
        other.put_samples("job", 1)
        with pytest.raises(HistoryError, match="locked") as refused:
            other.commit()
    assert f"process {os.getpid()} (" in refused.value.message


def test_a_ledger_in_use_names_its_user(tmp_path: Path) -> None:
    with LedgerStore(tmp_path / "ledger.sqlite"), pytest.raises(JobError, match="in use") as refused:
        LedgerStore(tmp_path / "ledger.sqlite")
    assert f"process {os.getpid()} (" in refused.value.message


def test_holders_of_locks_are_read_from_proc_locks(tmp_path: Path) -> None:
    path, table = tmp_path / "lock", tmp_path / "locks"
    path.touch()
    status = path.stat()
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    table.write_text(
        f"1: FLOCK  ADVISORY  READ  {os.getpid()} {place} 0 EOF\n"
        f"1: -> FLOCK  ADVISORY  WRITE 17 {place} 0 EOF\n"
        f"2: POSIX  ADVISORY  WRITE {os.getpid()} {place} 0 EOF\n"
        f"3: FLOCK  ADVISORY  READ  -1 {place} 0 EOF\n"
        f"4: FLOCK  ADVISORY  READ  18 {place}1 0 EOF\n"
        "5: nonsense\n"
    )
    found = holders(path, table=table)
    assert [holder.pid for holder in found] == [os.getpid(), 0]
    assert str(found[1]) == "a process that can't be seen from here"
    assert str(Holder(4_194_305)) == "process 4194305"
    assert holders(path, table=tmp_path / "none") == holders(tmp_path / "none") == []
    assert held_by(tmp_path / "none") == ""


def test_a_user_without_a_name_is_named_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of another container, or of a directory service that doesn't answer."""

    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with Lock(tmp_path / "lock") as lock:
        assert lock.take(0.0)
        assert f", user {os.geteuid()})" in held_by(lock.path)


def test_a_lock_whose_file_was_replaced_is_not_in_place(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock") as lock:
        assert lock.is_in_place()
        lock.path.rename(tmp_path / "moved")
        assert not lock.is_in_place()
        Lock(tmp_path / "lock").close()
        assert not lock.is_in_place()
        assert fcntl.fcntl(lock.descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
