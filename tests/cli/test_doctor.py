"""``doctor``: each check where all is well and where it isn't, and what is printed of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from dlrover_lite.backends.checks import Check
from dlrover_lite.backends.host import linux
from dlrover_lite.backends.host.mounts import Hierarchy
from dlrover_lite.backends.local import doctor
from dlrover_lite.backends.local.jobs.leftovers import sweep
from dlrover_lite.cli import checks
from dlrover_lite.cli.main import main
from dlrover_lite.core.kernels.files import seal
from dlrover_lite.core.units import GIB, MIB
from dlrover_lite.protocol.nodes import Enforcement
from tests.cli.documented import check

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "numba", "zmq", "pyarrow")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return tmp_path / "home"


def test_doctor_finds_this_machine_ok_and_leaves_nothing_behind(home: Path, capsys: Capture) -> None:
    assert main(["doctor", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    check("## doctor", value)
    for found in value["checks"]:
        check("### checks", found)
        assert found["text"]
    assert value["ok"] is True
    assert list(home.parent.iterdir()) == [home.parent / "runtime"]
    assert list((home.parent / "runtime").iterdir()) == []


def test_doctor_imports_nothing_heavy() -> None:
    code = (
        "import sys; from dlrover_lite.cli.main import main; main(['doctor']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


CHECKS = [
    Check("python", "ok", "3.11.7"),
    Check(
        "limits",
        "warning",
        "watchdog; not enforced: fractions of a core, and more words than fit a line",
        "Run it as root.",
    ),
    Check("state", "problem", "can't write /nowhere: Read-only file system", "Point DLROVER_LITE_HOME elsewhere."),
]


def test_doctor_prints_a_line_for_each_check_with_its_hint_below(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda: CHECKS)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok       python     3.11.7",
        "warning  limits     watchdog; not enforced: fractions of a core, and more words than fit a line",
        "                    Run it as root.",
        "problem  state      can't write /nowhere: Read-only file system",
        "                    Point DLROVER_LITE_HOME elsewhere.",
    ]
    monkeypatch.setattr(checks, "terminal_width", lambda: 80)
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 6


def test_doctor_succeeds_with_warnings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda: CHECKS[:2])
    assert main(["doctor"]) == 0


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10, 9), "problem"), ((3, 11, 0), "ok"), ((3, 13, 2), "ok"), ((3, 14, 0), "warning")]
)
def test_supported_versions_of_python(version: tuple[int, ...], level: str) -> None:
    assert doctor.python(version).level == level


@pytest.mark.parametrize(
    ("version", "level"),
    [(None, "problem"), ("1.13.1", "problem"), ("2.6.0", "ok"), ("2.13.0+cpu", "ok"), ("2.10rc1", "ok")],
)
def test_missing_or_too_old_torch_is_a_problem(version: str | None, level: str) -> None:
    found = doctor.torch(lambda _: version)
    assert found.level == level
    assert bool(found.hint) == (level == "problem")


def test_missing_packages_are_named_with_pip_install() -> None:
    found = doctor.packages(lambda name: None if name == "pyzmq" else "1")
    assert (found.level, found.hint) == ("problem", "pip install pyzmq")
    assert doctor.extras(lambda _: None).level == "ok"
    assert "pyarrow" in doctor.extras(lambda _: None).hint


@pytest.mark.parametrize(("free", "level"), [(8 * GIB, "ok"), (600 * MIB, "warning"), (100 * MIB, "problem")])
def test_little_free_memory_is_a_warning_or_problem(free: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = namedtuple("memory", "total available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(1, free))
    assert doctor.memory().level == level


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (Enforcement("cgroup v2", shared_cores=True), "ok"),
        (Enforcement("cgroup v1", ["swap"]), "warning"),
        (Enforcement("watchdog", ["fractions of a core"], "cgroups can't be written: run it as root"), "warning"),
    ],
)
def test_weaker_enforcement_of_limits_is_a_warning(found: Enforcement, level: str) -> None:
    shown = doctor.limits(lambda: found)
    assert (shown.level, shown.hint) == (level, found.why)
    assert found.kind in shown.text and all(what in shown.text for what in found.cannot)
    assert ("one CPU limit for all nodes of a job" in shown.text) == found.shared_cores


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([(2, "cpu memory pids", "")], "v2 at {}: cpu, memory (writable)"),
        ([(2, "", "")], "v2 at {}: no controller for jobs (writable)"),
        ([(1, "cpu cpuacct", ""), (1, "pids", "")], "v1: cpu, cpuacct (writable)"),
        (
            [(1, "memory", "gone"), (2, "", "")],
            "v2 at {}: no controller for jobs (writable); v1: memory (not writable for you)",
        ),
    ],
)
def test_control_groups_are_listed_with_controllers_and_permission(
    found: list[tuple[int, str, str]], text: str, tmp_path: Path
) -> None:
    groups = [Hierarchy(version, frozenset(names.split()), tmp_path, tmp_path / own) for version, names, own in found]
    shown = doctor.control_groups(lambda: groups)
    assert (shown.level, shown.text) == ("ok", text.replace("{}", str(tmp_path)))
    assert doctor.control_groups(list).level == "warning"


def test_failing_enforcement_of_limits_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert doctor.limits().level == "problem"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert doctor.limits().text == "can't be found out: exit code 1"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends processes with their parent")
def test_processes_that_outlive_their_parent_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.Process().children()  # of other tests in this process
    assert doctor.ends_with_parent().level == "ok"
    monkeypatch.setattr(linux, "die_with_parent", lambda _: None)
    monkeypatch.setattr(doctor, "_dies_with_parent", lambda try_it=doctor._dies_with_parent: try_it(0.05))
    assert doctor.ends_with_parent().level == "warning"
    assert set(psutil.Process().children()) <= set(before)


def test_unusable_state_directory_is_a_problem(home: Path, capsys: Capture) -> None:
    home.write_text("a file")
    found = doctor.state()
    assert found.level == "problem" and str(home) in found.text and "DLROVER_LITE_HOME" in found.hint
    kernels = doctor.kernels()
    assert kernels.level == "warning" and "every job compiles them" in kernels.text
    assert main(["doctor"]) == 1
    assert "problem  state" in capsys.readouterr().out


@pytest.mark.parametrize(("free", "level"), [(8 * GIB, "ok"), (GIB, "warning"), (MIB, "problem")])
def test_little_free_disk_is_a_warning_or_problem(free: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total free")
    monkeypatch.setattr(psutil, "disk_usage", lambda _: usage(9 * GIB, free))
    assert doctor.state().level == level


def test_compiled_missing_and_damaged_kernels_are_told_apart(home: Path) -> None:
    assert "the first job compiles them" in doctor.kernels().text
    place = home / "cache" / "kernels" / "0123" / "ps_1"
    place.mkdir(parents=True)
    (place / "table.pull-1.py311.nbi").touch()  # of an older version
    assert "the first job compiles them" in doctor.kernels().text
    index, data = place / "table.pull-1.py311.sealed.nbi", place / "table.pull-1.py311.sealed.1.nbc"
    for path in (index, data):
        path.write_bytes(b"compiled" + seal(b"compiled"))
    assert doctor.kernels().text.startswith("compiled") and doctor.kernels().level == "ok"
    data.write_bytes(b"compilee" + seal(b"compiled"))
    assert doctor.kernels().level == "warning" and str(data) in doctor.kernels().text
    data.write_bytes(b"")
    assert doctor.kernels().level == "warning"
    place.chmod(0o777)
    assert "other users can write" in doctor.kernels().text


def test_paths_too_long_for_sockets_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.runtime().level == "ok"
    monkeypatch.setattr(doctor, "MAX_SOCKET_NAME_BYTES", 32)
    monkeypatch.setattr("dlrover_lite.backends.keeper.runtime_directories.MAX_SOCKET_PATH_BYTES", 10)
    found = doctor.runtime()
    assert found.level == "problem" and "too long a path" in found.text and "XDG_RUNTIME_DIR" in found.hint


def test_little_or_no_shared_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.shared_memory(tmp_path).level == "ok"
    assert doctor.shared_memory(tmp_path / "none").level == "warning"
    usage = namedtuple("usage", "total free")
    monkeypatch.setattr(psutil, "disk_usage", lambda _: usage(64 * MIB, MIB))
    assert "--shm-size" in doctor.shared_memory(tmp_path).hint


def test_a_wrong_clock_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.clock().level == "ok"
    found = doctor.clock(lambda: 0.0)
    assert found.level == "warning" and "later" in found.text
    held_up = iter([time.time(), time.time() + 3600.0])
    assert doctor.clock(lambda: next(held_up)).level == "ok"
    monkeypatch.setattr(doctor, "_slept_seconds", lambda: 3600.0)
    assert "has slept 3600 s" in doctor.clock().text


def test_leftovers_that_the_next_run_removes_are_listed(home: Path) -> None:
    assert doctor.left_behind().level == "ok"
    abandoned = home / "state" / "jobs" / ".new-abandoned"
    abandoned.mkdir(parents=True)
    os.utime(abandoned, (0, 0))
    dead = Path(os.environ["XDG_RUNTIME_DIR"], "dlrover-lite", "2mx00000")
    dead.mkdir(parents=True, mode=0o700)
    dead.parent.chmod(0o700)
    (dead / "owner.json").write_text('{"job": "/nowhere", "process": {"pid": 1, "started": "never"}}')
    found = doctor.left_behind()
    assert found.level == "warning" and str(abandoned) in found.text and str(dead) in found.text
    assert sorted(sweep()) == sorted([abandoned, dead])
    assert doctor.left_behind().level == "ok"


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "said", "hinted"),
    [
        ("always within_size advise [never] deny force\n", "4 KiB for shared memory (never), huge ones where", False),
        ("always within_size advise never [deny] force\n", "4 KiB for shared memory (deny)", True),
        ("always within_size [advise] never deny force\n", "huge ones for shared memory (advise)", False),
        ("nothing that is known", "4 KiB for shared memory", False),
        (None, "4 KiB for shared memory", False),
    ],
)
def test_doctor_says_which_pages_the_rows_of_tables_get(
    tmp_path: Path, setting: str | None, said: str, hinted: bool
) -> None:
    path = tmp_path / "shmem_enabled"
    if setting is not None:
        path.write_text(setting)
    found = doctor.huge_pages(path)
    assert found.level == "ok"
    assert found.text.startswith(said)
    assert (str(path) in found.hint) is hinted
