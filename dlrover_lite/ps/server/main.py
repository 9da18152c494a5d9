"""The parameter server's process: one loop that answers requests in the order they come, and works a little between them."""

from __future__ import annotations

import signal
import time
import traceback
from contextlib import closing
from pathlib import Path

from dlrover_lite.core.errors import DeadlineExceeded, JobError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.core.processes.log import log
from dlrover_lite.protocol.messages import Hello, MasterReplies, NodeFailed, PsOrders, Welcome
from dlrover_lite.protocol.nodes import UNANSWERED_EXIT_CODE, UNANSWERED_SECONDS, NodeSpec
from dlrover_lite.protocol.ps_messages import PsReplies, PsRequests
from dlrover_lite.ps.journal.memory_check import ParametersLost, check_memory
from dlrover_lite.ps.memory.node_memory_client import open_memory
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.server.service import PsService, Unrestorable
from dlrover_lite.ps.snapshots.writer_process import SnapshotWriterProcess
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.polling import wait_for_messages
from dlrover_lite.transport.server import Server
from dlrover_lite.transport.tcp_connections import own_tcp_connections

__all__ = ["main"]

AT_ONCE = 16
"""Number of requests that are answered before anything else is looked at."""


def _terminate(_signal: int, _frame: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)  # who has asked, the backend knows


def main(spec: NodeSpec, _job_directory: Path) -> int:
    """Serve until SIGTERM."""
    persister = SnapshotWriterProcess.forked()  # before there are threads, and anything that it shouldn't have
    signal.signal(signal.SIGTERM, _terminate)
    connector = Connector.of_this_process()
    server = connector.server(spec.listen, PsRequests)
    master = connector.client(spec.master_endpoint, MasterReplies, peer="the master")

    def connect(endpoint: str, peer: str) -> Client:
        return connector.client(endpoint, PsReplies, peer=peer)

    try:
        engine = _engine(spec)
        connections = own_tcp_connections if spec.listen.startswith("tcp://") else tuple
        service = PsService(spec.id, engine, server, connect, say=log, persister=persister, connections=connections)
        with closing(service):
            welcome = master.call(Hello(spec.id, "ps", server.endpoint), deadline_seconds=UNANSWERED_SECONDS).body
            if isinstance(welcome, Welcome) and welcome.recipe.checkpoint == "off":
                service.snapshots.spare_persister()
            if spec.follows:
                failpoint("ps.attach.told")
            while True:
                _turn(service, server, master, spec)
    except DeadlineExceeded as error:
        log(str(error))
        return UNANSWERED_EXIT_CODE
    except (ParametersLost, Unrestorable) as error:
        trace = traceback.format_exc()
        log(f"{error}\n{trace}")
        master.call(NodeFailed(spec.id, False, str(error), trace, because=error.because))
        return 1
    finally:
        server.close()
        master.close()
        connector.close()


def _engine(spec: NodeSpec) -> Engine:
    """Make the engine, with all that the PS had which this one follows. Raises ParametersLost when that can't be taken up."""
    began = time.monotonic()
    if spec.follows:
        failpoint("ps.attach.begun")
    try:
        engine = Engine(memory=open_memory(spec.id), follows=bool(spec.follows))
    except JobError as error:
        if not spec.follows:
            raise
        raise ParametersLost(spec.follows, error.message, error.hint) from error
    if spec.follows:
        failpoint("ps.attach.attached")
    if spec.follows and engine.configuration is not None:
        rows = sum(int(group.slot_rows.sum()) for group in engine.groups)
        log(f"has taken up {rows:,} rows of {spec.follows} in {time.monotonic() - began:.3f} s")
    return engine


def _turn(service: PsService, server: Server, master: Client, spec: NodeSpec) -> None:
    while (reply := master.receive(0)) is not None:
        if isinstance(reply.body, PsOrders):
            check_memory(reply.body, service.engine.state, spec.follows)
            service.follow(reply.body)
            if spec.follows and reply.body.version:
                failpoint("ps.attach.owning")
    wait_seconds = service.work()
    if not service.report_in:
        # an answer isn't waited for: the next report says it all again
        master.send(service.report())
        wait_seconds = min(wait_seconds, service.report_in)
    sockets = [*server.sockets, master.socket, *service.sockets]
    if wait_seconds:
        with service.meter.pausing():
            wait_for_messages(sockets, wait_seconds)
    requests = server.receive(0, limit=AT_ONCE)
    service.meter.found(all_of_them=len(requests) < AT_ONCE)
    service.serve(requests)
