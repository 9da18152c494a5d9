"""Forgetting: old profiles first, then old jobs. What jobs were and what was fitted to them is kept longest: warm starts live on it."""

from __future__ import annotations

from typing import NamedTuple

from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.preferences import Preferences

__all__ = ["Pruned", "prune", "sizes"]

_DAY = 86400.0
_AT_ONCE = 500
"""Number of jobs removed in a transaction: others get their turn in between."""
_TABLES = ("profiles", "plans", "decisions", "node_events", "fits")


class Pruned(NamedTuple):
    jobs: int
    rows: int
    """Number of rows of other tables."""


def sizes(store: ConfigStore) -> dict[str, int]:
    """Measure how many jobs there are (``kept_jobs``), and the ``bytes`` of the files."""
    with store.errors():
        (jobs,) = store.db.conn.execute("select count(*) from jobs").fetchone()
        files = (store.path, store.path.with_name(store.path.name + "-wal"))
        return {"kept_jobs": jobs, "bytes": sum(file.stat().st_size for file in files if file.exists())}


def prune(store: ConfigStore, liked: Preferences, *, now: float) -> Pruned:
    """Remove what the person doesn't want to keep, and give the space back. Jobs that haven't ended are never touched."""
    execute = store.db.conn.execute
    rows = jobs = 0
    with store.errors():
        old = [
            row[0]
            for row in execute(
                "select id from jobs where ended_at is not null and (ended_at < ? or id not in "
                "(select id from jobs where ended_at is not null order by ended_at desc, id limit ?)) order by ended_at",
                (now - liked.keep_days * _DAY, int(liked.keep_jobs)),
            )
        ]
        for start in range(0, len(old), _AT_ONCE):
            part = old[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(part))
            with store.transaction():
                for table in _TABLES:
                    rows += execute(f"delete from {table} where job in ({marks})", part).rowcount
                jobs += execute(f"delete from jobs where id in ({marks})", part).rowcount
        with store.transaction():
            ended = "job in (select id from jobs where ended_at < ?)"
            for table in ("profiles", "node_events"):
                rows += execute(f"delete from {table} where {ended}", (now - liked.profile_days * _DAY,)).rowcount
            rows += execute("delete from rounds where id not in (select round from decisions)").rowcount
        # a script: as a statement it would free one page, since Python steps through what has no columns once only
        store.db.conn.executescript("pragma incremental_vacuum")
    return Pruned(jobs, rows)
