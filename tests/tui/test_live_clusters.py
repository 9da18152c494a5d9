"""Jobs of clusters among those of this machine: listed, opened, and acted on, whether or not their cluster answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from dlrover_lite.backends.k8s.jobs.files.job_copy import JobCopy
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.history import FileHistory
from dlrover_lite.brain.store.records import JobEntry, ProfileRecord
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import BackendError, JobError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.jobs.backend import JobSummary
from dlrover_lite.jobs.store import Result
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.questions import NodeStatus, Status
from dlrover_lite.tui.actions import Actions, Aim, why_not
from dlrover_lite.tui.model import JobRow
from dlrover_lite.tui.pages.once import frame
from dlrover_lite.tui.sources.live import LiveSource
from dlrover_lite.tui.sources.live_clusters import NamedCluster
from tests.backends.support import recipe, until

if TYPE_CHECKING:
    from dlrover_lite.checkpoint.file_service.client import FileClient

SOURCE = "prod/ads"
BEGAN = 1_800_000_000.0


class FakeCluster:
    """A cluster of given jobs. Of a whole one that is tested in tests/k8s, what a screen asks of it."""

    source = SOURCE

    def __init__(self, directory: Path) -> None:
        self.jobs: list[JobSummary] = []
        self.database = directory / "there.sqlite"
        self.hangs: threading.Event | None = None
        self.fails = ""
        self.statuses: dict[str, Status] = {}
        self.asked: list[str] = []
        self.hosts: list[Host] = []

    def summaries(self) -> list[JobSummary]:
        self.asked.append("list")
        if self.hangs is not None:
            self.hangs.wait()
        if self.fails:
            raise BackendError(self.fails)
        return self.jobs

    def state(self, job: str) -> JobSummary:
        return next(one for one in self.jobs if one.id == job)

    def history(self, _job: str) -> FileHistory:
        return FileHistory(self.database)

    def files(self, job: str) -> JobCopy:
        def fetch(_place: Path) -> None:
            raise JobError("nothing is to be copied for a screen")

        nowhere, nobody = Path("nowhere"), cast("FileClient", None)
        return JobCopy(job, nowhere, home=nowhere, fetch=fetch, files=nobody, recipe=recipe)

    @contextmanager
    def address(self, _job: str) -> Iterator[None]:
        yield None

    def capacity(self) -> list[Host]:
        return self.hosts

    def runs(self, job: str, **fields: Any) -> Status:
        self.jobs.append(JobSummary(job, "running", False, BEGAN, BEGAN + 1))
        nodes = [
            NodeStatus("ps-0", "ps", "up", 1.0, GIB, host="node-a"),
            NodeStatus("worker-0", "worker", "launched (pulling: the image)", 1.0, GIB, host="node-b"),
        ]
        plain: dict[str, Any] = {"samples": 250, "total_samples": 1000, "nodes": nodes}
        self.statuses[job] = Status(job, "training", **(plain | fields))
        return self.statuses[job]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    found = FakeCluster(tmp_path)

    def ask_status(handle: JobHandle) -> Status | None:
        found.asked.append(handle.id)
        return found.statuses.get(handle.id)

    monkeypatch.setattr(JobHandle, "ask_status", ask_status)
    monkeypatch.setattr("dlrover_lite.client.job_sources.clusters", lambda: [(SOURCE, lambda: found)])
    return found


@pytest.fixture
def source(cluster: FakeCluster) -> Iterator[LiveSource]:
    with watching(cluster) as one:
        yield one


@contextmanager
def watching(cluster: FakeCluster) -> Iterator[LiveSource]:
    one = LiveSource(clusters=lambda: [NamedCluster(SOURCE, lambda: cluster)])  # type: ignore[arg-type,return-value]
    try:
        yield one
    finally:
        if cluster.hangs is not None:
            cluster.hangs.set()
        one.close()


def here(*entries: JobEntry) -> None:
    files = BrainFiles()
    files.make()
    with ConfigStore(files.database) as store:
        for one in entries:
            store.put_job(one)
        store.commit()


def test_jobs_of_clusters_are_listed_with_where_they_are(cluster: FakeCluster, source: LiveSource) -> None:
    here(JobEntry(id="local-1", name="local", state="succeeded", created_at=BEGAN, ended_at=BEGAN + 5))
    cluster.runs("ads-1")
    ended = Result("failed", BEGAN + 9, "no room", status={"state": "failed", "samples": 70, "total_samples": 100})
    cluster.jobs.append(JobSummary("ads-0", "failed", True, BEGAN, BEGAN, BEGAN + 9, ended))
    rows = source.whole().jobs
    assert {job: row.source for job, row in rows.items()} == {"ads-0": SOURCE, "ads-1": SOURCE, "local-1": ""}
    assert (rows["ads-0"].state, rows["ads-0"].message) == ("failed", "no room")
    until(lambda: source.jobs().jobs["ads-1"].samples == 250, "what the master says")
    text = frame(source, job=None, width=160)
    assert "SOURCE" in text and SOURCE in text and "local" in text
    cluster.jobs.pop()
    until(lambda: "ads-0" not in source.jobs().jobs, "a list without it")


def test_without_clusters_there_is_no_column_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    here(JobEntry(id="local-1", name="local", state="succeeded", created_at=BEGAN, ended_at=BEGAN + 5))
    source = LiveSource()
    assert "SOURCE" not in frame(source, job=None, width=200)
    source.close()


def test_a_cluster_that_doesnt_answer_holds_up_nothing_and_is_said_in_a_line(cluster: FakeCluster) -> None:
    here(JobEntry(id="local-1", name="local", state="succeeded", created_at=BEGAN, ended_at=BEGAN + 5))
    cluster.hangs = threading.Event()
    with watching(cluster) as source:
        assert list(source.jobs().jobs) == ["local-1"]  # though the list hasn't come, and never does
        assert list(source.whole(0.01).jobs) == ["local-1"]
        cluster.fails = "it is being upgraded"
        cluster.hangs.set()
        until(lambda: source.jobs().problem is not None, "the problem")
        problem = source.jobs().problem
        assert problem is not None and (problem.what, problem.why) == (SOURCE, "it is being upgraded")
        assert source.jobs() is source.jobs()
        (line,) = [one for one in frame(source, job=None, width=160).splitlines() if SOURCE in one]
        assert "it is being upgraded" in line


def test_a_silent_cluster_is_told_after_a_while(cluster: FakeCluster) -> None:
    now = BEGAN
    cluster.hangs = threading.Event()
    one = LiveSource(clusters=lambda: [NamedCluster(SOURCE, lambda: cluster)], clock=lambda: now)  # type: ignore[arg-type,return-value]
    assert one.jobs().problem is None
    now += 16.0
    problem = one.jobs().problem
    assert problem is not None and problem.why == "it doesn't answer" and problem.since == BEGAN
    cluster.hangs.set()
    one.close()


def test_what_a_clusters_brain_knows_is_shown_as_of_a_job_of_this_machine(
    cluster: FakeCluster, source: LiveSource
) -> None:
    cluster.runs("ads-1")
    with ConfigStore(cluster.database) as there:
        there.put_job(JobEntry(id="ads-1", name="ads", model="dcn", state="running", created_at=BEGAN, owner="65532"))
        profile = {"at": BEGAN + 10, "seconds": 10.0, "samples_per_second": 321.0, "workers": 1, "servers": 1}
        there.add_profile(ProfileRecord(job="ads-1", **profile))  # type: ignore[arg-type]
        there.commit()
    until(lambda: source.whole().jobs["ads-1"].model == "dcn", "the copy of its history")
    until(lambda: source.jobs().jobs["ads-1"].rates == (321.0,), "its intervals")
    row = source.jobs().jobs["ads-1"]
    assert (row.source, row.state, row.directory) == (SOURCE, "training", "")


def test_an_open_job_of_a_cluster_has_its_nodes_with_hosts_and_how_far_their_start_is(
    cluster: FakeCluster, source: LiveSource
) -> None:
    cluster.runs("ads-1")
    assert source.job("ads-1") is not None  # at once, with what is known
    until(lambda: bool((detail := source.job("ads-1")) and detail.nodes), "its nodes")
    detail = source.job("ads-1")
    assert detail is not None and detail.problem is None
    assert [(node.id, node.state, node.note, node.host) for node in detail.nodes] == [
        ("ps-0", "up", "", "node-a"),
        ("worker-0", "pulling", "the image", "node-b"),
    ]
    text = frame(source, job="ads-1", width=200)
    assert "HOST" in text and "node-b" in text and "the image" in text


def test_what_is_done_to_a_job_of_a_cluster_is_asked_of_its_cluster(
    cluster: FakeCluster, source: LiveSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.runs("ads-1")
    row = msgspec.structs.replace(source.whole().jobs["ads-1"], owner="65532")
    assert why_not("stop", Aim(row), user="mira") == ""  # the cluster's roles say who may
    stopped: list[Any] = []
    monkeypatch.setattr(JobHandle, "stop", lambda handle: stopped.append((handle.id, handle.backend)))
    assert "stops" in Actions().stop(row)
    assert stopped == [("ads-1", cluster)]
    assert room_of(cluster, row) == (66.0, 258 * GIB, SOURCE)  # also what this job has
    gone = msgspec.structs.replace(row, source="old/ads")
    with pytest.raises(JobError, match="old/ads isn't known here any more"):
        Actions().stop(gone)


def test_one_frame_of_a_job_waits_for_its_master(cluster: FakeCluster, source: LiveSource) -> None:
    cluster.runs("ads-1")
    detail = source.whole_job("ads-1")
    assert detail is not None and [node.id for node in detail.nodes] == ["ps-0", "worker-0"]


def room_of(cluster: FakeCluster, row: JobRow) -> tuple[float, int, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobHandle, "status", lambda handle: cluster.statuses[handle.id])
        patch.setattr(cluster, "hosts", [Host("node-a", Resources(64.0, 256 * GIB))])
        room = Actions().room(row)
    return room.machine_cores, room.memory, room.place


def test_an_ended_job_of_a_cluster_is_told_by_its_list_alone(cluster: FakeCluster, source: LiveSource) -> None:
    status = {"samples": 70, "total_samples": 100, "auc": 0.75}
    ended = Result("succeeded", BEGAN + 9, status=status)
    cluster.jobs.append(JobSummary("ads-0", "succeeded", True, BEGAN, BEGAN, BEGAN + 9, ended))
    with ConfigStore(cluster.database) as there:
        there.put_job(JobEntry(id="ads-0", name="ads", model="dcn", state="running", created_at=BEGAN))
        there.commit()
    until(lambda: bool((detail := source.job("ads-0")) and detail.auc == 0.75), "how it ended")
    assert "ads-0" not in cluster.asked  # there is no master any more
    until(lambda: bool((detail := source.job("ads-0")) and detail.row.model == "dcn"), "the copy of its history")
