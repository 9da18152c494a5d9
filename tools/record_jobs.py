"""Records four jobs beside the TUI in a real terminal (tmux, 120 x 34): one that nothing is known of, one with a hot parameter server (PS),
one whose memory would run out, and one that gives way to another.

    python tools/record_jobs.py [JOB…]

Writes docs/pictures/JOB.jsonl.gz, and prints what the first screen says ten seconds after each decision, and after how many it did so.
Takes two to four minutes a job on two idle cores, root and control groups of version 1 (for the host that turns slow), and tmux.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlrover_lite.brain_server import brain_process
from dlrover_lite.client.handle import JobHandle

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
COMMAND = [sys.executable, "-m", "dlrover_lite"]
SIZE = ("120", "34")
WITHIN_SECONDS, LOOK_SECONDS, MOST_SECONDS = 10.0, 0.25, 480.0
SLOWED_AFTER_SECONDS, SLOWED_TO = 40.0, 0.25


@dataclass(frozen=True)
class Case:
    """Jobs by how many seconds after the beginning they are started."""

    jobs: dict[float, dict[str, Any]]
    slow_node: str = ""
    """The node of the first job whose host turns slow; empty: none."""


def recipe(name: str, samples: int, **sections: Any) -> dict[str, Any]:
    data = {"format": "synthetic", "samples": samples, "eval_samples": 0, "ids_per_field": 20_000, "seed": 1}
    training = {"batch_size": 1024, "optimizer": {"use": "adagrad", "learning_rate": 0.03}}
    whole = {"version": 1, "name": name, "model": "wide_deep", "data": data, "training": training, "autoscale": "on"}
    return {**whole, "checkpoint": {"every_seconds": 30}, **sections}


def of_size(servers: int, ps_cores: float, ps_memory: str) -> dict[str, Any]:
    ps = {"count": servers, "cores": ps_cores, "memory": ps_memory}
    return {"ps": ps, "worker": {"count": 1, "cores": 1, "memory": "1GiB"}}


def wide(dim: int) -> dict[str, Any]:
    """Many values a row, and little to compute with them."""
    return {"use": "wide_deep", "options": {"embedding_dim": dim, "hidden": [32]}}


def growing(samples: int, ids: int) -> dict[str, Any]:
    return {
        "format": "synthetic",
        "samples": samples,
        "eval_samples": 0,
        "ids_per_field": ids,
        "zipf_exponent": 0.6,
        "seed": 1,
    }


CASES = {
    "cold": Case({0.0: recipe("feed", 1_500_000), 3.0: recipe("ads", 6_000_000)}),
    "hot-ps": Case(
        {0.0: recipe("hot", 9_000_000, model=wide(32), resources=of_size(2, 0.2, "1GiB"), checkpoint="off")}, "ps-0"
    ),
    "memory": Case(
        {
            0.0: recipe(
                "growing",
                3_000_000,
                model=wide(16),
                data=growing(3_000_000, 300_000),
                resources=of_size(1, 0.75, "256MiB"),
                checkpoint="off",
            )
        }
    ),
    "preemption": Case(
        {
            0.0: recipe("nightly", 4_000_000, resources=of_size(1, 0.5, "1GiB"), priority=1),
            45.0: recipe("urgent", 1_500_000, resources=of_size(1, 0.5, "1GiB"), priority=3),
        }
    ),
}


class Tmux:
    """A server of its own with one window, in which a shell runs."""

    def __init__(self, home: Path) -> None:
        self._command = ["tmux", "-u", "-S", str(home / "tmux"), "-f", "/dev/null"]
        self.do("new-session", "-d", "-x", SIZE[0], "-y", SIZE[1], "sh")
        self.do("set-option", "-g", "status", "off")

    def do(self, *arguments: str) -> str:
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        return subprocess.run(
            [*self._command, *arguments], env=environment, capture_output=True, text=True, check=True
        ).stdout

    def line(self) -> str:
        """The second line of what is shown: the last change."""
        return (*self.do("capture-pane", "-p").splitlines(), "", "")[1].strip()


@dataclass
class Session:
    """Jobs that run, and what the screen has said."""

    home: Path
    case: Case
    jobs: list[JobHandle] = field(default_factory=list)
    said: list[tuple[float, str]] = field(default_factory=list)
    """Each line, and since when (seconds since the epoch) it was there."""

    def run(self, recording: Path) -> None:
        began, to_start, slowed = time.monotonic(), dict(self.case.jobs), not self.case.slow_node
        terminal = None
        try:
            while to_start or not all(job.known().over for job in self.jobs):
                passed = time.monotonic() - began
                if passed > MOST_SECONDS:
                    raise SystemExit(f"{', '.join(job.id for job in self.jobs)} took longer than {MOST_SECONDS:.0f} s")
                for at in [at for at in to_start if at <= passed]:
                    self.jobs.append(self._start(to_start.pop(at)))
                if terminal is None:
                    terminal = Tmux(self.home)
                    terminal.do("send-keys", "-l", f"{' '.join(COMMAND)} tui --record {recording}")
                    terminal.do("send-keys", "Enter")
                if not slowed and passed >= SLOWED_AFTER_SECONDS:
                    slowed = True
                    self._slow_down()
                if (text := terminal.line()) != (self.said[-1][1] if self.said else ""):
                    self.said.append((time.time(), text))
                time.sleep(LOOK_SECONDS)
            time.sleep(5.0)  # the end is to be seen, too
            assert terminal is not None
            terminal.do("send-keys", "q")
            time.sleep(2.0)
        finally:
            if terminal is not None:
                terminal.do("kill-server")
            for job in self.jobs:
                if not job.known().over:
                    job.stop(kill=True)

    def _start(self, wanted: dict[str, Any]) -> JobHandle:
        path = self.home / f"{wanted['name']}.yaml"
        path.write_text(json.dumps(wanted))  # which is YAML, too
        done = subprocess.run(
            [*COMMAND, "run", str(path), "--detach"], stdout=subprocess.PIPE, text=True, check=True, cwd=self.home
        )
        return JobHandle.find(done.stdout.split()[-1])

    def _slow_down(self) -> None:
        sys.path.append(str(ROOT / "bench"))
        from _slow_host import pid_of, slow_down

        job = self.jobs[0]
        keeper = job.job.record().keeper
        assert keeper is not None
        node = next(node for node in job.status().nodes if node.id == self.case.slow_node)
        slow_down(pid_of(keeper.pid, node.id), node.cores * SLOWED_TO)
        print(f"{time.strftime('%H:%M:%S', time.gmtime())}  the host of {node.id} turns slow")

    def report(self) -> None:
        for job in self.jobs:
            shown = subprocess.run(
                [*COMMAND, "history", job.id, "--json"], stdout=subprocess.PIPE, text=True, check=True
            )
            for one in json.loads(shown.stdout)["decisions"]:
                if one["action"] == "stay":
                    continue
                at = one["at"]
                before = [text for since, text in self.said if since <= at]
                after = [(since, text) for since, text in self.said if at < since <= at + WITHIN_SECONDS]
                took = f"{after[0][0] - at:.1f} s after" if after else "not within ten seconds"
                text = after[-1][1] if after else (before or [""])[-1]
                print(f"{job.id}: {one['action']}, {took}:\n  {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", choices=[*CASES, []], help=", ".join(CASES))
    for name in parser.parse_args().jobs or CASES:
        with tempfile.TemporaryDirectory(prefix="dlr-") as home:
            os.environ.update(DLROVER_LITE_HOME=home, PYTHONPATH=str(ROOT), TZ="UTC")
            session = Session(Path(home), CASES[name])
            recording = PICTURES / f"{name}.jsonl.gz"
            recording.unlink(missing_ok=True)
            try:
                session.run(recording)
                session.report()
            finally:
                brain_process.stop()


if __name__ == "__main__":
    main()
