"""``dlrover-lite run``, killed with SIGKILL at random moments: nothing of the job stays."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlrover_lite.core.processes.identity import ProcessIdentity, identify, send_signal, wait_for_end
from dlrover_lite.jobs.store import Job
from tests.backends.support import until

ROOT = Path(__file__).resolve().parents[2]
SHARED_MEMORY = Path("/dev/shm")
SCRIPTED, REAL = 46, 6
STAGES = {"command": 1.0, "job": 0.2, "keeper": 0.6, "nodes": 0.4}
"""How far it has come, and how many seconds later at most it is killed."""
SHARES = (2, 2, 3, 3)
PATIENCE_SECONDS = 120.0
"""For what the command has started to end: a master that takes a last checkpoint gets 90."""

RECIPE = """\
version: 1
name: killed
model: {use: wide_deep, options: {embedding_dim: 4}}
data: {format: synthetic, samples: 1000000000, eval_samples: 0, ids_per_field: 200}
training: {batch_size: 256}
resources:
  ps: {count: 1, cores: 0.25, memory: 1GiB}
  worker: {count: 1, cores: 0.25, memory: 1GiB}
"""

# The command line as it is, but master and nodes are scripts, which are there sooner; one node starts a process of its own.
SCRIPTED_RUN = """\
import sys
from functools import partial

from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
from dlrover_lite.cli.main import main
from dlrover_lite.client import handle
from tests.backends.support import options

handle.launch = partial(handle.launch, backend=LocalJobs(options("nodes", "2")))
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Kill:
    number: int
    kind: str
    stage: str
    later: float
    """Seconds after the stage was seen."""


@dataclass(frozen=True)
class Killed:
    """What was there when the command was killed, and what is left of it."""

    kill: Kill
    job: Job | None
    seen: str
    left: list[str]


def plan(seed: int) -> list[Kill]:
    chance = random.Random(seed)
    kinds = ["scripted"] * SCRIPTED + ["real"] * REAL
    chance.shuffle(kinds)
    stages = chance.choices(list(STAGES), SHARES, k=len(kinds))
    return [
        Kill(number, kind, stage, chance.uniform(0, STAGES[stage]))
        for number, (kind, stage) in enumerate(zip(kinds, stages, strict=True))
    ]


def run_and_kill(kill: Kill, directory: Path) -> Killed:
    """In directories of its own, by whose names everything it starts is recognised."""
    places = {name: directory / name for name in ("home", "runtime", "temp")}
    for place in places.values():
        place.mkdir(mode=0o700)
    recipe = directory / "killed.yaml"
    recipe.write_text(RECIPE)
    names = {"DLROVER_LITE_HOME": "home", "XDG_RUNTIME_DIR": "runtime", "TMPDIR": "temp"}
    environment = {**os.environ, **{name: str(places[place]) for name, place in names.items()}, "PYTHONPATH": str(ROOT)}
    how = ["-m", "dlrover_lite"] if kill.kind == "real" else ["-c", SCRIPTED_RUN]
    with (directory / "said").open("wb") as said:
        command = subprocess.Popen(
            [sys.executable, *how, "run", str(recipe)], cwd=directory, env=environment, stdout=said, stderr=said
        )
    stages = list(STAGES)
    until(
        lambda: command.poll() is not None or stages.index(seen_of(job_in(places["home"]))) >= stages.index(kill.stage),
        f"{kill.stage} of {kill}",
    )
    with contextlib.suppress(subprocess.TimeoutExpired):  # the moment is what is tested
        command.wait(kill.later)
    ended_by_itself = command.returncode
    command.send_signal(signal.SIGKILL)
    command.wait()
    if ended_by_itself is not None:
        return Killed(kill, None, "", [f"it had ended by itself: {(directory / 'said').read_text()[-500:]}"])
    job = job_in(places["home"])
    seen = seen_of(job)
    left = processes_left(directory)
    for place in ("runtime", "temp"):
        left += [f"{place}: {path.relative_to(directory)}" for path in sorted(places[place].rglob("*"))]
    left += sockets_left(directory)
    if job is not None:
        left += unfinished(job)
    return Killed(kill, job, seen, left)


def job_in(home: Path) -> Job | None:
    found = list((home / "state" / "jobs").glob("killed-*"))
    return Job(found[0]) if found else None


def seen_of(job: Job | None) -> str:
    """The stage it has come to, from what it has written."""
    if job is None:
        return "command"
    logs = {path.stem for path in job.logs.glob("*.log")}
    if any(name.startswith("worker") for name in logs):
        return "nodes"
    return "keeper" if "keeper" in logs else "job"


def processes_left(directory: Path) -> list[str]:
    """Waits until there have been none in two looks in a row; what is still there after the patience is killed, and named."""
    end = time.monotonic() + PATIENCE_SECONDS
    empty = 0
    while time.monotonic() < end:
        found = processes_of(directory)
        empty = 0 if found else empty + 1
        if empty == 2:
            return []
        for process in found:
            wait_for_end(process, max(0.0, end - time.monotonic()))
    lines = []
    for process in processes_of(directory):
        with contextlib.suppress(OSError):  # ended meanwhile
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            lines.append(f"process {process.pid}: {command[:300]}")
            send_signal(process, signal.SIGKILL)
    return lines


def processes_of(directory: Path) -> list[ProcessIdentity]:
    """Those that name the directory in their environment (JOB_VARIABLE holds a path in it, as others do) or command."""
    name = os.fsencode(directory) + b"/"
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if any(name in (place / what).read_bytes() for what in ("environ", "cmdline")):
                found.append(identify(int(place.name)))
    return [process for process in found if process is not None]


def sockets_left(directory: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        lines = Path("/proc/net/unix").read_text().splitlines()
        return [f"socket: {line}" for line in lines if str(directory) in line]
    return []


def unfinished(job: Job) -> list[str]:
    """A job that had a keeper and isn't recorded as stopped, and files half written."""
    lines = [f"temp file: {path}" for path in job.directory.glob(".*") if path.name != ".reserve"]
    result = job.result()
    if job.record().keeper is not None and (result is None or result.state != "stopped"):
        lines.append(f"its result is {result}; its keeper said: {job.last_log_lines('keeper')}")
    return lines


def control_groups_left(jobs: list[Job]) -> list[str]:
    """Directories named for a job, in any mounted hierarchy of either version."""
    names = {job.short_id for job in jobs}
    mounts = Path("/proc/self/mounts")
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    roots = [where for _, where, kind, *_ in lines if kind in ("cgroup", "cgroup2")]
    return [
        f"cgroup: {parent}/{name}"
        for root in roots
        for parent, below, _ in os.walk(root)
        for name in below
        if any(short_id in name for short_id in names)
    ]


def memory_files() -> list[str]:
    """Anonymous files of ours (memfd) that a process holds which these tests have started, or this one. Others may be running jobs."""
    found = []
    ours = processes_of(Path(tempfile.gettempdir()))
    for pid in (os.getpid(), *(process.pid for process in ours)):
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("/memfd:") and "dlrover" in target:
                    found.append(f"memfd: {link} -> {target}")
    return found


def shared_memory() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="dlk-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends processes with their parent")
@pytest.mark.timeout(600)
def test_a_killed_run_command_leaves_nothing_behind(directory: Path) -> None:
    seed = int(os.environ.get("KILL_SEED") or random.randrange(1 << 32))
    print(f"KILL_SEED={seed}")
    memory_before, files_before = shared_memory(), set(memory_files())

    def one(kill: Kill) -> Killed:
        own = directory / str(kill.number)
        own.mkdir()
        return run_and_kill(kill, own)

    with ThreadPoolExecutor(2) as pool:
        killed = list(pool.map(one, plan(seed)))
    print(Counter((each.kill.kind, each.seen) for each in killed))
    assert len(killed) >= 50
    left = [f"{each.kill}: {line}" for each in killed for line in each.left]
    assert not left, "\n".join(left)
    assert control_groups_left([each.job for each in killed if each.job is not None]) == []
    # Those of other processes come and go.
    until(
        lambda: shared_memory() <= memory_before,
        f"the end of what is there beside {sorted(memory_before)} in {SHARED_MEMORY}",
    )
    assert sorted(set(memory_files()) - files_before) == []
