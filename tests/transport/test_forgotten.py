"""Connectors that nobody has closed."""

from __future__ import annotations

import subprocess
import sys

FORGETS = """
import gc
from dlrover_lite.protocol.messages import MasterReplies, MasterRequests
from dlrover_lite.transport.connector import Connector

def forget():
    connector = Connector()
    together = [connector, connector.server("inproc://x", MasterRequests), connector.client("inproc://x", MasterReplies)]
    together.append(together)  # so that the garbage collector finds them at once

for _ in range(20):
    forget()
gc.collect()
print("goes on")
"""


def test_a_process_goes_on_when_the_garbage_collector_finds_a_connector_with_open_sockets() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", FORGETS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "goes on\n"
