"""A job of a cluster that somebody watches: what that costs the API server, and how soon its end is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from dlrover_lite.backends.k8s.jobs.kube_jobs import KubeJobs
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.brain_server.history_client import BrainHistory
from dlrover_lite.client import job_sources
from dlrover_lite.tui.model import JobDetail
from dlrover_lite.tui.sources.live_job import LiveJob
from tests.backends.job_contract import ScriptedJobs
from tests.backends.support import until
from tests.k8s.cluster import needs_cluster
from tests.k8s.kubelet import Cluster, needs_root
from tests.k8s.test_kube_jobs import backend_for, cluster, scripted  # noqa: F401 - fixtures

pytestmark = [needs_cluster, needs_root]
LOOKS = 10


class Watcher:
    """Looks every 2.5 s, by a clock of its own."""

    def __init__(self, job: str) -> None:
        self.now = 1e9
        self.live = LiveJob(BrainHistory(BrainFiles()), job, clock=lambda: self.now)

    def look(self) -> JobDetail | None:
        self.now += 2.5
        return self.live.look()

    def hears(self) -> bool:
        found = self.look()
        return found is not None and found.problem is None and self.live._heard_at == self.now


@pytest.fixture
def watched(
    scripted: ScriptedJobs,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[KubeJobs, str, Watcher]]:
    job = scripted.submit("listen")
    backend = scripted.backend
    assert isinstance(backend, KubeJobs)
    monkeypatch.setattr(job_sources, "clusters", lambda: [(backend.source, lambda: backend)])
    watcher = Watcher(job)
    with closing(watcher.live):
        until(watcher.hears, "its master to answer")
        yield backend, job, watcher


def calls_of(backend: KubeJobs, what: Callable[[], object]) -> int:
    before = sum(backend._calls.counts.values())
    what()
    return sum(backend._calls.counts.values()) - before


def test_a_job_whose_master_answers_is_watched_without_calls_of_the_api(
    watched: tuple[KubeJobs, str, Watcher],
) -> None:
    backend, _, watcher = watched

    def look() -> None:
        for _ in range(LOOKS):
            assert watcher.hears()

    calls = calls_of(backend, look)
    assert calls <= 2, backend._calls.counts  # where it was is looked for anew twice a minute


def test_its_end_is_seen_and_a_new_master_is_found(
    watched: tuple[KubeJobs, str, Watcher],
    cluster: Cluster,  # noqa: F811
) -> None:
    backend, job, watcher = watched
    pod = cluster.calls.get("Pod", f"{job}-0")["metadata"]["uid"]
    cluster.calls.delete("Pod", f"{job}-0", propagation="Background", grace_seconds=0)

    def is_another() -> bool:
        found = cluster.calls.find("Pod", f"{job}-0")
        return found is not None and found["metadata"]["uid"] != pod

    until(is_another, "another pod")
    until(watcher.hears, "the next master to answer")
    backend.stop(job)

    def is_over() -> bool:
        found = watcher.look()
        return found is not None and found.row.over

    until(is_over, "its end to be seen")
