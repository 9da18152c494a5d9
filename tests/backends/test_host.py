"""What everything on the machine, or in the container around us, takes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dlrover_lite.backends.host.host_meter import HostMeter
from dlrover_lite.backends.host.mounts import Hierarchy


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".", 1)).write_text(text)
    return directory


def test_cpu_seconds_of_the_host_rise_by_what_we_use() -> None:
    meter = HostMeter([])
    before = meter.read()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = meter.read()
    assert after.cpu_seconds - before.cpu_seconds >= 0.25  # the kernel counts hundredths
    assert after.cores == len(os.sched_getaffinity(0))


def test_host_meter_reads_cores_and_cpu_of_a_limited_container(tmp_path: Path) -> None:
    top = write(tmp_path / "v2", cpu__max="50000 100000", cpu__stat="usage_usec 2500000\nnr_periods 3\n")
    own = write(top / "own", cpu__max="max 100000", cpu__stat="usage_usec 1\n")
    read = HostMeter([Hierarchy(2, frozenset(["cpu"]), tmp_path / "v2", own)]).read()
    assert (read.cores, read.cpu_seconds) == (0.5, 2.5)


@pytest.mark.parametrize("together", [True, False])
def test_host_meter_reads_a_limited_container_of_cgroup_v1(tmp_path: Path, together: bool) -> None:
    cpu = write(tmp_path / "cpu", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    account = cpu if together else tmp_path / "cpuacct"
    write(account, cpuacct__usage="1500000000")
    kinds = [["cpu", "cpuacct"]] if together else [["cpu"], ["cpuacct"]]
    roots = [cpu, account]
    found = [Hierarchy(1, frozenset(kind), root, root) for kind, root in zip(kinds, roots, strict=False)]
    read = HostMeter(found).read()
    assert (read.cores, read.cpu_seconds) == (0.5, 1.5)


def test_host_meter_counts_the_machine_if_the_cgroup_is_unreadable(tmp_path: Path) -> None:
    own = write(tmp_path / "v2", cpu__max="50000 100000")
    read = HostMeter([Hierarchy(2, frozenset(["cpu"]), own, own)]).read()
    assert read.cores == 0.5
    assert read.cpu_seconds > 0  # the machine's then
