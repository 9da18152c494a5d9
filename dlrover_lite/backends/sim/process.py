"""What a simulated node does while it runs, and what that uses: CPU by pieces of work, first come first served, and memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from dlrover_lite.backends.sim.clock import Event
from dlrover_lite.core.units import Resources

__all__ = ["Kept", "Process", "Program"]

_NO_ROOM = Resources(0.0, 0)
_NOTHING = 1e-9


@dataclass(frozen=True)
class Kept:
    """Memory that outlives its process."""

    bytes: int
    content: object = None


@dataclass(eq=False)
class Work:
    """A piece of what a process computes."""

    left: float
    """CPU seconds of a machine of speed 1 that are still to be done; infinite: it never ends."""
    threads: float
    then: Callable[[], object]


class Program(Protocol):
    """What runs in a process. All calls return at once; what takes time is work, or an event."""

    def begin(self, process: Process) -> None:
        """Begin, now that the process runs."""

    def asked_to_end(self) -> None:
        """Take note of SIGTERM: the process ends when the program ends it, or is killed."""

    def resized(self) -> None:
        """Take note that the process has other limits."""

    def ended(self) -> None:
        """Take note that the process has ended, however: nothing of the program goes on."""


@dataclass(eq=False)
class Process:
    """A process of a simulated machine. What it is given is for whoever runs it to set; what it does is said by its program."""

    name: str
    limits: Resources
    host: str
    """Name of its machine; empty: none yet."""
    kept: dict[str, Kept]
    """Memory that outlives it, by name, with what was left to it."""
    changed: Callable[[Process], None]
    """Function that is told when it wants more or less CPU or memory than before."""
    ends: Callable[[Process, int], None]
    """Function that is told that it ends by itself, with its exit code, negative for a signal."""
    state: Literal["waiting", "placed", "running", "ended"] = "waiting"
    """Placed: a machine's room is taken for it, and it is being started."""
    cpu_seconds: float = 0.0
    throttled_seconds: float = 0.0
    private_bytes: int = 0
    shared_bytes: int = 0
    """Bytes of shared memory that ends with it."""
    peak_bytes: int = 0
    reserved: Resources = _NO_ROOM
    """Resources of the one whose memory it takes over."""
    paused: bool = False
    """It is stopped (SIGSTOP): it has all that it has, and uses no core."""
    works: deque[Work] = field(default_factory=deque)
    """Pieces of work that are still to be done, one after the other."""
    cores: float = 0.0
    """Cores that it has just now."""
    done: Event | None = field(default=None, repr=False)
    """Event of its work's end, as long as it goes on having these cores."""
    pace: tuple[Work | None, float, float] = (None, 0.0, 0.0)
    """What it computes, the cores that it has for that, and the speed of its machine, when that end was foreseen."""
    counted_at: float = 0.0
    """Time until which is counted what it has used."""
    given_core_seconds: float = 0.0
    """CPU seconds that it could have used, since it has had its place on a machine."""
    given_byte_seconds: float = 0.0
    used_byte_seconds: float = 0.0
    steady_cores: float = 0.0
    """Cores that it uses whatever else it computes."""
    steady_throttling: float = 0.0
    """Share of the time in which its limit holds it back at that."""
    own_time: Callable[[], float] | None = field(default=None, repr=False)
    """Clock by which it uses those; None: everybody's."""
    own_counted_at: float = 0.0
    """Time on that clock until which is counted what it has used."""

    # --- what its program says -------------------------------------------------------------------------------------------

    def do(self, cpu_seconds: float, then: Callable[[], object] = lambda: None, *, threads: float = 1.0) -> None:
        """Compute, after what is still to be computed; then do that. The seconds are those of a machine of speed 1."""
        self.works.append(Work(cpu_seconds, threads, then))
        if len(self.works) == 1:
            self.changed(self)

    def use(self, cores: float, throttling: float = 0.0, *, own_time: Callable[[], float] | None = None) -> None:
        """Use so many cores from now on, and be held back for that share of the time: what a program says that knows what it can have.
        ``own_time``: the clock of its time, in seconds, where that isn't everybody's."""
        self.changed(self)  # what it has used until now counts first
        self.steady_cores, self.steady_throttling = cores, throttling
        self.own_time = own_time
        if own_time is not None:
            self.own_counted_at = own_time()

    def hold(self, private: int, shared: int = 0) -> None:
        """Have so much memory that ends with it."""
        if (private, shared) == (self.private_bytes, self.shared_bytes):
            return
        self.private_bytes, self.shared_bytes = private, shared
        self.changed(self)

    def pause(self, paused: bool) -> None:
        """Stop it, or let it go on."""
        self.paused = paused
        self.changed(self)

    def keep(self, name: str, bytes: int, content: object = None) -> None:
        """Have memory that outlives it."""
        if (before := self.kept.get(name)) is not None and before.bytes == bytes and before.content is content:
            return
        self.kept[name] = Kept(bytes, content)
        self.changed(self)

    def end(self, exit_code: int) -> None:
        if self.running:
            self.ends(self, exit_code)

    # --- what it uses ----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def taken(self) -> Resources:
        """Resources that are taken for it on its host: its limits, also after its end as long as memory outlives it, as a pod keeps its
        room; before it has a place those of the one whose memory it takes over."""
        if self.state in ("placed", "running"):
            return self.limits
        if not self.kept:
            return _NO_ROOM
        held = self.limits if self.state == "ended" else self.reserved
        return held.or_more(Resources(0.0, self.outliving_bytes))

    @property
    def outliving_bytes(self) -> int:
        return sum([one.bytes for one in self.kept.values()]) if self.kept else 0

    @property
    def bytes(self) -> int:
        """Bytes that it is charged for: of one that has ended, those that outlive it."""
        return self.outliving_bytes + (self.private_bytes + self.shared_bytes if self.running else 0)

    @property
    def work(self) -> Work | None:
        """The piece that is being computed."""
        return self.works[0] if self.works else None

    @property
    def wanted_cores(self) -> float:
        """Cores that it could use, within its limit."""
        if not self.works or self.paused or self.state != "running":
            return 0.0
        return min(self.works[0].threads, self.limits.cores)

    @property
    def held_back(self) -> float:
        """Share of the time in which its limit, and nothing else, holds it back."""
        if not self.works or self.cores < self.limits.cores - _NOTHING:
            return 0.0
        return max(0.0, 1.0 - self.cores / self.works[0].threads)

    def passes(self, seconds: float, speed: float) -> float:
        """Let time pass with the cores that it has; return the CPU seconds that it has used."""
        limits = self.limits
        self.given_core_seconds += seconds * limits.cores
        self.given_byte_seconds += seconds * limits.memory
        if self.state != "running":
            return 0.0
        self.used_byte_seconds += seconds * (self.outliving_bytes + self.private_bytes + self.shared_bytes)
        own = seconds
        if self.own_time is not None:
            before, self.own_counted_at = self.own_counted_at, self.own_time()
            own = self.own_counted_at - before
        used = seconds * self.cores + (0.0 if self.paused else own * self.steady_cores)
        self.cpu_seconds += used
        throttled = own * self.steady_throttling
        if self.works:
            throttled = max(throttled, seconds * self.held_back)
            self.works[0].left -= seconds * self.cores * speed
        self.throttled_seconds += throttled
        return used

    def seconds_left(self, speed: float) -> float:
        """Seconds until its work is done with the cores that it has; infinite if never."""
        if self.work is None or math.isinf(self.work.left):
            return math.inf
        if self.work.left <= _NOTHING:
            return 0.0
        return self.work.left / (self.cores * speed) if self.cores > 0 else math.inf
