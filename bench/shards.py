"""How fast the shard service gives out leases, durable before the answer leaves, and how large its ledger grows.

A server process runs the loop of a master (drain, apply, commit once, reply); clients are processes that report a lease done and ask
for the next one, one request at a time, over the real wire. The baseline is the same with a server that answers at once and
keeps nothing: what the wire alone can do on this machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import zmq
from common import Figure, arguments, emit, line_of, medians, start_process

from dlrover_lite.core.units import MIB
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.work.lease_size import LeasePolicy
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.shards import ShardPlan, ShardService
from dlrover_lite.protocol.messages import Ack, Finished, Lease, LeaseRequest, MasterReplies, MasterRequests, Wait
from dlrover_lite.protocol.questions import StopRequest
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.server import Server

SHARDS = 10_000_000
ONE_SHARD = LeasePolicy(largest_minibatches=1)
PLAN = ShardPlan(samples=SHARDS * 1024, batch_size=1024, epochs=1)
START_DELAY_SECONDS = 0.05


# --- processes --------------------------------------------------------------------------------------------------------


def serve(endpoint: str, ledger: str) -> None:
    """A master's loop over the ledger in this file; with an empty name, answers from nothing."""
    server = Server(endpoint, MasterRequests, context=zmq.Context.instance(), remember_replies=True)
    with ExitStack() as stack:
        if ledger:
            store = stack.enter_context(LedgerStore(Path(ledger)))
            story = EventLog(lambda _: None, time.time)  # as a master has it
            service = ShardService(store, PLAN, policy=ONE_SHARD, story=story)
        stack.callback(server.close)
        print("ready", flush=True)
        while True:
            requests = server.receive(None)
            now = time.monotonic()
            answers: list[Lease | Wait | Finished | Ack] = []
            for request in requests:
                asked: LeaseRequest | StopRequest = request.body
                if isinstance(asked, StopRequest):
                    answers.append(Ack())
                elif not ledger:
                    answers.append(Lease(1, "train", 0, 0, 1))
                else:
                    answers.append(service.report_and_lease(asked.node, asked.token, asked.consumed, now=now).work)
            if ledger:
                service.commit()
            for request, answer in zip(requests, answers, strict=True):
                server.reply(request, answer)
            if any(isinstance(request.body, StopRequest) for request in requests):
                return


def ask(node: str) -> None:
    """A client: for each line "endpoint start seconds" of stdin, asks from then on for so long, and prints how many were answered."""
    clients: dict[str, Client] = {}
    leases: dict[str, Lease] = {}
    for line in sys.stdin:
        endpoint, start, seconds = line.split()
        if endpoint not in clients:
            clients[endpoint] = Client(endpoint, MasterReplies, context=zmq.Context.instance())
        client, count = clients[endpoint], 0
        lease: Lease | None = leases.get(endpoint)
        time.sleep(max(0.0, float(start) - time.monotonic()))
        end = float(start) + float(seconds)
        while time.monotonic() < end:
            request = LeaseRequest(node, lease.token, [(lease.start, lease.stop)]) if lease else LeaseRequest(node)
            lease = client.call(request).body
            count += 1
        if lease:
            leases[endpoint] = lease
        print(count, flush=True)
    for client in clients.values():
        client.close()


@contextmanager
def running_server(directory: Path, name: str, ledger: Path | None) -> Iterator[str]:
    endpoint = f"ipc://{directory}/{name}.sock"
    with start_process(__file__, "serve", endpoint, str(ledger or "")) as server:
        try:
            line_of(server)
            yield endpoint
            with zmq.Context() as context:
                client = Client(endpoint, MasterReplies, context=context)
                client.call(StopRequest())
                client.close()
        finally:
            server.terminate()


@contextmanager
def running_clients(count: int) -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        clients = [stack.enter_context(start_process(__file__, "ask", f"worker-{i}")) for i in range(count)]
        yield clients  # on leaving, each client's stdin is closed, which ends it


def per_second(clients: list[subprocess.Popen[str]], endpoint: str, seconds: float) -> Callable[[], float]:
    def measure() -> float:
        start = time.monotonic() + START_DELAY_SECONDS
        for client in clients:
            assert client.stdin is not None
            client.stdin.write(f"{endpoint} {start} {seconds}\n")
            client.stdin.flush()
        return sum(int(line_of(client)) for client in clients) / seconds

    return measure


# --- figures ----------------------------------------------------------------------------------------------------------


def lease_rates(directory: Path, rounds: int, seconds: float) -> list[Figure]:
    with (
        running_clients(8) as clients,
        running_server(directory, "ledger", directory / "wire.sqlite") as durable,
        running_server(directory, "nothing", None) as nothing,
    ):
        measured = medians(
            {
                f"{kind}_{count}": per_second(clients[:count], endpoint, seconds)
                for count in (1, 8)
                for kind, endpoint in (("leases", durable), ("wire", nothing))
            },
            rounds,
        )
    return [
        Figure(f"shards.leases_per_s_{count}", measured[f"leases_{count}"], "1/s", target, measured[f"wire_{count}"])
        for count, target in ((1, ">= 3000"), (8, ">= 10000"))
    ]


def bytes_on_disk(ledger: Path) -> int:
    """Return the size of a ledger and of its write-ahead log, in bytes."""
    files = (ledger, ledger.with_name(f"{ledger.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def ledger_bytes(path: Path, shards: int, workers: int = 64) -> Figure:
    """The most that file and log ever took while ``shards`` shards were leased, reported out of order and lost with their workers,
    each a lease of its own; the rest of the 10 million lies done beside them."""
    largest = 0
    with LedgerStore(path) as store:
        service = ShardService(store, PLAN, policy=LeasePolicy(first_minibatches=SHARDS, largest_minibatches=SHARDS))
        at = 0
        while SHARDS - at > shards + workers:  # in a few leases, so that the run's length is the caller's choice
            lease = service.report_and_lease("first", now=0.0).work
            assert isinstance(lease, Lease)
            stop = min(lease.stop, SHARDS - shards)
            service.report_and_lease("first", lease.token, [(lease.start, stop)], give_back=True, want=False, now=0.0)
            at = stop
        service.commit()
        service = ShardService(store, PLAN, policy=ONE_SHARD)
        leases: list[Lease | None] = [None] * workers
        for turn in range(shards):
            i = turn * 37 % workers
            worker, last = f"worker-{i}", leases[i]
            if turn % 10_007 == 0:
                service.worker_joined(worker)
            work = service.report_and_lease(
                worker, last.token if last else None, [(last.start, last.stop)] if last else [], now=turn / 1000
            ).work
            leases[i] = work if isinstance(work, Lease) else None
            if turn % 8 == 0:
                service.commit()
            if turn % 64 == 0:
                largest = max(largest, bytes_on_disk(store.path))
        service.commit()
        largest = max(largest, bytes_on_disk(store.path))
    return Figure(
        "shards.ledger_bytes", largest, "B", f"<= {MIB}", detail={"shards": SHARDS, "leased_one_by_one": shards}
    )


def main() -> None:
    options = arguments("Leases per second, durable, and the size of the ledger.")
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-bench-") as name:
        directory = Path(name)
        figures = lease_rates(directory, rounds=3 if options.quick else 9, seconds=0.7 if options.quick else 1.5)
        figures.append(ledger_bytes(directory / "size.sqlite", 100_000 if options.quick else 1_000_000))
    emit(options, figures)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", endpoint, ledger]:
            serve(endpoint, ledger)
        case ["ask", node]:
            ask(node)
        case _:
            main()
