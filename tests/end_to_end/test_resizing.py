"""Nodes of a real job that are given more and less, and what is measured of its slots."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from dlrover_lite.backends.host.mounts import hierarchies, unified, with_controller
from dlrover_lite.client.handle import JobHandle, this_machine
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.units import GIB, MIB
from dlrover_lite.protocol.profiles import Profile
from dlrover_lite.protocol.questions import SlotsReport
from tests.backends.support import until
from tests.end_to_end.support import end, pid_of, until_trained
from tests.end_to_end.test_nodes import census, kill_master, until_at_work


def limits_in_force(handle: JobHandle, node: str) -> tuple[float, int, float | None]:
    """The node's part of the CPU as cores, and its bytes, as its control groups say; and the cores of all nodes together, by the job's
    group. None: the group around that has less, which is the limit."""
    found = hierarchies(Path(f"/proc/{pid_of(handle, node)}"))
    both, cpu, memory = unified(found), with_controller(found, "cpu"), with_controller(found, "memory")
    if handle.status().enforcement == "cgroup v2":
        assert both is not None
        assert (both.own / "cpu.max").read_text().startswith("max")
        quota, period = (both.own.parent / "cpu.max").read_text().split()
        part = int((both.own / "cpu.weight").read_text()) / 100
        return part, int((both.own / "memory.max").read_text()), int(quota) / int(period)
    assert cpu is not None and memory is not None
    assert int((cpu.own / "cpu.cfs_quota_us").read_text()) == -1
    quota, period = ((cpu.own.parent / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    part = int((cpu.own / "cpu.shares").read_text()) / 1024
    together = None if int(quota) == -1 else int(quota) / int(period)
    return part, int((memory.own / "memory.limit_in_bytes").read_text()), together


def limits_shown(handle: JobHandle, node: str) -> tuple[float, int]:
    (found,) = [each for each in handle.status().nodes if each.id == node]
    return found.cores, found.memory


def measured(handle: JobHandle) -> SlotsReport | None:
    report = handle.slots(hottest=3)
    return report if report.hottest else None


def check_measurements(report: SlotsReport) -> None:
    assert len(report.hottest) == 3
    assert {server.node: server.slots for server in report.servers} == {"ps-0": 2048, "ps-1": 2048}
    servers = {server.node: server for server in report.servers}
    for hot in report.hottest:
        server = servers[hot.node]
        assert server.busy is not None and server.requests_per_second is not None and server.bytes
        assert 0 < hot.busy <= server.busy < 2
        assert 0 < hot.requests_per_second <= server.requests_per_second * 1.001


@pytest.mark.skipif(this_machine().cores < 2, reason="there are no cores to give")
def test_a_server_and_a_worker_are_resized_while_training(tmp_path: Path) -> None:
    handle = census(tmp_path, ps=2, workers=1)
    until_trained(handle, 500)
    until_at_work(handle, "worker-0")
    check_measurements(until(lambda: measured(handle), "measurements of slots"))
    wanted = {"ps-0": (0.5, 3 * GIB // 2), "ps-1": (1.0, 512 * MIB), "worker-0": (2.0, 3 * GIB // 2)}
    handle.resize("ps-0", cores=0.5, memory="1.5GiB")
    handle.resize("worker-0", cores=2, memory="1.5GiB")
    handle.move(slot_sets.parse("2048-3000"), "ps-0")
    handle.resize("ps-1", memory="512MiB")  # once it has given those slots away
    until(lambda: {node: limits_shown(handle, node) for node in wanted} == wanted, "the new limits")
    if handle.status().enforcement.startswith("cgroup"):
        for node, (cores, memory) in wanted.items():
            part, limit, together = limits_in_force(handle, node)
            assert (part, limit) == (cores, memory)
            assert together in (0.5 + 1.0 + 2.0, None)
    with pytest.raises(JobError, match="ps-0 can't be lowered to 16 MiB: "):
        handle.resize("ps-0", memory="16MiB")
    log = handle.job.log("worker-0")
    until(lambda: "worker-0 has 2 cores now and computes with 2 threads" in log.read_text(), "two threads")
    kill_master(handle)
    assert {node: limits_shown(handle, node) for node in wanted} == wanted
    handle.stop()
    assert end(handle).state == "stopped"
    with pytest.raises(JobError, match="has been stopped"):
        handle.slots()
    told = [entry.text for entry in handle.story("ps-1").entries]
    assert "is resized from 1 core and 1 GiB to 1 core and 512 MiB" in told


NEAR_SECONDS = 4.0


class Account:
    """CPU seconds of nodes as their control groups have them, and samples as the master has, again and again."""

    def __init__(self, handle: JobHandle, nodes: list[str]) -> None:
        self._handle = handle
        self._times: list[float] = []
        self._totals: dict[str, list[float]] = {name: [] for name in (*nodes, "samples")}
        self._files = {}
        for node in nodes:
            found = hierarchies(Path(f"/proc/{pid_of(handle, node)}"))
            both, account = unified(found), with_controller(found, "cpuacct")
            if handle.status().enforcement == "cgroup v2" and both is not None:
                self._files[node] = both.own / "cpu.stat"
            elif account is not None:
                self._files[node] = account.own / "cpuacct.usage"

    def look(self) -> None:
        samples = self._handle.status().samples
        self._times.append(time.time())
        self._totals["samples"].append(samples)
        for node, file in self._files.items():
            words = file.read_text().split()
            self._totals[node].append(int(words[1]) / 1e6 if words[0] == "usage_usec" else int(words[0]) / 1e9)

    def risen(self, name: str, profile: Profile) -> float:
        """In the interval that the profile is of."""
        began, ended = np.interp([profile.at - profile.seconds, profile.at], self._times, self._totals[name])
        return float(ended - began)

    def largest_step(self, name: str, profile: Profile) -> float:
        """The most that it rose by from one look to the next, in the interval and just before and after it."""
        times, totals = np.array(self._times), np.array(self._totals[name])
        near = (times > profile.at - profile.seconds - NEAR_SECONDS) & (times < profile.at + NEAR_SECONDS)
        return float(np.diff(totals[near]).max())


def test_a_running_job_is_profiled(tmp_path: Path) -> None:
    handle = census(tmp_path, workers=1)
    until_trained(handle, 500)
    account = Account(handle, ["ps-0", "worker-0"])

    def profiles() -> list[Profile]:
        account.look()
        return [each for each in handle.profiles() if isinstance(each, Profile)]

    profile = until(profiles, "an interval", 40.0)[0]
    rows = handle.status().rows
    if handle.status().enforcement.startswith("cgroup"):
        for use in (*profile.ps, *profile.workers):
            assert use.cpu_seconds == pytest.approx(account.risen(use.node, profile), rel=0.1, abs=0.3)
    # a worker tells of its samples lease by lease, and the profile has them rise evenly in between
    lease = account.largest_step("samples", profile)
    assert profile.samples == pytest.approx(account.risen("samples", profile), rel=0.1, abs=lease)
    (server,), (worker,), (host,) = profile.ps, profile.workers, profile.hosts
    assert 0 < server.busy_seconds < profile.seconds
    assert server.requests == pytest.approx(2 * server.minibatches, rel=0.1, abs=2)  # a pull and a push each
    assert set(worker.phase_seconds) == {"read", "pull", "compute", "push", "wait"}
    assert 0 < sum(worker.phase_cpu_seconds.values()) <= worker.cpu_seconds * 1.1
    assert host.other_cores >= 0
    tables = {table.table: table.rows["ps-0"] for table in profile.tables}
    assert server.rows == sum(tables.values()) <= rows
    assert tables["everywhere"] == 1
    assert server.row_bytes > 0
    assert server.used_bytes > 0
    handle.stop()
    assert end(handle).state == "stopped"
