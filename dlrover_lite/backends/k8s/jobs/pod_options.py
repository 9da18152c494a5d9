"""``options.json`` in a job's pods: how they run, beside what the recipe says."""

from __future__ import annotations

import msgspec

from dlrover_lite.backends.keeper.options import KeeperOptions
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs.backend import RunOptions

__all__ = ["GRACE_WITH_CHECKPOINT_SECONDS", "PodOptions", "pod_options"]

GRACE_WITH_CHECKPOINT_SECONDS = 90.0
"""Seconds that a master gets which is to stop: it takes a last checkpoint, for at most a minute, then ends its nodes."""
_MASTER = ["python", "-P", "-m", "dlrover_lite.master_process"]
"""Command of the master, by the image's Python: the one of the workstation is another."""


class PodOptions(msgspec.Struct, frozen=True, kw_only=True):
    keeper: KeeperOptions = msgspec.field(default_factory=KeeperOptions)
    """How the keeper in the master's pod runs the master."""
    agent: str = ""
    """Options of the agents in nodes' pods, as JSON; empty: the usual ones."""
    seen_capacity: Resources | None = None
    """What there was for the job when it was submitted: its master goes by that where it may not look. None: nobody looked."""


def pod_options(
    given: PodOptions | None, options: RunOptions, *, takes_checkpoints: bool, shares_brain: bool = False
) -> PodOptions:
    """Return the options of a job's pods. A brain is in the master's own process, unless the job shares one (``daemon``)."""
    chosen = given
    if chosen is None:
        grace = GRACE_WITH_CHECKPOINT_SECONDS if takes_checkpoints else KeeperOptions().master_grace_seconds
        chosen = PodOptions(keeper=KeeperOptions(master=_MASTER, master_grace_seconds=grace))
    brain = "embedded" if options.brain == "daemon" and not shares_brain else options.brain
    return msgspec.structs.replace(chosen, keeper=msgspec.structs.replace(chosen.keeper, brain=brain))
