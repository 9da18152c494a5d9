"""The watchdog, over real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dlrover_lite.backends.limits.base import Fence
from dlrover_lite.backends.limits.join_cgroup import data_bytes
from dlrover_lite.backends.limits.watchdog import Watchdog
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.nodes import Usage
from tests.backends.support import PATIENCE_SECONDS, until
from tests.limits.support import STAY, process_within

HOLD = "held = bytearray(%d); held[::4096] = b'x' * len(held[::4096])"
CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    made = Watchdog("no control groups")
    yield made
    made.remove_all()


@contextmanager
def node(fence: Fence, code: str = "", **options: object) -> Iterator[psutil.Process]:
    with process_within(fence.enter, f"{code}\n{STAY}", start_new_session=True, **options) as process:
        fence.started(process.pid)
        yield psutil.Process(process.pid)


def usage_of(fence: Fence) -> Usage:
    usage = fence.usage()
    assert usage is not None
    return usage


def test_nodes_are_spread_over_the_cpus(watchdog: Watchdog) -> None:
    fences = [watchdog.create(f"worker-{i}", Resources(0.5, MIB)) for i in range(2 * len(CPUS))]
    assert sorted(fence.enter.cpus for fence in fences) == sorted([[cpu] for cpu in CPUS] * 2)
    fences[0].remove()
    fences[len(CPUS)].remove()
    assert watchdog.create("ps-0", Resources(1.0, MIB)).enter.cpus == fences[0].enter.cpus
    assert watchdog.create("ps-1", Resources(99.0, MIB)).enter.cpus == CPUS


def test_fractions_of_a_core_become_nice_values(watchdog: Watchdog) -> None:
    nice = [
        watchdog.create(f"ps-{i}", Resources(cores, MIB)).enter.nice for i, cores in enumerate((1.0, 0.5, 0.25, 2.0))
    ]
    assert nice == [0, 3, 6, 0]


def test_limits_of_a_node_are_set_and_changed(watchdog: Watchdog) -> None:
    fence = watchdog.create("ps-0", Resources(1.0, 64 * MIB))
    with node(fence) as process:
        assert process.cpu_affinity() == fence.enter.cpus
        assert process.rlimit(psutil.RLIMIT_CORE)[0] == 0

        def headroom() -> int:
            return process.rlimit(psutil.RLIMIT_DATA)[0] - data_bytes(process.pid)

        assert 128 * MIB < headroom() <= GIB + 128 * MIB
        fence.resize(Resources(float(len(CPUS)), 512 * MIB))
        assert process.cpu_affinity() == CPUS
        assert headroom() > GIB + 512 * MIB


def test_memory_growth_between_two_looks_is_bounded(watchdog: Watchdog) -> None:
    fence = watchdog.create("ps-0", Resources(1.0, 64 * MIB))
    with node(fence, f"try:\n    bytearray({4 * GIB})\nexcept MemoryError:\n    print('refused', flush=True)"):
        pass  # it has printed a line; nothing else would have ended the allocation


def test_only_nodes_over_their_memory_limit_are_killed(watchdog: Watchdog) -> None:
    fence, other = (watchdog.create(f"ps-{i}", Resources(1.0, 64 * MIB)) for i in range(2))
    with node(fence, HOLD % (96 * MIB)) as process, node(other, HOLD % (32 * MIB)) as small:
        for each in (other, fence):
            each.watch()
        assert process.wait(PATIENCE_SECONDS) == -9
        over = fence.over_memory()
        assert over is not None
        assert over.detail.startswith("over its memory limit of 64 MiB: the watchdog saw 1")
        assert other.over_memory() is None
        assert small.is_running()
        assert until(fence.remove, "the end of all that was within")


def test_memory_is_that_of_all_processes_of_the_node(watchdog: Watchdog) -> None:
    fence = watchdog.create("ps-0", Resources(1.0, 512 * MIB))
    child = f"import time\n{HOLD % (48 * MIB)}\nprint('holds', flush=True)\ntime.sleep(60)"
    with node(fence, f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n"):
        until(lambda: usage_of(fence).memory > 48 * MIB, "the child's memory")
        fence.resize(Resources(1.0, 512 * MIB))
        with pytest.raises(BackendError, match=r"ps-0 can't be limited to 48 MiB of memory: .* are in use"):
            fence.resize(Resources(1.0, 48 * MIB))


def test_shared_memory_counts_once_it_is_mapped(watchdog: Watchdog) -> None:
    fence = watchdog.create("ps-0", Resources(1.0, 512 * MIB))
    code = f"import mmap\nshared = mmap.mmap(-1, {32 * MIB})\nfor at in range(0, {32 * MIB}, 4096): shared[at] = 1"
    with node(fence, code):
        usage = usage_of(fence)
        assert usage.shared_memory >= 32 * MIB
        assert usage.memory >= usage.shared_memory


def test_pages_that_forked_processes_share_are_no_reason_to_kill(watchdog: Watchdog) -> None:
    fence = watchdog.create("ps-0", Resources(1.0, 128 * MIB))
    code = f"import os, time\n{HOLD % (64 * MIB)}\nfor _ in range(3):\n    if not os.fork(): time.sleep(60)"
    with node(fence, code) as process:
        until(lambda: len(process.children()) == 3, "three forks")
        fence.watch()
        assert fence.over_memory() is None
        assert usage_of(fence).memory < 128 * MIB


def test_cpu_seconds_of_what_has_ended_stay_counted(watchdog: Watchdog) -> None:
    fence = watchdog.create("ps-0", Resources(1.0, 512 * MIB))
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    with node(fence, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])"):
        assert usage_of(fence).cpu_seconds >= 0.2


def test_a_follower_does_not_inherit_the_kill_of_its_predecessor(watchdog: Watchdog) -> None:
    fence = watchdog.create("ps-0", Resources(1.0, 64 * MIB))
    with node(fence, HOLD % (96 * MIB)) as process:
        fence.watch()
        process.wait(PATIENCE_SECONDS)
    until(fence.kill, "the end of all that was within")
    fence.take_over("ps-1", Resources(1.0, 128 * MIB))
    assert fence.over_memory() is None
    assert fence.usage() is None
    with node(fence, HOLD % (96 * MIB)):
        fence.watch()
        assert fence.over_memory() is None
        assert usage_of(fence).peak_memory > 96 * MIB


def test_a_node_that_ended_before_it_was_seen_is_removed(watchdog: Watchdog) -> None:
    fence = watchdog.create("ps-0", Resources(1.0, 64 * MIB))
    fence.started(2**22 + 1)  # above the largest pid
    fence.watch()
    assert fence.usage() is None
    assert fence.kill()
    assert fence.remove()


def test_watchdog_says_what_it_cannot_enforce(watchdog: Watchdog) -> None:
    enforcement = watchdog.enforcement()
    assert (enforcement.kind, enforcement.why) == ("watchdog", "no control groups")
    assert "fractions of a core" in enforcement.cannot


def test_processes_are_read_from_proc() -> None:
    from dlrover_lite.backends.limits.processes import memory_of, see

    me, seen = psutil.Process(), see(os.getpid())
    assert seen is not None
    assert (seen.parent, seen.session) == (os.getppid(), os.getsid(0))
    memory = memory_of(os.getpid())
    assert memory is not None
    assert 0 < memory.used <= me.memory_info().rss * 1.1
    assert Path("/proc/self").exists()
