"""The persister as a process: cuts of a server that is pushed to all the time, and whatever may end one early."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from dlrover_lite.checkpoint.manifest import PartEntry
from dlrover_lite.checkpoint.store import CheckpointStore, directory_of
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.failpoints import VARIABLE
from dlrover_lite.protocol.messages import SnapshotOrder, SnapshotReport
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS
from dlrover_lite.ps.server.busy_meter import TrainingWatch
from dlrover_lite.ps.server.engine import Engine, Slice
from dlrover_lite.ps.snapshots import copy_on_write_log as spill
from dlrover_lite.ps.snapshots import snapshot, snapshot_orders
from dlrover_lite.ps.snapshots import snapshot_writer as persisting
from dlrover_lite.ps.snapshots import writer_pace as pace
from dlrover_lite.ps.snapshots.copy_on_write_log import COUNT, TAKEN
from dlrover_lite.ps.snapshots.snapshot_orders import SnapshotOrders
from dlrover_lite.ps.snapshots.snapshot_writer import Persisting
from dlrover_lite.ps.snapshots.writer_pace import Leftover
from dlrover_lite.ps.snapshots.writer_process import SnapshotWriterProcess
from dlrover_lite.recipe.schema import Optimizer
from tests.ps.snapshots import arrays_of, arrays_read, commit, same
from tests.repository.sources import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="snapshots are taken on Linux")

PATIENCE_SECONDS = 100.0
MANY_FILES = 1100
"""More than select can wait for."""
IDS = 30_000
ADAGRAD = Optimizer(use="adagrad", learning_rate=0.1)
CONFIGURATION = Configure(
    1, [TableSpec("a", 16, 0.1), TableSpec("b", 3, 0.1), TableSpec("c", 16, 0.1)], DenseSpec(0, 0), ADAGRAD, ADAGRAD
)


@cache
def gradients(number: int, keys: int) -> list[Slice]:
    """Few keys come often, all of them now and then."""
    random = np.random.default_rng(number)
    drawn = [np.unique((IDS * random.random(keys) ** 4).astype(np.uint64)) for _ in range(3)]
    groups = []
    for tables, dim in (((0, 2), 16), ((1,), 3)):
        ids = np.concatenate([drawn[table] for table in tables])
        grads = random.standard_normal((len(ids), dim)).astype(np.float32)
        groups.append((ids, [len(drawn[table]) for table in tables], grads))
    return groups


class Server:
    """An engine that is pushed to, and its part in cuts, without sockets."""

    def __init__(self, directory: Path, persister: SnapshotWriterProcess | None = None) -> None:
        self.engine = Engine(owned=ALL_SLOTS)
        self.engine.configure(CONFIGURATION)
        self.pushes = 0
        self.said: list[str] = []
        self.late_seconds = 0.0
        self.cuts = SnapshotOrders(
            0, self.engine, lambda: time.monotonic() + self.late_seconds, self.said.append, persister=persister
        )
        self.store = CheckpointStore(str(directory / "checkpoints"))
        self.store.create()

    def fill(self) -> None:
        ids = np.arange(IDS, dtype=np.uint64)
        groups: list[Slice] = [
            (np.concatenate([ids, ids]), [IDS, IDS], np.ones((2 * IDS, 16), np.float32)),
            (ids, [IDS], np.ones((IDS, 3), np.float32)),
        ]
        self.engine.push(1, 0, 1.0, ALL_SLOTS, groups)

    def push(self, keys: int = 300) -> None:
        k = self.pushes
        self.engine.push(0, k, 1.0, ALL_SLOTS, gradients(k % 16, keys))
        self.engine.loads.requested()
        if k % 16 == 15:
            self.engine.applied_minibatches.consumed(0, [(0, [(0, k - 3)])])
        self.pushes += 1

    def push_now_and_then(self) -> None:
        self.push()
        time.sleep(0.002)

    def order(self, cut: int, since: list[int] | None = None, whole: bytes = b"", spill_bytes: int = 0) -> None:
        self.store.begin(cut)
        self.cuts.follow(SnapshotOrder(cut, "job", self.store.url, since or [], whole, cut % 5 == 0, spill_bytes))

    def until(self, what: Callable[[], object], meanwhile: Callable[[], object] = lambda: time.sleep(0.001)) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not what():
            assert time.monotonic() < end, (self.cuts.report, self.said)
            meanwhile()
            self.cuts.work(may_begin=True)

    @property
    def state(self) -> str:
        return self.cuts.report.state if self.cuts.report is not None else ""

    def finished(self) -> SnapshotReport:
        self.until(lambda: self.state in ("written", "failed"))
        assert self.cuts.report is not None
        return self.cuts.report

    def idle(self) -> None:
        self.until(lambda: self.cuts._is_ready and not self.cuts.busy)

    @property
    def pid(self) -> int:
        assert self.cuts._persister is not None
        return self.cuts._persister.pid

    def files(self, cut: int) -> list[str]:
        return sorted(path.name for path in Path(self.store.url, directory_of(cut)).iterdir())


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(snapshot_orders, "RELEASE_SECONDS", 1e6)  # a persister that is slow is none that is stuck
    before = children()
    made = Server(tmp_path)
    made.fill()
    yield made
    made.cuts.close()
    assert children() <= before
    assert spills() == 0


def children() -> set[int]:
    """Others may be here of tests before."""
    return {child.pid for child in psutil.Process().children()}


def wait_until_stopped(pid: int) -> None:
    """By a failpoint."""
    end = time.monotonic() + PATIENCE_SECONDS
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < end
        time.sleep(0.001)


def spills() -> int:
    """That are mapped here."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:spill")


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def entry_of(report: SnapshotReport) -> PartEntry:
    assert report.state == "written", (report.why, report.hint)
    return msgspec.json.decode(report.part, type=PartEntry)


def test_cuts_are_exact_while_the_server_is_pushed_to_without_pause(server: Server, tmp_path: Path) -> None:
    """Another one that gets the same pushes, up to the beginning of each snapshot, says what is in it."""
    twin = Server(tmp_path / "twin")
    twin.fill()
    since: list[int] = []
    meanwhile = spilled = 0
    for cut in range(1, 8):
        is_base = cut % 4 == 1
        whole = np.random.default_rng(cut).random(slot_sets.SLOTS) < (0.1 if cut % 4 == 3 else 0.0)
        server.order(cut, [] if is_base else since, slot_sets.pack(whole))
        server.until(lambda: server.cuts.active, server.push)
        snapshot = server.cuts._snapshot
        assert snapshot is not None
        begun = server.pushes
        while server.cuts.active:
            if server.pushes - begun < 100:
                server.push()
            else:  # the persister has its own pace, and what little is left
                server.push_now_and_then()
            spilled += sum(snapshot.spill._bytes())
            server.cuts.work(may_begin=True)
        report = server.finished()
        entry = entry_of(report)
        meanwhile += server.pushes - begun
        while twin.pushes < begun:
            twin.push()
        commit(server.store, server.engine, cut, entry, None if is_base else cut - 1)
        assert same(arrays_read(server.store, cut), arrays_of(twin.engine)), cut
        for group in twin.engine.groups:
            group.begin_snapshot()  # its next epoch begins here, too
        assert {(one.epoch, one.k) for one in entry.applied_minibatches.applied} == set(
            twin.engine.applied_minibatches._applied
        )
        assert entry.applied_minibatches.consumed.ranges == [(0, list(twin.engine.applied_minibatches._consumed[0]))]
        assert (report.rows, report.bytes) == (sum(entry.rows), entry.stored_bytes)
        since = entry.clocks
        server.cuts.follow(None)
    assert spilled
    assert meanwhile > 10


def test_many_cuts_leak_no_files_memory_or_processes(server: Server) -> None:
    before = children()
    server.order(1)
    server.finished()
    server.idle()
    fds = open_files()
    persister = psutil.Process(server.pid)
    its_fds, its_memory = persister.num_fds(), persister.memory_info()
    for cut in range(2, 8):
        server.order(cut)
        server.until(lambda: server.cuts.active, server.push)
        server.finished()
        server.idle()
    assert spills() == 0
    assert open_files() == fds
    assert persister.num_fds() == its_fds
    assert persister.nice() >= 10
    assert persister.memory_info().rss < its_memory.rss + (8 << 20)
    server.cuts.follow(None)
    server.late_seconds += snapshot_orders.IDLE_SECONDS
    server.until(lambda: children() <= before)
    server.order(8)
    assert server.finished().state == "written", "another one is started"


# --- what may go wrong ------------------------------------------------------------------------------------------------


def test_a_missing_destination_fails_the_cut_and_is_used_again_when_back(server: Server) -> None:
    server.order(1)
    away = Path(f"{server.store.url}-away")
    Path(server.store.url).rename(away)
    report = server.finished()
    assert report.state == "failed"
    assert "destination is gone" in report.why
    assert "mounted" in report.hint
    assert not server.cuts.active
    away.rename(server.store.url)
    server.order(2)
    assert server.finished().state == "written"


def test_a_full_spill_fails_only_its_snapshot(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "persister.block=pause")
    server.order(1, spill_bytes=1000)
    server.until(lambda: server.cuts.active)
    wait_until_stopped(server.pid)
    server.until(lambda: server.state == "failed", server.push_now_and_then)
    os.kill(server.pid, signal.SIGCONT)
    report = server.finished()
    assert "more rows changed while the snapshot was written than may be kept meanwhile (1000 B)" in report.why
    assert "faster destination" in report.hint and "1.95 KiB more let twice as many be kept" in report.hint
    server.idle()
    assert server.files(1) == []


def test_an_order_that_is_gone_is_abandoned(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "persister.block=slow:0.05")
    server.order(1)
    server.until(lambda: server.cuts.report is not None and server.cuts.report.rows)
    assert server.files(1) != []
    persister = server.pid
    server.cuts.follow(None)
    assert not server.cuts.active
    assert server.cuts.report is None
    server.push()
    server.idle()
    assert server.files(1) == []
    server.order(1)
    assert not server.cuts.waiting, "each cut is taken part in once"
    server.order(2)
    assert server.finished().state == "written"
    assert server.pid == persister


@pytest.fixture
def training(server: Server) -> None:
    """Something is trained beside the snapshots, however long that was ago."""
    server.cuts._training = TrainingWatch(0, 1e9)
    server.engine.loads.answered += 1


@pytest.mark.usefixtures("training")
def test_spill_memory_is_prepared_little_by_little_before_it_is_needed(server: Server) -> None:
    server.order(1)
    server.until(lambda: server.cuts._prepared is not None)
    prepared, turns = server.cuts._prepared, 1
    assert prepared is not None
    fd = os.dup(prepared.fd)  # it is the spill's then
    try:
        while not server.cuts.active:
            assert server.cuts.busy, "it doesn't wait for a message"
            before = os.fstat(fd).st_blocks
            server.cuts.work(may_begin=True)
            assert 512 * (os.fstat(fd).st_blocks - before) <= spill.TOUCHED_AT_ONCE_BYTES + (1 << 16)
            turns += 1
        assert turns >= prepared.size // spill.TOUCHED_AT_ONCE_BYTES
        assert 512 * os.fstat(fd).st_blocks >= prepared.size == snapshot.LEAST_SPILL_BYTES // snapshot.PREPARED_SHARE
        assert server.finished().state == "written"
        server.cuts.follow(None)
        server.idle()
        assert 512 * os.fstat(fd).st_blocks < 1 << 17, "all but the header has been given back before it was closed"
    finally:
        os.close(fd)


@pytest.mark.usefixtures("training")
def test_spill_memory_prepared_for_nothing_is_given_back(server: Server) -> None:
    server.order(1)
    server.until(lambda: server.cuts._prepared is not None)
    prepared = server.cuts._prepared
    assert prepared is not None
    fd = prepared.fd
    server.cuts.follow(None)
    assert not server.cuts.busy
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    server.order(2)
    assert server.finished().state == "written"


def test_of_several_orders_the_newest_is_written(server: Server) -> None:
    for cut in range(1, 6):
        server.order(cut)
        for _ in range(3):
            server.cuts.work(may_begin=True)
    report = server.finished()
    assert (report.cut, report.state) == (5, "written")


@pytest.mark.parametrize("step", ["block", "spill", "finish"])
def test_a_persister_that_dies_fails_its_cut_only(
    server: Server, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = f"persister.{step}=kill@{tmp_path / 'once'}"
    monkeypatch.setenv(VARIABLE, points if step == "block" else f"{points},persister.block=slow:0.01")
    server.order(1)
    server.until(lambda: server.state == "failed", server.push_now_and_then)
    report = server.finished()
    assert "was killed by SIGKILL" in report.why
    server.push()
    server.order(2)
    server.until(lambda: server.state == "written", server.push_now_and_then)
    entry_of(server.finished())
    assert not (Path(server.store.url) / directory_of(1)).exists()


def test_a_server_with_many_open_files_writes_a_cut(server: Server) -> None:
    """The persister has its socket under the number that the server had it under."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY_FILES + 200:
        pytest.skip("so many files may not be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY_FILES + 200), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(MANY_FILES):
            stack.enter_context(Path(os.devnull).open("rb"))
        server.order(1)
        assert server.finished().state == "written"


def test_an_idle_persister_that_dies_is_replaced(server: Server) -> None:
    server.order(1)
    server.finished()
    server.idle()
    persister = server.pid
    os.kill(persister, signal.SIGKILL)
    server.until(lambda: server.cuts._persister is None)
    server.order(2)
    assert server.finished().state == "written"
    assert server.pid != persister


def test_a_persister_that_does_not_let_go_is_killed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"persister.block=pause@{tmp_path / 'once'}")
    server.order(1)
    server.until(lambda: server.cuts.active)
    stuck = server.pid
    wait_until_stopped(stuck)
    server.order(2)
    assert not server.cuts.active
    server.until(lambda: server.cuts._released_at is not None)
    server.late_seconds += snapshot_orders.RELEASE_SECONDS
    assert server.finished().cut == 2
    assert server.pid != stuck


def test_a_persister_that_cannot_be_started_fails_the_cut(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    server.order(1)
    assert "can't be started" in server.finished().why
    monkeypatch.undo()
    server.order(2)
    assert server.finished().state == "written"


class InThread(SnapshotWriterProcess):
    """A persister without a process of its own."""

    def __init__(self) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._hold(_Thread(its), mine)
        self.stays = False


class _Thread:
    pid = returncode = 0

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._channel, suppress(SystemExit):
            Persisting(self._channel, leftover=Leftover(0.0, 0.0, 0.0), report_seconds=0.0).serve()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0

    def kill(self) -> None:
        raise AssertionError("it listens")


class Trained(TrainingWatch):
    """Training goes on from the beginning: until the first push nothing would hold the persister back, which reads the part meanwhile."""

    def goes_on(self, answered: int, now: float) -> bool:
        return True


def test_a_part_is_written_slowly_until_somebody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile what changes is taken from the spill."""
    monkeypatch.setattr(pace, "LEAST_BYTES_PER_SECOND", 1.0)
    monkeypatch.setattr(persisting, "TrainingWatch", Trained)
    server, twin = Server(tmp_path), Server(tmp_path / "twin")
    server.cuts._start = InThread
    for one in (server, twin):
        one.fill()
    server.store.begin(1)
    order = SnapshotOrder(1, "job", server.store.url, seconds=1e6)
    server.cuts.follow(order)
    server.until(lambda: server.cuts.active)
    snapshot = server.cuts._snapshot
    assert snapshot is not None
    server.until(lambda: server.cuts.report is not None and server.cuts.report.rows)
    for _ in range(20):
        server.push()
    server.until(lambda: snapshot.spill.areas[0].words[TAKEN] == snapshot.spill.areas[0].words[COUNT] > 0)
    assert server.state == "taking"
    server.cuts.follow(msgspec.structs.replace(order, seconds=0.0))
    entry = entry_of(server.finished())
    commit(server.store, server.engine, 1, entry)
    assert same(arrays_read(server.store, 1), arrays_of(twin.engine))
    server.cuts.close()


_SERVER = """
import os, signal, sys
from dlrover_lite.ps.snapshots.writer_process import SnapshotWriterProcess
from dlrover_lite.ps.snapshots.snapshot_writer import Persisting
from dlrover_lite.ps.snapshots.copy_on_write_log import COUNT, TAKEN
persister = SnapshotWriterProcess()
while persister.receive() is None:
    pass
print(persister.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("start", ["SnapshotWriterProcess()", "SnapshotWriterProcess.forked()"])
def test_persister_ends_with_its_server(start: str) -> None:
    code = _SERVER.replace("SnapshotWriterProcess()", start)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    persister = int(done.stdout)
    with suppress(psutil.NoSuchProcess):  # it has ended already
        psutil.Process(persister).wait(PATIENCE_SECONDS)
    assert not psutil.pid_exists(persister)


_FORKING = """
import os, sys
from pathlib import Path
from tests.ps.test_writer_process import forked
secret = os.open(sys.argv[1], os.O_RDONLY)
forked(Path(sys.argv[1]))
"""


def forked(directory: Path) -> None:
    """In a process that has no other threads."""
    persister = SnapshotWriterProcess.forked()
    assert persister is not None
    server, twin = Server(directory, persister), Server(directory / "twin")
    server.fill()
    twin.fill()
    assert server.pid == persister.pid
    since: list[int] = []
    for cut in (1, 2):
        server.order(cut, since)
        server.until(lambda: server.cuts.active, server.push)
        begun = server.pushes
        while server.cuts.active:
            server.push_now_and_then()
            server.cuts.work(may_begin=True)
        entry = entry_of(server.finished())
        while twin.pushes < begun:
            twin.push()
        commit(server.store, server.engine, cut, entry, None if cut == 1 else 1)
        assert same(arrays_read(server.store, cut), arrays_of(twin.engine)), cut
        for group in twin.engine.groups:
            group.begin_snapshot()  # its next epoch begins here, too
        since = entry.clocks
        server.cuts.follow(None)
    server.idle()
    process = psutil.Process(persister.pid)
    assert process.name() == "dl:persister"
    assert process.nice() >= 10
    opened = [path.readlink() for path in Path(f"/proc/{persister.pid}/fd").iterdir()]
    assert directory not in opened, "what its server has is none of its business"
    server.late_seconds += snapshot_orders.IDLE_SECONDS
    server.cuts.work(may_begin=True)
    assert server.pid == persister.pid, "it stays"
    os.kill(persister.pid, signal.SIGKILL)
    server.order(3)
    assert "killed by SIGKILL" in server.finished().why
    server.order(4)
    assert server.finished().state == "written", "another one is started"
    server.cuts.close()


def test_a_forked_persister_writes_a_cut(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKING, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_persister_does_not_begin_without_its_server() -> None:
    command = [sys.executable, "-m", "dlrover_lite.ps.snapshots.writer_main", "0", "1"]
    assert subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode == 1


def test_persister_imports_nothing_heavy() -> None:
    modules = "dlrover_lite.ps.snapshots.writer_main, dlrover_lite.ps.snapshots.snapshot_writer"
    code = f"import json, sys, {modules}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"numba", "torch", "zmq", "psutil", "fsspec"} & set(json.loads(done.stdout))


def test_end_of_a_persister_by_a_signal_is_named() -> None:
    persister = SnapshotWriterProcess()
    os.kill(persister.pid, signal.SIGTERM)
    with pytest.raises(JobError, match="was killed by SIGTERM"):
        while True:
            persister.receive()
