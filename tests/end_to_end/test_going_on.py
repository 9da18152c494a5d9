"""Real jobs that lose everything, or some of it, and go on from a checkpoint: every sample counts once all the same."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import dlrover_lite
from dlrover_lite.cli.main import main
from dlrover_lite.client import census, resuming
from dlrover_lite.client.handle import JobHandle, launch, resume
from dlrover_lite.core.processes.identity import is_alive
from dlrover_lite.jobs.checkpoint_location import Located, locate, store_of
from tests.backends.support import PATIENCE_SECONDS, until
from tests.end_to_end.support import HERE, kill, nodes, pid_of, succeeded, until_trained

SAMPLES, EPOCHS = 4_096, 3
SLOW = "worker.push.computed=slow:0.2"
"""No job comes to its end before it is killed; what it goes on as is as fast as ever."""


def count() -> JobHandle:
    recipe = {
        "version": 1,
        "name": "going-on",
        "model": {"use": "census", "options": {"embedding_dim": 4, "dense_values": 40_000}},
        "data": {"format": "census", "samples": SAMPLES},
        "training": {
            "batch_size": 16,
            "epochs": EPOCHS,
            "seed": 1,
            "optimizer": {"use": "adam", "learning_rate": 0.02},
        },
        "resources": nodes(2, 2, {}),
        "export": {"optimizer_state": True},
        "checkpoint": {"every_seconds": 0.3, "full_every": 3, "keep": 4},
        "directory": str(HERE),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLROVER_LITE_FAILPOINTS", SLOW)
        return dlrover_lite.run(recipe)


def newest_cut(handle: JobHandle) -> int:
    found = handle.status().checkpoints
    return found.newest.number if found is not None and found.newest is not None else 0


def until_cuts(handle: JobHandle, number: int) -> None:
    until(lambda: newest_cut(handle) >= number, f"checkpoint {number}")


def kill_all(handle: JobHandle) -> None:
    """kill -9 of the keeper takes all processes of the job along."""
    keeper = handle.job.record().keeper
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGKILL)
    assert handle.wait(PATIENCE_SECONDS).state == "lost"
    until(lambda: not is_alive(keeper), "the keeper's end")


def exact(handle: JobHandle) -> dict[str, Any]:
    """The last status of a job that has counted every sample of every epoch once, bit for bit."""
    status = succeeded(handle)
    report = census.check(handle.job)
    assert report.exact, report
    assert (report.samples, report.epochs) == (SAMPLES, EPOCHS)
    return status


def trained_and_killed(handle: JobHandle) -> JobHandle:
    """Some way on from where it began, with two cuts more at least."""
    status = handle.status()
    until_trained(handle, status.samples + 200)
    until_cuts(handle, newest_cut(handle) + 2)
    kill_all(handle)
    return handle


def test_a_killed_jobs_checkpoint_starts_another_job_and_resumes_itself() -> None:
    """Another one on more servers; then it itself goes on."""
    first = trained_and_killed(count())
    chosen = resuming.choose(locate(first.id))
    changes = {"resources.ps.count": 3, "resources.worker.count": 1, "resources.ps.memory": "512MiB"}
    recipe = resuming.fitting_recipe(resuming.recipe_of(Located(store_of(first.job), None, None), chosen), changes)
    resuming.check_fits(chosen, recipe, only_parameters=False)
    second = launch(recipe, beginning=resuming.beginning_of(chosen))
    status = exact(second)
    assert status["begun"] == f"begins with checkpoint {chosen.manifest.cut} of {first.id}"
    assert len([node for node in status["nodes"] if node["role"] == "ps"]) == 3

    status = exact(resume(first.id))
    assert status["begun"].startswith("goes on from checkpoint ")
    assert status["generation"] == 1
    assert {node["id"] for node in status["nodes"] if node["role"] == "ps"} == {f"ps-{i}" for i in range(4)}
    told = [entry.text for entry in first.story("master").entries]
    assert sum(text.startswith("goes on from checkpoint ") for text in told) == 1


def test_a_suspended_job_goes_on_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    handle = count()
    until_trained(handle, 200)
    assert main(["suspend", handle.id]) == 0
    told = capsys.readouterr()
    assert f"{handle.id} is suspended after " in told.out
    assert f"dlrover-lite resume {handle.id}" in told.err
    status, newest = handle.status(), newest_cut(handle)
    assert (handle.state(), status.state) == ("suspended", "suspended")
    assert 200 <= status.samples < EPOCHS * SAMPLES
    assert main(["jobs", "--json"]) == 0
    assert [job["state"] for job in json.loads(capsys.readouterr().out)["jobs"] if job["id"] == handle.id] == [
        "suspended"
    ]
    keeper = handle.job.record().keeper
    assert keeper is not None and not is_alive(keeper)
    assert main(["suspend", handle.id]) == 0
    assert "has ended already (suspended)" in capsys.readouterr().out

    assert main(["resume", handle.id]) == 0
    begun = exact(handle)["begun"]
    assert begun.startswith(f"goes on from checkpoint {newest}")
    story = [entry.text for entry in handle.story("master").entries]
    assert story.count("the job is to end: suspended by request") == 1


def spoil_memory(handle: JobHandle) -> None:
    """The keeper holds it; what a PS leaves there begins with other bytes from now on."""
    keeper = handle.job.record().keeper
    assert keeper is not None
    for entry in Path(f"/proc/{keeper.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if str(entry.readlink()).startswith("/memfd:state"):
                with entry.open("r+b") as file:
                    file.write(b"spoiled!")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux has memory that outlives its process")
def test_lost_server_memory_takes_the_job_back_past_a_damaged_checkpoint() -> None:
    handle = count()
    until_trained(handle, 200)
    until_cuts(handle, newest_cut(handle) + 1)
    names = ("ps-0", "ps-1", "worker-0", "worker-1")
    assert all(pid_of(handle, name) for name in names)
    spoil_memory(handle)
    kill(handle, "ps-1")
    until(lambda: handle.status().generation == 1, "another generation")
    assert all(pid_of(handle, name) is None for name in names)
    begun = handle.status().begun
    assert begun.startswith("went back to checkpoint ")
    assert "the parameters of ps-1 are lost" in begun
    assert handle.status().master_restarts == 0

    trained_and_killed(handle)
    newest = resuming.chosen_for(handle.job).manifest
    file = Path(store_of(handle.job).url) / f"cut-{newest.cut:08}" / newest.parts[0].file
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    status = exact(resume(handle.id))
    assert status["begun"].startswith("went back to checkpoint ")
    assert file.name in status["begun"]
    assert status["generation"] == 3  # the damaged one was tried
