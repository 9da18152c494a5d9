"""The history of a job that another brain keeps, copied into this one's database: what is there already stays, what is missing is added.

Each step is one transaction, so that a copy that ends in the middle lacks rows, and the next one adds them; to copy twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.history import History
from dlrover_lite.brain.store.queries import kept
from dlrover_lite.brain.store.records import FIT_KINDS
from dlrover_lite.brain.store.watch import JobWatch
from dlrover_lite.protocol.history_messages import (
    DecisionsQuestion,
    EventsQuestion,
    FittedJobsQuestion,
    InputsQuestion,
    JobsQuestion,
    KeptDecision,
    KeptEvent,
    KeptFittedJob,
    KeptInputs,
    KeptJob,
    KeptPlan,
    KeptProfile,
    PlansQuestion,
    ProfilesQuestion,
    RowsPage,
)
from dlrover_lite.protocol.news import Chosen, RateNews

__all__ = ["ADD_FIT", "JobMerge"]

R = TypeVar("R", KeptEvent, KeptPlan)

_PROFILES_AT_ONCE = 500
"""The most profiles that are copied in one step."""
_JOB = tuple(name for name in KeptJob.__struct_fields__ if name != "plan")
_PUT_JOB = (
    f"insert into jobs ({', '.join(_JOB)}) values ({', '.join('?' * len(_JOB))}) on conflict (id) do update set "
    + ", ".join(f"{name} = excluded.{name}" for name in _JOB if name not in ("id", "created_at"))
    # what is known of its end stays, until it goes on
    + " where source = excluded.source and (ended_at is null or excluded.ended_at is not null "
    "or coalesce(excluded.started_at, 0) > coalesce(started_at, 0))"
)
_ADD_PROFILE = (
    "insert or ignore into profiles (job, at, seconds, samples_per_second, workers, servers, data) "
    "values (?, ?, ?, ?, ?, ?, ?)"
)
_ADD_PLAN = "insert or ignore into plans (job, at, kind, decision, data) values (?, ?, ?, ?, ?)"
_ADD_EVENT = "insert or ignore into node_events (job, at, node, event, reason, data) values (?, ?, ?, ?, ?, ?)"
_ADD_ROUND = "insert into rounds (at, inputs, kind) values (?, ?, ?)"
_ADD_DECISION = "insert into decisions (job, number, round, at, action, reason, data, effect, done) values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COMPLETE_DECISION = (
    "update decisions set effect = coalesce(effect, ?), done = coalesce(done, ?) where job = ? and number = ?"
)
ADD_FIT = (
    "insert into fits (job, at, kind, error, windows, data) select ?1, ?2, ?3, ?4, ?5, ?6 "
    "where not exists (select 1 from fits where job = ?1 and kind = ?3 and at = ?2)"
)
_NO_ROUND = 0
"""Number of a round that isn't kept."""


class JobMerge:
    """Copies what ``history`` has of ``job``, which runs in the cluster that is called ``source`` here. One that this brain knows as its
    own is left as it is."""

    def __init__(self, history: History, job: str, source: str) -> None:
        self.job = job
        self._history, self._source = history, source
        self._watch = JobWatch(history, job)
        self._ended_at: float | None = None
        self._remembered_at: float | None = None
        """End of the job whose fits are there."""

    def look(self, store: ConfigStore) -> bool:
        """Copy to ``store`` what is new since the last look, at first all that is missing; return whether there was anything. Of decisions
        those that news tell of are copied, the newest few hundred.

        Raises HistoryError, or what the history raises; the next look copies the rest."""
        try:
            news = self._watch.look()
            if not news.empty and self._put_job(store):
                self._add_profiles(store, news.rates)
                self._add_plans(store)
                self._add_events(store)
                self._add_decisions(store, news.decisions)
            if self._ended_at not in (None, self._remembered_at):
                self._add_fits(store)
        except BaseException:
            self._watch = JobWatch(self._history, self.job)
            raise
        return not news.empty

    def _put_job(self, store: ConfigStore) -> bool:
        """Put the job in place of what was known of it; return whether it is one to be copied."""
        found = kept(self._history, JobsQuestion(id=self.job), KeptJob)
        if not found:
            return False
        entry = replace(found[0], directory="", source=self._source)
        _write(store, _PUT_JOB, [[getattr(entry, name) for name in _JOB]])
        ((source,),) = _read(store, "select source from jobs where id = ?", self.job)
        if source != self._source:
            return False
        self._ended_at = entry.ended_at
        return True

    def _add_profiles(self, store: ConfigStore, rates: Sequence[RateNews]) -> None:
        known = {at for (at,) in _read(store, "select at from profiles where job = ?", self.job)}
        missing = [one.at for one in rates if one.at not in known]
        for start in range(0, len(missing), _PROFILES_AT_ONCE):
            part = missing[start : start + _PROFILES_AT_ONCE]
            found = kept(self._history, ProfilesQuestion(self.job, part[0], part[-1]), KeptProfile)
            _write(store, _ADD_PROFILE, [_values(one) for one in found[::-1]])

    def _add_plans(self, store: ConfigStore) -> None:
        known = set(_read(store, "select kind, at from plans where job = ?", self.job))
        question = PlansQuestion(self.job)
        missing = self._newest(question, KeptPlan, lambda one: (one.kind, one.at) in known)
        _write(store, _ADD_PLAN, [(one.job, one.at, one.kind, one.decision, one.data) for one in missing])

    def _add_events(self, store: ConfigStore) -> None:
        known = set(_read(store, "select node, event, at from node_events where job = ?", self.job))
        question = EventsQuestion(self.job)
        missing = self._newest(question, KeptEvent, lambda one: (one.node, one.event, one.at) in known)
        _write(store, _ADD_EVENT, [_values(one)[1:] for one in missing])

    def _newest(
        self, question: PlansQuestion | EventsQuestion, _kind: type[R], is_known: Callable[[R], bool]
    ) -> list[R]:
        """List rows down to a page whose last one is known, the oldest first: those of a kind come here all together."""
        found: list[R] = []
        while True:
            page = self._history.ask(question, RowsPage)
            found += cast("list[R]", page.rows)
            if page.next is None or is_known(found[-1]):
                return found[::-1]
            question = replace(question, after=page.next)

    def _add_decisions(self, store: ConfigStore, told: Sequence[Chosen]) -> None:
        states = "select number, effect is not null, done is not null from decisions where job = ?"
        known = {number: (effect, done) for number, effect, done in _read(store, states, self.job)}
        missing: list[tuple[Chosen, KeptDecision]] = []
        for one in told:
            effect, done = known.get(one.number, (False, False))
            if one.number in known and (effect or one.measured is None) and (done or not one.done):
                continue
            question = DecisionsQuestion(self.job, one.number)
            missing += [(one, row) for row in kept(self._history, question, KeptDecision)]
        for number, group in groupby(missing, lambda pair: pair[1].round):
            decided = list(group)
            is_there = all(one.number in known for one, _ in decided)
            inputs = KeptInputs() if is_there else self._history.ask(InputsQuestion(number), KeptInputs)
            self._write_round(store, decided, inputs)

    def _write_round(
        self, store: ConfigStore, decided: Sequence[tuple[Chosen, KeptDecision]], inputs: KeptInputs
    ) -> None:
        """Write the decisions of a round with what they follow from."""
        execute = store.db.conn.execute
        with store.errors(), store.transaction():
            number: int | None = None
            for one, row in decided:
                if execute("select 1 from decisions where job = ? and number = ?", (self.job, row.number)).fetchone():
                    execute(_COMPLETE_DECISION, (row.effect, row.done, self.job, row.number))
                    continue
                if number is None:
                    kept_inputs = inputs.inputs
                    number = (
                        execute(_ADD_ROUND, (one.at, kept_inputs, inputs.kind)).lastrowid if kept_inputs else _NO_ROUND
                    )
                values = (row.number, number, one.at, one.action, one.reason, row.data, row.effect, row.done)
                execute(_ADD_DECISION, (self.job, *values))

    def _add_fits(self, store: ConfigStore) -> None:
        """Add what the job's end tells of jobs to come: it is there a moment later than the end."""
        found = [
            one.fit
            for kind in FIT_KINDS
            for one in kept(self._history, FittedJobsQuestion(kind), KeptFittedJob)
            if one.job.id == self.job
        ]
        _write(store, ADD_FIT, [_values(one) for one in found])
        if found:
            self._remembered_at = self._ended_at


def _read(store: ConfigStore, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with store.errors():
        return store.db.conn.execute(statement, values).fetchall()


def _write(store: ConfigStore, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    if not rows:
        return  # and nobody waits for us
    with store.errors(), store.transaction():
        store.db.conn.executemany(statement, rows)


def _values(row: Any) -> list[Any]:
    return [getattr(row, name) for name in row.__struct_fields__]
