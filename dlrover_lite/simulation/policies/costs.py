"""What changes of plans cost under each policy, by two tables: all by the mechanisms of this project, or each by those of its paper."""

from __future__ import annotations

from typing import Literal

from dlrover_lite.backends.sim.fluid.changes import MECHANISMS, ChangeCosts

__all__ = ["BY_PAPER", "CostTable", "costs_of"]

CostTable = Literal["mechanisms", "papers"]

BY_PAPER: dict[str, ChangeCosts] = {
    "es": ChangeCosts(stop_seconds=10.0),
    "optimus": ChangeCosts(restarts=True, stop_seconds=30.0),
}
"""ES (Or et al., MLSys 2020) keeps the processes that run, and adds others: training stands still while all agree on who is there, some
seconds, from memory; 10 is an assumption. Optimus (Peng et al., EuroSys 2018) takes a checkpoint, ends all nodes of the job and starts
others from it; how long its checkpoints take isn't known here: 30 s is an assumption, beside the start of nodes and the reading of rows,
which are simulated. DLRover-RM's authors tell of about 5 minutes that such a migration costs more than theirs (their page on
DLRover-RM)."""


def costs_of(policy: str, table: CostTable) -> ChangeCosts:
    """Return what a change costs under a policy; by the papers too, those that change nothing pay nothing."""
    return BY_PAPER.get(policy, MECHANISMS) if table == "papers" else MECHANISMS
