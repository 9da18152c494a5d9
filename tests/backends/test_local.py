"""The local backend keeps the contract; and what only it has: the template and its forks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from dlrover_lite.backends.base import NodeSpec
from dlrover_lite.backends.local.client import LocalBackend
from dlrover_lite.jobs.handle import JobHandle
from dlrover_lite.recipe.schema import ResourceLimits
from dlrover_lite.units import Resources
from tests.backends.contract import BackendContract, Scripted
from tests.backends.support import assert_nothing_runs, start, until


@pytest.fixture(scope="module")
def context() -> Iterator[zmq.Context[Any]]:
    with zmq.Context() as context:
        yield context


def scripted_backend(handle: JobHandle, context: zmq.Context[Any]) -> Scripted:
    backend = LocalBackend(handle.job.record().keeper_endpoint, context=context)

    def wait_for_output(node: str, text: str) -> None:
        until(lambda: (log := Path(backend.logs(node))).exists() and text in log.read_text(), f"{text!r} of {node}")

    return Scripted(backend, wait_for_output)


@pytest.fixture(scope="module")
def scripted(context: zmq.Context[Any]) -> Iterator[Scripted]:
    handle = start("idle")
    scripted = scripted_backend(handle, context)
    yield scripted
    scripted.backend.close()  # type: ignore[attr-defined]
    handle.stop()
    assert handle.wait(20).state == "stopped"
    assert_nothing_runs(handle.job)


class TestLocalBackend(BackendContract):
    pass


def test_nodes_are_forked_with_everything_imported(context: zmq.Context[Any]) -> None:
    handle = start("idle", imports=["torch", "numpy", "numba"])
    scripted = scripted_backend(handle, context)
    # Asked for while torch is still being imported: they wait.
    for node, cores in (("worker-0", 2.7), ("worker-1", 0.5)):
        scripted.backend.launch(NodeSpec(node, "worker", Resources(cores, 1 << 28), "torch"))
    for node, threads in (("worker-0", "2"), ("worker-1", "1")):
        assert scripted.event(node, "exited").reason == "Succeeded"
        _, imported, *shown, session, descriptors = Path(scripted.backend.logs(node)).read_text().split("\n")[:5]
        assert (imported, shown, session) == ("True", [threads], "True")
        assert set(descriptors.split()) <= {"0", "1", "2", "3"}  # the last is the listing's own
    scripted.backend.close()  # type: ignore[attr-defined]
    handle.stop(kill=True)
    handle.wait(20)
    assert "threads" not in handle.job.log("template").read_text()


def test_a_template_with_threads_starts_fresh_interpreters(
    context: zmq.Context[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import signal, threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    handle = start("idle", imports=["threaded"])
    scripted = scripted_backend(handle, context)
    node = scripted.launch("exit:3")
    assert scripted.event(node, "exited").reason == "UserError"
    stays = scripted.launch("stay")
    scripted.wait_for_output(stays, "node ")
    scripted.backend.terminate(stays, grace_seconds=20)
    assert scripted.event(stays, "exited").detail == "ended on request (SIGTERM)"
    scripted.backend.close()  # type: ignore[attr-defined]
    handle.stop()
    handle.wait(20)
    log = handle.job.log("template").read_text()
    assert "2 threads" in log
    assert "DeprecationWarning" not in log
    assert_nothing_runs(handle.job)


def test_a_node_that_is_terminated_while_the_template_imports(
    context: zmq.Context[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endless.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    handle = start("idle", imports=["endless"])
    scripted = scripted_backend(handle, context)
    node = scripted.launch("stay")
    assert scripted.backend.usage(node) is None
    scripted.backend.terminate(node, grace_seconds=20)
    ended = scripted.event(node, "exited")
    assert (ended.reason, ended.detail) == ("Killed", "ended on request before it started")
    scripted.backend.close()  # type: ignore[attr-defined]
    handle.stop()
    handle.wait(20)
    assert_nothing_runs(handle.job)


def test_what_a_node_has_started_ends_with_it(context: zmq.Context[Any]) -> None:
    handle = start("idle")
    scripted = scripted_backend(handle, context)
    node = scripted.launch("children")
    scripted.wait_for_output(node, "child ")
    scripted.backend.terminate(node, grace_seconds=20)
    scripted.event(node, "exited")
    child = int(Path(scripted.backend.logs(node)).read_text().split("child ")[1])
    until(lambda: not Path(f"/proc/{child}").exists(), "end of the node's child")
    scripted.backend.close()  # type: ignore[attr-defined]
    handle.stop()
    handle.wait(20)


def test_a_module_that_does_not_import_fails_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("import surely_not_installed\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    handle = start("idle", imports=["broken"])
    result = handle.wait(20)
    assert result.state == "failed"
    assert "No module named 'surely_not_installed'" in result.message
    assert_nothing_runs(handle.job)


def test_a_template_that_is_killed_fails_the_job(context: zmq.Context[Any]) -> None:
    handle = start("idle")
    scripted = scripted_backend(handle, context)
    node = scripted.launch("stay")
    scripted.event(node, "started")
    template = until(lambda: [p for p in _descendants(handle) if p.name() == "dl:template"], "the template")[0]
    template.kill()
    assert scripted.event(node, "exited").reason == "Killed"
    scripted.backend.close()  # type: ignore[attr-defined]
    result = handle.wait(20)
    assert result.state == "failed"
    assert "SIGKILL" in result.message
    assert_nothing_runs(handle.job)


def _descendants(handle: JobHandle) -> list[Any]:
    import psutil

    keeper = handle.job.record().keeper
    assert keeper is not None
    return psutil.Process(keeper.pid).children(recursive=True)


def test_the_recipes_ceiling_limits_the_capacity(context: zmq.Context[Any]) -> None:
    from dlrover_lite.jobs.handle import launch
    from tests.backends.support import options, recipe

    limits = ResourceLimits(total=Resources(0.5, 1 << 20))
    handle = launch(recipe(resources=limits), "", options=options("idle"))
    scripted = scripted_backend(handle, context)
    assert scripted.backend.capacity() == Resources(0.5, 1 << 20)
    scripted.backend.close()  # type: ignore[attr-defined]
    handle.stop(kill=True)
    assert handle.wait(20).state == "stopped"
