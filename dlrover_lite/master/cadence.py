"""How often a master looks at things that nobody tells it, in numbers that are handed in. What is usual fits real jobs, whose nodes may
end, and whose memory may fill up, at any moment; a simulation whose nodes report every few seconds gets by with far fewer looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.master.work.lease_size import LeasePolicy

if TYPE_CHECKING:
    from dlrover_lite.master.generation_run import GenerationRun

__all__ = ["USUAL", "Cadence", "is_calm", "pause_seconds"]


class Cadence(msgspec.Struct, frozen=True, kw_only=True):
    reconcile_seconds: float = 0.1
    """Seconds from one comparison of what there is with what is wanted to the next: whatever a change waits for is met within that."""
    calm_seconds: float = 0.1
    """The same while nothing is under way (``is_calm``). As often in a real job: a parameter server may fill up within a second."""
    usage_seconds: float = 1.0
    """Seconds from one reading of what nodes have used to the next."""
    hosts_seconds: float = 15.0
    """Seconds between two looks at which hosts there are."""
    remember_seconds: float = 1.0
    """Seconds between two writings of counters that only people are told: lines read, staleness."""
    show_seconds: float = 2.0
    """Seconds between two writings of the status for those who can't ask any more."""
    leases: LeasePolicy = LeasePolicy()
    """How much work workers get at once."""
    wait_seconds: float = 0.2
    """Seconds after which a worker asks again that there was nothing to do for."""

    @property
    def longest_turn_seconds(self) -> float:
        """The most seconds from one look at who has been silent to the next for which anybody is blamed: after more, the master itself was
        held up, or the machine was asleep."""
        return max(1.0, 2 * self.reconcile_seconds, 2 * self.calm_seconds)


USUAL = Cadence()


def pause_seconds(run: GenerationRun, cadence: Cadence) -> float:
    """Return the seconds from one comparison of what there is with what is wanted to the next, as things are now."""
    is_rare = cadence.calm_seconds > cadence.reconcile_seconds and is_calm(run)
    return cadence.calm_seconds if is_rare else cadence.reconcile_seconds


def is_calm(run: GenerationRun) -> bool:
    """Say whether nothing is under way that the master brings nearer to its end with each look: all nodes are up and as large as they are
    to be, slots rest, no decision is carried out, no checkpoint taken, and there is still something to train on."""
    checkpoints = run.checkpoints
    return (
        run.outcome is None
        and run.beginning is None
        and run.failing is None
        and not run.stopping
        and not run.shards.trained
        and not run.fleet.pending
        and all(node.state == "up" and node.wanted is None for node in run.fleet.running)
        and run.servers.at_rest
        and run.servers.settled
        and run.executor.state.goal is None
        and (checkpoints is None or checkpoints.cuts.phase == "idle")
    )
