"""Simulated machines and the processes on them: who has room where, and who gets which cores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from dlrover_lite.backends.sim.clock import EventClock
from dlrover_lite.backends.sim.physics.cpu_sharing import share_cores
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.network_cards import NetworkCards
from dlrover_lite.backends.sim.pools import Pool, Pools
from dlrover_lite.backends.sim.process import Process, Work
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.protocol.hosts import less, sum_of

__all__ = ["Cluster"]

_ROUNDING = 1e-9


class Cluster:
    """Machines by name, which any number of jobs share. ``pools``: those of them that come while a process waits for room, and go when they
    stand idle, each with its pool."""

    def __init__(
        self, machines: Mapping[str, Machine], clock: EventClock, pools: Mapping[str, Pool] | None = None
    ) -> None:
        self.machines = dict(machines)
        self.clock = clock
        self.cards = NetworkCards[Callable[[], None]]()
        """What jobs have pass the machines' network cards; each is called when its part of them has changed."""
        self.cpu_seconds = dict.fromkeys(machines, 0.0)
        """CPU seconds of all processes of each machine, as of the last ``settle``."""
        self.image_at: dict[str, float] = {}
        """Time from which on a machine has the image of nodes."""
        self.failed: set[str] = set()
        """Machines that have failed, and aren't repaired: nothing runs on them."""
        self._on: dict[str, list[Process]] = {name: [] for name in machines}
        self._wishes: dict[str, tuple[float, list[Process], list[float], list[Work | None]]] = {}
        """What the present shares of each machine's cores follow from: its speed, who runs there, what cores they want, and for what."""
        self._waiting: list[tuple[Callable[[], bool], Process]] = []
        self._counted_at: dict[str, float] = {}
        """When it was counted last what the processes of each machine have used."""
        self._away: set[str] = set()
        """Machines of pools that aren't there."""
        self._pools = Pools(self, clock, pools or {})

    # --- room ------------------------------------------------------------------------------------------------------------

    def left(self, host: str, *, beside: Process | None = None) -> Resources:
        """Return what a machine has left, ``beside`` what one process has."""
        machine = self.machines[host]
        taken = [one.taken for one in self._on[host] if one is not beside]
        return less(Resources(machine.cores, machine.memory), taken)

    def find(self, process: Process, *, host: str = "", avoids: Collection[str] = ()) -> tuple[str, str]:
        """Return the machine for a process, that with the most cores left of those with room, and none of those that it ``avoids`` where
        there is another; or an empty name, and why there is no room. ``host``: the only one that will do."""
        names = [
            name for name in ([host] if host else self.machines) if name not in self.failed and name not in self._away
        ]
        room = {name: self.left(name, beside=process) for name in names}
        having = [name for name in names if fits(process.limits, room[name])]
        if having:
            return max(having, key=lambda name: (name not in avoids, room[name].cores)), ""
        where = host or f"none of {len(self.machines) - len(self._away)} machines"
        verb = "hasn't" if host else "has"
        return "", f"{where} {verb} {words_of(process.limits)} left"

    def place(self, process: Process, host: str) -> None:
        """Take room for a process, or for what it has been left on that machine."""
        if process.host and process in self._on[process.host]:
            self._on[process.host].remove(process)
            self._look_whether_empty(process.host)
        process.host = host
        process.counted_at = self.clock.now  # what was before it came is none of its time
        self._on[host].append(process)

    def when_room(self, process: Process, attempt: Callable[[], bool]) -> None:
        """Have a process for which there is no room tried again whenever there may be some, until the attempt says that it needn't be; the
        first one first."""
        self._waiting.append((attempt, process))
        self._have_machines_come()

    def give_back(self, host: str) -> None:
        """Take note that processes of a machine have ended, or have less than before."""
        self._on[host] = [one for one in self._on[host] if one.state != "ended" or one.kept]
        self.settle(host)
        self._look_whether_empty(host)
        self.try_waiting()

    def try_waiting(self) -> None:
        """Try again what finds no room so far."""
        waiting, self._waiting = self._waiting, []
        self._waiting = [one for one in waiting if not one[0]()] + self._waiting
        self._have_machines_come()

    def on(self, host: str) -> list[Process]:
        """Return the processes that a machine's room is taken for, or the memory that they have left."""
        return list(self._on[host])

    # --- machines that come and go ----------------------------------------------------------------------------------------

    def is_there(self, host: str) -> bool:
        return host not in self._away

    def set_there(self, host: str, there: bool) -> None:
        """Have a machine of a pool come, which has no image yet, or go."""
        if not there:
            self._away.add(host)
            self.image_at.pop(host, None)
        else:
            self._away.discard(host)
            self.try_waiting()

    def is_empty(self, host: str) -> bool:
        return not self._on[host]

    def _look_whether_empty(self, host: str) -> None:
        if self.is_empty(host):
            self._pools.emptied(host)

    def _have_machines_come(self) -> None:
        """Have pools grow by what waits for room, if a machine of theirs could hold it."""
        if self._away and self._waiting:
            wanted = [one.limits for _, one in self._waiting if self._pools.could_hold(one.limits)]
            self._pools.wanted(sum_of(wanted))

    # --- what happens to machines ------------------------------------------------------------------------------------------

    def set_speed(self, host: str, speed: float) -> None:
        """Have a machine do more, or less, in a second from now on."""
        self._count(host)
        self.machines[host] = replace(self.machines[host], speed=speed)
        self.settle(host)

    def fail(self, host: str) -> list[Process]:
        """Take note that a machine has failed: no memory on it is left. Return what was there, for its backend to end."""
        self.failed.add(host)
        there, self._on[host] = self._on[host], []
        for process in there:
            process.kept.clear()
        self._look_whether_empty(host)
        return there

    def repair(self, host: str) -> None:
        """Let a machine that has failed be used again."""
        self.failed.discard(host)
        self.try_waiting()

    # --- time ------------------------------------------------------------------------------------------------------------

    def settle(self, host: str) -> None:
        """Count what a machine's processes have used by now, and share its cores among those that want some from now on."""
        self._count(host)
        speed, running = self.machines[host].speed, [one for one in self._on[host] if one.state == "running"]
        wanted = [one.wanted_cores for one in running]
        wishes = speed, running, wanted, [one.works[0] if one.works else None for one in running]
        if wishes == self._wishes.get(host):
            return  # all goes on as before
        self._wishes[host] = wishes
        cores = share_cores(wanted, self.machines[host].cores)
        for process, its in zip(running, cores, strict=True):
            pace = process.work, its, speed
            if pace == process.pace:
                continue
            process.pace, process.cores = pace, its
            if process.done is not None:
                process.done.cancel()
            seconds = process.seconds_left(speed)
            process.done = None
            if seconds < float("inf"):
                process.done = self.clock.after(seconds, partial(self._work_done, process))

    def changed(self, process: Process) -> None:
        """Take note that a process wants other cores than before, or has other memory, which it has had until now."""
        if _computes(self._on[process.host]):
            self.settle(process.host)
        else:
            self._count_one(process, process.host)

    def count(self, hosts: Iterable[str]) -> None:
        """Count what processes of these machines have used by now."""
        for host in hosts:
            self._count(host)

    def _count(self, host: str) -> None:
        if self._counted_at.get(host) == self.clock.now:
            return  # as for another of the jobs that have nodes there
        self._counted_at[host] = self.clock.now
        for process in self._on[host]:
            self._count_one(process, host)

    def _count_one(self, process: Process, host: str) -> None:
        now = self.clock.now
        seconds, process.counted_at = now - process.counted_at, now
        if seconds > 0 and process.state in ("placed", "running"):
            self.cpu_seconds[host] += process.passes(seconds, self.machines[host].speed)

    def _work_done(self, process: Process) -> None:
        self._count(process.host)
        work = process.works.popleft()
        self.settle(process.host)
        work.then()


def _computes(processes: Iterable[Process]) -> bool:
    """Say whether any of these processes computes anything, so that its cores have to be shared."""
    return any(one.works or one.cores for one in processes)


def fits(wanted: Resources, room: Resources) -> bool:
    return wanted.cores <= room.cores + _ROUNDING and wanted.memory <= room.memory


def words_of(resources: Resources) -> str:
    return f"{resources.cores:g} cores and {format_bytes(resources.memory)}"
