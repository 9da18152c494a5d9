"""A job's master whose nodes are launched by the agent of which AGENT_ENDPOINT says where it listens."""

from __future__ import annotations

import os
import sys

from dlrover_lite.backends.keeper.client import KeeperClient
from dlrover_lite.master_process import __main__ as master
from dlrover_lite.transport.connector import Connector


def client(_: str, *, connector: Connector) -> KeeperClient:
    return KeeperClient(os.environ["AGENT_ENDPOINT"], connector=connector, deadline_seconds=100.0)


if __name__ == "__main__":
    master.KeeperClient = client  # type: ignore[assignment, misc]
    sys.exit(master.main(sys.argv[1:]))
