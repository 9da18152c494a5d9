"""Where a job runs changes nothing of what is decided for it: with the same hosts and the same profiles, the same plans, byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from dlrover_lite.backends.k8s.nodes.capacity import HostView, bounds_of, capacity_of
from dlrover_lite.backends.keeper import service
from dlrover_lite.backends.keeper.client import KeeperClient
from dlrover_lite.backends.sim.backend import SimBackend
from dlrover_lite.backends.sim.clock import EventClock
from dlrover_lite.backends.sim.cluster import Cluster
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.startup import WORKSTATION
from dlrover_lite.brain.advisor import Advisor, Told
from dlrover_lite.brain.job_tracker import candidate
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.jobs.store import take_up_job
from dlrover_lite.master_process.brain_start import registration
from dlrover_lite.protocol.brain_messages import Advice, RegisterJob, Report, understood
from dlrover_lite.protocol.demands import DecisionOutcome, Standing, demand_of
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.connector import Connector
from tests.brain.advised import nodes_of, plan_of
from tests.brain.simulated import START, Job

MACHINE = Resources(8.0, 16 * GIB)
SAMPLES = 20_000_000
WINDOWS = 30
BACKENDS: dict[str, Any] = {"local": "local", "k8s": {"k8s": {"image": "any"}}, "sim": "local"}
"""Backend that a job's recipe names, by the one that it runs on: none names the simulated one."""
Stream = list[tuple[float, list[Told]]]


def recipe(backend: Any) -> Recipe:
    plain = {
        "version": 1,
        "name": "ads",
        "model": {"use": "wide_deep"},
        "data": {"format": "synthetic", "samples": SAMPLES},
        "training": {"batch_size": 512, "epochs": 2},
        "resources": {"total": {"cores": 6, "memory": "12GiB"}},
        "backend": backend,
    }
    return parse_recipe(plain, machine=MACHINE)


def hosts_of(backend: str, one: Recipe, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Host]:
    """Return what a backend says that there is on a machine that is the same for each."""
    if backend == "sim":
        cluster = Cluster({"a": Machine(MACHINE.cores, memory=MACHINE.memory)}, EventClock())
        return SimBackend(cluster, cast("Any", None), startup=WORKSTATION, ceiling=one.resources.total).capacity()
    if (kubernetes := one.kubernetes) is not None:
        status = {"allocatable": {"cpu": "8", "memory": "16Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
        node = convert({"metadata": {"name": "a"}, "status": status}, HostView)
        return capacity_of([node], kubernetes, bounds_of(one.resources))
    monkeypatch.setattr(service, "machine_resources", lambda: MACHINE)
    endpoint, place = f"ipc://{directory}/keeper", service.Place("a", ceiling=one.resources.total)
    with Connector() as connector, ThreadPoolExecutor(1) as thread:
        keeper = service.KeeperService(cast("Any", None), place, endpoint, connector)
        client = KeeperClient(endpoint, connector=connector)
        asked = thread.submit(client.capacity)
        while not asked.done():
            keeper.serve()
        client.close()
    return asked.result()


def registered(backend: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> RegisterJob:
    """Return what the master of a job on a backend tells the brain first, but for the place of its files."""
    one = recipe(BACKENDS[backend])
    directory.mkdir()
    job = take_up_job(directory / "ads-1", one, created_at=START)
    demand = demand_of(one, hosts_of(backend, one, directory, monkeypatch), samples=SAMPLES)
    return msgspec.structs.replace(registration(job, SAMPLES, demand), directory="")


class Brain:
    """Decides as told, and keeps all its advice as it goes to masters."""

    def __init__(self, directory: Path) -> None:
        self._store = ConfigStore(directory / "brain.sqlite")
        self._store.put_job(JobEntry(id="ads-1", name="ads", state="running", created_at=START))
        self._advisor = Advisor(self._store)
        self.advice: list[bytes] = []

    def step(self, at: float, told: Sequence[Told]) -> Advice | None:
        """Return the newest advice, if it is new."""
        found = [one["ads-1"] for one in self._advisor.step(at, told) if "ads-1" in one]
        encoded = [msgspec.json.encode(one) for one in found]
        news = [one for one, text in zip(found, encoded, strict=True) if text not in self.advice]
        self.advice += [text for text in encoded if text not in self.advice]
        return news[-1] if news else None

    def close(self) -> None:
        self._store.close()


def recorded(first: RegisterJob, directory: Path) -> Stream:
    """Record what a master tells that does as it is advised, of nodes one of which becomes slow, while rows grow."""
    brain = Brain(directory)
    stream: Stream = [(START, [first])]
    advice = brain.step(START, [first])
    assert advice is not None
    plan = understood(advice).plan
    assert plan is not None
    job, done, number = Job(candidate(plan), name="ads-1", progress=40.0, row_bytes=600), (), advice.number
    for window in range(WINDOWS):
        if window == WINDOWS // 2:
            job.speeds = {job.names("worker")[0]: 0.3}
        profile = job.window()
        standing = Standing(plan=plan_of(job), nodes=nodes_of(job), heard=number)
        told = Report("ads-1", int(job.samples), profiles=[profile], standing=standing, done=list(done))
        stream.append((profile.at, [told]))
        advice, done = brain.step(profile.at, [told]), ()
        if advice is not None:
            number, decided = advice.number, understood(advice)
            if decided.plan is not None:
                job.plan = candidate(decided.plan)
            done = (DecisionOutcome(job="ads-1", number=number, at=profile.at + 4, state="done", seconds=4.0),)
    brain.close()
    return stream


def advised(stream: Stream, first: RegisterJob, directory: Path) -> list[bytes]:
    """Return what a brain says to these profiles of a job that has registered so."""
    brain = Brain(directory)
    for at, told in [(START, [first]), *stream[1:]]:
        brain.step(at, told)
    brain.close()
    return brain.advice


def test_the_same_profiles_bring_the_same_decisions_wherever_a_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / backend for backend in BACKENDS]
    firsts = [registered(backend, place, monkeypatch) for backend, place in zip(BACKENDS, places, strict=True)]
    assert firsts[0].demand is not None
    assert firsts[0].demand.hosts == (Host("a", Resources(6.0, 12 * GIB)),)
    (tmp_path / "recorded").mkdir()
    stream = recorded(firsts[0], tmp_path / "recorded")
    local, *others = [advised(stream, first, place) for first, place in zip(firsts, places, strict=True)]
    actions = [understood(msgspec.json.decode(one, type=Advice)).action for one in local]
    assert actions[0] == "start" and len({*actions}) >= 3, actions
    assert all(other == local for other in others)
