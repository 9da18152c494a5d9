from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlrover_lite.backends.host.machine import machine_resources
from dlrover_lite.backends.limits.base import Limits
from dlrover_lite.backends.limits.choose import choose
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import MIB, Resources
from tests.limits.support import Tree, nothing


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    tree = Tree(tmp_path / "mount", monkeypatch)
    (tree.root / "cgroup.subtree_control").write_text("cpu memory\n")
    return tree


def test_the_best_working_enforcement_is_chosen(tree: Tree) -> None:
    both = [tree.hierarchy(version=1), tree.hierarchy()]
    assert choose("auto", "job", nothing, both).enforcement().kind == "cgroup v2"
    assert choose("auto", "other", nothing, both[:1]).enforcement().kind == "cgroup v1"
    assert choose("auto", "third", nothing, []).enforcement().kind == "watchdog"
    assert choose("cgroup-v1", "fourth", nothing, both).enforcement().kind == "cgroup v1"
    assert choose("watchdog", "fifth", nothing, both).enforcement().why == "it was asked for"


@pytest.mark.parametrize("kind", ["cgroup-v2", "cgroup-v1"])
def test_nodes_share_their_cores_unless_they_are_to_have_their_own(tree: Tree, kind: Limits) -> None:
    both = [tree.hierarchy(version=1), tree.hierarchy()]
    assert choose(kind, "job", nothing, both).enforcement().shared_cores
    assert not choose(kind, "other", nothing, both, own_cores=True).enforcement().shared_cores


def test_unavailable_enforcement_is_refused_with_the_reason(tree: Tree) -> None:
    with pytest.raises(BackendError, match="by cgroup-v1, which can't be used here: there is no cpu controller"):
        choose("cgroup-v1", "job", nothing, [tree.hierarchy()])


def test_the_watchdog_says_why_no_control_groups_are_used(tree: Tree) -> None:
    (tree.root / "cgroup.subtree_control").write_text("\n")
    (tree.root / "cgroup.procs").write_text("1\n2\n")
    why = choose("auto", "job", nothing, [tree.hierarchy()]).enforcement().why
    assert "other processes are in the control group" in why
    assert "Log in through systemd" in why
    assert "mounted" in choose("auto", "job", nothing, []).enforcement().why


def test_capacity_is_limited_by_all_groups_above(tree: Tree) -> None:
    middle, own = tree.root / "pod", tree.root / "pod" / "keeper"
    tree.make(middle)
    tree.make(own)
    hierarchy = tree.hierarchy(own=own)
    whole = machine_resources([])
    assert machine_resources([hierarchy]) == whole
    assert whole.cores <= (os.cpu_count() or 1)
    (middle / "cpu.max").write_text("50000 100000\n")
    (own / "memory.max").write_text(f"{64 * MIB}\n")
    assert machine_resources([hierarchy]) == Resources(0.5, 64 * MIB)
    (tree.root / "memory.max").write_text(f"{32 * MIB}\n")
    assert machine_resources([hierarchy]) == Resources(0.5, 32 * MIB)


def test_capacity_is_limited_by_groups_of_cgroup_v1(tree: Tree) -> None:
    own = tree.root / "docker"
    tree.make(own)
    hierarchy = tree.hierarchy(own=own, version=1)
    assert machine_resources([hierarchy]) == machine_resources([])
    (tree.root / "cpu.cfs_quota_us").write_text("25000\n")
    (own / "memory.limit_in_bytes").write_text(f"{64 * MIB}\n")
    assert machine_resources([hierarchy]) == Resources(0.25, 64 * MIB)
