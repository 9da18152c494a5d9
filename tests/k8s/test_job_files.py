"""A job's directory as it is read from elsewhere: logs that grow, copies, and nothing beyond it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.backends.k8s.api.watch import Meta
from dlrover_lite.backends.k8s.jobs.files.job_copy import JobCopy, copy_files
from dlrover_lite.backends.k8s.jobs.files.remote_log import RemoteLog
from dlrover_lite.backends.k8s.jobs.job_pods import JobFiles, JobPods
from dlrover_lite.backends.k8s.jobs.job_state import JobSet, _SetMeta
from dlrover_lite.backends.k8s.jobs.job_watch import JobPod
from dlrover_lite.backends.k8s.jobs.known_clusters import ClusterName, KnownCluster
from dlrover_lite.backends.local.jobs.job_logs import LogFile
from dlrover_lite.checkpoint.file_service.client import FileClient
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.client.resuming import beginning_of, check_reachable, choose
from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.checkpoint_location import Located, store_of
from dlrover_lite.jobs.restore_point import Usable, own_checkpoint
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.file_messages import FileEntry
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.transport.connector import read_key
from dlrover_lite.worker.parameters.dry_configuration import declare
from tests.checkpoint.record_cuts import Key, write_cut
from tests.checkpoint.served_files import served


@pytest.fixture
def job(tmp_path: Path) -> Job:
    one = Job(tmp_path / "jobs" / "clicks-1")
    one.logs.mkdir(parents=True)
    return one


@pytest.fixture
def client(job: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileClient]:
    with served(job.directory, monkeypatch) as directory:
        one = FileClient(directory.url.replace("dlrover-lite://", "tcp://"))
        yield one
        one.close()


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "logs/../../secret", "link", "key"])
def test_nothing_beyond_the_directory_is_read_nor_the_key(job: Job, client: FileClient, path: str) -> None:
    (job.directory.parent / "secret").write_text("x")
    (job.directory / "key").write_text("x")
    (job.directory / "link").symlink_to(job.directory.parent / "secret")
    with pytest.raises(JobError, match=r"that can be read|can't hold such a file"):
        client.part(path, 0)
    assert client.tree() == []


@pytest.mark.parametrize("last", [None, 0, 1, 2, 5])
@pytest.mark.parametrize("text", ["", "one\n", "one\ntwo", "one\ntwo\nthree\n", "x" * 100_000 + "\nend\n"])
def test_a_log_reads_as_from_its_file(job: Job, client: FileClient, text: str, last: int | None) -> None:
    file = job.log("worker-0")
    file.write_text(text)
    remote = RemoteLog("logs/worker-0.log", client.part, last_lines=last)
    here = LogFile(file, last_lines=last)
    for more in ("", "more", " and\nmore\n", "last words"):
        with file.open("a") as out:
            out.write(more)
        assert list(remote.new_lines()) == list(here.new_lines())
        assert (remote.begun, remote.restarts) == (here.begun, here.restarts)
    assert list(remote.new_lines(at_end=True)) == list(here.new_lines(at_end=True))


def test_a_log_that_begins_anew_is_read_from_its_beginning(job: Job, client: FileClient) -> None:
    file = job.log("master")
    file.write_text("a\nb\n")
    remote = RemoteLog("logs/master.log", client.part)
    assert list(remote.new_lines()) == ["a", "b"]
    file.write_text("c\n")
    assert (list(remote.new_lines()), remote.restarts) == (["c"], 1)


def test_a_log_that_isnt_there_is_empty(client: FileClient) -> None:
    assert list(RemoteLog("logs/worker-9.log", client.part, last_lines=3).new_lines(at_end=True)) == []


RECIPE = "version: 1\nname: clicks\nmodel: {use: dcn, options: {embedding_dim: 4, hidden: [4]}}\ndata: {format: synthetic, samples: 64}\n"
HOME = Path("/storage/jobs/clicks-1")


class Copies:
    """Copies of a served job below a directory."""

    def __init__(self, client: FileClient, place: Path) -> None:
        self.client, self.place = client, place
        self.fetched: list[Path] = []

    def another(self) -> JobCopy:
        return JobCopy("clicks-1", self.place, home=HOME, fetch=self._fetch, files=self.client)

    def _fetch(self, place: Path) -> None:
        self.fetched.append(place)
        copy_files(self.client, [one for one in self.client.tree() if not one.path.startswith("checkpoints/")], place)


@pytest.fixture
def copies(client: FileClient, tmp_path: Path) -> Copies:
    return Copies(JobFiles(client.ask), tmp_path / "copy")


def test_a_copy_is_made_when_it_is_looked_into_and_only_changes_are_read_again(job: Job, copies: Copies) -> None:
    (job.directory / "status.json").write_text('{"samples": 1}')
    (job.directory / "large").write_bytes(bytes(9 << 20))
    first = copies.another()
    assert not copies.fetched and first.id == "clicks-1"
    assert first.status() == {"samples": 1} and (first.directory / "large").stat().st_size == 9 << 20
    assert len(copies.fetched) == 1
    large = copies.place / "large"
    unchanged = large.stat().st_ino
    (job.directory / "status.json").write_text('{"samples": 22}')
    assert copies.another().status() == {"samples": 22}
    assert large.stat().st_ino == unchanged
    large.write_bytes(b"in part")
    assert (copies.another().directory / "large").stat().st_size == 9 << 20


def test_a_name_that_leads_out_of_the_copy_is_refused(client: FileClient, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="leads out"):
        copy_files(client, [FileEntry("../x", 1, 0.0)], tmp_path / "copy")


def test_checkpoints_are_read_where_they_are_and_go_by_the_path_in_the_pods(job: Job, copies: Copies) -> None:
    recipe = parse_recipe(RECIPE)
    (job.directory / "recipe.json").write_bytes(msgspec.json.encode(recipe))
    here = CheckpointStore(str(job.directory / "checkpoints"))
    here.create()
    (job.directory / "ledger.sqlite").touch()
    configuration = declare(recipe).configuration
    dense = {(1, 0, i): 1.0 for i in range(configuration.dense.parameter_blocks)}
    rows: dict[Key, float] = {(0, 0, i): float(i) for i in range(30)}
    write_cut(here, 1, configuration, {**rows, **dense}, builds_on=None)
    write_cut(here, 2, configuration, {(0, 1, 3): 7.0, **dense}, builds_on=1)
    copy = copies.another()
    point = own_checkpoint(copy)
    assert isinstance(point, Usable) and (point.url, point.manifest.cut) == (f"{HOME}/checkpoints", 2)
    store = store_of(copy)
    assert store.verify(2) == []
    assert len(list(store.rows(2))) == len(list(here.rows(2))) > 0
    chosen = choose(Located(store, copy, None))
    beginning = beginning_of(chosen, copy)
    assert (beginning.url, beginning.cut, beginning.origin) == (f"{HOME}/checkpoints", 2, None)
    with pytest.raises(JobError, match="another job doesn't see"):
        check_reachable(chosen, copy)
    check_reachable(chosen, job)
    assert not (copies.place / "checkpoints").exists()
    (job.directory / "checkpoints" / "cut-00000002" / "manifest.json").unlink()
    assert [one.number for one in store.checkpoints()] == [1]
    with pytest.raises(JobError, match="isn't seen from here"):
        copy.destination_at("/mnt/checkpoints")


def test_a_model_is_fetched_whole_and_in_place_of_an_older_one(job: Job, copies: Copies) -> None:
    (job.directory / "export" / "tables").mkdir(parents=True)
    (job.directory / "export" / "model.json").write_text("{}")
    (job.directory / "export" / "tables" / "user.npz").write_bytes(secrets.token_bytes(9 << 20))
    (copies.place / "export").mkdir(parents=True)
    (copies.place / "export" / "of an older model").write_text("x")
    told: list[tuple[str, float, float, str]] = []
    found = copies.another().model_directory(f"{HOME}/export", lambda *step: told.append(step))
    assert sorted(path.relative_to(found).as_posix() for path in found.rglob("*") if path.is_file()) == [
        "model.json",
        "tables/user.npz",
    ]
    assert (found / "tables/user.npz").read_bytes() == (job.directory / "export/tables/user.npz").read_bytes()
    assert len(told) == 4 and told[-1] == ("fetching", (9 << 20) + 2, (9 << 20) + 2, "bytes")
    assert not copies.fetched


def test_files_are_asked_for_again_where_another_pod_has_them_now(
    job: Job, client: FileClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a job ends meanwhile, and a reader has its volume."""
    (job.directory / "status.json").write_text("{}")
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    kept = KnownCluster(ClusterName("ctx", "ns"))
    kept.keep_key("clicks-1", read_key(job.directory.parent / "key"))
    pods = JobPods(None, kept)  # type: ignore[arg-type]
    found = [JobPod(metadata=Meta(name=name, uid=name)) for name in ("gone", "there")]
    endpoints = {"gone": "tcp://127.0.0.1:9", "there": client.endpoint}
    monkeypatch.setattr(pods, "_files_pod", lambda _: found.pop(0) if len(found) > 1 else found[0])
    monkeypatch.setattr(pods._endpoints, "endpoint", lambda pod, _: endpoints[pod.metadata.uid])
    monkeypatch.setattr(pods, "_is_gone", lambda pod: pod.metadata.uid == "gone")
    monkeypatch.setattr(pods, "_job_set", lambda job: JobSet(metadata=_SetMeta(name=job)))
    files = JobFiles(lambda request, expected, frames: pods.ask("clicks-1", request, expected, frames))
    try:
        assert [one.path for one in files.tree()] == ["status.json"]
        assert bytes(files.part("status.json", 0).data) == b"{}"
    finally:
        pods.close()
