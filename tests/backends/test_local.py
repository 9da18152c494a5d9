"""The local backend keeps the contract; and what only it has: the template and its forks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from dlrover_lite.backends.keeper.client import KeeperClient
from dlrover_lite.backends.limits.base import Limits
from dlrover_lite.backends.limits.choose import choose
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import BackendError, JobError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.schema import JobCeiling, ResourceLimits
from dlrover_lite.transport.connector import Connector
from tests.backends.contract import BackendContract, Scripted
from tests.backends.support import PATIENCE_SECONDS, assert_nothing_runs, cgroups_of, start, until


@pytest.fixture(scope="module")
def context() -> Iterator[zmq.Context[Any]]:
    with zmq.Context() as context:
        yield context


def scripted_backend(handle: JobHandle, context: zmq.Context[Any]) -> Scripted:
    def wait_for_output(node: str, text: str) -> None:
        until(lambda: (log := handle.job.log(node)).exists() and text in log.read_text(), f"{text!r} of {node}")

    def output(node: str) -> str:
        return handle.job.log(node).read_text()

    others: list[KeeperClient] = []

    def another() -> KeeperClient:
        others.append(KeeperClient(handle.job.record().keeper_endpoint, connector=Connector(context=context)))
        return others[-1]

    return Scripted(another(), wait_for_output, output, another, close=lambda: [other.close() for other in others])


@contextmanager
def running(limits: Limits, context: zmq.Context[Any]) -> Iterator[Scripted]:
    with running_job(limits, context) as (_, scripted):
        yield scripted


@contextmanager
def running_job(limits: Limits, context: zmq.Context[Any]) -> Iterator[tuple[JobHandle, Scripted]]:
    handle = start("idle", limits=limits)
    scripted = scripted_backend(handle, context)
    try:
        yield handle, scripted
    finally:
        scripted.close()
        handle.stop()
        assert handle.wait(PATIENCE_SECONDS).state == "stopped"
        assert_nothing_runs(handle.job)


@pytest.fixture(scope="class")
def scripted(request: pytest.FixtureRequest, context: zmq.Context[Any]) -> Iterator[Scripted]:
    with running(request.cls.limits, context) as scripted:
        enforcement = scripted.backend.enforcement()
        if enforcement.kind == "watchdog" != request.cls.limits:
            pytest.skip(enforcement.why)
        yield scripted


class TestLocalBackend(BackendContract):
    """With control groups."""

    limits: Limits = "auto"


class TestLocalBackendWatchdog(BackendContract):
    """As where control groups can't be used."""

    limits: Limits = "watchdog"
    enforces_fractions = False
    overlooks_unmapped_memory = True


def test_nodes_are_forked_from_a_template_with_modules_imported(context: zmq.Context[Any]) -> None:
    handle = start("idle", imports={"worker": ["torch", "numpy", "numba"]})
    scripted = scripted_backend(handle, context)
    # Asked for while torch is still being imported: they wait.
    for node, cores in (("worker-0", 2.7), ("worker-1", 0.5)):
        scripted.backend.launch(NodeSpec(node, "worker", Resources(cores, 1 << 28), "torch"))
    for node, threads in (("worker-0", "2 2 2 2"), ("worker-1", "1 1 1 1")):
        assert scripted.event(node, "exited").reason == "Succeeded"
        _, imported, *shown, session, descriptors = scripted.output(node).split("\n")[:5]
        assert (imported, shown, session) == ("True", [threads], "True")
        assert set(descriptors.split()) <= {"0", "1", "2", "3"}  # the last is the listing's own
    scripted.close()
    handle.stop(kill=True)
    handle.wait(PATIENCE_SECONDS)
    assert "threads" not in handle.job.log("template").read_text()


@pytest.mark.parametrize("limits", ["auto", "watchdog"])
def test_memory_shared_with_the_template_is_not_counted_for_nodes(
    limits: Limits, context: zmq.Context[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.py").write_text("held = b'x' * (96 << 20)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    handle = start("idle", imports={"worker": ["large"]}, limits=limits)
    scripted = scripted_backend(handle, context)
    node = scripted.launch("fork")
    scripted.wait_for_output(node, "forked")
    assert scripted.usage(node).memory < 48 << 20
    scripted.close()
    handle.stop(kill=True)
    handle.wait(PATIENCE_SECONDS)


def test_a_template_with_threads_starts_fresh_interpreters(
    context: zmq.Context[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import signal, threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    handle = start("idle", imports={"worker": ["threaded"]})
    scripted = scripted_backend(handle, context)
    node = scripted.launch("exit:3")
    assert scripted.event(node, "exited").reason == "UserError"
    stays = scripted.launch("stay")
    scripted.wait_for_output(stays, "node ")
    scripted.backend.terminate(stays, grace_seconds=1000)
    assert scripted.event(stays, "exited").detail == "ended on request (SIGTERM)"
    scripted.close()
    handle.stop()
    handle.wait(PATIENCE_SECONDS)
    log = handle.job.log("template").read_text()
    assert "2 threads" in log
    assert "DeprecationWarning" not in log
    assert_nothing_runs(handle.job)


def test_a_node_terminated_while_the_template_imports_never_starts(
    context: zmq.Context[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endless.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    handle = start("idle", imports={"worker": ["endless"]})
    scripted = scripted_backend(handle, context)
    node = scripted.launch("stay")
    assert node not in scripted.backend.readings().nodes
    scripted.backend.terminate(node, grace_seconds=1000)
    ended = scripted.event(node, "exited")
    assert (ended.reason, ended.detail) == ("Killed", "ended on request before it started")
    scripted.close()
    handle.stop()
    handle.wait(PATIENCE_SECONDS)
    assert_nothing_runs(handle.job)


@pytest.mark.parametrize("limits", ["auto", "watchdog"])
@pytest.mark.parametrize("grace_seconds", [0, 1000])
def test_children_of_a_node_end_with_it(context: zmq.Context[Any], limits: Limits, grace_seconds: int) -> None:
    """Also what has left its session, or has lost its parent."""
    with running(limits, context) as scripted:
        node = scripted.launch("children")
        scripted.wait_for_output(node, " started")
        scripted.backend.terminate(node, grace_seconds=grace_seconds)
        scripted.event(node, "exited")
        children = scripted.output(node).split("children ")[1].split()[:3]
        until(
            lambda: not any(Path(f"/proc/{child}").exists() for child in children), "end of what the node had started"
        )


def test_the_groups_of_ended_workers_go_and_those_of_ended_ps_stay(context: zmq.Context[Any]) -> None:
    with running_job("auto", context) as (handle, scripted):
        if scripted.backend.enforcement().kind == "watchdog":
            pytest.skip("there are no groups")
        ps, worker = scripted.launch("exit:0", "ps"), scripted.launch("exit:0", "worker")
        scripted.event(ps, "exited")
        scripted.event(worker, "exited")
        groups = cgroups_of(handle.job)
        assert groups
        until(lambda: not any((group / worker).exists() for group in groups), "removal of the worker's groups")
        assert all((group / ps).exists() for group in groups)


def test_kept_memory_is_held_until_no_follower_is_expected(context: zmq.Context[Any]) -> None:
    with running_job("watchdog", context) as (handle, scripted):
        first, other = scripted.launch("keep:something", "ps"), scripted.launch("keep:else", "ps")
        for node in (first, other):
            scripted.wait_for_output(node, "kept")
        assert files_held(handle) == 6
        scripted.backend.terminate(first, grace_seconds=0, keep_memory=True)
        scripted.event(first, "exited")
        follower = scripted.launch("look", "ps", follows=first)
        scripted.wait_for_output(follower, "found 3 files")
        assert files_held(handle) == 6
        scripted.end(follower)
        assert files_held(handle) == 3
        scripted.end(other)
        assert files_held(handle) == 0


def test_a_killed_keeper_frees_kept_memory(context: zmq.Context[Any]) -> None:
    handle = start("idle")
    scripted = scripted_backend(handle, context)
    node = scripted.launch("keep:something", "ps")
    scripted.wait_for_output(node, "kept")
    keeper = handle.job.record().keeper
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGKILL)
    scripted.close()
    assert handle.wait(PATIENCE_SECONDS).state == "lost"
    assert_nothing_runs(handle.job)


def files_held(handle: JobHandle) -> int:
    """Anonymous files that the keeper has descriptors of."""
    keeper = handle.job.record().keeper
    assert keeper is not None
    links = []
    for entry in Path(f"/proc/{keeper.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(str(entry.readlink()))
    return sum(link.startswith("/memfd:") for link in links)


def test_limits_that_cannot_be_had_fail_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = next((kind for kind in ("cgroup-v2", "cgroup-v1") if not _can_have(kind)), None)
    if kind is None:
        pytest.skip("both versions can be had here")
    with pytest.raises(JobError, match=f"by {kind}, which can't be used here: "):
        start("idle", limits=kind)


def _can_have(kind: Any) -> bool:
    try:
        choose(kind, f"dlrover-lite-test-{os.getpid()}", lambda _: None).remove_all()
    except BackendError:
        return False
    return True


def test_a_module_that_does_not_import_fails_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("import surely_not_installed\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    handle = start("idle", imports={"worker": ["broken"]})
    result = handle.wait(PATIENCE_SECONDS)
    assert result.state == "failed"
    assert "No module named 'surely_not_installed'" in result.message
    assert_nothing_runs(handle.job)


def kill_template(handle: JobHandle) -> None:
    until(lambda: _named(_descendants(handle), "dl:template"), "the template")[0].kill()


def _named(processes: list[Any], name: str) -> list[Any]:
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if process.name() == name:
                found.append(process)
    return found


def test_a_template_that_is_killed_is_started_again(context: zmq.Context[Any]) -> None:
    handle = start("idle")
    scripted = scripted_backend(handle, context)
    for _ in range(2):
        nodes = [scripted.launch("stay") for _ in range(2)]
        for node in nodes:
            scripted.event(node, "started")
        kill_template(handle)
        for node in nodes:
            ended = scripted.event(node, "exited")
            assert (ended.reason, ended.detail) == ("Preempted", "the process that starts nodes was killed")
    node = scripted.launch("exit:3")
    assert scripted.event(node, "exited").reason == "UserError"
    scripted.close()
    handle.stop()
    assert handle.wait(PATIENCE_SECONDS).state == "stopped"
    assert_nothing_runs(handle.job)


def test_a_template_that_is_killed_too_often_fails_the_job(context: zmq.Context[Any]) -> None:
    handle = start("idle", restarts=1)
    scripted = scripted_backend(handle, context)
    first = scripted.launch("stay")
    scripted.event(first, "started")
    kill_template(handle)
    scripted.event(first, "exited")
    scripted.event(scripted.launch("stay"), "started")
    kill_template(handle)  # the keeper ends for it: who asks it for events then may be too late
    scripted.close()
    result = handle.wait(PATIENCE_SECONDS)
    assert result.state == "failed"
    assert "SIGKILL" in result.message
    assert_nothing_runs(handle.job)


def _descendants(handle: JobHandle) -> list[Any]:
    keeper = handle.job.record().keeper
    assert keeper is not None
    return psutil.Process(keeper.pid).children(recursive=True)


def test_the_recipes_ceiling_limits_the_capacity(context: zmq.Context[Any]) -> None:
    from tests.backends.support import launch_with, options, recipe

    limits = ResourceLimits(total=JobCeiling(0.5, 1 << 24))
    handle = launch_with(options("idle"), recipe(resources=limits))
    scripted = scripted_backend(handle, context)
    (host,) = scripted.backend.capacity()
    assert host.resources == Resources(0.5, 1 << 24)
    scripted.close()
    handle.stop(kill=True)
    assert handle.wait(PATIENCE_SECONDS).state == "stopped"
