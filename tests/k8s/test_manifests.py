"""What `k8s manifests` prints is taken by a real API server, gives exactly the rights that it says, and `k8s check` agrees."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect
from dlrover_lite.backends.k8s.api.problems import ApiProblem
from dlrover_lite.backends.k8s.check.check import Wanted, check_cluster
from dlrover_lite.backends.k8s.objects.manifests import as_yaml, manifests
from dlrover_lite.backends.k8s.objects.rights import MASTER_RIGHTS, USER_RIGHTS, Right
from dlrover_lite.cli.main import main
from tests.k8s.cluster import ApiServer, needs_cluster

_numbers = itertools.count()


@pytest.fixture
def namespace(api_server: ApiServer, tmp_path: Path) -> str:
    """A namespace with nothing in it but its manifests, where ann may run jobs."""
    name = f"manifests-{next(_numbers)}"
    admin = calls_of(api_server, tmp_path, "admin", name)
    for one in YAML(typ="safe").load_all(as_yaml(manifests(name, users=["ann"], create_namespace=True))):
        admin.create(one)
    return name


def calls_of(server: ApiServer, directory: Path, user: str, namespace: str) -> Calls:
    file = server.kubeconfig(directory / f"{user}-{namespace}", user=user, namespace=namespace)
    return Calls(connect(environment={"KUBECONFIG": str(file)}), clock=lambda: 0.0, sleep=lambda _: None)


def test_no_role_reads_secrets_or_reaches_beyond_the_namespace() -> None:
    for one in manifests("ads", users=["ann"], groups=["people"]):
        assert one["metadata"]["namespace"] == "ads" and not one["kind"].startswith("Cluster")
    for right in (*MASTER_RIGHTS, *USER_RIGHTS):
        assert "*" not in (*right.verbs, right.resource, right.group)
        assert right.resource != "secrets" or not {"get", "list", "watch"} & set(right.verbs)


def test_whoever_isnt_named_gets_no_rights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["k8s", "manifests", "--namespace", "ads"]) == 0
    documents = list(YAML(typ="safe").load_all(capsys.readouterr().out))
    bound = [one for one in documents if one["kind"] == "RoleBinding"]
    assert [one["subjects"][0]["kind"] for one in bound] == ["ServiceAccount"]


@needs_cluster
def test_ann_may_do_what_jobs_take_and_nothing_else(api_server: ApiServer, tmp_path: Path, namespace: str) -> None:
    ann = calls_of(api_server, tmp_path, "ann", namespace)
    found = {one.name: one for one in check_cluster(ann, Wanted())}
    assert [name for name, one in found.items() if one.level == "problem"] == []
    assert found["rights"].level == "ok" and "can't be told" in found["storage"].text
    with pytest.raises(ApiProblem, match="secrets is forbidden"):
        ann.list("Secret")


@needs_cluster
def test_without_manifests_check_says_what_is_missing_and_what_to_do(
    api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = api_server.kubeconfig(tmp_path / "config", user="ann")
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert main(["k8s", "check", "--json"]) == 1
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    rights = [one for one in value["checks"] if one["name"] == "rights"]
    assert any(one["text"].startswith("you may not create or delete secrets, ") for one in rights)
    assert all("dlrover-lite k8s manifests --namespace default" in one["hint"] for one in rights)


@needs_cluster
def test_an_admin_finds_all_well(api_server: ApiServer, tmp_path: Path, namespace: str) -> None:
    admin = calls_of(api_server, tmp_path, "admin", namespace)
    found = {one.name: one for one in check_cluster(admin, Wanted("example.org/dlrover-lite:1"))}
    assert [name for name, one in found.items() if one.level == "problem"] == []
    assert found["resize"].level == "ok" and found["storage"].level == "warning"
    assert "example.org/dlrover-lite:1" in found["pods"].text
    assert admin.list("Pod")["items"] == [], "nothing is left"


@pytest.mark.parametrize("rights", [MASTER_RIGHTS, USER_RIGHTS])
def test_the_documentation_explains_each_right(rights: Sequence[Right]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text("utf-8")
    for one in rights:
        optional = " (*optional*)" if one.optional else ""
        assert f"| {one.resource} | {', '.join(one.verbs)} | {one.purpose}{optional} |" in page
