"""The tables of the config database, as migrations: each is applied once, in this order, and never changed afterwards.

Times are seconds since the epoch. Columns are what is asked for; everything else is JSON in ``data``.
"""

from __future__ import annotations

from typing import Any

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

__all__ = ["APPLICATION_ID", "migrations", "unknown_to_us"]

APPLICATION_ID = 0x444C5242  # "DLRB"

migrations = Migrations("dlrover-lite brain")


@migrations()
def m001_jobs_and_what_is_known_of_them(db: Database) -> None:
    _create(
        db,
        "jobs",
        {
            "id": str,
            "name": str,
            "owner": str,
            "model": str,
            "state": str,
            "priority": float,
            "created_at": float,
            "started_at": float,
            "ended_at": float,
            "samples": int,
            "message": str,
            "features": str,
        },
        pk="id",
        optional={"started_at", "ended_at"},
        indexes=[["created_at"], ["state"]],
    )
    _create(
        db,
        "profiles",
        {
            "job": str,
            "at": float,
            "seconds": float,
            "samples_per_second": float,
            "workers": int,
            "servers": int,
            "data": str,
        },
        pk=("job", "at"),
    )
    _create(
        db,
        "plans",
        {"id": int, "job": str, "at": float, "kind": str, "decision": int, "data": str},
        pk="id",
        optional={"decision"},
        indexes=[["job", "kind", "at"]],
    )
    _create(db, "rounds", {"id": int, "at": float, "inputs": bytes}, pk="id")
    _create(
        db,
        "decisions",
        {
            "job": str,
            "number": int,
            "round": int,
            "at": float,
            "action": str,
            "reason": str,
            "data": str,
            "effect": str,
        },
        pk=("job", "number"),
        optional={"effect"},
        indexes=[["round"]],
    )
    _create(
        db,
        "node_events",
        {"id": int, "job": str, "at": float, "node": str, "event": str, "reason": str, "data": str},
        pk="id",
        indexes=[["job", "at"]],
    )
    _create(
        db,
        "fits",
        {"id": int, "job": str, "at": float, "kind": str, "error": float, "windows": int, "data": str},
        pk="id",
        indexes=[["job", "kind", "at"]],
    )


@migrations()
def m002_what_came_of_jobs_and_what_the_person_prefers(db: Database) -> None:
    db.execute("alter table jobs add column directory text not null default ''")
    db.execute("alter table jobs add column outcome text not null default '{}'")
    # A report that is repeated, since its answer got lost, must change nothing.
    for table, columns in (("node_events", ["job", "node", "event", "at"]), ("plans", ["job", "kind", "at"])):
        same = " and ".join(f"other.{column} = {table}.{column}" for column in columns)
        db.execute(
            f"delete from {table} where exists (select 1 from {table} other where {same} and other.id < {table}.id)"
        )
        db.table(table).create_index(columns, unique=True, index_name=f"one_of_{table}")
    _create(db, "preferences", {"name": str, "value": float}, pk="name")


@migrations()
def m003_what_treatments_follow_from(db: Database) -> None:
    db.execute("alter table rounds add column kind text not null default 'round'")


@migrations()
def m004_what_masters_said_of_decisions(db: Database) -> None:
    db.execute("alter table decisions add column done text")


@migrations()
def m005_jobs_of_clusters(db: Database) -> None:
    db.execute("alter table jobs add column source text not null default ''")


def _create(
    db: Database,
    name: str,
    columns: dict[str, Any],
    *,
    pk: str | tuple[str, ...],
    optional: set[str] | None = None,
    indexes: list[list[str]] | None = None,
) -> None:
    """Make a table. Every column is required but the ``optional`` ones; types are enforced."""
    keys = {pk} if isinstance(pk, str) else set(pk)
    table = db.table(name)
    table.create(columns, pk=pk, not_null=set(columns) - keys - (optional or set()), strict=True)
    for index in indexes or []:
        table.create_index(index)


def unknown_to_us(db: Database) -> list[str]:
    """List the migrations that the file has had and this version doesn't know: it was written by a newer one."""
    ours = {migration.name for migration in migrations.pending(Database(memory=True))}  # of an empty database: all
    return [migration.name for migration in migrations.applied(db) if migration.name not in ours]
