"""What people do to the nodes of a job that runs: each sample counts once all the same."""

from __future__ import annotations

from pathlib import Path

from dlrover_lite.tui.actions import Actions
from dlrover_lite.tui.model import Autoscaling, JobRow
from tests.backends.support import until
from tests.end_to_end.support import pid_of, succeeded, until_trained
from tests.end_to_end.test_faults import assert_exactly_once
from tests.end_to_end.test_nodes import SAMPLES, census, until_at_work


def test_every_action_of_the_tui_works_on_a_running_job(tmp_path: Path) -> None:
    handle = census(tmp_path, checkpoint={"every_seconds": 3600.0})
    actions = Actions()
    row = JobRow(id=handle.id, state="training", created_at=0.0, directory=str(handle.directory))
    until_trained(handle, 200)
    room = actions.room(row)
    assert (room.workers.count, room.workers.cores, room.servers.count) == (2, 1.0, 1)
    assert "is paused" in actions.autoscale(row, "pause", Autoscaling("off"))
    assert "goes on" in actions.autoscale(row, "resume", Autoscaling("off", "by request"))
    assert "Checkpoint 1 " in actions.checkpoint(row)
    assert "worker-0 is killed by request" in actions.kill(row, "worker-0")
    assert "ps-0 is killed by request" in actions.kill(row, "ps-0")
    until_at_work(handle, "worker-2")
    assert "worker-1 is to leave" in actions.drain(row, "worker-1", replace=False)
    assert "worker-3 is launched" in actions.scale(row, 2, None)
    assert "worker-2" in actions.resize(row, "worker-2", 0.5, None)
    until(lambda: pid_of(handle, "worker-3"), "worker-3")
    until_at_work(handle, "worker-3")
    assert "worker-3 is to leave" in actions.scale(row, 1, None)
    until(lambda: sum("ended" in node.state for node in handle.status().nodes) == 4, "one worker less")
    until(lambda: (known := handle.status().checkpoints) is not None and known.newest, "the checkpoint")
    nodes = {node["id"]: node for node in succeeded(handle)["nodes"]}
    assert nodes["worker-0"]["state"] == nodes["ps-0"]["state"] == "ended (Killed: by request)"
    assert nodes["worker-1"]["state"] == nodes["worker-3"]["state"] == "ended (Succeeded)"
    assert nodes["worker-2"]["cores"] == 0.5
    assert_exactly_once(handle, samples=SAMPLES, batch_size=16, epochs=2)
