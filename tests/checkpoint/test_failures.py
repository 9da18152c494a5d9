"""Writers that are killed at any step, and destinations that are full, forbidden or gone: the older state stays, and nothing half."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from dlrover_lite.checkpoint.manifest import MANIFEST
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core.errors import JobError
from tests.checkpoint.cuts import SHAPES, expected, halves, keys, manifest_of, rows_of, state_of, write_cut
from tests.file_calls import recorded

OLD = dict.fromkeys(keys(12), 1)
NEW = dict.fromkeys(keys(12), 2)
STEPS = ("open", "writev", "fsync", "replace", "mkdir", "unlink", "rmdir", "close")
"""What writing asks of the system."""


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    made = CheckpointStore(str(tmp_path / "checkpoints"))
    made.create()
    write_cut(made, 1, OLD)
    return made


def write_and_retain(store: CheckpointStore) -> None:
    write_cut(store, 2, NEW)
    store.retain(1)


def counted(act: Callable[[int, str], None]) -> Callable[[], None]:
    """Calls ``act(n, name)`` before the n-th system call of the steps; what undoes that."""
    number = 0
    real = {name: getattr(os, name) for name in STEPS}

    def wrapper(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal number
            number += 1
            act(number, name)
            return real[name](*arguments, **more)

        return call

    for name in STEPS:
        setattr(os, name, wrapper(name))

    def undo() -> None:
        for name in STEPS:
            setattr(os, name, real[name])

    return undo


def killed_at(step: int, store: CheckpointStore) -> bool:
    """Whether a process that writes was killed before its n-th step; False: it had fewer."""
    child = os.fork()
    if child == 0:
        counted(lambda number, name: os.kill(os.getpid(), signal.SIGKILL) if number == step else None)
        try:
            write_and_retain(store)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def states(store: CheckpointStore) -> list[int]:
    """Numbers of the cuts that can be seen; each is read and must be as it was written."""
    cuts = store.checkpoints()
    for cut in cuts:
        assert (cut.state, cut.why) == ("complete", "")
        assert state_of(store.rows(cut.number)) == expected(OLD if cut.number == 1 else NEW)
    return [cut.number for cut in cuts]


def test_a_writer_killed_at_any_step_leaves_only_whole_cuts(tmp_path: Path) -> None:
    seen = []
    for step in range(1, 200):
        store = CheckpointStore(str(tmp_path / str(step)))
        store.create()
        write_cut(store, 1, OLD)
        killed = killed_at(step, store)
        seen.append(states(store))
        assert seen[-1] in ([1], [2, 1], [2])
        write_cut(store, 3, NEW)
        assert state_of(store.rows(3)) == expected(NEW)
        left = {path.name for path in Path(store.url).iterdir()}
        assert left == {f"cut-{number:08}" for number in (*seen[-1], 3)}
        if not killed:
            break
    assert seen.index([2, 1]) > 10
    assert sorted(seen, key=[[1], [2, 1], [2]].index) == seen
    assert seen[-1] == [2]


def test_parts_are_durable_before_the_manifest_and_that_before_the_commit(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    store.create()
    with recorded() as calls:
        write_cut(store, 1, OLD)
    directory = Path(store.url) / "cut-00000001"
    *parts, manifest = calls.names()
    assert manifest == str(directory / MANIFEST) and len(parts) == 2
    for name in (*parts, manifest):
        calls.check_durable(Path(name))
    last_part = max(at for at, call in enumerate(calls.calls) if call.path == parts[-1] and call.what == "name")
    given = next(at for at, call in enumerate(calls.calls) if call.path == manifest and call.what == "name")
    assert str(directory) in [call.path for call in calls.calls[last_part:given] if call.what == "sync"]
    assert store.url in [call.path for call in calls.calls if call.what == "sync"]  # the cut's directory is in there


def test_deleting_a_cut_removes_its_manifest_before_its_parts(store: CheckpointStore) -> None:
    steps: list[tuple[str, str]] = []
    real = {name: getattr(os, name) for name in ("unlink", "fsync")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", lambda path: (steps.append(("unlink", Path(path).suffix)), real["unlink"](path))[1])
        patch.setattr(os, "fsync", lambda file: (steps.append(("fsync", "")), real["fsync"](file))[1])
        store.delete(1)
    assert steps == [("unlink", ".json"), ("fsync", ""), *[("unlink", ".part")] * 2]


def test_files_of_cuts_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    shared = tmp_path / "checkpoints"
    shared.mkdir()
    shared.chmod(0o755)
    store = CheckpointStore(str(shared / "job-1"))
    before = os.umask(0)
    try:
        store.create()
        write_cut(store, 1, OLD)
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode & 0o777 for path in (shared / "job-1", *(shared / "job-1").rglob("*"))}
    assert found == {path: 0o700 if path.is_dir() else 0o600 for path in found}
    assert shared.stat().st_mode & 0o777 == 0o755  # a person's own
    (shared / "job-1").chmod(0o755)  # as older versions have made it
    store.create()
    assert (shared / "job-1").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_system_call_that_fails_at_any_step_leaves_whole_cuts(tmp_path: Path, code: int) -> None:
    """Refused by name; afterwards the old state or the new one is there, and writing goes on."""
    for step in range(1, 200):
        store = CheckpointStore(str(tmp_path / str(step)))
        store.create()
        write_cut(store, 1, OLD)

        def act(number: int, name: str, step: int = step) -> None:
            if number == step and name not in ("close",):
                raise OSError(code, os.strerror(code))

        undo = counted(act)
        failed = None
        try:
            write_and_retain(store)
        except JobError as error:
            failed = error
        finally:
            undo()
        found = states(store)
        assert found in ([1], [2, 1], [2])
        if failed is not None:
            assert store.url in failed.message
            assert os.strerror(code) in failed.message
            assert failed.hint
        write_cut(store, 3, NEW)
        if failed is None and found == [2] and step > 50:
            break
    else:
        pytest.fail("there were more steps than expected")


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may be larger than 4 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_destination_is_reported_and_leaves_nothing_half_written(
    store: CheckpointStore, small_files: None
) -> None:
    with pytest.raises(JobError, match=r"destination is full: can't write .*ps-0-\w+\.part: File too large") as raised:
        write_cut(store, 2, dict.fromkeys(keys(2000), 2))
    assert "Make room" in raised.value.hint
    assert states(store) == [1]
    parts = list((Path(store.url) / "cut-00000002").iterdir())
    assert parts == []  # nothing half-written takes the room


@pytest.mark.parametrize("into", ["add", "set_aside"])
def test_a_part_with_a_block_missing_is_never_finished(store: CheckpointStore, small_files: None, into: str) -> None:
    """Even if whoever writes it takes no notice of errors."""
    below, above = halves()
    with store.begin(2).part("job-1", 0, below | above, SHAPES, block_bytes=600) as part:
        with pytest.raises(JobError, match="destination is full"):
            getattr(part, into)(0, rows_of(keys(3000), 0, 1).records)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        for _ in range(20):
            with pytest.raises(JobError):
                part.finish()


def test_a_missing_destination_is_an_error_until_it_comes_back(store: CheckpointStore) -> None:
    path = Path(store.url)
    writer = store.begin(2)
    path.rename(path.with_name("unmounted"))
    for attempt in (lambda: writer.part("job-1", 0, halves()[0], SHAPES), lambda: store.begin(3), store.checkpoints):
        with pytest.raises(JobError, match="destination is gone"):
            attempt()
    assert not path.exists()  # no empty one takes its place
    path.with_name("unmounted").rename(path)
    assert states(store) == [1]
    write_cut(store, 3, NEW)
    assert store.checkpoints()[0].number == 3


def test_a_late_writer_of_an_abandoned_cut_can_not_finish(store: CheckpointStore) -> None:
    """Another has cleaned up meanwhile, and begun with the same number: the late one can't finish."""
    below, above = halves()
    late = store.begin(2).part("job-1", 0, below, SHAPES)
    again = store.begin(2)
    with pytest.raises(JobError, match="gone"):
        late.finish()
    late.abandon()
    with again.part("job-1", 0, below | above, SHAPES) as part:
        assert part.finish().file in {path.name for path in (Path(store.url) / "cut-00000002").iterdir()}


def test_half_written_cuts_are_cleaned_up(store: CheckpointStore) -> None:
    below, _ = halves()
    store.begin(2).part("job-1", 0, below, SHAPES).finish()
    assert store.clean() == [2]
    assert states(store) == [1]


def test_a_cut_may_be_begun_by_one_process_and_written_by_another(store: CheckpointStore) -> None:
    below, above = halves()
    store.begin(2)
    key = next(key for key in keys(9) if key[0] == 1)
    with CheckpointStore(store.url).join(2).part("job-1", 4, below | above, SHAPES) as part:
        part.add(1, rows_of([key], 1, 5).records)
        entry = part.finish()
    assert (entry.ps, entry.rows) == (4, [0, 1])
    writer = store.join(2)
    writer.commit(manifest_of(2, [entry]))
    assert state_of(store.rows(2)) == expected({key: 5})


def test_failures_of_an_object_store_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    store = CheckpointStore("memory://failing/job")
    write_cut(store, 1, OLD)
    real = MemoryFileSystem.open

    class Odd(Exception):
        pass

    def failing(self: Any, path: str, mode: str = "rb", **more: Any) -> Any:
        if "ps-1" in path and "w" in mode:
            raise Odd("the cloud is out of order")
        return real(self, path, mode, **more)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "open", failing)
        with pytest.raises(JobError, match=r"destination fails: can't write memory://failing/job/.*out of order"):
            write_cut(store, 2, NEW)
    assert states(store) == [1]
    write_cut(store, 3, NEW)
    assert [path for path in fsspec.filesystem("memory").find("/failing") if "cut-00000002" in path] == []
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("url", ["gopher://hole/in", "nonsense://x"])
def test_unknown_kinds_of_destination_urls_are_refused(url: str) -> None:
    with pytest.raises(JobError, match="can't be used") as raised:
        CheckpointStore(url)
    assert "s3://" in raised.value.hint
