"""Real nodes that are killed, stopped, asked to leave, scaled; and a master that is killed."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.processes.identity import is_alive
from tests.backends.support import until
from tests.end_to_end.support import kill, start, succeeded, until_trained, write_csv
from tests.end_to_end.test_faults import CENSUS, SGD, assert_exactly_once

SAMPLES = 8_000


def census(tmp_path: Path, *, model: dict[str, Any] | None = None, **settings: Any) -> JobHandle:
    """A job that goes on until its end is waited for. ``model``: options."""
    data = write_csv(tmp_path / "numbers.csv", SAMPLES)
    options = {"directory": str(tmp_path), "gate": str(tmp_path / "gate"), **(model or {})}
    return start(
        {"use": CENSUS, "options": options},
        data,
        **{"workers": 2, "batch_size": 16, "epochs": 2, "optimizer": SGD, **settings},
    )


def until_at_work(handle: JobHandle, node: str) -> None:
    """It has reported training: so it has leases, and work for a while."""
    until(lambda: [n for n in handle.status().nodes if n.id == node and n.samples_per_second], f"the work of {node}")


def kill_master(handle: JobHandle) -> None:
    """And wait until another one knows the nodes."""
    master = handle.job.record().master
    assert master is not None
    os.kill(master.pid, signal.SIGKILL)
    until(lambda: not is_alive(master), "the master's end")
    until(lambda: handle.job.record().master != master, "another master")
    until(lambda: handle.status().nodes, "the nodes it has adopted")


def test_job_is_exact_though_its_master_is_killed_again_and_again(tmp_path: Path) -> None:
    seed = int(os.environ.get("KILL_SEED") or random.randrange(1 << 32))
    print(f"KILL_SEED={seed}")
    handle = census(tmp_path)
    for samples in sorted(random.Random(seed).sample(range(100, 3_000, 50), 3)):
        until_trained(handle, samples)
        kill_master(handle)
    status = succeeded(handle)
    assert status["master_restarts"] == 3
    assert [node["id"] for node in status["nodes"]] == ["ps-0", "worker-0", "worker-1"]  # the same ones all along
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=2)


def test_workers_that_are_lost_are_replaced(tmp_path: Path) -> None:
    """One that is out of memory, one that is asked to end by others, one that is killed, and one that is stopped."""
    handle = census(tmp_path, model={"eats": 1 << 30}, memory={"worker": "512MiB"}, health={"heartbeat_seconds": 5})
    until_at_work(handle, "worker-2")
    greedy = (tmp_path / "eaten").read_text()
    (asked,) = {"worker-0", "worker-1"} - {greedy}
    kill(handle, asked, signal.SIGTERM)
    until_at_work(handle, "worker-3")
    kill(handle, "worker-2")
    until_at_work(handle, "worker-4")
    kill(handle, "worker-3", signal.SIGSTOP)
    until_at_work(handle, "worker-5")
    nodes = {node["id"]: node for node in succeeded(handle)["nodes"]}
    assert "OOMKilled" in nodes[greedy]["state"] and "512 MiB" in nodes[greedy]["state"]
    assert nodes["worker-2"]["memory"] == 768 << 20
    told = [entry.text for entry in handle.story(greedy).entries]
    assert "worker-2 takes its place with 768 MiB of memory instead of 512 MiB" in told
    assert nodes[asked]["state"].startswith("ended (Preempted")
    said = handle.job.log("master").read_text()
    assert f"{asked}: worker-3 takes its place" in said and "worker-3: launched with" in said
    assert "Killed" in nodes["worker-2"]["state"]
    assert nodes["worker-3"]["state"] == "ended (Hung: no heartbeat for 5 s)"
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=2)
