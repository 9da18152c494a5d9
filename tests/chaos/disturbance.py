"""Somebody who does a job harm, and asks things of it meanwhile, all drawn from a seed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil

from dlrover_lite.core.errors import DlroverLiteError
from tests.chaos.scenarios import move_some
from tests.chaos.support import ChaosJob, processes

__all__ = ["Disturbance"]

MOST_PS = 3
MOST_WORKERS = 3
SLOW_CORES = 0.05
ROLES = {"worker": 4, "ps": 4, "master": 3, "template": 1}
"""How likely each is to be harmed."""
LONGEST_PAUSE_SECONDS = 4.0


class Disturbance:
    """Of one job. What was tried is in ``told``, and what came to pass in ``harm``. A seed fixes what is tried, not how fast the machine is
    meanwhile."""

    def __init__(self, job: ChaosJob, rng: random.Random, harm: Counter[str]) -> None:
        self.job = job
        self.rng = rng
        self.told: list[str] = []
        self.harm = harm
        """Signals that were delivered, by what was hit: ``kill worker``, ``stop master``."""
        self._wishes = ThreadPoolExecutor(1)
        """A master that is stopped answers late, and isn't waited for."""
        self._timers: list[threading.Timer] = []

    def go_on(self, seconds: float, pause_seconds: float = 0.25) -> None:
        """For so long, or until the job has ended; then all that was stopped or slowed down goes on. A node is killed first."""
        end = time.monotonic() + seconds
        try:
            while not self._kill_a_node() and self.job.handle.result() is None:
                time.sleep(0.01)
            while time.monotonic() < end and self.job.handle.result() is None:
                self._do_something()
                time.sleep(self.rng.uniform(0, 2 * pause_seconds))
        finally:
            for timer in self._timers:
                timer.join()
            self._wishes.shutdown()
            print("\n".join([*self.told, *(f"{count} x {what}" for what, count in sorted(self.harm.items()))]))

    def _do_something(self) -> None:
        actions = [self._kill, self._kill_two, self._stop, self._stop, self._slow, self._scale, self._move, self._drain]
        weights = [6, 2, 3, 3, 2, 3, 4, 1]
        (action,) = self.rng.choices(actions, weights)
        with suppress(psutil.NoSuchProcess):  # any more
            action()

    # --- harm -----------------------------------------------------------------------------------------------------------

    def _victim(self) -> tuple[str, psutil.Process] | None:
        """Of any role; None if there is none of it at the moment."""
        (role,) = self.rng.choices(list(ROLES), list(ROLES.values()))
        there = processes(self.job.handle)
        found = sorted(name for name in there if name.startswith(role))
        if not found:
            return None
        name = self.rng.choice(found)
        return name, there[name]

    def _kill_a_node(self) -> bool:
        """A worker or a parameter server, whichever is there; whether one was."""
        there = processes(self.job.handle)
        nodes = sorted(name for name in there if name.startswith(("ps-", "worker-")))
        if not nodes:
            return False
        name = self.rng.choice(nodes)
        with suppress(psutil.NoSuchProcess):
            self._end(name, there[name])
            return True
        return False

    def _end(self, name: str, process: psutil.Process) -> None:
        self.told.append(f"kill -9 {name}")
        process.kill()
        self.harm[f"kill {_role(name)}"] += 1

    def _kill(self) -> None:
        if (victim := self._victim()) is not None:
            self._end(*victim)

    def _kill_two(self) -> None:
        """At the same instant."""
        there = processes(self.job.handle)
        for name in self.rng.sample(sorted(there), min(2, len(there))):
            with suppress(psutil.NoSuchProcess):
                self._end(name, there[name])

    def _stop(self) -> None:
        if (victim := self._victim()) is None:
            return
        name, process = victim
        longest = LONGEST_PAUSE_SECONDS / 2 if name == "template" else LONGEST_PAUSE_SECONDS
        seconds = self.rng.uniform(0.05, longest)
        self.told.append(f"SIGSTOP {name} for {seconds:.2f} s")
        process.send_signal(signal.SIGSTOP)
        self.harm[f"stop {_role(name)}"] += 1

        def go_on() -> None:
            with suppress(psutil.NoSuchProcess):  # given up meanwhile, and killed
                process.send_signal(signal.SIGCONT)

        self._in(seconds, go_on)

    def _slow(self) -> None:
        nodes = [name for name in processes(self.job.handle) if name.startswith(("ps-", "worker-"))]
        if not nodes:
            return
        name, seconds = self.rng.choice(sorted(nodes)), self.rng.uniform(0.2, 2)
        what = f"{SLOW_CORES} cores for {name} for {seconds:.2f} s"
        self._wish(what, lambda: self.job.handle.resize(name, cores=SLOW_CORES))
        self._in(seconds, lambda: self._wish(f"1 core for {name}", lambda: self.job.handle.resize(name, cores=1)))

    # --- wishes ---------------------------------------------------------------------------------------------------------

    def _scale(self) -> None:
        ps, workers = self.rng.randint(1, MOST_PS), self.rng.randint(1, MOST_WORKERS)
        self._wish(f"scale --ps {ps} --workers {workers}", lambda: self.job.handle.scale(ps=ps, workers=workers))

    def _move(self) -> None:
        rng = random.Random(self.rng.random())
        self._wish("move", lambda: move_some(self.job.handle, rng))

    def _drain(self) -> None:
        servers = [name for name in processes(self.job.handle) if name.startswith("ps-")]
        if servers:
            name = self.rng.choice(sorted(servers))
            self._wish(f"drain {name} --replace", lambda: self.job.handle.drain(name, replace=True))

    def _wish(self, what: str, ask: Callable[[], object]) -> None:
        self.told.append(what)

        def wish() -> None:
            with suppress(DlroverLiteError):  # nobody is there to be asked, or it refuses
                ask()

        self._wishes.submit(wish)

    # --- afterwards -----------------------------------------------------------------------------------------------------

    def _in(self, seconds: float, undo: Callable[[], object]) -> None:
        self._timers.append(threading.Timer(seconds, undo))
        self._timers[-1].start()


def _role(name: str) -> str:
    return name.partition("-")[0]
