"""Version 2: in a directory that stands for a mount, as no kernel has its controllers in both versions at once."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dlrover_lite.backends.host.mounts import Hierarchy
from dlrover_lite.backends.limits.base import Fence, LimiterUnavailable
from dlrover_lite.backends.limits.cgroup_v2 import CgroupV2, place_in
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import MIB, Resources
from tests.limits.support import Tree, nothing

HANDED_DOWN = "cpu memory pids\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A group in which only this process is: as systemd makes it for one that is started with Delegate=yes."""
    tree = Tree(tmp_path / "mount", monkeypatch)
    (tree.root / "cgroup.procs").write_text(f"{os.getpid()}\n")
    return tree


def read(path: Path) -> str:
    return path.read_text().strip()


def limiter_of(tree: Tree) -> CgroupV2:
    (tree.root / "cgroup.subtree_control").write_text(HANDED_DOWN)
    return CgroupV2("job", [tree.hierarchy()], nothing)


def fence_of(tree: Tree) -> tuple[Fence, Path]:
    return limiter_of(tree).create("ps-0", Resources(0.5, 64 * MIB)), tree.root / "job" / "ps-0"


def test_limits_are_written_to_the_group(tree: Tree) -> None:
    fence, group = fence_of(tree)
    assert fence.enter.groups == [str(group / "cgroup.procs")]
    assert read(group.parent / "cgroup.subtree_control") == "+cpu +memory"
    assert (read(group / "cpu.weight"), read(group / "memory.max")) == ("50", str(64 * MIB))
    assert read(group / "memory.oom.group") == "1"
    assert read(group / "memory.swap.max") == "0"
    fence.resize(Resources(2.0, 128 * MIB))
    assert (read(group / "cpu.weight"), read(group / "memory.max")) == ("200", str(128 * MIB))


def test_the_cpu_limit_is_that_of_all_nodes_together(tree: Tree) -> None:
    limiter = limiter_of(tree)
    fence, job = limiter.create("ps-0", Resources(0.5, 64 * MIB)), tree.root / "job"
    for cores, quota, weight in ((0.5, "10000 20000", "50"), (2.0, "40000 20000", "200"), (0.01, "1000 100000", "1")):
        limiter.limit_together(cores)
        assert (read(job / "cpu.max"), read(job / "cpu.weight")) == (quota, weight)
        assert read(job / "ps-0" / "cpu.max").startswith("max")
    (job / "ps-0" / "cpu.max").write_text("10000 20000")  # as it was had by such a group before
    fence.resize(Resources(0.25, 64 * MIB))
    assert read(job / "ps-0" / "cpu.max").startswith("max")
    assert limiter.enforcement().shared_cores


def test_nodes_may_have_cpu_limits_of_their_own(tree: Tree) -> None:
    limiter = CgroupV2("job", [tree.hierarchy()], nothing, own_cores=True)
    assert not limiter.enforcement().shared_cores
    fence, job = limiter.create("ps-0", Resources(0.5, 64 * MIB)), tree.root / "job"
    for cores, quota in ((0.5, "10000 20000"), (2.0, "40000 20000")):
        fence.resize(Resources(cores, 64 * MIB))
        limiter.limit_together(0.25)  # of all nodes: there is none
        assert read(job / "ps-0" / "cpu.max") == quota
        assert read(job / "cpu.max").startswith("max")
    (job / "cpu.stat").write_text("usage_usec 9000000\nthrottled_usec 500000\n")
    (job / "ps-0" / "cpu.stat").write_text("usage_usec 1500000\nthrottled_usec 250000\n")
    usage = fence.usage()
    assert usage is not None and usage.throttled_seconds == 0.25


def test_a_limit_of_all_nodes_that_cannot_be_set_is_an_error_that_says_what_to_do(tree: Tree) -> None:
    limiter = limiter_of(tree)
    tree.remove(tree.root / "job")
    with pytest.raises(
        BackendError, match=r"nodes can't be limited to 2 cores together: .*cpu\.max: No such"
    ) as caught:
        limiter.limit_together(2.0)
    assert "stop the job" in caught.value.hint


def test_usage_is_read_from_the_groups_files(tree: Tree) -> None:
    fence, group = fence_of(tree)
    (group.parent / "cpu.stat").write_text("usage_usec 9000000\nthrottled_usec 500000\n")
    fence.started(17)
    (group.parent / "cpu.stat").write_text("usage_usec 9500000\nthrottled_usec 750000\n")
    (group / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\nthrottled_usec 0\n")
    (group / "memory.current").write_text(f"{50 * MIB}\n")
    (group / "memory.peak").write_text(f"{60 * MIB}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {20 * MIB}\nshmem {10 * MIB}\n")
    usage = fence.usage()
    assert usage is not None
    assert (usage.cpu_seconds, usage.throttled_seconds) == (1.5, 0.25)
    assert (usage.memory, usage.peak_memory, usage.shared_memory) == (30 * MIB, 60 * MIB, 10 * MIB)


def test_a_memory_limit_below_the_usage_is_refused(tree: Tree) -> None:
    fence, group = fence_of(tree)
    (group / "memory.current").write_text(f"{50 * MIB}\n")
    with pytest.raises(BackendError, match="ps-0 can't be limited to 40 MiB of memory: 50 MiB are in use"):
        fence.resize(Resources(1.0, 40 * MIB))
    assert read(group / "memory.max") == str(64 * MIB)
    (group / "memory.stat").write_text(f"inactive_file {20 * MIB}\n")
    fence.resize(Resources(1.0, 40 * MIB))  # file pages can be dropped


def test_kills_for_memory_are_the_kernels_count(tree: Tree) -> None:
    fence, group = fence_of(tree)
    assert fence.over_memory() is None
    (group / "memory.events").write_text("oom 1\noom_kill 3\n")
    (group / "memory.peak").write_text(f"{64 * MIB}\n")
    over = fence.over_memory()
    assert over is not None
    assert over.detail == "over its memory limit of 64 MiB (peak 64 MiB)"
    (group / "memory.peak").write_text(f"{30 * MIB}\n")
    over = fence.over_memory()
    assert over is not None
    assert over.detail == "the machine, or the container around it, had no memory left (peak 30 MiB of its 64 MiB)"


def test_a_follower_starts_with_its_own_counters(tree: Tree) -> None:
    fence, group = fence_of(tree)
    (group / "cpu.stat").write_text("usage_usec 9000000\n")
    (group.parent / "cpu.stat").write_text("throttled_usec 5000000\n")
    (group / "memory.events").write_text("oom_kill 1\n")
    (group / "memory.peak").write_text(f"{64 * MIB}\n")
    (group / "memory.current").write_text(f"{10 * MIB}\n")
    fence.take_over("ps-1", Resources(1.0, 128 * MIB))
    assert fence.over_memory() is None
    usage = fence.usage()
    assert usage is not None
    assert (usage.cpu_seconds, usage.throttled_seconds, usage.peak_memory) == (0.0, 0.0, 10 * MIB)
    (group / "memory.current").write_text(f"{30 * MIB}\n")
    assert fence.usage() != usage
    (group / "memory.current").write_text(f"{20 * MIB}\n")
    usage = fence.usage()
    assert usage is not None
    assert usage.peak_memory == 30 * MIB  # the kernel's mark is still the other node's
    (group / "memory.peak").write_text(f"{70 * MIB}\n")
    usage = fence.usage()
    assert usage is not None
    assert usage.peak_memory == 70 * MIB


def test_a_removed_group_has_no_usage(tree: Tree) -> None:
    fence, group = fence_of(tree)
    tree.remove(group)
    assert fence.usage() is None
    assert fence.over_memory() is None
    assert fence.remove()
    with pytest.raises(BackendError, match="its control group is gone"):
        fence.resize(Resources(1.0, MIB))


def test_a_process_alone_in_its_group_moves_into_a_leaf(tree: Tree) -> None:
    limiter = CgroupV2("job", [tree.hierarchy()], nothing)
    assert read(tree.root / "keeper" / "cgroup.procs") == str(os.getpid())
    assert read(tree.root / "cgroup.subtree_control") == "+cpu +memory"
    assert (tree.root / "job").is_dir()
    limiter.remove_all()
    assert read(tree.root / "cgroup.subtree_control") == "-cpu -memory"
    assert not (tree.root / "job").exists()
    assert not (tree.root / "keeper").exists()


def test_cgroup_v2_is_unavailable_beside_other_processes(tree: Tree) -> None:
    (tree.root / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    with pytest.raises(LimiterUnavailable, match="other processes are in the control group"):
        CgroupV2("job", [tree.hierarchy()], nothing)
    assert not (tree.root / "keeper").exists()


def test_the_nearest_group_that_hands_controllers_down_is_used(tree: Tree) -> None:
    shell = tree.root / "user.slice" / "shell.scope"
    tree.make(shell.parent)
    tree.make(shell)
    hierarchy = tree.hierarchy(own=shell)
    assert place_in(hierarchy) is None
    (tree.root / "cgroup.subtree_control").write_text(HANDED_DOWN)
    assert place_in(hierarchy) == tree.root
    (shell.parent / "cgroup.subtree_control").write_text(HANDED_DOWN)
    assert place_in(hierarchy) == shell.parent
    CgroupV2("job", [hierarchy], nothing)
    assert (shell.parent / "job").is_dir()


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([], "not mounted"),
        (
            [Hierarchy(2, frozenset(["memory", "pids"]), Path("/cg"), Path("/cg/u"))],
            "no cpu controller for /cg/u: nothing hands",
        ),
        (
            [
                Hierarchy(2, frozenset(), Path("/u"), Path("/u")),
                Hierarchy(1, frozenset(["cpu"]), Path("/c"), Path("/c")),
            ],
            "no cpu and memory controller for /u: they are in use by cgroup v1",
        ),
    ],
)
def test_cgroup_v2_is_unavailable_without_the_controllers(found: list[Hierarchy], why: str) -> None:
    with pytest.raises(LimiterUnavailable, match=why):
        CgroupV2("job", found, nothing)


@pytest.mark.parametrize("without", ["memory.max", "cpu.max"])
def test_cgroup_v2_is_unavailable_where_limits_cannot_be_written(tree: Tree, without: str) -> None:
    (tree.root / "cgroup.subtree_control").write_text(HANDED_DOWN)
    del tree.files[without]
    recorded: list[list[Path]] = []
    with pytest.raises(LimiterUnavailable, match=rf"{re.escape(without)}: No such file"):
        CgroupV2("job", [tree.hierarchy()], recorded.append)
    assert recorded == [[tree.root / "job"], []]
    assert not (tree.root / "job").exists()
