"""Version 1, for real; and what can't be provoked here in a directory that stands for a mount."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.host.mounts import Hierarchy
from dlrover_lite.backends.limits.base import Fence, LimiterUnavailable
from dlrover_lite.backends.limits.cgroup import period_and_quota
from dlrover_lite.backends.limits.cgroup_v1 import CgroupV1
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import MIB, Resources
from tests.backends.support import PATIENCE_SECONDS, until
from tests.limits.support import STAY, Tree, nothing, own_v1, process_within

NAME = f"dlrover-lite-test-{os.getpid()}"


@pytest.fixture
def limiter() -> Iterator[CgroupV1]:
    made = CgroupV1(NAME, own_v1(), nothing)
    yield made
    made.remove_all()


def cpu_group(fence: Fence) -> Path:
    """The node's group in the hierarchy of the cpu controller."""
    directories = (Path(file).parent for file in fence.enter.groups)
    return next(directory for directory in directories if (directory / "cpu.shares").exists())


def groups() -> list[Path]:
    return [path for hierarchy in own_v1() for path in hierarchy.own.glob(f"{NAME}*")]


def test_cgroup_v1_leaves_no_groups_or_processes() -> None:
    recorded: list[Path] = []
    limiter = CgroupV1(NAME, own_v1(), recorded.extend)
    assert set(recorded) == set(groups())
    fence = limiter.create("ps-0", Resources(0.5, 64 * MIB))
    with process_within(fence.enter) as process:
        assert not fence.remove()
        limiter.remove_all()
        assert process.wait(PATIENCE_SECONDS) == -9
    assert groups() == []


def test_written_limits_are_those_asked_for(limiter: CgroupV1) -> None:
    fence = limiter.create("ps-0", Resources(0.5, 64 * MIB))
    directories = {Path(file).parent for file in fence.enter.groups}

    def read(name: str) -> int:
        return next(int((path / name).read_text()) for path in directories if (path / name).exists())

    assert (read("cpu.shares"), read("cpu.cfs_quota_us")) == (512, -1)
    assert read("memory.limit_in_bytes") == 64 * MIB
    for memory in (128 * MIB, 32 * MIB):  # up and down
        fence.resize(Resources(0.25, memory))
        assert read("memory.limit_in_bytes") == memory
        assert (read("cpu.shares"), read("cpu.cfs_quota_us")) == (256, -1)


def test_the_cpu_limit_is_that_of_all_nodes_together(limiter: CgroupV1) -> None:
    fence = limiter.create("ps-0", Resources(0.5, 64 * MIB))
    group = cpu_group(fence)
    for cores in (0.5, 0.01, 1.5, 0.02, 0.75):  # up and down, with one period and another
        limiter.limit_together(cores)
        quota, period = (int((group.parent / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        assert quota / period == cores
        assert (group / "cpu.cfs_quota_us").read_text() == "-1\n"
        # beside other jobs, as long as all want more than there is, each gets in proportion
        assert int((group.parent / "cpu.shares").read_text()) == round(1024 * cores)


def test_nodes_may_have_cpu_limits_of_their_own() -> None:
    limiter = CgroupV1(NAME, own_v1(), nothing, own_cores=True)
    try:
        assert not limiter.enforcement().shared_cores
        fence = limiter.create("ps-0", Resources(0.5, 64 * MIB))
        group = cpu_group(fence)
        for cores in (0.5, 0.01, 1.5):
            fence.resize(Resources(cores, 64 * MIB))
            limiter.limit_together(0.25)  # of all nodes: there is none
            quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            assert quota / period == cores
            assert (group.parent / "cpu.cfs_quota_us").read_text() == "-1\n"
        fence.resize(Resources(0.05, 64 * MIB))
        with process_within(fence.enter, "print(flush=True)\nwhile True: pass"):
            until(lambda: (usage := fence.usage()) is not None and usage.throttled_seconds > 0.1, "its being held back")
        other = limiter.create("ps-1", Resources(0.5, 64 * MIB)).usage()
        assert other is not None and other.throttled_seconds == 0.0
    finally:
        limiter.remove_all()


def test_a_node_group_that_had_a_quota_has_none_any_more(limiter: CgroupV1) -> None:
    limiter.limit_together(1.0)
    fence = limiter.create("ps-0", Resources(0.5, 64 * MIB))
    quota = cpu_group(fence) / "cpu.cfs_quota_us"
    quota.write_text("50000")
    fence.resize(Resources(0.25, 64 * MIB))
    limiter.limit_together(0.25)
    assert quota.read_text() == "-1\n"


def test_a_quota_within_that_is_somebody_elses_does_not_take_the_limit_away(limiter: CgroupV1) -> None:
    limiter.limit_together(1.0)
    group = cpu_group(limiter.create("ps-0", Resources(1.0, 64 * MIB)))
    (group / "cpu.cfs_quota_us").write_text(str(int((group / "cpu.cfs_period_us").read_text()) // 2))
    with pytest.raises(BackendError, match=r"nodes can't be limited to 0.25 cores together: .*Invalid") as caught:
        limiter.limit_together(0.25)
    assert caught.value.hint.startswith("A group within has a CPU quota above that")
    assert int((group.parent / "cpu.cfs_quota_us").read_text()) > 0
    limiter.limit_together(0.75)


def test_all_nodes_together_are_limited_to_the_cores_of_the_surrounding_group() -> None:
    found = own_v1()
    around = next(hierarchy.own for hierarchy in found if "cpu" in hierarchy.controllers) / f"{NAME}-around"
    around.mkdir()
    try:
        (around / "cpu.cfs_quota_us").write_text("50000")  # of 100,000: half a core
        within = [replace(each, own=around) if "cpu" in each.controllers else each for each in found]
        limiter = CgroupV1(NAME, within, nothing)
        quota = around / NAME / "cpu.cfs_quota_us"
        try:
            for cores, limited in ((0.25, True), (0.75, False), (0.4, True), (3.0, False)):
                limiter.limit_together(cores)
                assert (int(quota.read_text()) > 0) == limited
        finally:
            limiter.remove_all()
    finally:
        around.rmdir()


def test_a_node_is_in_its_group_from_its_first_instruction(limiter: CgroupV1) -> None:
    fence = limiter.create("ps-0", Resources(1.0, 64 * MIB))
    with process_within(fence.enter) as process:
        for file in fence.enter.groups:
            assert Path(file).read_text().split() == [str(process.pid)]
        usage = fence.usage()
        assert usage is not None
        assert usage.cpu_seconds > 0
        assert not fence.kill()
        assert process.wait(PATIENCE_SECONDS) == -9
        until(fence.kill, "the end of all that was within")
        until(fence.remove, "removal")  # the kernel doesn't tell when it is ready for it
        assert fence.remove()


def test_memory_that_outlives_a_node_stays_charged_to_its_follower(limiter: CgroupV1) -> None:
    descriptor = os.memfd_create("arena")
    try:
        fence = limiter.create("ps-0", Resources(1.0, 64 * MIB))
        code = f"import os; os.write({descriptor}, bytes(40 << 20)); {STAY}"
        with process_within(fence.enter, code, pass_fds=[descriptor]) as process:
            process.communicate()
        with pytest.raises(BackendError, match=r"limited to 32 MiB of memory: 4\d(\.\d)? MiB are in use"):
            fence.take_over("ps-1", Resources(1.0, 32 * MIB))
        fence.take_over("ps-1", Resources(1.0, 96 * MIB))
        with process_within(fence.enter):
            usage = fence.usage()
            assert usage is not None
            assert 40 * MIB <= usage.memory <= usage.peak_memory < 96 * MIB
            until(lambda: (now := fence.usage()) is not None and now.shared_memory >= 39 * MIB, "the shared memory")
        fence.kill()
    finally:
        os.close(descriptor)


def test_an_oom_kill_is_known_by_the_kernels_count(limiter: CgroupV1) -> None:
    fence = limiter.create("ps-0", Resources(1.0, 64 * MIB))
    assert fence.over_memory() is None
    with process_within(fence.enter, "x = bytearray(128 << 20)") as process:
        assert process.wait(PATIENCE_SECONDS) == -9
    over = fence.over_memory()
    assert over is not None
    assert over.detail == "over its memory limit of 64 MiB (peak 64 MiB)"
    fence.take_over("ps-1", Resources(1.0, 128 * MIB))
    assert fence.over_memory() is None


def test_an_existing_group_of_the_same_name_is_not_touched(limiter: CgroupV1) -> None:
    with pytest.raises(BackendError, match=r"ps-0 can't be limited: .*File exists"):
        for _ in range(2):
            limiter.create("ps-0", Resources(1.0, 64 * MIB))


# --- a directory that stands for a mount ---------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path / "mount", monkeypatch)


def test_controllers_mounted_together_need_one_group(tree: Tree) -> None:
    limiter = CgroupV1("job", [tree.hierarchy(version=1)], nothing)
    fence = limiter.create("ps-0", Resources(1.5, 64 * MIB))
    assert fence.enter.groups == [str(tree.root / "job" / "ps-0" / "cgroup.procs")]


def test_the_limit_with_swap_is_never_below_the_one_without(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = CgroupV1("job", [tree.hierarchy(version=1)], nothing).create("ps-0", Resources(1.0, 64 * MIB))
    plain, with_swap = (tree.root / "job" / "ps-0" / f"memory.{kind}limit_in_bytes" for kind in ("", "memsw."))
    real = cgroups.write

    def checked(path: Path, value: object) -> None:
        real(path, value)
        assert int(plain.read_text()) <= int(with_swap.read_text())

    monkeypatch.setattr(cgroups, "write", checked)
    for memory in (128 * MIB, 32 * MIB):
        fence.resize(Resources(1.0, memory))


def test_cores_are_limited_to_those_of_the_surrounding_group(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cgroups.write
    written: list[tuple[str, object]] = []

    def refuse(path: Path, value: object) -> None:
        if path.name == "cpu.cfs_quota_us" and value != -1:
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        written.append((path.name, value))
        real(path, value)

    monkeypatch.setattr(cgroups, "write", refuse)
    limiter = CgroupV1("job", [tree.hierarchy(version=1)], nothing)
    written.clear()
    limiter.limit_together(64.0)
    assert written == [("cpu.cfs_quota_us", -1), ("cpu.shares", 64 * 1024)]


def test_cgroup_v1_is_unavailable_without_a_controller(tree: Tree) -> None:
    only_memory = Hierarchy(1, frozenset(["memory"]), tree.root, tree.root)
    with pytest.raises(LimiterUnavailable, match="no cpu controller"):
        CgroupV1("job", [only_memory], nothing)


def test_cgroup_v1_is_unavailable_where_limits_cannot_be_written(tree: Tree) -> None:
    _check_unavailable(tree, "memory.limit_in_bytes")


def test_cgroup_v1_is_unavailable_where_cores_cannot_be_limited(tree: Tree) -> None:
    _check_unavailable(tree, "cpu.cfs_quota_us")


def _check_unavailable(tree: Tree, without: str) -> None:
    del tree.files[without]
    recorded: list[list[Path]] = []
    with pytest.raises(LimiterUnavailable, match=rf"{re.escape(without)}: No such file"):
        CgroupV1("job", [tree.hierarchy(version=1)], recorded.append)
    assert recorded == [[tree.root / "job"], []]
    assert not (tree.root / "job").exists()


@pytest.mark.parametrize("cores", [0.001, 0.03, 0.25, 1.0, 7.5, 96.0])
def test_quota_over_period_is_the_cores_and_the_kernel_takes_both(cores: float) -> None:
    period, quota = period_and_quota(cores)
    assert quota / period == pytest.approx(cores, rel=0.001)
    assert 1_000 <= period <= 1_000_000
    assert quota >= 1_000
