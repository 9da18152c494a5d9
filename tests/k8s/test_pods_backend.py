"""The backend over pods of a real API server, through a proxy that makes faults; statuses and agents are the test's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite.backends.k8s.nodes.event_log import NodeEvent
from dlrover_lite.core.errors import BackendError, CantResize, ResizeUnderWay
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.recipe.kubernetes import NodePool
from tests.backends.support import until
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.pods_by_hand import SMALL, ByHand, pods_by_hand
from tests.k8s.proxy import Fault, Proxy

pytestmark = needs_cluster
LARGE = Resources(2.0, 512 * MIB)


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[Proxy]:
    found = Proxy(api_server)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def by_hand(proxy: Proxy, tmp_path: Path) -> Iterator[ByHand]:
    with pods_by_hand(proxy, tmp_path / "job") as found:
        yield found


def posts(proxy: Proxy) -> int:
    return sum(one.startswith("POST") and one.endswith("/pods") for one in proxy.requests)


def test_a_node_runs_in_a_pod_of_its_own_and_its_log_comes_over(by_hand: ByHand) -> None:
    by_hand.launch("worker-0")
    agent = by_hand.start("ads-1-worker-0")
    assert by_hand.becomes("worker-0", lambda one: one.started_at).detail == ""
    agent.log = b"node worker-0 begins\n" * 20_000
    until(lambda: "worker-0" in by_hand.backend.readings().nodes, "its usage")
    readings = by_hand.backend.readings()
    assert readings.on == {"worker-0": "host-a"} and readings.nodes["worker-0"].memory == 100 * MIB
    by_hand.backend.terminate("worker-0", grace_seconds=5)
    assert by_hand.becomes("worker-0", lambda one: one.ended_at).reason == "Killed"
    until(lambda: by_hand.pods() == [], "the pod to be deleted")
    assert (by_hand.directory / "logs" / "worker-0.log").read_bytes() == agent.log
    assert by_hand.backend.calls.counts["create pods"] == by_hand.backend.calls.counts["delete pods"] == 1
    assert by_hand.backend.calls.counts["list pods"] == 1


@pytest.mark.parametrize(
    "faults",
    [
        [
            Fault("POST", "/pods", 429, "TooManyRequests", (("Retry-After", "1"),)),
            Fault("POST", "/pods", 500, "InternalError"),
        ],
        [Fault("POST", "/pods", loses_answer=True)],
        [Fault("POST", "/pods", 503, "ServiceUnavailable"), Fault("POST", "/pods", loses_answer=True)],
        [Fault("GET", "watch=true", 410, "Expired"), Fault("GET", "watch=true", 500, "InternalError")],
    ],
)
def test_a_pod_is_made_once_whatever_the_server_does(by_hand: ByHand, proxy: Proxy, faults: list[Fault]) -> None:
    proxy.faults += faults
    proxy.cut_watches()
    by_hand.launch("worker-0")
    by_hand.start("ads-1-worker-0")
    by_hand.becomes("worker-0", lambda one: one.started_at)
    proxy.cut_watches()
    assert by_hand.pods() == ["ads-1-worker-0"]
    proxy.faults += [Fault("DELETE", "/pods", 500, "InternalError"), Fault("DELETE", "/pods", loses_answer=True)]
    by_hand.backend.terminate("worker-0", grace_seconds=5)
    by_hand.becomes("worker-0", lambda one: one.ended_at)
    until(lambda: by_hand.pods() == [] and not by_hand.backend.book.pods, "nothing to be left")
    assert not proxy.faults or all("watch" in one.path for one in proxy.faults)


def test_a_node_for_which_a_quota_leaves_nothing_waits_for_room(by_hand: ByHand) -> None:
    quota = {"hard": {"limits.memory": "300Mi", "limits.cpu": "8"}}
    by_hand.admin.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": quota})
    # The quota's controller isn't here: what is used is written by hand.
    status = {"hard": quota["hard"], "used": {"limits.memory": "200Mi", "limits.cpu": "0"}}
    by_hand.admin.patch("ResourceQuota", "team", {"status": status}, subresource="status", how="merge")

    def refused() -> bool:
        by_hand.launch(f"worker-{time.monotonic_ns()}")
        seen = by_hand.backend.observe()
        return seen is not None and any("exceeded quota: team" in one.detail for one in seen.nodes.values())

    until(refused, "the quota to hold")
    seen = by_hand.backend.observe()
    assert seen is not None
    [waits, *_] = [one for one in seen.nodes.values() if "exceeded quota" in one.detail]
    assert waits.ended_at is None and "End other jobs, lower the recipe's ceiling" in waits.no_room


def test_a_pod_that_the_cluster_refuses_ends_its_node_with_the_clusters_words(by_hand: ByHand, proxy: Proxy) -> None:
    proxy.faults.append(Fault("POST", "/pods", 422, "Invalid"))
    by_hand.launch("worker-0")
    ended = by_hand.becomes("worker-0", lambda one: one.ended_at)
    assert ended.reason == "Unknown" and "`--dry-run` prints it" in ended.detail


def test_what_becomes_of_a_pod_is_what_becomes_of_its_node(by_hand: ByHand) -> None:
    for node in ("ps-0", "ps-1", "ps-2"):
        by_hand.launch(node, "ps")
        by_hand.start(f"ads-1-{node}")
        by_hand.becomes(node, lambda one: one.started_at)
    by_hand.end("ads-1-ps-0", reason="OOMKilled", exitCode=137)
    assert by_hand.becomes("ps-0", lambda one: one.ended_at).reason == "OOMKilled"
    by_hand.admin.delete("Pod", "ads-1-ps-1", propagation="Background", grace_seconds=0)
    ended = by_hand.becomes("ps-1", lambda one: one.ended_at)
    assert (ended.reason, ended.detail) == ("Preempted", "its pod ads-1-ps-1 was deleted by somebody else")
    by_hand.status("ads-1-ps-2", phase="Failed", reason="Evicted", message="low on resource: memory")
    assert "evicted: low on resource" in by_hand.becomes("ps-2", lambda one: one.ended_at).detail
    until(lambda: by_hand.pods() == [], "the pods to be deleted")


def test_the_phases_of_a_start_are_told(by_hand: ByHand) -> None:
    by_hand.launch("worker-0")
    pod = "ads-1-worker-0"
    until(lambda: by_hand.pods() == [pod], "the pod")
    by_hand.becomes("worker-0", lambda one: one.detail == "pending: no host is chosen yet")
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    by_hand.status(pod, conditions=[why])
    by_hand.becomes("worker-0", lambda one: one.detail == "pending: 0/3 nodes are available")
    waiting = {"name": "node", "image": "one", "imageID": "", "ready": False, "restartCount": 0}
    state = {"waiting": {"reason": "ErrImagePull", "message": "no such tag"}}
    by_hand.status(pod, containerStatuses=[{**waiting, "state": state}])
    by_hand.becomes("worker-0", lambda one: one.detail == "pulling: ErrImagePull (example.org/one): no such tag")
    agent = by_hand.start(pod, silent=True)
    assert by_hand.becomes("worker-0", lambda one: one.detail.startswith("starting")).started_at is None
    agent.silent = False
    assert by_hand.becomes("worker-0", lambda one: one.started_at).detail == ""


def refuse(path: Path, events: list[NodeEvent]) -> None:
    raise OSError("the disk is full")


def test_another_master_goes_on_where_the_first_was(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    for node in ("ps-0", "ps-1", "ps-2"):
        by_hand.launch(node, "ps")
    agents = {node: by_hand.start(f"ads-1-{node}") for node in ("ps-0", "ps-1", "ps-2")}
    for node in agents:
        by_hand.becomes(node, lambda one: one.started_at)
    with monkeypatch.context() as patch:
        patch.setattr("dlrover_lite.backends.k8s.nodes.backend.append_events", refuse)
        agents["ps-1"].end("ps-1", "UserError", 3)
        by_hand.becomes("ps-1", lambda one: one.ended_at)
    before = by_hand.backend.observe()
    assert before is not None
    by_hand.backend.close()  # what the master has heard is written down, if not before, then now
    by_hand.admin.delete("Pod", "ads-1-ps-2", propagation="Background", grace_seconds=0)
    agents["ps-1"].may_answer.clear()
    by_hand.backend = by_hand.another()
    by_hand.becomes("ps-0", lambda one: one == before.nodes["ps-0"])
    assert by_hand.node("ps-1") == before.nodes["ps-1"]
    assert (
        by_hand.node("ps-2").reason == "Preempted"
        and "was gone when the master came back" in by_hand.node("ps-2").detail
    )
    by_hand.launch("ps-1", "ps")
    by_hand.launch(
        "ps-3", "ps", follows="ps-1"
    )  # the agent that has its predecessor's memory hasn't answered this master yet
    agents["ps-1"].may_answer.set()
    assert by_hand.becomes("ps-3", lambda one: one.started_at).ended_at is None
    assert "ps-3" in agents["ps-1"].nodes and by_hand.backend.calls.counts["create pods"] == 0


def test_a_running_node_is_given_more_without_a_restart(by_hand: ByHand) -> None:
    by_hand.launch("ps-0", "ps")
    agent = by_hand.start("ads-1-ps-0")
    by_hand.becomes("ps-0", lambda one: one.started_at)
    until(lambda: "ps-0" in by_hand.backend.readings().nodes, "its usage")
    with pytest.raises(BackendError, match=r"limited to 50 MiB of memory: 100 MiB are in use"):
        by_hand.backend.resize("ps-0", Resources(1.0, 50 * MIB))
    with pytest.raises(ResizeUnderWay):
        by_hand.backend.resize("ps-0", LARGE)

    def asked() -> bool:
        limits = by_hand.admin.get("Pod", "ads-1-ps-0")["spec"]["containers"][0]["resources"]["limits"]
        return bool(limits == {"cpu": "2", "memory": str(512 * MIB)})

    until(asked, "the pod's new limits")
    with pytest.raises(ResizeUnderWay):
        by_hand.backend.resize("ps-0", LARGE)
    by_hand.run("ads-1-ps-0")

    def done() -> bool:
        try:
            by_hand.backend.resize("ps-0", LARGE)
        except ResizeUnderWay:
            return False
        return True

    until(done, "the resize")
    until(lambda: "Resize" in agent.asked, "the agent to know")


def test_a_missing_right_to_resize_is_named(by_hand: ByHand, proxy: Proxy) -> None:
    by_hand.launch("ps-0", "ps")
    by_hand.start("ads-1-ps-0")
    by_hand.becomes("ps-0", lambda one: one.started_at)
    proxy.faults.append(Fault("PATCH", "/resize", 403, "Forbidden"))

    def told() -> str:
        try:
            by_hand.backend.resize("ps-0", LARGE)
        except ResizeUnderWay:
            return ""
        except CantResize as error:
            return error.message
        return "done"

    assert "refuses to change Pod ads-1-ps-0" in until(told, "the refusal")


def test_nothing_that_the_master_asks_for_waits_for_the_api(by_hand: ByHand, proxy: Proxy) -> None:
    proxy.faults += [Fault("POST", "/pods", 429, "TooManyRequests", (("Retry-After", "2"),))] * 2
    began = time.monotonic()
    for number in range(50):
        by_hand.launch(f"worker-{number}")
        by_hand.backend.observe()
    by_hand.backend.terminate("worker-0", grace_seconds=0)
    assert time.monotonic() - began < 1.0, "two seconds are what the API wants to be left alone for"


def test_spares_wait_and_are_taken(proxy: Proxy, tmp_path: Path) -> None:
    with pods_by_hand(proxy, tmp_path / "job", spares=1) as by_hand:
        agent = by_hand.start("ads-1-spare-1")
        until(lambda: by_hand.backend.book.pods["ads-1-spare-1"].heard, "its agent")
        by_hand.launch("worker-0")
        by_hand.becomes("worker-0", lambda one: one.started_at)
        assert "worker-0" in agent.nodes
        assert by_hand.backend.remove_pods(0.0) is False
        until(lambda: by_hand.pods() == [], "all pods to be deleted")


def test_capacity_is_what_hosts_have_within_the_ceiling_and_wished_hosts_must_be_there(by_hand: ByHand) -> None:
    hosts = by_hand.backend.capacity()
    assert [host.name for host in hosts] == [by_hand.host] and hosts[0].resources == Resources(8.0, 1 << 34)
    with pytest.raises(BackendError, match="no-such-host"):
        by_hand.backend.launch(NodeSpec("worker-0", "worker", SMALL, "", host="no-such-host"))


def test_a_node_meant_for_a_host_that_would_come_is_placed_where_there_is_room(proxy: Proxy, tmp_path: Path) -> None:
    pool = NodePool(most=3, cores=2.0, memory=1 << 32)
    with pods_by_hand(proxy, tmp_path / "job", node_pools=[pool], node_selector={"none": "yet"}) as by_hand:
        hosts = by_hand.backend.capacity()
        assert [(host.name, host.resources.cores) for host in hosts] == [(f"to-come-0-{at}", 2.0) for at in range(3)]
        by_hand.launch("worker-0", host=hosts[0].name)
        until(lambda: by_hand.pods() == ["ads-1-worker-0"], "the pod")
        pod = by_hand.admin.get("Pod", "ads-1-worker-0")
        assert "nodeAffinity" not in pod["spec"].get("affinity", {})


def test_closing_doesnt_wait_for_a_server_that_doesnt_answer(by_hand: ByHand, proxy: Proxy) -> None:
    proxy.faults += [Fault("POST", "/pods", 503, "ServiceUnavailable", (("Retry-After", "5"),))] * 20
    by_hand.launch("worker-0")
    until(lambda: posts(proxy) > 0, "the call")
    threads = [one for one in threading.enumerate() if one.name.startswith("k8s-")]
    began = time.monotonic()
    by_hand.backend.close()
    assert time.monotonic() - began < 3.0
    assert not any(thread.is_alive() for thread in threads)
