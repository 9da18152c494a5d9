"""A job's master with all the patience of the real one, and none of its delays: nodes that are killed come back at once, and for ever."""

from __future__ import annotations

import sys

import msgspec

from dlrover_lite.master.checkpoints import restore
from dlrover_lite.master.nodes.relaunch import POLICIES
from dlrover_lite.master_process import __main__ as master

for reason, policy in POLICIES.items():
    if policy.budget:
        POLICIES[reason] = msgspec.structs.replace(policy, budget=10_000, longest_delay_seconds=0.02)
master.SLOW_START_MINIBATCHES = 0
restore.MOST = 10_000

if __name__ == "__main__":
    sys.exit(master.main(sys.argv[1:]))
