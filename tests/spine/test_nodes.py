"""Real nodes that are killed, stopped, asked to leave, scaled; and a master that is killed."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

from dlrover_lite.jobs.handle import JobHandle
from dlrover_lite.jobs.processes import is_alive
from tests.backends.support import until
from tests.spine.support import kill, pid_of, start, succeeded, until_trained, write_csv
from tests.spine.test_faults import CENSUS, SGD, assert_exactly_once

SAMPLES = 20_000


def census(tmp_path: Path, **settings: Any) -> JobHandle:
    data = write_csv(tmp_path / "numbers.csv", SAMPLES)
    return start(CENSUS, data, **{"workers": 2, "batch_size": 16, "optimizer": SGD, **settings})


def until_at_work(handle: JobHandle, node: str) -> None:
    """It has reported training: so it has leases, and work for a while."""
    until(lambda: [n for n in handle.status().nodes if n.id == node and n.samples_per_second], f"the work of {node}")


def kill_master(handle: JobHandle) -> None:
    master = handle.job.record().master
    assert master is not None
    os.kill(master.pid, signal.SIGKILL)
    until(lambda: not is_alive(master), "the master's end")
    until(lambda: handle.job.record().master != master, "another master")


def test_a_master_that_is_killed_again_and_again(tmp_path: Path) -> None:
    seed = int(os.environ.get("KILL_SEED") or random.randrange(1 << 32))
    print(f"KILL_SEED={seed}")
    moments = sorted(random.Random(seed).sample(range(100, SAMPLES * 3 // 2, 100), 3))  # the job may not end before
    handle = census(tmp_path, epochs=2)
    nodes = {}
    for samples in moments:
        until_trained(handle, samples)
        kill_master(handle)
        nodes[samples] = [(node.id, node.state) for node in handle.status().nodes]
    status = succeeded(handle)
    assert status["master_restarts"] == len(moments)
    assert [node["id"] for node in status["nodes"]] == ["ps-0", "worker-0", "worker-1"]  # the same ones all along
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=2)


def test_a_worker_that_is_asked_to_end_by_others_is_replaced(tmp_path: Path) -> None:
    handle = census(tmp_path)
    until_trained(handle, 1_000)
    kill(handle, "worker-1", signal.SIGTERM)
    states = {node["id"]: node["state"] for node in succeeded(handle)["nodes"]}
    assert states["worker-1"].startswith("ended (Preempted")
    assert "worker-2" in states
    said = handle.job.log("master").read_text()
    assert "worker-1: worker-2 takes its place" in said and "worker-2: launched with" in said
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=1)


def test_a_worker_that_is_stopped_is_given_up(tmp_path: Path) -> None:
    handle = census(tmp_path, health={"heartbeat_seconds": 3}, epochs=2)
    until_at_work(handle, "worker-1")
    kill(handle, "worker-1", signal.SIGSTOP)
    states = {node["id"]: node["state"] for node in succeeded(handle)["nodes"]}
    assert states["worker-1"] == "ended (Hung: no heartbeat for 3 s)"
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=2)


def test_scaling_while_training(tmp_path: Path) -> None:
    handle = census(tmp_path, epochs=2)
    until_trained(handle, 500)
    assert handle.scale(workers=3) == ["worker-2 is launched with 1 core and 1 GiB"]
    until(lambda: pid_of(handle, "worker-2"), "worker-2")
    until_at_work(handle, "worker-2")
    handle.scale(workers=1)
    until(lambda: sum("ended" in node.state for node in handle.status().nodes) == 2, "two workers less")
    states = {node["id"]: node["state"] for node in succeeded(handle)["nodes"]}
    assert states["worker-2"] == states["worker-1"] == "ended (Succeeded)"
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=2)


def test_a_worker_that_is_stuck_in_the_model_is_given_up(tmp_path: Path) -> None:
    model = {"use": CENSUS, "options": {"directory": str(tmp_path), "stuck": True}}
    data = write_csv(tmp_path / "numbers.csv", SAMPLES)
    handle = start(model, data, workers=2, batch_size=16, optimizer=SGD, health={"progress_seconds": 2})
    ended = [node["state"] for node in succeeded(handle)["nodes"] if "Hung" in node["state"]]
    assert len(ended) == 1
    assert "no progress for 2 s, in minibatch " in ended[0]
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=1)


def test_a_worker_out_of_memory_comes_back_with_more(tmp_path: Path) -> None:
    model = {"use": CENSUS, "options": {"directory": str(tmp_path), "eats": 1 << 30}}
    data = write_csv(tmp_path / "numbers.csv", SAMPLES)
    handle = start(model, data, workers=2, batch_size=16, optimizer=SGD, memory={"worker": "512MiB"})
    nodes = {node["id"]: node for node in succeeded(handle)["nodes"]}
    (killed,) = [node for node in nodes.values() if "OOMKilled" in node["state"]]
    assert "512 MiB" in killed["state"]
    assert nodes["worker-2"]["memory"] == 768 << 20
    told = [entry.text for entry in handle.story(killed["id"]).entries]
    assert "worker-2 takes its place with 768 MiB of memory instead of 512 MiB" in told
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=1)
