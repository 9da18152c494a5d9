"""The history of a cluster's job, copied into this machine's: all of it in the end, wherever a copy was cut, and once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.advisor import running_jobs
from dlrover_lite.brain.effect import judge
from dlrover_lite.brain.planning.decision import Round, decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.store import pages, queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.history import FileHistory
from dlrover_lite.brain.store.merge import JobMerge
from dlrover_lite.brain.store.records import FIT_KINDS, FitRecord, JobEntry, ProfileRecord
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.demands import DecisionOutcome, Demand
from dlrover_lite.protocol.history_messages import HistoryQuestion
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.records import NodeRecord, PlanRecord
from tests.brain.models import load, view

A = TypeVar("A")
JOB, SOURCE = "ads-1", "prod/ads"
TABLES = {
    "jobs": "id, name, owner, model, state, created_at, started_at, ended_at, samples, message, outcome, features",
    "profiles": "*",
    "plans": "job, at, kind, decision, data",
    "node_events": "job, at, node, event, reason, data",
    "fits": "job, at, kind, error, windows, data",
    "decisions join rounds on rounds.id = round": "job, number, decisions.at, action, reason, data, effect, done, inputs, kind",
}
EVENTS = st.sampled_from(["profile", "plan", "node", "decide", "effect", "done", "end", "resume", *["look"] * 4])


class CutHistory(FileHistory):
    """Answers so many questions, then no more."""

    def __init__(self, path: Path, left: int) -> None:
        super().__init__(path)
        self.left = left

    def ask(self, question: HistoryQuestion, kind: type[A]) -> A:
        self.left -= 1
        if self.left < 0:
            raise HistoryError("cut")
        return super().ask(question, kind)


def entry(**fields: Any) -> JobEntry:
    plain: dict[str, Any] = {"id": JOB, "name": "ads", "state": "running", "created_at": 1.0, "started_at": 2.0}
    return JobEntry(**(plain | {"directory": f"/storage/jobs/{JOB}"} | fields))


ROUND: list[Round] = []


def decided() -> Round:
    """A decision, made once: what is in it doesn't matter here."""
    if not ROUND:
        inputs = RoundInputs(at=5.0, capacity=Resources(16.0, 64 * GIB), jobs=(view(JOB),))
        ROUND.append(decide(inputs, load))
    return ROUND[0]


def happen(store: ConfigStore, what: str, at: float) -> None:
    """Have something happen in the cluster."""
    if what == "profile":
        store.add_profile(ProfileRecord(job=JOB, at=at, seconds=1.0, samples_per_second=at, workers=1, servers=1))
    elif what == "plan":
        role = RolePlan(int(at), Resources(1.0, GIB))
        store.add_plan(PlanRecord(job=JOB, at=at, kind="granted", plan=Plan(role, role)))
    elif what == "node":
        store.add_node_event(NodeRecord(job=JOB, at=at, node=f"worker-{at:g}", event="launched"))
    elif what == "decide":
        store.add_round(decided(), [JOB])
    elif what in ("effect", "done"):
        question = f"select coalesce(max(number), 0) from decisions where {what} is null"
        (newest,) = store.db.conn.execute(question).fetchone()
        if what == "effect":
            effect = judge(decided().decisions[0], Band(500.0, 400.0, 600.0), windows=2, at=at)
            store.put_effect(JOB, newest, effect)
        else:
            store.put_done(DecisionOutcome(job=JOB, number=newest, state="done", at=at))
    elif what == "end":
        store.end_job(JOB, "succeeded", at=at, samples=7, message="", outcome=JobOutcome(auc=0.75))
        for kind in FIT_KINDS:
            store.add_fit(FitRecord(job=JOB, at=at, kind=kind, error=0.1, windows=3, data={"at": at}))
    elif what == "resume":
        store.put_job(entry(started_at=at))
    store.commit()


def rows(path: Path) -> dict[str, set[tuple[Any, ...]]]:
    with sqlite3.connect(path) as connection:
        found = {}
        for table, columns in TABLES.items():
            listed = connection.execute(f"select {columns} from {table}").fetchall()
            assert len(set(listed)) == len(listed), table
            found[table] = set(listed)
    connection.close()
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.integers(0, 15)), min_size=4, max_size=25), st.sampled_from([1, 2, 1000]))
def test_a_copy_has_all_that_the_original_has_wherever_copies_were_cut(
    events: list[tuple[str, int]], page: int
) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE_ROWS", page)
        there, here = Path(name, "there.sqlite"), Path(name, "here.sqlite")
        with ConfigStore(there) as remote, ConfigStore(here) as local:
            remote.put_job(entry())
            remote.commit()
            cut = CutHistory(there, 0)
            merge = JobMerge(cut, JOB, SOURCE)
            for number, (what, questions) in enumerate(events):
                if what == "look":
                    cut.left = questions
                    try:
                        merge.look(local)
                    except HistoryError:
                        if questions % 2:  # as another process would
                            merge = JobMerge(cut, JOB, SOURCE)
                else:
                    happen(remote, what, 10.0 + number)
            cut.left = 10_000
            merge.look(local)
            copied, original = rows(here), rows(there)
            fits, copied_fits = original.pop("fits"), copied.pop("fits")
            assert copied == original
            assert copied_fits <= fits
            if fits and next(iter(original["jobs"]))[4] == "succeeded":
                last = max(row[1] for row in fits)
                assert {row for row in fits if row[1] == last} <= copied_fits
            changes = local.db.conn.total_changes
            JobMerge(cut, JOB, SOURCE).look(local)
            assert rows(here) == {**copied, "fits": copied_fits}
            assert local.db.conn.total_changes - changes <= 1  # the job itself, as it is
            cut.close()


def test_a_job_that_reports_to_this_brain_is_left_as_it_is(tmp_path: Path) -> None:
    with ConfigStore(tmp_path / "there") as remote, ConfigStore(tmp_path / "here") as local:
        local.put_job(entry(name="ours"))
        local.commit()
        remote.put_job(entry(name="theirs"))
        happen(remote, "profile", 10.0)
        history = FileHistory(tmp_path / "there")
        JobMerge(history, JOB, SOURCE).look(local)
        history.close()
        (known,) = queries.jobs(local)
        assert (known.name, known.source) == ("ours", "")
        assert queries.profiles(local, JOB) == []


def test_a_copy_is_no_job_of_this_brain(tmp_path: Path) -> None:
    """A cluster's job takes nothing of this machine, and nobody here looks whether it still runs."""
    with ConfigStore(tmp_path / "here") as local:
        demand = {"demand": msgspec.to_builtins(Demand())}
        local.put_job(entry(source=SOURCE, directory="", features=demand))
        local.put_job(entry(id="here", features=demand))
        local.commit()
        assert [row.id for row in running_jobs(local)] == ["here"]
