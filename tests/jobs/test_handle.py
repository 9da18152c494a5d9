"""Jobs from start to end, with real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from dlrover_lite.backends.keeper.options import KeeperOptions
from dlrover_lite.backends.limits.probe import probe_enforcement
from dlrover_lite.backends.local.jobs.leftovers import sweep
from dlrover_lite.backends.local.jobs.local_jobs import create_job, summary_of
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs import final_status
from dlrover_lite.jobs.store import Job, list_jobs
from dlrover_lite.transport.connector import Connector
from tests.backends.support import (
    PATIENCE_SECONDS,
    assert_nothing_runs,
    cgroups_of,
    launch_with,
    options,
    processes_of,
    recipe,
    start,
    until,
)

LAUNCHER = """
import signal, sys
from tests.backends.support import start
handle = start("nodes", "2", detach=sys.argv[1] == "detach")
print(handle.id, flush=True)
if sys.argv[1] == "stay":
    signal.pause()
"""


def assert_nothing_is_left(job: Job, own_directories: Path) -> None:
    assert_nothing_runs(job)
    assert list((own_directories / "r").iterdir()) == []


def nodes_run(job: Job) -> bool:
    return all("node" in (log.read_text() if log.exists() else "") for log in map(job.log, ("worker-0", "worker-1")))


def test_a_job_stops_when_asked_with_a_result(own_directories: Path) -> None:
    handle = start("nodes", "2")
    assert handle.state() == "running"
    assert handle.result() is None
    until(lambda: nodes_run(handle.job), "both nodes")
    assert handle.status().state == "starting"  # this master serves no one
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    handle.stop()
    result = handle.wait(PATIENCE_SECONDS)
    assert (result.state, result.message, result.ok) == ("stopped", "stopped by request", False)
    assert handle.state() == handle.status().state == "stopped"
    record = handle.job.record()
    assert (record.state, record.master_exit_code) == ("ended", -15)
    assert {"keeper", "master", "template", "worker-0"} <= handle.logs().keys()
    assert list(handle.logs()) == handle.log_names()
    assert "master is up" in handle.log("master").new_lines()
    assert_nothing_is_left(handle.job, own_directories)
    assert not handle.stop()  # of an ended job: nothing happens


def test_a_master_that_is_busy_with_the_data_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlrover_lite.client.handle._ANSWER_DEADLINE_SECONDS", 0.1)
    handle = start("nodes", "2")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as deaf:
        deaf.bind(handle.job.record().master_endpoint)
        assert handle.status().state == "starting"
        handle.job.write_status({})  # it had begun to speak
        with pytest.raises(JobError, match="did not answer"):
            handle.status()
    handle.stop()
    handle.wait(PATIENCE_SECONDS)


def test_a_job_whose_master_has_answered_is_not_starting_when_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cluster, where the master ends some time before that is told."""
    handle = start("nodes", "1")
    answers = iter([None, msgspec.structs.replace(final_status.starting(handle.job), state="training"), None])
    with monkeypatch.context() as patched:
        patched.setattr(handle, "ask_status", lambda: next(answers))
        assert [handle.status().state, handle.status().state] == ["starting", "training"]
        with pytest.raises(JobError, match="has just ended"):
            handle.status()
    handle.stop()
    handle.wait(PATIENCE_SECONDS)
    assert handle.status().state == "stopped"


def test_status_is_given_up_when_the_master_ends_before_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlrover_lite.client.handle._ANSWER_DEADLINE_SECONDS", 10_000.0)
    handle = start("nodes", "2")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as deaf, ThreadPoolExecutor(1) as asking:
        deaf.bind(handle.job.record().master_endpoint)
        status = asking.submit(handle.status)
        assert deaf.poll(PATIENCE_SECONDS * 1000)
        handle.stop(kill=True)
        assert status.result(PATIENCE_SECONDS).state == "stopped"


def test_result_of_the_master_is_kept(own_directories: Path) -> None:
    handle = start("result", "succeeded")
    assert handle.wait(PATIENCE_SECONDS).message == "as told"
    assert handle.state() == "succeeded"
    assert JobHandle.find(handle.id).wait(0).ok
    assert_nothing_is_left(handle.job, own_directories)


def test_a_master_that_ends_without_a_result_fails_the_job(own_directories: Path) -> None:
    handle = start("exit", "4")
    result = handle.wait(PATIENCE_SECONDS)
    assert result.state == "failed"
    assert "exit code 4" in result.message
    assert "last words" in result.message
    assert_nothing_is_left(handle.job, own_directories)


def test_a_deaf_master_is_killed_after_its_grace(own_directories: Path) -> None:
    handle = start("deaf", master_grace_seconds=0.1)
    until(lambda: "up" in handle.job.log("master").read_text(), "the master")
    handle.stop()
    assert handle.wait(PATIENCE_SECONDS).state == "stopped"
    assert handle.job.record().master_exit_code == -9
    assert_nothing_is_left(handle.job, own_directories)


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_deaf_master_is_killed_at_once_by_a_kill(own_directories: Path, asked_before: bool) -> None:
    handle = start("deaf", master_grace_seconds=1000)
    until(lambda: "up" in handle.job.log("master").read_text(), "the master")
    if asked_before:
        assert handle.stop()
        until(lambda: "Stopping" in handle.job.log("keeper").read_text(), "the first signal")
    assert handle.stop(kill=True)
    assert handle.wait(PATIENCE_SECONDS).state == "stopped"
    assert_nothing_is_left(handle.job, own_directories)


def test_stopping_one_of_two_jobs_leaves_the_other_running(own_directories: Path) -> None:
    one, two = start("nodes", "2"), start("nodes", "2")
    for handle in (one, two):
        until(lambda job=handle.job: nodes_run(job), "both nodes")
    one.stop()
    assert one.wait(PATIENCE_SECONDS).state == "stopped"
    assert two.state() == "running"
    assert_nothing_runs(one.job)
    two.stop()
    assert two.wait(PATIENCE_SECONDS).state == "stopped"
    assert_nothing_is_left(two.job, own_directories)


def test_a_master_that_cannot_be_started_fails_the_job(own_directories: Path) -> None:
    with pytest.raises(JobError, match=r"Can't start the job's processes: .*no-such-program"):
        launch_with(KeeperOptions(master=["no-such-program"]), recipe())
    job = list_jobs()[-1]
    summary = summary_of(job)
    assert (summary.state, summary.over) == ("failed", True)
    assert JobHandle(job.id).wait(0).state == "failed"
    assert_nothing_is_left(job, own_directories)


def test_a_keeper_that_does_not_come_up_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_directories: Path
) -> None:
    (tmp_path / "zmq.py").write_text("raise ImportError('broken installation')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(JobError, match=r"did not come up(.|\n)*broken installation"):
        launch_with(options("idle"), recipe())
    assert_nothing_is_left(list_jobs()[-1], own_directories)


def launcher(what: str) -> tuple[subprocess.Popen[str], JobHandle]:
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER, what], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    handle = JobHandle.find(process.stdout.readline().strip())
    process.stdout.close()
    return process, handle


def test_the_job_ends_with_the_interpreter_that_started_it(own_directories: Path) -> None:
    process, handle = launcher("leave")
    process.wait()
    result = handle.wait(PATIENCE_SECONDS)
    assert (result.state, result.message) == ("stopped", "the command that started the job has ended")
    assert_nothing_is_left(handle.job, own_directories)


def test_a_detached_job_outlives_its_launcher(own_directories: Path) -> None:
    process, handle = launcher("detach")
    process.wait()
    until(lambda: nodes_run(handle.job), "both nodes")
    assert handle.state() == "running"
    handle.stop()
    handle.wait(PATIENCE_SECONDS)
    assert_nothing_is_left(handle.job, own_directories)


def test_control_groups_of_another_job_with_the_same_id_are_told_apart(own_directories: Path) -> None:
    """Ids are times, and other tests create jobs at any. The other job's keeper has another pid: that of this process, here."""
    handle = start("idle")
    try:
        if not (groups := cgroups_of(handle.job)):
            pytest.skip("there are no control groups")
        others = {group.with_name(f"dlrover-lite-{handle.job.short_id}-{os.getpid()}") for group in groups}
        for other in others:
            other.mkdir()
        try:
            assert cgroups_of(handle.job) == groups
        finally:
            for other in others:
                other.rmdir()
    finally:
        handle.stop(kill=True)
        handle.wait(PATIENCE_SECONDS)
    assert_nothing_is_left(handle.job, own_directories)


@pytest.mark.parametrize("round_", range(5))
@pytest.mark.parametrize("victim", ["launcher", "keeper"])
def test_nothing_is_left_when_launcher_or_keeper_is_killed_at_any_moment(
    own_directories: Path, victim: str, round_: int
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moment = random.Random(seed).choice([0.0, 0.02, 0.1, 0.3]) * random.Random(seed + 1).random()
    process, handle = launcher("stay")
    # The moment is what is tested; nothing is waited for.
    time.sleep(moment)
    if victim == "launcher":
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert handle.wait(PATIENCE_SECONDS).state == "stopped"
    else:
        keeper = handle.job.record().keeper
        assert keeper is not None
        psutil.Process(keeper.pid).kill()
        assert handle.wait(PATIENCE_SECONDS).state == "lost"
        assert handle.state() == "lost"
        assert handle.status().state == "lost"
    sweep()
    assert_nothing_is_left(handle.job, own_directories)
    process.kill()
    process.wait()


def test_nothing_is_left_when_the_keeper_is_killed_while_nodes_run(own_directories: Path) -> None:
    process, handle = launcher("stay")
    until(lambda: nodes_run(handle.job) and "child" in handle.job.log("worker-0").read_text(), "both nodes")
    keeper = handle.job.record().keeper
    assert keeper is not None
    assert len(processes_of(handle.job)) == 8  # keeper, master, template, two nodes and three children of a node
    psutil.Process(keeper.pid).kill()
    handle.wait(PATIENCE_SECONDS)
    # The kernel has ended what is tied to the keeper; what a node had started itself is found when the result is asked for.
    assert_nothing_is_left(handle.job, own_directories)
    process.kill()
    process.wait()


def test_foreseen_enforcement_of_limits_is_that_of_a_job() -> None:
    from dlrover_lite.backends.keeper.client import KeeperClient

    expected = probe_enforcement()
    handle = start("idle")
    with zmq.Context() as context:
        backend = KeeperClient(handle.job.record().keeper_endpoint, connector=Connector(context=context))
        assert backend.enforcement() == expected
        backend.close()
    handle.stop(kill=True)
    handle.wait(PATIENCE_SECONDS)


def test_a_job_without_checkpoints_is_not_suspended(own_directories: Path) -> None:
    job = create_job(msgspec.structs.replace(recipe(), checkpoint="off"))
    with pytest.raises(JobError, match="its recipe says `checkpoint: off`"):
        JobHandle(job.id).suspend()
