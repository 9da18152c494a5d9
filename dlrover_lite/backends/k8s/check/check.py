"""Whether jobs can run in a namespace of a cluster: a list of checks, none of which leaves anything there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from dlrover_lite.backends.checks import Check, Level
from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.problems import ApiProblem, Unreachable
from dlrover_lite.backends.k8s.objects.names import MASTER_ACCOUNT, NODE_ACCOUNT
from dlrover_lite.backends.k8s.objects.probe_pod import probe_pod
from dlrover_lite.backends.k8s.objects.rights import USER_RIGHTS, Right
from dlrover_lite.core.errors import BackendError

__all__ = ["Wanted", "check_cluster"]

OLDEST = (1, 31)
"""The oldest release that jobs were planned for; releases before aren't maintained any more."""
RESIZES = (1, 35)
"""First release in which the resize of a running pod is stable."""
_APPLY = "Have somebody who may do it: `dlrover-lite k8s manifests --namespace {namespace} | kubectl apply -f -`."
_ASK_FOR_CLASSES = (
    "Whoever may can tell: `kubectl get storageclass`. A job whose claim stays pending says so when it is started."
)
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class Wanted(NamedTuple):
    """What the jobs are to have."""

    image: str = ""
    storage_class: str = ""
    """Empty: the cluster's usual one."""


class _Version(msgspec.Struct):
    major: str = ""
    minor: str = ""
    git_version: str = msgspec.field(default="", name="gitVersion")


class _Named(msgspec.Struct):
    class Meta(msgspec.Struct):
        name: str = ""
        annotations: dict[str, str] = {}

    metadata: Meta


class _NamedList(msgspec.Struct):
    items: list[_Named] = []


class _Resources(msgspec.Struct):
    class Resource(msgspec.Struct):
        name: str = ""

    resources: list[Resource] = []


class _Quota(msgspec.Struct):
    class Status(msgspec.Struct):
        hard: dict[str, str] = {}
        used: dict[str, str] = {}

    metadata: _Named.Meta
    status: Status = msgspec.field(default_factory=Status)


class _Quotas(msgspec.Struct):
    items: list[_Quota] = []


def check_cluster(calls: Calls, wanted: Wanted) -> Iterator[Check]:
    """Look at the cluster; each check comes as soon as it is made. Once the server gives no answer nothing else is asked."""
    try:
        yield _server(calls)
    except BackendError as error:
        yield Check("server", "problem", error.message, error.hint)
        return
    checks: tuple[Callable[[Calls, Wanted], Iterator[Check]], ...] = (
        _resize,
        _rights,
        _quotas,
        _storage,
        _pods,
    )
    for check in checks:
        name = check.__name__.lstrip("_")
        try:
            yield from check(calls, wanted)
        except Unreachable as error:
            yield Check(name, "problem", error.message, error.hint)
            return
        except ApiProblem as error:
            yield _untold(name, error)


def _untold(name: str, error: ApiProblem) -> Check:
    """Make the check of what can't be found out."""
    level: Level = "warning" if error.status == 403 else "problem"
    text = f"can't be told: {error.message}" if error.status == 403 else error.message
    return Check(name, level, text, error.hint)


def _release(version: _Version) -> tuple[int, int]:
    digits = ["".join(filter(str.isdigit, part)) for part in (version.major, version.minor)]  # some say "31+"
    return int(digits[0] or 0), int(digits[1] or 0)


def _server(calls: Calls) -> Check:
    version = calls.read_path("/version", _Version)
    where = calls.connection
    text = f"{version.git_version} at {where.server}, namespace {where.namespace}"
    if where.context:
        text += f", by the context {where.context}"
    if _release(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return Check("server", "warning", text, f"It is older than {oldest}, with which nothing has been tried.")
    return Check("server", "ok", text)


def _resize(calls: Calls, _: Wanted) -> Iterator[Check]:
    there = calls.read_path("/api/v1", _Resources)
    if any(one.name == "pods/resize" for one in there.resources):
        yield Check("resize", "ok", "running pods can be given more or less")
    else:
        yield Check(
            "resize",
            "warning",
            "running pods can't be resized: a node that needs more memory gets a new pod, and its slots move there",
            f"Kubernetes {'.'.join(map(str, RESIZES))} and later can, or the feature gate InPlacePodVerticalScaling.",
        )


def _rights(calls: Calls, _: Wanted) -> Iterator[Check]:
    missing: list[tuple[Right, list[str]]] = []
    asked = 0
    for right in USER_RIGHTS:
        asked += len(right.verbs)
        if lacking := [verb for verb in right.verbs if not _may(calls, right, verb)]:
            missing.append((right, lacking))
    if not missing:
        yield Check("rights", "ok", f"all {asked} that running jobs takes")
    for right, verbs in missing:
        group = f" of {right.group}" if right.group else ""
        yield Check(
            "rights",
            "warning" if right.optional else "problem",
            f"you may not {' or '.join(verbs)} {right.resource}{group}, which {right.purpose}",
            _APPLY.format(namespace=calls.namespace) + " With `--user NAME` it binds you.",
        )


class _Review(msgspec.Struct):
    class Status(msgspec.Struct):
        allowed: bool = False

    status: Status = msgspec.field(default_factory=Status)


def _may(calls: Calls, right: Right, verb: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "namespace": calls.namespace,
        "verb": verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return bool(calls.create(review).get("status", {}).get("allowed"))


def _quotas(calls: Calls, _: Wanted) -> Iterator[Check]:
    quotas = calls.list("ResourceQuota", _Quotas).items
    if not quotas:
        yield Check("quotas", "ok", "none: a job may ask for what the nodes have")
    for quota in quotas:
        told = [
            f"{quota.status.used.get(name, '0')} of {most} {name}" for name, most in sorted(quota.status.hard.items())
        ]
        yield Check("quotas", "ok", f"{quota.metadata.name}: {', '.join(told) or 'nothing yet'} used")


def _storage(calls: Calls, wanted: Wanted) -> Iterator[Check]:
    try:
        classes = calls.list("StorageClass", _NamedList).items
    except ApiProblem as error:
        if error.status != 403:
            raise
        text = "whether there is a usual storage class can't be told: they belong to the cluster, and no right in a namespace lists them"
        yield Check("storage", "ok" if wanted.storage_class else "warning", text, _ASK_FOR_CLASSES)
        return
    names = sorted(one.metadata.name for one in classes)
    usual = [one.metadata.name for one in classes if one.metadata.annotations.get(_DEFAULT_CLASS) == "true"]
    chosen = wanted.storage_class or (usual[0] if usual else "")
    if chosen in names:
        yield Check("storage", "ok", f"jobs are kept on volumes of the class {chosen}")
    elif wanted.storage_class:
        yield Check(
            "storage",
            "problem",
            f"there is no storage class {wanted.storage_class}",
            f"Choose one of {', '.join(names)}." if names else "The cluster has none; name a volume claim instead.",
        )
    else:
        yield Check(
            "storage",
            "warning",
            "there is no usual storage class: when a master's pod is lost, its job goes on from the last checkpoint, its ledger included",
            f"Choose one of {', '.join(names)}." if names else "Name a volume claim that is there.",
        )


def _pods(calls: Calls, wanted: Wanted) -> Iterator[Check]:
    image = wanted.image or "registry.invalid/dlrover-lite"
    for account in (MASTER_ACCOUNT, NODE_ACCOUNT):
        try:
            calls.create(probe_pod(calls.namespace, image, account), dry_run=True)
        except ApiProblem as error:
            missing = "service account" in error.message
            hint = _APPLY.format(namespace=calls.namespace) if missing else error.hint
            yield Check("pods", "problem", error.message, hint)
            return
    if wanted.image:
        text = f"pods of {wanted.image} would be admitted; whether it can be pulled shows when one starts"
        yield Check("pods", "ok", text)
    else:
        yield Check("pods", "ok", "pods would be admitted")
