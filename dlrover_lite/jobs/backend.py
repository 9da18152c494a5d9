"""What runs jobs: the interface through which a job is submitted, found, watched and ended.

``protocol.nodes.Backend`` is what a master needs of whatever runs its nodes; ``JobBackend`` is what a person's commands need of whatever
runs the master. Nothing here assumes processes, signals, one machine or a file system that both sides see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from dlrover_lite.jobs.store import Beginning, Job, Result, State
from dlrover_lite.protocol.brain_mode import BrainMode
from dlrover_lite.transport.endpoints import TransportKind

if TYPE_CHECKING:
    from dlrover_lite.brain.store.history import History
    from dlrover_lite.protocol.hosts import Host
    from dlrover_lite.recipe.schema import Recipe
    from dlrover_lite.transport.connector import Connector

__all__ = ["LOCAL", "Address", "JobBackend", "JobSummary", "Log", "RunOptions", "StopCause"]

StopCause = Literal["request", "terminal closed", "suspend"]
"""Why a job is stopped; its result says so. ``suspend``: it is to go on later, and is suspended then."""


LOCAL = "local"
"""Name of this machine among the sources of jobs."""


class RunOptions(msgspec.Struct, frozen=True):
    """How the processes of a job work together."""

    brain: BrainMode = "off"
    """Brain that the master asks for advice, and tells what happens: the user's daemon, if there is one, or one in its own process."""
    transport: TransportKind = "unix"
    """How the processes of the job reach each other, where the backend leaves that open."""


class JobSummary(msgspec.Struct, frozen=True):
    """What is known of a job without asking its master. Times are seconds since the epoch."""

    id: str
    state: State
    over: bool
    """Whether nothing of the job runs any more; its result may be there a moment earlier."""
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    result: Result | None = None
    """How the job ended; None while it runs. Of a job that was lost it says only that."""
    waits_for: str = ""
    """What keeps a job that is starting from running, in words; empty: nothing that is known."""


class Address(NamedTuple):
    """Where a job's master listens."""

    endpoint: str
    connector: Connector
    """Makes clients for the endpoint, with the job's key where one is needed."""


class Log(Protocol):
    """What one node of a job has written, read as it grows."""

    @property
    def begun(self) -> str:
        """The beginning of a line whose end isn't there yet."""

    @property
    def restarts(self) -> int:
        """How often the log has begun anew since it was first read; the lines of before are then no part of it any more."""

    def new_lines(self, *, at_end: bool = False) -> Iterator[str]:
        """Yield whole lines written since the last call; with ``at_end`` also a last one without a newline. Nothing while the node has
        written nothing. Raises JobError when the log can't be read."""


class JobBackend(Protocol):
    """Whatever runs jobs. A job is named by its id, which no other job of this backend ever has.

    Every call may be repeated, and says the same of a job whoever has submitted it. All raise JobError for a job that never was, and when
    the backend can't be reached, or refuses; the message says which.
    """

    @property
    def source(self) -> str:
        """Name of where its jobs are, as lists of jobs have it."""

    def capacity(self) -> list[Host]:
        """Return the hosts that there are, with what the nodes of a single job may use together on each at most."""

    def shares_cores(self) -> bool:
        """Return whether the nodes of a job that is started now would share the cores that they have together."""

    def dry_run(self, recipe: Recipe) -> None:
        """Check whether a job of this recipe could be started now; nothing is started or stored. Raises JobError where it couldn't be.

        What plan it would begin with is the brain's to say (``client.dry_run``).
        """

    def submit(
        self,
        recipe: Recipe,
        *,
        options: RunOptions,
        detached: bool = False,
        beginning: Beginning | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> str:
        """Start a new job, and return its id once it is known to come up. Each call is a job of its own, also with the same name.

        ``detached``: the job goes on when this process ends; otherwise it is stopped then. ``beginning``: the checkpoint it begins with.
        ``say`` is told what it waits for. Raises JobError when it doesn't come up: it is then a failed job, or none.
        """

    def resume(
        self,
        job: str,
        beginning: Beginning,
        *,
        options: RunOptions,
        detached: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start a job again that is over, with this checkpoint. Raises JobError as ``submit``, and for a job that isn't over."""

    def list(self) -> Sequence[str]:
        """List the ids of all jobs, the oldest first, whether or not they run."""

    def find(self, reference: str) -> str:
        """Return the id that is meant: this one, the only one that starts so, or with ``last`` the newest.

        Raises JobError, naming the nearest ids.
        """

    def files(self, job: str) -> Job:
        """Return the job's directory as it can be read from here: the one that its processes write to, or a copy. Whether there is such a
        job shows when it is read."""

    def state(self, job: str) -> JobSummary:
        """Return how the job is now."""

    def wait(self, job: str, timeout_seconds: float | None = None) -> bool:
        """Wait until nothing of the job runs any more; False: something still does after the timeout. None: without limit."""

    def stop(self, job: str, *, cause: StopCause = "request") -> bool:
        """Ask the job to end in good order, after a last checkpoint. Returns at once; asking again neither hurries nor delays it.

        Returns whether it was told: False while there is nothing to tell yet, so that it is to be asked again, and of a job that is over.
        """

    def kill(self, job: str) -> bool:
        """End the job at once, whatever it does, and whether or not it has a master. Returns at once, and as ``stop``."""

    def log_names(self, job: str) -> Sequence[str]:
        """List whose logs there are: the job's nodes by their ids, and its other processes, also those that have ended."""

    def log(self, job: str, node: str, *, last_lines: int | None = None) -> Log:
        """Return the log of a node, whether or not the node, or the job, has ended; at most so many of the lines there are, the last.

        Raises JobError for a name that no node can have. A node that hasn't written anything, so far or ever, has an empty log.
        """

    def history(self, job: str) -> History | None:
        """Return what the job's own brain keeps of it; None: it reports to this machine's. Raises, when it is asked, JobError too."""

    def address(self, job: str) -> AbstractContextManager[Address | None]:
        """Give the address of the job's master, which is good until the block is left: it may be a tunnel.

        None while the job has no master that listens, and once it is over. Raises JobError where only somebody else may know.
        """
