"""A job trains with its nodes in a pod's keeper, and its master in another: over TCP, with addresses and directories of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dlrover_lite.backends.keeper.options import KeeperOptions, NodeOptions
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.transport.connector import read_key
from tests.backends.agent_rig import AgentRig
from tests.backends.support import assert_nothing_runs, launch_with, until
from tests.end_to_end.support import HERE, SMALL_WIDE_DEEP, SYNTHETIC, WAIT_SECONDS, nodes
from tests.repository.sources import ROOT


def test_a_job_trains_with_its_nodes_in_a_pod_and_they_outlive_its_master(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = AgentRig(entries=NodeOptions().entries, imports=NodeOptions().imports, idle_seconds=60.0)
    monkeypatch.setenv("AGENT_ENDPOINT", rig.endpoint)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    plain = {
        "version": 1,
        "name": "pod",
        "model": SMALL_WIDE_DEEP,
        "data": SYNTHETIC,
        "training": {"batch_size": 64},
        "resources": nodes(1, 1, {}),
        "export": {"format": "none"},
        "checkpoint": "off",
        "directory": str(HERE),
    }
    address = f"tcp://{rig.ip.rpartition('.')[0]}.1:7070"
    options = KeeperOptions(
        master=[sys.executable, "-P", str(Path(__file__).parent / "master_of_agent.py")],
        runs_nodes=False,
        transport="tcp",
        listen=address,
        advertised=address,
    )
    handle = launch_with(options, parse_recipe(plain))
    try:
        rig.start_with(read_key(handle.job.key_file))
        until(lambda: handle.state() == "running" and "worker-0" in rig.logs(), "a worker", WAIT_SECONDS)
        master = handle.job.record().master
        assert master is not None
        os.kill(master.pid, 9)
        result = handle.wait(WAIT_SECONDS)
        assert result.state == "succeeded", (result.message, rig.printed())
        assert result.status is not None and result.status["samples"] == result.status["total_samples"] > 0
        assert result.status["master_restarts"] == 1
        assert not handle.job.log("worker-0").exists()
        assert "worker-1" not in rig.logs()  # the master that came back went on with the nodes that were there
    finally:
        rig.close()
        handle.stop(kill=True)
    assert_nothing_runs(handle.job)
