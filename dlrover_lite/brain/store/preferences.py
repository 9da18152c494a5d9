"""What a person prefers of the brain: kept in the database itself, so that whoever uses it, daemon or embedded, does the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

import msgspec

from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.units import GIB, LEAST_CORES, LEAST_MEMORY
from dlrover_lite.protocol.acts import PolicyName

__all__ = ["Preferences", "change", "parse_changes", "read"]

_MINUTE = 60.0
_MOST = 1e9
"""Largest value of any preference."""
_LEAST = {"capacity_cores": LEAST_CORES, "capacity_gib": 2 * LEAST_MEMORY / GIB}
"""Least values of preferences with which a job of one PS and one worker can be tried; 0 means something else."""


_POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
"""Policies, by the numbers that they are kept as."""


class Preferences(msgspec.Struct, frozen=True, kw_only=True):
    idle_minutes: float = 15.0
    """Minutes without a job after which the daemon ends; the next job starts it again."""
    keep_jobs: float = 2000
    """Number of jobs that have ended that stay in the history, the newest."""
    keep_days: float = 365.0
    """Days after its end at which a job goes, however few there are."""
    profile_days: float = 30.0
    """Days after a job's end for which its measurements and node events are kept; what was fitted to them stays as long as the job."""
    capacity_cores: float = 0.0
    """Cores for all jobs together; 0: what the machine has."""
    capacity_gib: float = 0.0
    """GiB of memory for all jobs together; 0: what the machine has."""
    decide_seconds: float = 5.0
    """Least seconds between two looks at the plans of jobs that run."""
    policy: PolicyName = "lite"
    """Which policy decides the plans: ours, or the paper's."""

    @property
    def idle_seconds(self) -> float:
        return self.idle_minutes * _MINUTE


def read(store: ConfigStore) -> Preferences:
    known = set(Preferences.__struct_fields__)
    with store.errors():
        rows = store.db.conn.execute("select name, value from preferences").fetchall()
    liked = {name: value for name, value in rows if name in known}
    if (kept := liked.pop("policy", None)) is not None and 0 <= kept < len(_POLICIES):  # a newer version may know more
        liked["policy"] = _POLICIES[int(kept)]
    return Preferences(**liked)


def change(store: ConfigStore, changes: Mapping[str, float | str]) -> Preferences:
    """Keep these changes, and return all preferences."""
    numbers = {name: _POLICIES.index(value) if name == "policy" else value for name, value in changes.items()}
    with store.errors(), store.transaction():
        store.db.conn.executemany("insert or replace into preferences (name, value) values (?, ?)", numbers.items())
    return read(store)


def parse_changes(words: list[str]) -> dict[str, float | str]:
    """Parse words such as ``keep-jobs=500``: numbers from 0 to a billion, but for the names of policies. Raises UsageError naming what
    can't be understood."""
    changes: dict[str, float | str] = {}
    names = Preferences.__struct_fields__
    for word in words:
        key, sign, text = word.partition("=")
        name = key.strip().replace("-", "_")
        if not sign or name not in names:
            known = ", ".join(name.replace("_", "-") for name in names)
            raise UsageError(f"{word!r} is no preference", hint=f"Write NAME=VALUE; names are {known}.")
        if name == "policy":
            changes[name] = _policy(word, text.strip())
            continue
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= _MOST:
            raise UsageError(f"{word!r}: {text.strip()!r} is no number from 0 to {_MOST:,.0f}")
        if (least := _LEAST.get(name)) and 0 < value < least:
            raise UsageError(
                f"{word!r}: {text.strip()!r} is too little; write at least {least:g}, or 0 for all there is"
            )
        changes[name] = value
    return changes


def _policy(word: str, text: str) -> str:
    if text not in _POLICIES:
        raise UsageError(f"{word!r}: {text!r} is no policy", hint=f"Policies are {' and '.join(_POLICIES)}.")
    return text
