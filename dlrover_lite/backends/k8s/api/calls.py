"""Calls of a cluster's API: objects as plain data, by the official client's connection. No thread of its own, and no call is hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import urllib3
from kubernetes.client.exceptions import ApiException

from dlrover_lite.backends.k8s.api.connection import Connection
from dlrover_lite.backends.k8s.api.problems import ApiProblem, Unreachable, explained
from dlrover_lite.core.decoding import from_json

__all__ = ["KINDS", "Calls", "Kind", "KubeObject", "Propagation", "Stream"]

T = TypeVar("T")
KubeObject: TypeAlias = dict[str, Any]
Propagation = Literal["Foreground", "Background", "Orphan"]

_TIMEOUT_SECONDS = 30.0
_MOST_WAIT_SECONDS = 8.0
_PATCH_TYPES = {"merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json"}


class Kind(NamedTuple):
    """A kind of objects."""

    group: str
    """Group and version: "v1", "apps/v1"."""
    kind: str
    plural: str

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or with no name of all of the kind. ``namespace``: empty for kinds without one."""
        root = "/api" if "/" not in self.group else "/apis"
        parts = [root, self.group, *(["namespaces", namespace] if namespace else []), self.plural, name, subresource]
        return "/".join(part for part in parts if part)


KINDS = {
    one.kind: one
    for one in (
        Kind("v1", "ConfigMap", "configmaps"),
        Kind("v1", "Event", "events"),
        Kind("v1", "Namespace", "namespaces"),
        Kind("v1", "Node", "nodes"),
        Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        Kind("v1", "Pod", "pods"),
        Kind("v1", "ResourceQuota", "resourcequotas"),
        Kind("v1", "Secret", "secrets"),
        Kind("v1", "Service", "services"),
        Kind("v1", "ServiceAccount", "serviceaccounts"),
        Kind("apps/v1", "Deployment", "deployments"),
        Kind("apps/v1", "StatefulSet", "statefulsets"),
        Kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
        Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
        Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
        Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
        Kind("storage.k8s.io/v1", "StorageClass", "storageclasses"),
    )
}
_WITHOUT_NAMESPACE = {"Namespace", "Node", "SelfSubjectAccessReview", "StorageClass"}


class Stream:
    """What a server sends as it comes, line by line, until it ends it. A line that doesn't come in time ends it with Unreachable."""

    def __init__(self, answer: urllib3.BaseHTTPResponse, doing: str, server: str) -> None:
        self._answer, self._doing, self._server = answer, doing, server

    def __iter__(self) -> Iterator[bytes]:
        left = b""
        try:
            while chunk := self._answer.read1(1 << 16):
                *lines, left = (left + chunk).split(b"\n")
                yield from (line for line in lines if line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise explained(error, self._doing, self._server) from error
        finally:
            self._answer.close()

    def stop(self) -> None:
        """End it, from any thread: whoever waits for a line gets no more."""
        with suppress(ValueError, RuntimeError, OSError):  # it has ended
            self._answer.shutdown()


class Calls:
    """Calls in one namespace. What may be done twice is tried again, for ``patience_seconds``, while the server gives no answer or is busy.

    All raise ``Unreachable`` and ``ApiProblem``, which are BackendErrors. ``counts``: number of requests by verb and kind.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], object],
        patience_seconds: float = 20.0,
    ) -> None:
        """``clock``: seconds that only rise; ``sleep`` waits for so many."""
        self.connection = connection
        self.counts: Counter[str] = Counter()
        self._clock, self._sleep, self._patience = clock, sleep, patience_seconds

    @property
    def namespace(self) -> str:
        return self.connection.namespace

    def get(self, kind: str, name: str, of: type[T] | Any = KubeObject, *, subresource: str = "") -> T | Any:
        """Read an object."""
        doing = f"read {kind} {name}"
        return self._decoded(self._again("get", kind, doing, name=name, subresource=subresource), of, doing)

    def find(self, kind: str, name: str, of: type[T] | Any = KubeObject) -> T | Any | None:
        """Read an object; None if there is none."""
        try:
            return self.get(kind, name, of)
        except ApiProblem as problem:
            if problem.status == 404:
                return None
            raise

    def list(self, kind: str, of: type[T] | Any = KubeObject, *, labels: Mapping[str, str] | None = None) -> T | Any:
        """Read the list of all objects of a kind, with these labels."""
        doing = f"list {KINDS[kind].plural}"
        return self._decoded(self._again("list", kind, doing, query=_selector(labels)), of, doing)

    def create(self, one: KubeObject, *, dry_run: bool = False, subresource: str = "", name: str = "") -> KubeObject:
        """Make an object. One that an earlier try of the same call has made is found, and returned, as far as it may be read. ``dry_run``:
        the server checks it alone."""
        kind = one["kind"]
        known = one["metadata"].get("name", "") if "metadata" in one else ""
        doing = f"create {kind} {known}".rstrip()
        query = [("dryRun", "All")] if dry_run else []
        tries = 0

        def create() -> KubeObject:
            nonlocal tries
            tries += 1
            try:
                answer = self._once("create", kind, doing, name=name, subresource=subresource, body=one, query=query)
            except ApiProblem as problem:
                if problem.reason == "AlreadyExists" and tries > 1 and known:
                    return self._made_before(one)
                raise
            return dict(self._decoded(answer, KubeObject, doing))

        return self._while_busy(create)

    def _made_before(self, one: KubeObject) -> KubeObject:
        """Return an object that is there already; as it was to be made where whoever may make it may not read it."""
        try:
            return dict(self.get(one["kind"], one["metadata"]["name"]))
        except ApiProblem as problem:
            if problem.status != 403:
                raise
            return one

    def patch(
        self,
        kind: str,
        name: str,
        changes: KubeObject,
        *,
        subresource: str = "",
        how: Literal["merge", "strategic"] = "strategic",
    ) -> KubeObject:
        """Change parts of an object; a patch that was done may be done again. One that names the version that it changes is refused for
        good when there is another."""
        doing = f"change {kind} {name}"
        headers = {"Content-Type": _PATCH_TYPES[how]}
        answer = self._again("patch", kind, doing, name=name, subresource=subresource, body=changes, headers=headers)
        return dict(self._decoded(answer, KubeObject, doing))

    def delete(
        self, kind: str, name: str, *, propagation: Propagation, grace_seconds: int | None = None, uid: str = ""
    ) -> bool:
        """Delete an object, and what it owns as ``propagation`` says. Return whether there was one. ``uid``: delete this one alone, and not
        another one that has its name by now."""
        body: KubeObject = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if uid:
            body["preconditions"] = {"uid": uid}

        def delete() -> bool:
            try:
                self._once("delete", kind, f"delete {kind} {name}", name=name, body=body).release_conn()
            except ApiProblem as problem:
                if problem.status == 404 or (problem.reason == "Conflict" and uid and self._uid(kind, name) != uid):
                    return False
                raise
            return True

        return self._while_busy(delete)

    def _uid(self, kind: str, name: str) -> str:
        """Return the uid of the object that has this name now; empty: none has."""
        found = self.find(kind, name)
        return "" if found is None else str(found["metadata"]["uid"])

    def stream(self, kind: str, query: Sequence[tuple[str, str]], *, idle_seconds: float) -> Stream:
        """Watch objects of a kind. Nothing is tried again."""
        doing = f"watch {KINDS[kind].plural}"
        answer = self._once("watch", kind, doing, query=[*query, ("watch", "true")], timeout=(10.0, idle_seconds))
        return Stream(answer, doing, self.connection.server)

    def read_path(self, path: str, of: type[T] | Any = KubeObject, *, query: Sequence[tuple[str, str]] = ()) -> T | Any:
        """Read what isn't an object of a kind: "/version", the log of a pod."""
        doing = f"read {path}"
        answer = self._while_busy(lambda: self._request("get", "", "GET", path, doing, query=query))
        return answer.data.decode("utf-8", "replace") if of is str else self._decoded(answer, of, doing)

    # --- one request ----------------------------------------------------------------------------------------------------

    def _again(self, verb: str, kind: str, doing: str, **request: Any) -> urllib3.BaseHTTPResponse:
        is_versioned = "resourceVersion" in (request.get("body") or {}).get("metadata", {})
        return self._while_busy(lambda: self._once(verb, kind, doing, **request), takes_conflicts=is_versioned)

    def _while_busy(self, request: Callable[[], T], *, takes_conflicts: bool = False) -> T:
        """Make a request again while the server gives no answer, or has no time, until patience is over. ``takes_conflicts``: that somebody
        else has changed the object is an answer."""
        end, wait = self._clock() + self._patience, 0.2
        while True:
            try:
                return request()
            except (Unreachable, ApiProblem) as problem:
                if isinstance(problem, ApiProblem) and (
                    not problem.may_pass or (takes_conflicts and problem.reason == "Conflict")
                ):
                    raise
                asked = problem.retry_after_seconds if isinstance(problem, ApiProblem) else 0.0
                pause = max(wait, asked)
                if self._clock() + pause > end:
                    raise
                self._sleep(pause)
                wait = min(2 * wait, _MOST_WAIT_SECONDS)

    def _once(
        self,
        verb: str,
        kind: str,
        doing: str,
        *,
        name: str = "",
        subresource: str = "",
        **request: Any,
    ) -> urllib3.BaseHTTPResponse:
        namespace = "" if kind in _WITHOUT_NAMESPACE else self.namespace
        method = {"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}[
            verb
        ]
        return self._request(verb, kind, method, KINDS[kind].path(namespace, name, subresource), doing, **request)

    def _request(
        self,
        verb: str,
        kind: str,
        method: str,
        path: str,
        doing: str,
        *,
        body: KubeObject | None = None,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        timeout: tuple[float, float] = (10.0, _TIMEOUT_SECONDS),
    ) -> urllib3.BaseHTTPResponse:
        self.counts[f"{verb} {KINDS[kind].plural}" if kind else f"{verb} {path}"] += 1
        try:
            answer: urllib3.BaseHTTPResponse = self.connection.client.call_api(
                path,
                method,
                query_params=list(query),
                header_params={"Accept": "application/json", **(headers or {})},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=timeout,
            )
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise explained(error, doing, self.connection.server) from error
        return answer

    def _decoded(self, answer: urllib3.BaseHTTPResponse, of: Any, doing: str) -> Any:
        try:
            return from_json(answer.data, of)
        except (msgspec.DecodeError, urllib3.exceptions.HTTPError) as error:
            raise Unreachable(
                f"The API server {self.connection.server} gives an answer that can't be understood: couldn't {doing}: {error}",
                hint="Is something else in between, as a proxy that answers for it?",
            ) from error


def _selector(labels: Mapping[str, str] | None) -> list[tuple[str, str]]:
    return [("labelSelector", ",".join(f"{name}={value}" for name, value in sorted(labels.items())))] if labels else []
