"""The file: opened, brought up to date, written in batches, by several processes at once.

A commit survives kill -9 of any process (WAL, synchronous=NORMAL). Writers take turns: each begins with the write lock, and waits for it
rather than failing. Readers never wait.
"""

from __future__ import annotations

import errno
import shutil
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from sqlite_utils import Database

from dlrover_lite.brain.store.pages import answer
from dlrover_lite.brain.store.records import FitRecord, JobEntry, ProfileRecord
from dlrover_lite.brain.store.schema import APPLICATION_ID, migrations, unknown_to_us
from dlrover_lite.core.errors import HistoryBusy, HistoryError, RowRefused
from dlrover_lite.core.files.durable import close_to_others, create_private
from dlrover_lite.core.files.locks import Lock, held_by
from dlrover_lite.core.units import MIB, format_bytes
from dlrover_lite.protocol.history_messages import RowsQuestion
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.records import NodeRecord, PlanRecord

if TYPE_CHECKING:
    from dlrover_lite.brain.effect import Effect
    from dlrover_lite.brain.healing.mitigation import HealInputs
    from dlrover_lite.brain.planning.decision import Decision, Round
    from dlrover_lite.brain.planning.job_view import RoundInputs
    from dlrover_lite.protocol.demands import DecisionOutcome

__all__ = ["BUSY_SECONDS", "ConfigStore"]

BUSY_SECONDS = 30.0
_OPENING_SECONDS = 10.0
"""Seconds to wait for another process that opens the file just now: which takes milliseconds, or seconds where an older file is brought up
to date."""
_MOST_WAL = 16 * MIB
_SHARED_MEMORY = 32 * 1024
"""Bytes that SQLite lays out beside the file when the first process opens it."""
_KEPT_PROFILES = 200_000
"""The most profiles that wait to be written, while the disk is full, say: older ones are then dropped."""

A = TypeVar("A")
Row = tuple[Any, ...]

_JOB = JobEntry.__struct_fields__
_PUT_JOB = (
    f"insert into jobs ({', '.join(_JOB)}) values ({', '.join('?' * len(_JOB))}) on conflict (id) do update set "
    + ", ".join(f"{name} = excluded.{name}" for name in _JOB if name not in ("id", "created_at"))
)
_END_JOB = "update jobs set state = ?, ended_at = ?, samples = max(samples, ?), message = ?, outcome = ? where id = ?"
_ADD_PROFILE = "insert or replace into profiles (job, at, seconds, samples_per_second, workers, servers, data) values (?, ?, ?, ?, ?, ?, ?)"
_ADD_PLAN = (
    "insert or ignore into plans (job, at, kind, decision, data) select ?1, ?2, ?3, ?4, ?5 where not exists (select 1 from "
    "(select * from plans where job = ?1 and kind = ?3 order by at desc, id desc limit 1) where data = ?5 and decision is ?4)"
)
_ADD_EVENT = (
    "insert or ignore into node_events (job, at, node, event, reason, data) select ?1, ?2, ?3, ?4, ?5, ?6 "
    "where ?4 = 'resized' or not exists (select 1 from node_events where job = ?1 and node = ?3 and event = ?4)"
)
_ADD_FIT = "insert into fits (job, at, kind, error, windows, data) values (?, ?, ?, ?, ?, ?)"
_ADD_ROUND = "insert into rounds (at, inputs, kind) values (?, ?, ?)"
_ADD_DECISION = (
    "insert into decisions (job, number, round, at, action, reason, data) "
    "select ?1, max(coalesce(max(number), 0), ?2) + 1, ?3, ?4, ?5, ?6, ?7 from decisions where job = ?1 returning number"
)


class ConfigStore:
    """Opens ``path``, or makes it. Raises HistoryError when it isn't ours, is of a newer version, is damaged, or can't be written.

    What is added is written by ``commit``, all of it or nothing; after a HistoryError it is kept for another try.
    """

    def __init__(self, path: Path, *, busy_seconds: float = BUSY_SECONDS, is_synced: bool = True) -> None:
        """Open it. Without ``is_synced`` nothing waits for the disk: what is committed survives the process, but not the machine."""
        self.path = path
        self._is_synced = is_synced
        self._waiting: dict[str, list[Row]] = {}
        self._busy_seconds = busy_seconds
        with self.errors():
            create_private(path)
            for ending in ("-wal", "-shm"):
                close_to_others(path.with_name(path.name + ending))
            connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None)
        self.db = Database(connection, execute_plugins=False, recursive_triggers=False)
        try:
            with self.errors():
                self._prepare()
        except BaseException:
            self.db.close()
            raise

    def _prepare(self) -> None:
        execute = self.db.conn.execute
        # One process at a time: switching to WAL doesn't wait for others as writing does. The lock goes with the process.
        with self._opening():
            self._check_whose()
            if execute("pragma journal_mode").fetchone()[0] != "wal":
                execute("pragma auto_vacuum = incremental")
                execute("pragma journal_mode = wal")
            execute(f"pragma synchronous = {'normal' if self._is_synced else 'off'}")
            execute(f"pragma journal_size_limit = {_MOST_WAL}")
            if migrations.pending(self.db):
                with self.transaction():
                    execute(f"pragma application_id = {APPLICATION_ID}")
                    migrations.apply(self.db)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        with Lock(self.path.with_name(self.path.name + ".lock")) as lock:
            if not lock.take(min(self._busy_seconds, _OPENING_SECONDS)):
                instead = f", or, if it is another user's, remove {lock.path}: it is made anew"
                raise _locked(lock.path, lock.path, instead=instead)
            yield

    def _check_whose(self) -> None:
        execute = self.db.conn.execute
        application, tables = (
            execute(question).fetchone()[0]
            for question in ("pragma application_id", "select count(*) from sqlite_schema")
        )
        if application != APPLICATION_ID and (application or tables):
            raise HistoryError(
                f"{self.path} is not a database of dlrover-lite's brain", hint="Move it away; a new one is made."
            )
        if newer := unknown_to_us(self.db):
            raise HistoryError(
                f"{self.path} was written by a newer version of dlrover-lite ({newer[-1]})",
                hint="Update this one, or set DLROVER_LITE_HOME to another directory.",
            )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise SQLite's errors as HistoryError."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
            raise RowRefused(f"What was to be written to {self.path} can't be: {error}") from error
        except (sqlite3.Error, OSError) as error:
            raise _history_error(self.path, error) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the write lock from the beginning on: nobody else can have changed what is read meanwhile."""
        execute = self.db.conn.execute
        execute("begin immediate")
        try:
            yield
            execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite has rolled back by itself where nothing is open any more
                execute("rollback")
            raise

    def ask(self, question: RowsQuestion, kind: type[A]) -> A:
        """Return the answer to a question for rows (``history.Rows``), of what is committed. Raises HistoryError."""
        with self.errors():
            found = answer(self.db.conn.execute, question)
        assert isinstance(found, kind)
        return found

    # --- what is written --------------------------------------------------------------------------------------------------

    def put_job(self, job: JobEntry) -> None:
        """Put a job in place of what was known of it (``created_at`` stays)."""
        *fields, _, _ = (getattr(job, name) for name in _JOB)
        self._add(_PUT_JOB, (*fields, _json(job.outcome), _json(job.features)))

    def put_samples(self, job: str, samples: int) -> None:
        """Put down how many samples the job has consumed."""
        self._add("update jobs set samples = ? where id = ?", (samples, job))

    def end_job(self, job: str, state: str, *, at: float, samples: int, message: str, outcome: JobOutcome) -> None:
        """Put down how a job ended that is known."""
        self._add(_END_JOB, (state, at, samples, message, _json(outcome), job))

    def add_profile(self, profile: ProfileRecord) -> None:
        """Add a profile. One that is there already, of the same job and time, is replaced."""
        fields = [getattr(profile, name) for name in profile.__struct_fields__]
        self._add(_ADD_PROFILE, (*fields[:-1], _json(profile.data)))
        if len(waiting := self._waiting[_ADD_PROFILE]) > _KEPT_PROFILES:
            del waiting[: len(waiting) - _KEPT_PROFILES]

    def add_plan(self, plan: PlanRecord) -> None:
        """Add a plan, unless it is there already, of the same job, kind and time, or is what the job's newest one of that kind says too."""
        self._add(_ADD_PLAN, (plan.job, plan.at, plan.kind, plan.decision, _json(plan.plan)))

    def add_node_event(self, event: NodeRecord) -> None:
        """Add a node event. One that is there already stays: of the same time, or, of those that happen to a node once, of any."""
        self._add(_ADD_EVENT, (event.job, event.at, event.node, event.event, event.reason, _json(event.data)))

    def add_fit(self, fit: FitRecord) -> None:
        self._add(_ADD_FIT, (fit.job, fit.at, fit.kind, fit.error, fit.windows, _json(fit.data)))

    def _add(self, statement: str, row: Row) -> None:
        self._waiting.setdefault(statement, []).append(row)

    @property
    def waiting(self) -> int:
        """Number of rows to be written by the next commit."""
        return sum(map(len, self._waiting.values()))

    def commit(self) -> None:
        """Write what was added. Raises HistoryError, and keeps it, when that can't be done."""
        if self._waiting:
            with self.errors(), self.transaction():
                self._write_waiting()
            self._waiting.clear()

    def forget_waiting(self) -> None:
        """Forget what was added since the last commit, as if it had not been."""
        self._waiting.clear()

    def _write_waiting(self) -> None:
        for statement, rows in self._waiting.items():
            self.db.conn.executemany(statement, rows)

    def add_round(
        self, decided: Round, jobs: Sequence[str], *, heard: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Commit, and in the same transaction the decisions for ``jobs`` with all they follow from. Returns the decisions' numbers:
        above those that a job has ``heard``, of a database that is gone.

        A round in which nothing is done needn't be kept: pass the jobs whose decision acts, or whose reason isn't the last one.
        """
        kept = set(jobs)
        chosen = [decision for decision in decided.decisions if decision.job in kept]
        numbers = self._add_decisions(decided.inputs, chosen, "round", heard or {})
        return {one.job: number for one, number in zip(chosen, numbers, strict=True)}

    def add_treatments(self, inputs: HealInputs, decisions: Sequence[Decision], *, heard: int = 0) -> list[int]:
        """Commit, and in the same transaction decisions of stage 3 with all they follow from. Returns their numbers, as ``add_round``."""
        return self._add_decisions(inputs.as_stored(), decisions, "heal", {inputs.job: heard})

    def _add_decisions(
        self,
        inputs: RoundInputs | HealInputs,
        decisions: Sequence[Decision],
        kind: Literal["round", "heal"],
        heard: Mapping[str, int],
    ) -> list[int]:
        numbers = []
        with self.errors(), self.transaction():
            self._write_waiting()
            if decisions:
                execute = self.db.conn.execute
                packed = zlib.compress(msgspec.json.encode(inputs), 1)
                number = execute(_ADD_ROUND, (inputs.at, packed, kind)).lastrowid
                for one in decisions:
                    row = (one.job, heard.get(one.job, 0), number, one.at, one.action, one.reason, _json(one))
                    numbers.append(execute(_ADD_DECISION, row).fetchone()[0])
        self._waiting.clear()
        return numbers

    def put_effect(self, job: str, number: int, effect: Effect) -> None:
        """Add what a decision brought, for the next commit to write."""
        self._add("update decisions set effect = ? where job = ? and number = ?", (_json(effect), job, number))

    def put_done(self, done: DecisionOutcome) -> None:
        """Add what has become of a decision, for the next commit to write; the first word counts."""
        self._add(
            "update decisions set done = coalesce(done, ?) where job = ? and number = ?",
            (_json(done), done.job, done.number),
        )

    def close(self) -> None:
        """Close without a commit: what was not committed is forgotten."""
        with self.errors():
            self.db.close()

    def __enter__(self) -> ConfigStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _locked(path: Path, *files: Path, instead: str = "") -> HistoryBusy:
    """Make the error of a locked file. ``files``: those that the lock may be on; ``instead``: what else can be done than to end the
    process."""
    by = held_by(*files)
    return HistoryBusy(
        f"{path} is locked by another process that doesn't let go of it{f', {by}' if by else ''}",
        hint=f"End that process{instead}. Then try again.",
    )


def _has_no_room(path: Path, error: sqlite3.Error | OSError, primary: int | None) -> bool:
    """Say whether an error is for want of room. SQLite calls it an I/O error where it can't lay out its shared memory beside the file."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    try:
        return primary == sqlite3.SQLITE_IOERR and shutil.disk_usage(path.parent).free < _SHARED_MEMORY
    except OSError:
        return False


def _history_error(path: Path, error: sqlite3.Error | OSError) -> HistoryError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary == sqlite3.SQLITE_FULL or _has_no_room(path, error, primary):
        hint = f"Free some space (about {format_bytes(_MOST_WAL)}), then try again."
        return HistoryBusy(f"The disk of {path.parent} is full: {path.name} can't be written", hint=hint)
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return _locked(path, path, *(path.with_name(path.name + ending) for ending in ("-shm", "-wal")))
    if primary in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return HistoryError(
            f"{path} is damaged or no database: {error}", hint="Move it away; a new one is made, without history."
        )
    return HistoryError(
        f"{path} can't be read or written: {error}",
        hint="Check that its directory exists, that you may write to it, and the disk's free space.",
    )
