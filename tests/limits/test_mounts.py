from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.backends.host.mounts import hierarchies, unified, with_controller


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


def told(proc: Path, mounts: list[tuple[str, Path, str]], groups: str) -> None:
    """``mounts``: root, mount point, and what follows the dash."""
    lines = [f"31 23 0:28 {root} {mount} rw,relatime shared:4 - {after}" for root, mount, after in mounts]
    (proc / "mountinfo").write_text("\n".join(["22 1 8:1 / / rw - ext4 /dev/root rw", *lines, ""]))
    (proc / "cgroup").write_text(groups)


def group(path: Path, controllers: str | None = None) -> Path:
    path.mkdir(parents=True)
    if controllers is not None:
        (path / "cgroup.controllers").write_text(controllers + "\n")
    return path


def test_own_group_of_a_user_session_is_found_in_cgroup_v2(proc: Path, tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    own = group(mount / "user.slice" / "run-1.scope", "cpu memory pids")
    told(proc, [("/", mount, "cgroup2 cgroup2 rw,nsdelegate")], "0::/user.slice/run-1.scope\n")
    found = unified(hierarchies(proc))
    assert found is not None
    assert (found.own, found.controllers) == (own, {"cpu", "memory", "pids"})
    assert found.up() == [own, own.parent, mount]
    assert with_controller(hierarchies(proc), "memory") is None


def test_cgroup_v1_groups_are_found_mounted_together_or_apart(proc: Path, tmp_path: Path) -> None:
    cpu, memory, v2 = group(tmp_path / "cpu,cpuacct" / "a"), group(tmp_path / "memory" / "b"), group(tmp_path / "u", "")
    told(
        proc,
        [
            ("/", cpu.parent, "cgroup cgroup rw,cpu,cpuacct"),
            ("/", memory.parent, "cgroup cgroup rw,memory"),
            ("/", tmp_path, "cgroup cgroup rw,xattr,name=systemd"),
            ("/", v2, "cgroup2 cgroup2 rw"),
        ],
        "5:name=systemd:/nowhere\n3:memory:/b\n2:cpu,cpuacct:/a\n0::/\n",
    )
    found = hierarchies(proc)
    owns = [h.own for name in ("cpu", "cpuacct", "memory") if (h := with_controller(found, name)) is not None]
    assert owns == [cpu, cpu, memory]
    v2_found = unified(found)
    assert v2_found is not None
    assert v2_found.controllers == frozenset()


def test_a_container_finds_its_own_group_at_the_mount(proc: Path, tmp_path: Path) -> None:
    mount = group(tmp_path / "memory")
    told(proc, [("/docker/abc", mount, "cgroup cgroup ro,memory")], "3:memory:/docker/abc\n")
    (found,) = hierarchies(proc)
    assert found.own == mount
    assert found.up() == [mount]


@pytest.mark.parametrize("path", ["/elsewhere", "/../..", "/docker/abcd"])
def test_a_group_that_cannot_be_seen_is_not_used(proc: Path, tmp_path: Path, path: str) -> None:
    told(proc, [("/docker/abc", group(tmp_path / "memory"), "cgroup cgroup rw,memory")], f"3:memory:{path}\n")
    assert hierarchies(proc) == []


def test_a_mount_point_with_a_space_is_found(proc: Path, tmp_path: Path) -> None:
    mount = group(tmp_path / "my groups", "memory")
    told(proc, [("/", Path(str(mount).replace(" ", "\\040")), "cgroup2 cgroup2 rw")], "0::/\n")
    assert [h.own for h in hierarchies(proc)] == [mount]


def test_no_hierarchies_without_proc_files(tmp_path: Path) -> None:
    assert hierarchies(tmp_path) == []
