"""Calls of a real API server, through a proxy that loses answers and refuses some: what is done twice, what isn't, and what is said."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect, contexts
from dlrover_lite.backends.k8s.api.problems import ApiProblem, Unreachable
from dlrover_lite.core.errors import BackendError
from tests.k8s.cluster import ApiServer, free_ports, needs_cluster
from tests.k8s.proxy import Fault, Proxy

_numbers = itertools.count()


class Time:
    """Virtual: who sleeps, wakes at once."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[Proxy]:
    found = Proxy(api_server)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def name() -> str:
    return f"calls-{next(_numbers)}"


def calls_of(proxy: Proxy, time: Time | None = None) -> Calls:
    time = time or Time()
    return Calls(proxy.connection(), clock=lambda: time.now, sleep=time.sleep)


# --- where the server is --------------------------------------------------------------------------------------------


def test_without_a_kubeconfig_it_says_where_one_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=f"no kubeconfig at {tmp_path}/.kube/config"):
        connect(environment={"HOME": str(tmp_path)})
    assert contexts(environment={"HOME": str(tmp_path)}) == {}


def test_an_unknown_context_is_told_with_those_there_are(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "contexts: [{name: one, context: {cluster: c, user: u, namespace: ads}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: t}}]\n"
    )
    environment = {"KUBECONFIG": str(file)}
    with pytest.raises(BackendError, match="no context two") as caught:
        connect("two", environment=environment)
    assert "It has one." in caught.value.hint
    with pytest.raises(BackendError, match="no present context"):
        connect(environment=environment)
    found = connect("one", environment=environment)
    assert (found.server, found.namespace, found.context) == ("https://127.0.0.1:1", "ads", "one")
    assert connect("one", "other", environment=environment).namespace == "other"


@pytest.mark.parametrize("text", ["{", "just words", "contexts: 3\n", "contexts: [{}]\n"])
def test_a_kubeconfig_that_makes_no_sense_is_no_traceback(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(BackendError, match="kubeconfig"):
        connect(environment={"KUBECONFIG": str(file)})


def test_a_server_that_isnt_there_is_asked_until_patience_is_over(tmp_path: Path) -> None:
    [port] = free_ports(1)
    file = tmp_path / "config"
    file.write_text(
        f"current-context: one\ncontexts: [{{name: one, context: {{cluster: c, user: u}}}}]\n"
        f"clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{port}'}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
    )
    time = Time()
    calls = Calls(
        connect(environment={"KUBECONFIG": str(file)}), clock=lambda: time.now, sleep=time.sleep, patience_seconds=5.0
    )
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port} gives no answer: couldn't list pods") as caught:
        calls.list("Pod")
    assert "Is the cluster up" in caught.value.hint
    assert 3.0 <= time.now <= 5.0 and time.slept == sorted(time.slept)


# --- what is refused ------------------------------------------------------------------------------------------------


@needs_cluster
def test_an_expired_token_says_to_log_in_again(api_server: ApiServer, tmp_path: Path) -> None:
    file = api_server.kubeconfig(tmp_path / "config", token="expired")
    calls = Calls(connect(environment={"KUBECONFIG": str(file)}), clock=lambda: 0.0, sleep=lambda _: None)
    with pytest.raises(ApiProblem) as caught:
        calls.list("Pod")
    assert caught.value.status == 401 and "log in again" in caught.value.hint


@needs_cluster
def test_a_missing_right_is_named_with_who_lacks_it(api_server: ApiServer, tmp_path: Path) -> None:
    file = api_server.kubeconfig(tmp_path / "config", user="ann")
    calls = Calls(connect(environment={"KUBECONFIG": str(file)}), clock=lambda: 0.0, sleep=lambda _: None)
    with pytest.raises(ApiProblem) as caught:
        calls.create(config_map("ann"))
    assert caught.value.reason == "Forbidden"
    assert caught.value.hint.startswith("ann lacks the right to create configmaps")


@needs_cluster
def test_what_isnt_there_is_none_and_its_deletion_too(proxy: Proxy, name: str) -> None:
    calls = calls_of(proxy)
    assert calls.find("ConfigMap", name) is None
    assert not calls.delete("ConfigMap", name, propagation="Background")
    with pytest.raises(ApiProblem, match=f"read ConfigMap {name}"):
        calls.get("ConfigMap", name)


@needs_cluster
def test_an_object_that_makes_no_sense_is_refused_with_the_servers_words(proxy: Proxy) -> None:
    with pytest.raises(ApiProblem, match=r"metadata\.name") as caught:
        calls_of(proxy).create(config_map("Not A Name"))
    assert caught.value.status == 422


# --- what is done again ---------------------------------------------------------------------------------------------


@needs_cluster
def test_an_object_whose_answer_was_lost_is_made_once(proxy: Proxy, name: str) -> None:
    calls = calls_of(proxy)
    proxy.faults.append(Fault("POST", "configmaps", loses_answer=True))
    made = calls.create(config_map(name, a="b"))
    assert made["data"] == {"a": "b"} and made["metadata"]["uid"]
    assert calls.counts["create configmaps"] == 2
    with pytest.raises(ApiProblem) as caught:
        calls.create(config_map(name))
    assert caught.value.reason == "AlreadyExists", "of another call"


@needs_cluster
def test_a_busy_server_is_left_alone_for_as_long_as_it_says(proxy: Proxy, name: str) -> None:
    time = Time()
    calls = calls_of(proxy, time)
    proxy.faults.append(Fault("POST", "configmaps", 429, "TooManyRequests", (("Retry-After", "3"),)))
    proxy.faults.append(Fault("POST", "configmaps", 500, "InternalError"))
    calls.create(config_map(name))
    assert time.slept[0] == 3.0 and 0 < time.slept[1] < 1
    changed = calls.patch("ConfigMap", name, {"data": {"x": "y"}})
    assert changed["data"] == {"x": "y"}
    proxy.faults.append(Fault("DELETE", "configmaps", loses_answer=True))
    assert not calls.delete("ConfigMap", name, propagation="Background"), "the first try has done it"
    assert calls.find("ConfigMap", name) is None


@needs_cluster
def test_who_changes_an_object_at_the_same_time_is_waited_for_unless_a_version_is_named(
    proxy: Proxy, name: str
) -> None:
    calls = calls_of(proxy)
    version = calls.create(config_map(name))["metadata"]["resourceVersion"]
    proxy.faults.append(Fault("PATCH", "configmaps", 409, "Conflict"))
    changed = calls.patch("ConfigMap", name, {"data": {"x": "y"}})
    assert changed["data"] == {"x": "y"} and calls.counts["patch configmaps"] == 2
    with pytest.raises(ApiProblem) as caught:
        calls.patch("ConfigMap", name, {"metadata": {"resourceVersion": version}, "data": {"x": "z"}})
    assert caught.value.reason == "Conflict" and calls.counts["patch configmaps"] == 3


@needs_cluster
def test_what_is_refused_for_good_is_asked_once(proxy: Proxy, name: str) -> None:
    calls = calls_of(proxy)
    calls.create(config_map(name))
    proxy.faults.append(Fault("PATCH", "configmaps", 403, "Forbidden"))
    with pytest.raises(ApiProblem) as caught:
        calls.patch("ConfigMap", name, {"data": {"x": "y"}})
    assert caught.value.reason == "Forbidden" and calls.counts["patch configmaps"] == 1


@needs_cluster
def test_another_object_of_the_same_name_isnt_deleted(proxy: Proxy, name: str) -> None:
    calls = calls_of(proxy)
    uid = calls.create(config_map(name))["metadata"]["uid"]
    assert not calls.delete("ConfigMap", name, propagation="Background", uid="11111111-2222-3333-4444-555555555555")
    assert calls.find("ConfigMap", name) is not None
    assert calls.delete("ConfigMap", name, propagation="Background", uid=uid)


@needs_cluster
def test_a_conflict_of_another_kind_doesnt_pass_for_a_deletion(proxy: Proxy, name: str) -> None:
    calls = calls_of(proxy)
    uid = calls.create(config_map(name))["metadata"]["uid"]
    proxy.faults.append(Fault("DELETE", "configmaps", 409, "Conflict"))
    assert calls.delete("ConfigMap", name, propagation="Background", uid=uid)
    assert calls.find("ConfigMap", name) is None
