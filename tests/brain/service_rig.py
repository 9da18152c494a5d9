"""The brain's service, turn by turn, and what masters tell it."""

from __future__ import annotations

import itertools

import msgspec

from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server.service import JobEnd, Service
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.brain_messages import Advice, BrainReplies, BrainRequests, RegisterJob
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, WorkerUse
from dlrover_lite.protocol.records import NodeRecord
from dlrover_lite.transport.memory import MemoryClient, MemoryConnector, Network

PATIENCE = 20.0
_numbers = itertools.count()
PLAN = Plan(ps=RolePlan(1, Resources(0.5, GIB)), worker=RolePlan(2, Resources(1.0, GIB)))


class Rig:
    """A service whose clock stands still, and clients of it. ``ended``: what there is to see in a job's directory."""

    def __init__(self, path, network=None, **options) -> None:
        self.now = 0.0
        self.ended: dict[str, JobEnd] = {}
        self.advice: dict[str, Advice] = {}
        self.answer: Advice | None = None
        """To every job, always."""
        self.said: list[str] = []
        self.network = network or Network(lambda: 0.0)
        self.endpoint = f"memory://service-{next(_numbers)}"
        self.store = ConfigStore(path, busy_seconds=0.01)
        server = MemoryConnector(self.network).server(self.endpoint, BrainRequests, remember_replies=True)
        self.service = Service(
            server,
            self.store,
            look=self.ended.get,
            advise=lambda job: self.advice.pop(job, self.answer),
            say=self.said.append,
            clock=lambda: self.now,
            **{"idle_seconds": 600.0, **options},
        )

    def client(self) -> MemoryClient:
        return MemoryConnector(self.network).client(self.endpoint, BrainReplies)

    def ask(self, body, client=None):
        client = client or self.client()
        client.send(body)
        self.service.turn(PATIENCE)
        reply = client.receive(PATIENCE)
        assert reply is not None
        return reply.body

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.service.turn(0.0)

    def close(self) -> None:
        self.service.close()


def registration(job: str = "ads-1", **changes) -> RegisterJob:
    told = RegisterJob(job, "ads", "ada", "dcn", f"/jobs/{job}", 10.0, 11.0, {"tables": 26})
    return msgspec.structs.replace(told, **changes)


def profile(at: float, job: str = "ads-1", samples: int = 1000) -> Profile:
    return Profile(
        job,
        at,
        15.0,
        256,
        samples,
        2000,
        (WorkerUse("worker-0", "h", 1.0, 4, 0.5),),
        (PsUse("ps-0", "h", 0.5, 4, 0.25, peak_bytes=77),),
        (HostUse("h", 2.0),),
    )


def event(what: str, at: float, job: str = "ads-1", node: str = "ps-0", reason: str = "") -> NodeRecord:
    return NodeRecord(job=job, at=at, node=node, event=what, reason=reason)  # type: ignore[arg-type]
