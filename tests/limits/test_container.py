"""Limits that are those of the container around us: whose counters count for which node, from files as kernels have written them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dlrover_lite.backends.host.mounts import Hierarchy
from dlrover_lite.backends.limits.base import Fence
from dlrover_lite.backends.limits.container import ContainerGroup, ContainerLimits, container_group
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import MIB, Resources

V1 = {
    "cpu/cpu.stat": "nr_periods 57\nnr_throttled 12\nthrottled_time 1250000000\n",
    "cpu/cpuacct.usage": "2500000000\n",
    "memory/memory.usage_in_bytes": "104857600\n",
    "memory/memory.max_usage_in_bytes": "134217728\n",
    "memory/memory.limit_in_bytes": "268435456\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n",
    "memory/memory.stat": "cache 50331648\nrss 52428800\nshmem 33554432\ntotal_inactive_file 4194304\ntotal_shmem 33554432\n",
}
V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\nnr_periods 57\nnr_throttled 12\nthrottled_usec 1250000\n",
    "cgroup.controllers": "cpuset cpu io memory pids\n",
    "memory.current": "104857600\n",
    "memory.peak": "134217728\n",
    "memory.max": "268435456\n",
    "memory.events": "low 0\nhigh 0\nmax 431\noom 2\noom_kill {kills}\noom_group_kill 0\n",
    "memory.stat": "anon 52428800\nfile 50331648\nshmem 33554432\ninactive_file 4194304\n",
}
Kills = Callable[[int], None]
RESOURCES = Resources(1.0, 200 * MIB)


def written(directory: Path, files: dict[str, str]) -> Kills:
    """Write files as the kernel shows them; return what says how many processes it has killed for memory."""

    def with_kills(kills: int) -> None:
        for name, text in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text.replace("{kills}", str(kills)))

    with_kills(0)
    return with_kills


@pytest.fixture(params=["v1", "v2"])
def container(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ContainerLimits, Kills]:
    if request.param == "v1":
        kills = written(tmp_path, V1)
        found = [
            Hierarchy(1, frozenset(["cpu", "cpuacct"]), tmp_path / "cpu", tmp_path / "cpu"),
            Hierarchy(1, frozenset(["memory"]), tmp_path / "memory", tmp_path / "memory"),
        ]
    else:
        kills = written(tmp_path, V2)
        found = [Hierarchy(2, frozenset(["cpu", "memory"]), tmp_path, tmp_path)]
    group = container_group(found)
    assert isinstance(group, ContainerGroup)
    return ContainerLimits(group), kills


def running(limits: ContainerLimits, node: str) -> Fence:
    fence = limits.create(node, RESOURCES)
    fence.started(os.getpid())
    return fence


def test_all_that_is_in_the_container_counts_for_the_node_that_runs(container: tuple[ContainerLimits, Kills]) -> None:
    limits, _ = container
    usage = running(limits, "ps-0").usage()
    assert usage is not None
    assert (usage.memory, usage.shared_memory) == (96 * MIB, 32 * MIB)  # file pages that may be dropped aside
    assert (usage.cpu_seconds, usage.throttled_seconds) == (0.0, 0.0)  # since it started
    assert usage.peak_memory == 96 * MIB  # what was before it started isn't its own


def test_counters_are_read_in_seconds_and_bytes(container: tuple[ContainerLimits, Kills]) -> None:
    group = container[0].group
    assert group is not None
    counters = group.read()
    assert (counters.cpu_seconds, counters.throttled_seconds) == (2.5, 1.25)
    assert (counters.peak_memory, group.memory_limit()) == (128 * MIB, 256 * MIB)


def test_a_kill_for_memory_is_told_of_the_node_that_ended_and_of_no_other(
    container: tuple[ContainerLimits, Kills],
) -> None:
    limits, kills = container
    first, second = running(limits, "ps-0"), running(limits, "ps-1")
    assert first.over_memory() is None
    first = running(limits, "ps-2")
    kills(1)
    over = first.over_memory()
    assert over is not None and over.detail == "over its container's memory limit of 256 MiB (peak 128 MiB)"
    assert over.used == 96 * MIB, "the peak was that of an earlier node"
    assert second.over_memory() is None
    third = running(limits, "ps-3")
    assert third.over_memory() is None  # it has started since
    kills(2)
    fourth = running(limits, "ps-4")
    assert fourth.over_memory() is None


def test_nodes_that_run_together_are_told_apart_by_their_processes(container: tuple[ContainerLimits, Kills]) -> None:
    limits, _ = container
    first, second = running(limits, "ps-0"), running(limits, "ps-1")
    assert all(usage is not None and usage.memory != 96 * MIB for usage in (first.usage(), second.usage()))
    second.over_memory()  # it ends
    usage = first.usage()
    assert usage is not None and usage.memory == 96 * MIB


def test_less_memory_than_the_container_uses_is_refused(container: tuple[ContainerLimits, Kills]) -> None:
    fence = running(container[0], "ps-0")
    fence.resize(Resources(1.0, 96 * MIB))
    with pytest.raises(BackendError, match=r"Node ps-0 can't be limited to 95 MiB of memory: 96 MiB are in use"):
        fence.resize(Resources(1.0, 95 * MIB))


@pytest.mark.parametrize(("text", "limit"), [("9223372036854771712\n", None), ("1048576\n", MIB)])
def test_a_limit_of_version_1_that_is_none_is_known(tmp_path: Path, text: str, limit: int | None) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text(text)
    group = ContainerGroup(lambda: pytest.fail("not asked for"), tmp_path / "memory.limit_in_bytes")
    assert group.memory_limit() == limit


def test_a_group_that_others_are_in_is_not_ours(tmp_path: Path) -> None:
    written(tmp_path, V2)
    (tmp_path / "cgroup.procs").write_text(f"{os.getppid()}\n{os.getpid()}\n")
    why = container_group([Hierarchy(2, frozenset(["memory"]), tmp_path, tmp_path)])
    assert why == f"other processes are in the control group that we run in, {tmp_path}"
    assert container_group([]) == "no control groups with memory and CPU are mounted here"
