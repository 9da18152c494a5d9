"""What a workstation tells a job's pods has nothing of the workstation's own."""

from __future__ import annotations

import sys

import msgspec
import pytest

from dlrover_lite.backends.k8s.jobs.pod_options import pod_options
from dlrover_lite.core.files.paths import state_directory
from dlrover_lite.jobs.backend import RunOptions
from dlrover_lite.protocol.brain_mode import BrainMode


@pytest.mark.parametrize(
    ("wanted", "shares", "found"),
    [("daemon", True, "daemon"), ("daemon", False, "embedded"), ("embedded", True, "embedded"), ("off", True, "off")],
)
def test_a_brain_is_in_the_masters_process_unless_the_job_shares_one(
    wanted: BrainMode, shares: bool, found: BrainMode
) -> None:
    made = pod_options(None, RunOptions(wanted), takes_checkpoints=False, shares_brain=shares)
    assert made.keeper.brain == found


@pytest.mark.parametrize("takes_checkpoints", [False, True])
def test_options_for_pods_name_no_file_of_this_machine(takes_checkpoints: bool) -> None:
    text = msgspec.json.encode(pod_options(None, RunOptions(), takes_checkpoints=takes_checkpoints)).decode()
    for own in (sys.executable, sys.prefix, str(state_directory())):
        assert own not in text
