"""The ledger on disk: one SQLite file in the job's directory, written by one master at a time.

Acknowledged means that it survives kill -9 of any process: a commit is in the operating system's hands (WAL, synchronous=NORMAL), not
on the disk; after a power loss a job goes back to its newest cut anyway. Changes are gathered in memory, the newest for each row, and
written by ``commit``: many operations cost little more than one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlrover_lite.core.errors import DiskFull, JobError
from dlrover_lite.core.failpoints import needs_room
from dlrover_lite.core.files.durable import create_private, is_disk_full
from dlrover_lite.core.files.locks import held_by
from dlrover_lite.core.units import KIB, format_bytes
from dlrover_lite.jobs.store import unwritable
from dlrover_lite.master.work.ledger import Ledger
from dlrover_lite.master.work.ledger_data import (
    Change,
    Failure,
    FailureGone,
    Fenced,
    FencedGone,
    LedgerData,
    Pass,
    Span,
    SpanGone,
    TokensReserved,
)

__all__ = ["SCHEMA_VERSION", "LedgerStore"]

SCHEMA_VERSION = 1
APPLICATION_ID = 0x444C524C  # "DLRL"

# A commit rewrites every page it touches, and usually touches one: small pages keep the write-ahead log short.
_PAGE_BYTES = 1 * KIB
_WAL_PAGES = 576
_WAL_BYTES = 640 * KIB

_TOKENS_RESERVED = "tokens_reserved"

_SCHEMA = """
create table passes (number integer primary key, kind text not null, "index" integer not null, minibatches integer not null);
create table spans (
    pass integer not null, start integer not null, stop integer not null, token integer not null, worker text not null,
    primary key (pass, start)
) without rowid;
create table failures (
    pass integer not null, k integer not null, worker text not null, error text not null, second_worker text,
    second_error text not null, primary key (pass, k)
) without rowid;
create table fenced (token integer primary key, pass integer not null, start integer not null, stop integer not null);
create table counters (name text primary key, value integer not null) without rowid;
create table metrics (pass integer primary key, state blob not null);
create table facts (name text primary key, value text not null) without rowid;
"""

_PUT_SPAN = "insert or replace into spans values (?, ?, ?, ?, ?)"
_DELETE_SPAN = "delete from spans where pass = ? and start = ?"


class LedgerStore:
    """Opens ``path``, or makes it. Raises JobError when the file is in use, is no ledger, is damaged, or can't be written.

    Nothing is on disk before ``commit``. After a JobError from ``commit`` the file holds what the last good commit left, and the
    changes are kept for another try: nothing that depends on them may be told to anyone until one succeeds.
    """

    def __init__(self, path: Path, *, is_synced: bool = True) -> None:
        """Open it. Without ``is_synced`` nothing waits for the disk: what is committed survives the process, but not the machine."""
        self.path = path
        self._is_synced = is_synced
        self._spans: dict[tuple[int, int], Span | None] = {}
        self._rest: dict[tuple[Any, ...], tuple[str, tuple[Any, ...]]] = {}
        try:
            create_private(path)
        except OSError as error:
            raise unwritable(path, error) from error
        with self._errors():
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None)
        try:
            with self._errors():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._is_new()
        # Exclusive: no second master, and no locks to take at each commit. The lock goes with the process, however it ends.
        self._db.execute("pragma locking_mode = exclusive")
        self._db.execute(f"pragma page_size = {_PAGE_BYTES}")
        self._db.execute("pragma journal_mode = wal")
        self._db.execute(f"pragma synchronous = {'normal' if self._is_synced else 'off'}")
        self._db.execute(f"pragma wal_autocheckpoint = {_WAL_PAGES}")
        self._db.execute(f"pragma journal_size_limit = {_WAL_BYTES}")
        self._db.execute("begin exclusive")
        if self._is_new():
            for statement in _SCHEMA.strip().split(";\n"):
                self._db.execute(statement)
            self._db.execute(f"pragma application_id = {APPLICATION_ID}")
            self._db.execute(f"pragma user_version = {SCHEMA_VERSION}")
        self._db.execute("commit")
        self._cursor = self._db.cursor()

    def _is_new(self) -> bool:
        """Return whether the file is still empty. Raises JobError if it is somebody else's, or of another version."""
        application, version, tables = (
            self._db.execute(question).fetchone()[0]
            for question in ("pragma application_id", "pragma user_version", "select count(*) from sqlite_schema")
        )
        if (application, version, tables) == (0, 0, 0):
            return True
        if application != APPLICATION_ID:
            raise JobError(
                f"{self.path} is not a ledger of dlrover-lite", hint="Move it away, or choose another job directory."
            )
        if version != SCHEMA_VERSION:
            raise JobError(
                f"{self.path} has ledger format {version}; this dlrover-lite knows {SCHEMA_VERSION}",
                hint="Continue the job with the version of dlrover-lite that started it.",
            )
        return False

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise _job_error(self.path, error) from error

    # --- changes ------------------------------------------------------------------------------------------------------

    def apply(self, changes: Iterable[Change]) -> None:
        """Remember the changes of an operation of the ledger for the next commit."""
        spans = self._spans
        for change in changes:
            if isinstance(change, Span):
                spans[change.pass_number, change.start] = change
            elif isinstance(change, SpanGone):
                spans[change.pass_number, change.start] = None
            else:
                self._apply_rare(change)

    def _apply_rare(self, change: Change) -> None:
        match change:
            case Pass(kind, index, minibatches):
                number = change.number
                self._put("insert into passes values (?, ?, ?, ?)", (number, kind, index, minibatches), "pass", number)
            case Failure(number, k):
                row = (number, k, change.worker, change.error, change.second_worker, change.second_error)
                self._put("insert or replace into failures values (?, ?, ?, ?, ?, ?)", row, "failure", number, k)
            case FailureGone(number, k):
                self._put("delete from failures where pass = ? and k = ?", (number, k), "failure", number, k)
            case Fenced(token, number, start, stop):
                self._put("insert into fenced values (?, ?, ?, ?)", (token, number, start, stop), "fenced", token)
            case FencedGone(number):
                self._put("delete from fenced where pass = ?", (number,), "fenced of pass", number)
            case TokensReserved(limit):
                self._put("insert or replace into counters values (?, ?)", (_TOKENS_RESERVED, limit), _TOKENS_RESERVED)

    def put_metrics(self, of: Pass, state: bytes) -> None:
        """Keep ``state`` beside the ledger of a pass, in place of what was kept. The next commit writes it with what it belongs to."""
        self._put("insert or replace into metrics values (?, ?)", (of.number, state), "metrics", of.number)

    def put_fact(self, name: str, value: str | None) -> None:
        """Keep a text under a name; None: nothing any more."""
        if value is None:
            self._put("delete from facts where name = ?", (name,), "fact", name)
            return
        self._put("insert or replace into facts values (?, ?)", (name, value), "fact", name)

    def _put(self, statement: str, row: tuple[Any, ...], *key: Any) -> None:
        self._rest.pop(key, None)  # the newest comes last: what it follows from has been written by then
        self._rest[key] = (statement, row)

    def commit(self) -> None:
        """Write everything since the last commit, all of it or nothing. Raises JobError when the disk is full or failing."""
        if not self._spans and not self._rest:
            return
        gone = [key for key, span in self._spans.items() if span is None]
        there = [(s.pass_number, s.start, s.stop, s.token, s.worker) for s in self._spans.values() if s is not None]
        cursor = self._cursor
        try:
            needs_room("job.ledger")
            cursor.execute("begin")
            if gone:
                cursor.executemany(_DELETE_SPAN, gone)
            if there:
                cursor.executemany(_PUT_SPAN, there)
            for statement, row in self._rest.values():
                cursor.execute(statement, row)
            cursor.execute("commit")
        except (sqlite3.Error, OSError) as error:
            if self._db.in_transaction:
                cursor.execute("rollback")
            raise _job_error(self.path, error) from error
        self._spans.clear()
        self._rest.clear()

    # --- what is there --------------------------------------------------------------------------------------------------

    def load(self, *, block_minibatches: int = 0) -> Ledger:
        """Return the ledger as of the last commit. Raises JobError when what the file says can't be."""
        with self._errors():
            verdict = self._db.execute("pragma quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise _damaged(self.path, verdict.replace("\n", " "))
            reserved = self._db.execute("select value from counters where name = ?", (_TOKENS_RESERVED,)).fetchone()
            data = LedgerData(
                passes=[
                    Pass(*row)
                    for row in self._db.execute('select kind, "index", minibatches from passes order by number')
                ],
                spans=[Span(*row) for row in self._db.execute("select * from spans order by pass, start")],
                failures=[Failure(*row) for row in self._db.execute("select * from failures order by pass, k")],
                fenced=[Fenced(*row) for row in self._db.execute("select * from fenced order by token")],
                tokens_reserved=reserved[0] if reserved else 1,
            )
        try:
            return Ledger(data, block_minibatches=block_minibatches)
        except (KeyError, ValueError) as error:
            raise _damaged(self.path, str(error)) from error

    def metrics(self, of: Pass) -> bytes | None:
        """Return what ``put_metrics`` kept, as of the last commit."""
        state: bytes | None = self._value("select state from metrics where pass = ?", of.number)
        return state

    def fact(self, name: str) -> str | None:
        """Return what ``put_fact`` kept, as of the last commit."""
        value: str | None = self._value("select value from facts where name = ?", name)
        return value

    def facts_under(self, prefix: str) -> dict[str, str]:
        """Return all that is kept under names that begin so, as of the last commit."""
        with self._errors():
            return dict(
                self._db.execute(
                    "select name, value from facts where name >= ? and name < ?", (prefix, prefix + "\U0010ffff")
                )
            )

    def _value(self, question: str, key: str | int) -> Any:
        with self._errors():
            row = self._db.execute(question, (key,)).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        """Close without a commit: what was not committed is forgotten."""
        with self._errors():
            self._db.close()

    def __enter__(self) -> LedgerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _job_error(path: Path, error: sqlite3.Error | OSError) -> JobError:
    if isinstance(error, OSError):
        return unwritable(path, error)
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    # SQLite calls a quota that is used up an input/output error.
    if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and is_disk_full(path.parent)):
        return DiskFull(
            f"The disk of {path.parent} is full: the ledger {path.name} can't be written",
            directory=path.parent,
            hint=f"Make room there: a ledger needs about {format_bytes(1 << 20)}.",
        )
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return JobError(
            f"{path} is in use by another process{f', {by}' if (by := held_by(path)) else ''}",
            hint="The job is running already; `dlrover-lite jobs` shows it.",
        )
    if primary == sqlite3.SQLITE_NOTADB:
        return JobError(
            f"{path} is not a ledger of dlrover-lite", hint="Move it away, or choose another job directory."
        )
    if primary == sqlite3.SQLITE_CORRUPT:
        return _damaged(path, str(error))
    if primary in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
        return JobError(
            f"The ledger {path} can't be written: {error}",
            hint="Check that the directory exists and that you may write to it.",
        )
    return JobError(
        f"The ledger {path} can't be read or written: {error}",
        hint="Look at the disk's health and free space, then run again.",
    )


def _damaged(path: Path, why: str) -> JobError:
    return JobError(f"The ledger {path} is damaged: {why}", hint="A checkpoint has a ledger of its own.")
