"""The history is the same out of its files and asked of a brain, whole and page by page; and files are read while no brain answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dlrover_lite.brain.effect import judge
from dlrover_lite.brain.explain.explanation import read
from dlrover_lite.brain.healing.mitigation import HealInputs
from dlrover_lite.brain.planning.decision import Decision, decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.store import pages, queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.history import FileHistory, History
from dlrover_lite.brain.store.records import FitRecord, JobEntry, ProfileRecord
from dlrover_lite.brain.store.timeline import timeline
from dlrover_lite.brain.store.watch import JobWatch, Watch
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.brain_server.history_client import BrainHistory, RemoteHistory, up_to_date
from dlrover_lite.core.errors import HistoryError, RemoteError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.brain_messages import BrainHello, BrainReplies
from dlrover_lite.protocol.demands import DecisionOutcome
from dlrover_lite.protocol.history_messages import (
    DecisionsQuestion,
    EffectsQuestion,
    EventsQuestion,
    FittedJobsQuestion,
    InputsQuestion,
    JobIdsQuestion,
    JobNewsPage,
    JobNewsQuestion,
    JobsNewsPage,
    JobsNewsQuestion,
    JobsQuestion,
    KeptDecision,
    KeptEffect,
    KeptEvent,
    KeptFittedJob,
    KeptInputs,
    KeptJob,
    KeptJobId,
    KeptPlan,
    KeptProfile,
    PlansQuestion,
    ProfilesQuestion,
    RowsPage,
)
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.records import NodeRecord, PlanRecord
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import NOT_UNDERSTOOD
from tests.brain import asked
from tests.brain.asked import WAYS, answering, encoded, living
from tests.brain.models import load, view

JOB = "ads-1"


def _plan(workers: int) -> Plan:
    return Plan(RolePlan(1, Resources(0.5, GIB)), RolePlan(workers, Resources(1.0, GIB)))


def _fill(path: Path) -> None:
    """Two jobs with several of everything, at the same times too; a third with nothing."""
    with ConfigStore(path) as store:
        for number, job in enumerate((JOB, "ads-2", "news-1")):
            features = {"tables": 26, "words": ["é", "\x00", 0.1], "large": 2**53}
            outcome = JobOutcome(auc=0.1 + 0.2, peak_memory={"ps": 3})
            entry = JobEntry(id=job, name="ads", state="running", created_at=10.0 + number // 2, features=features)
            store.put_job(entry if job == "news-1" else replace(entry, outcome=outcome, ended_at=99.5, message="a\nb"))
        for job in (JOB, "ads-2"):
            for at in range(7):
                data = {"cpu": [0.1 * at, None], "samples_so_far": at}
                rate = 100.0 / (at + 1)
                store.add_profile(
                    ProfileRecord(
                        job=job, at=20.0 + at, seconds=1.0, samples_per_second=rate, workers=2, servers=1, data=data
                    )
                )
                for kind in ("desired", "granted"):
                    store.add_plan(PlanRecord(job=job, at=20.0 + at, kind=kind, plan=_plan(at), decision=at or None))  # type: ignore[arg-type]
                for node in ("ps-0", "worker-0"):
                    size = {"cores": 0.5, "memory": GIB + at}
                    store.add_node_event(NodeRecord(job=job, at=21.0 + at, node=node, event="resized", data=size))
            for kind in ("bottleneck", "memory"):
                store.add_fit(FitRecord(job=job, at=30.0, kind=kind, error=0.1, windows=2, data={"kind": kind}))
        store.commit()
        for at in range(5):
            store.add_round(
                decide(RoundInputs(at=22.0 + at, capacity=Resources(16.0, 64 * GIB), jobs=(view(JOB),)), load), [JOB]
            )
        heal = HealInputs(job=JOB, at=28.0, profiles=(), nodes=())
        store.add_treatments(heal, [Decision(job=JOB, at=28.0, action="heal", reason="all is well", stage="heal")])
        decision = queries.decisions(store, JOB, number=1)[0].decision
        for number, rate in ((1, 500.0), (2, 700.0), (4, 900.0)):
            store.put_effect(JOB, number, judge(decision, Band(rate, 0.8 * rate, 1.2 * rate), windows=2, at=29.0))
        store.put_done(DecisionOutcome(job=JOB, number=2, at=28.0, state="done"))
        store.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    _fill(tmp_path / "brain.sqlite")
    return tmp_path / "brain.sqlite"


@pytest.fixture
def both(path: Path) -> Iterator[tuple[History, History]]:
    """Out of its files, and asked of the brain."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(asked.opened(way, path)) for way in WAYS)
        yield first, second


QUESTIONS: list[tuple[Any, type]] = [
    (JobsQuestion(), KeptJob),
    (JobsQuestion(state="running,lost", text=("ADS", "26"), most=1), KeptJob),
    (JobsQuestion(id="ads-*", since=1.0, until=50.0), KeptJob),
    (JobIdsQuestion(), KeptJobId),
    (PlansQuestion(JOB), KeptPlan),
    (PlansQuestion(JOB, "granted", most=3), KeptPlan),
    (ProfilesQuestion(JOB), KeptProfile),
    (ProfilesQuestion(JOB, since=21.0, until=25.0, most=4), KeptProfile),
    (DecisionsQuestion(JOB), KeptDecision),
    (DecisionsQuestion(JOB, number=2), KeptDecision),
    (DecisionsQuestion(JOB, most=3), KeptDecision),
    (EffectsQuestion(), KeptEffect),
    (EffectsQuestion(JOB, most=3), KeptEffect),
    (EventsQuestion(JOB), KeptEvent),
    (FittedJobsQuestion("memory"), KeptFittedJob),
    (FittedJobsQuestion("memory", most=1), KeptFittedJob),
]


@pytest.mark.parametrize(("question", "kind"), QUESTIONS)
def test_rows_are_the_same_by_both_ways_and_in_pages(
    both: tuple[History, History], monkeypatch: pytest.MonkeyPatch, question: Any, kind: Any
) -> None:
    files, brain = both
    whole = files.ask(question, RowsPage)
    assert whole.next is None
    assert whole.rows and all(isinstance(row, kind) for row in whole.rows)
    assert encoded(brain.ask(question, RowsPage)) == encoded(whole)
    monkeypatch.setattr(pages, "PAGE_ROWS", 2)
    for history in both:
        assert len(history.ask(question, RowsPage).rows) <= 2
        assert queries.kept(history, question, kind) == whole.rows


def test_a_page_ends_where_its_text_gets_long(both: tuple[History, History], monkeypatch: pytest.MonkeyPatch) -> None:
    question = DecisionsQuestion(JOB)
    whole = both[0].ask(question, RowsPage).rows
    monkeypatch.setattr(pages, "PAGE_BYTES", len(whole[0].data) + 1)
    for history in both:
        assert 1 <= len(history.ask(question, RowsPage).rows) < len(whole)
        assert queries.kept(history, question, KeptDecision) == whole


@pytest.mark.parametrize("rows", [1000, 1])
def test_what_is_made_of_rows_is_the_same_by_both_ways(
    both: tuple[History, History], monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    def all_of(history: History) -> list[bytes]:
        decided = queries.decisions(history, JOB)
        found: list[object] = [
            queries.jobs_with_plans(history, JobsQuestion()),
            queries.fitted_jobs(history, "bottleneck"),
        ]
        found += [queries.plans(history, JOB), queries.profiles(history, JOB), queries.node_events(history, JOB)]
        found += [decided, [queries.inputs_of(history, one) for one in decided], timeline(history, JOB)]
        found += [read(history, one) for one in decided]
        found += [queries.judged_decisions(history), queries.judged_decisions(history, "news-1")]
        found += [Watch(history).look(), JobWatch(history, JOB).look()]
        return [encoded(one) for one in found]

    files, brain = both
    expected = all_of(files)
    monkeypatch.setattr(pages, "PAGE_ROWS", rows)
    assert all_of(brain) == expected


def test_inputs_that_were_pruned_are_none_by_both_ways(both: tuple[History, History]) -> None:
    for history in both:
        assert history.ask(InputsQuestion(10**6), KeptInputs) == KeptInputs()


def test_a_history_without_a_database_is_empty_by_both_ways(tmp_path: Path) -> None:
    for way in WAYS:
        with asked.opened(way, tmp_path / "brain.sqlite") as history:
            for question, _ in QUESTIONS:
                assert history.ask(question, RowsPage) == RowsPage([])
    assert not (tmp_path / "brain.sqlite").exists()


# --- whom to ask ----------------------------------------------------------------------------------------------------------------


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class _Reads:
    """Opens files, and counts how often."""

    count = 0

    def __call__(self, path: Path) -> History:
        self.count += 1
        return FileHistory(path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlrover_lite.brain_server.history_client.ANSWER_SECONDS", 0.05)


def test_a_brain_that_lives_is_asked_and_its_files_are_read_when_it_has_ended(path: Path) -> None:
    files, reads = BrainFiles(path.parent), _Reads()
    with BrainHistory(files, read=reads) as history:
        watch = Watch(history)
        with answering(files):
            assert len(watch.look().jobs) == 3
            assert watch.look().empty and reads.count == 0
        news = watch.look()
        assert (news.anew, len(news.jobs), reads.count) == (True, 3, 1)
        with answering(files):  # another brain
            assert watch.look().anew
            assert watch.look().empty


def test_files_are_read_while_a_brain_is_silent(path: Path, impatient: None) -> None:
    files, reads, clock = BrainFiles(path.parent), _Reads(), _Clock()
    with BrainHistory(files, read=reads, clock=clock) as history, living(files, f"ipc://{path.parent}/nobody"):
        assert len(queries.job_ids(history)) == 3
        assert reads.count == 1
        assert history._brain() is None  # it isn't waited for again for a while
        clock.now += 60.0
        assert history._brain() is not None


def test_files_are_read_where_a_brain_is_of_a_version_that_answers_no_questions(path: Path) -> None:
    files, reads = BrainFiles(path.parent), _Reads()
    with BrainHistory(files, read=reads) as history, living(files, ""):
        assert len(queries.job_ids(history)) == 3
        assert reads.count == 1


@pytest.fixture
def older(tmp_path: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """A brain that understands other messages than questions about the history; and how many it hasn't understood."""
    over = threading.Event()
    with Connector() as connector:
        server = connector.server(f"ipc://{tmp_path}/old", BrainHello)

        def serve() -> None:
            while not over.is_set():
                server.receive(0.02)
            server.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.endpoint, lambda: server.malformed
        over.set()
        thread.join()


def test_files_are_read_where_a_brain_does_not_understand_the_question(
    path: Path, older: tuple[str, Callable[[], int]]
) -> None:
    endpoint, not_understood = older
    files, reads, clock = BrainFiles(path.parent), _Reads(), _Clock()
    with BrainHistory(files, read=reads, clock=clock) as history, living(files, endpoint):
        watch = Watch(history)
        assert len(watch.look().jobs) == 3
        clock.now += 1e6
        assert watch.look().empty
        assert (not_understood(), reads.count) == (1, 1)  # it isn't asked again


def test_what_makes_no_sense_is_refused_and_others_are_answered(path: Path) -> None:
    files = BrainFiles(path.parent)
    with answering(files), Connector() as connector:
        record = files.record()
        assert record is not None
        client = connector.client(record.history, BrainReplies)
        for nonsense in (BrainHello("1.0"), PlansQuestion(JOB, most=-1)):
            with pytest.raises(RemoteError) as refused:
                client.call(nonsense, deadline_seconds=asked.PATIENCE)
            assert refused.value.code == NOT_UNDERSTOOD
        client.close()
        history = RemoteHistory(Connector(), record.history, files.database)
        assert len(queries.job_ids(history)) == 3
        history.close()


def test_a_damaged_database_is_reported_as_it_is_by_its_files(path: Path) -> None:
    files = BrainFiles(path.parent)
    for file in path.parent.glob("brain.sqlite*"):
        file.unlink()
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    with (
        answering(files),
        BrainHistory(files, read=up_to_date) as history,
        pytest.raises(HistoryError, match="damaged or no database"),
    ):
        queries.job_ids(history)


def test_a_database_of_an_older_version_is_brought_up_to_date_before_it_is_read(path: Path) -> None:
    with ConfigStore(path) as store, store.transaction():
        store.db.conn.execute("alter table decisions drop column done")
        store.db.conn.execute("delete from _sqlite_migrations where name like 'm004%'")
    history = up_to_date(path)
    assert len(queries.decisions(history, JOB)) == 6
    history.close()


@pytest.mark.parametrize("way", WAYS)
def test_answers_leave_nothing_open(path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that stayed at its moment would keep the log of all that is written since from being cut."""
    monkeypatch.setattr(pages, "PAGE_ROWS", 1)
    with asked.opened(way, path) as history:
        for question, _ in QUESTIONS:
            history.ask(question, RowsPage)
        history.ask(JobsNewsQuestion(), JobsNewsPage)
        history.ask(JobNewsQuestion(JOB), JobNewsPage)
        with ConfigStore(path) as store:
            store.put_samples(JOB, 7)
            store.commit()
            (busy, *_) = store.db.conn.execute("pragma wal_checkpoint(truncate)").fetchone()
            assert not busy
