"""What an API server refuses, and that it can't be reached, as errors that say what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import urllib3
from kubernetes.client.exceptions import ApiException

from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BackendError

__all__ = ["ApiProblem", "Unreachable", "explained"]

_FORBIDDEN = re.compile(r'User "(?P<user>[^"]+)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)"')
_QUOTA = re.compile(
    r"exceeded quota: (?P<quota>[^,]+), requested: (?P<requested>[^ ]+), used: (?P<used>[^ ]+), limited: (?P<limited>.+)"
)


class Unreachable(BackendError):
    """The API server gives no answer: it may never have got the request, or have done what it says. Trying again may do."""


class ApiProblem(BackendError):
    """The API server refuses a request."""

    def __init__(
        self, message: str, *, status: int, reason: str, hint: str = "", retry_after_seconds: float = 0.0
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        """HTTP status."""
        self.reason = reason
        """The API's own word: AlreadyExists, Conflict, Expired, Forbidden, …"""
        self.retry_after_seconds = retry_after_seconds
        """Seconds that the server wants to be left alone for; 0: it doesn't say."""

    @property
    def is_over_quota(self) -> bool:
        """Whether a quota of the namespace leaves no more: it may when something ends."""
        return self.status == 403 and _QUOTA.search(self.message) is not None

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be granted a moment later: the server is busy, starts, or is being replaced; or two have changed the
        same object, a quota perhaps, at the same time."""
        return self.status in (408, 429, 500, 502, 503, 504) or self.reason == "Conflict"


class _Cause(msgspec.Struct):
    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] = []
    retry_after_seconds: float = 0.0


class _Status(msgspec.Struct):
    """An answer of kind Status."""

    message: str = ""
    reason: str = ""
    details: _Details | None = None


def explained(error: Exception, doing: str, server: str) -> BackendError:
    """Say what an exception of the client means. ``doing``: what was asked for, as in "create the pod ads-1-ps-0"."""
    if isinstance(error, ApiException) and error.status:
        return _refused(error, doing)
    why = _innermost(error)
    if isinstance(why, urllib3.exceptions.SSLError) or "certificate" in str(why).lower():
        hint = "Its certificate isn't that of the kubeconfig's `certificate-authority`, or is over: has the cluster been made anew?"
    elif isinstance(why, urllib3.exceptions.NameResolutionError):
        hint = "Its name isn't known here: is this machine in the cluster's network, or VPN?"
    else:
        hint = "Is the cluster up, and can it be reached from here? `kubectl get --raw /readyz` asks the same."
    return Unreachable(f"The API server {server} gives no answer: couldn't {doing}: {why}", hint=hint)


def _refused(error: ApiException, doing: str) -> ApiProblem:
    told = _told(error)
    details = told.details or _Details()
    message = told.message or str(error.reason or "")
    retry = details.retry_after_seconds or _retry_after(error)
    return ApiProblem(
        f"The cluster refuses to {doing}: {message}"
        if message
        else f"The cluster refuses to {doing} (HTTP {error.status})",
        status=error.status,
        reason=told.reason or str(error.reason or ""),
        hint=_hint(error.status, message),
        retry_after_seconds=retry,
    )


def _told(error: ApiException) -> _Status:
    body = error.body
    try:
        return from_json(body, _Status) if body else _Status()
    except msgspec.DecodeError:  # of a proxy before the server
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
        return _Status(message=" ".join(text.split())[:200])


def _retry_after(error: ApiException) -> float:
    value = (error.headers or {}).get("Retry-After", "")
    return float(value) if re.fullmatch(r"\d+(\.\d+)?", value) else 0.0


def _hint(status: int, message: str) -> str:
    match status:
        case 401:
            return (
                "The credentials aren't accepted: log in again (a token may have expired), or choose another context."
            )
        case 403 if (quota := _QUOTA.search(message)) is not None:
            return (
                f"The quota {quota['quota']} leaves no more: {quota['requested']} was asked for beside {quota['used']}, "
                f"of {quota['limited']}. End other jobs, lower the recipe's ceiling (`resources.total`), or have it raised."
            )
        case 403 if (missing := _FORBIDDEN.search(message)) is not None:
            return (
                f"{missing['user']} lacks the right to {missing['verb']} {missing['resource']}. `dlrover-lite k8s check` tells what else "
                "is missing; somebody who may make roles has to apply what `dlrover-lite k8s manifests` prints."
            )
        case 403:
            return "A policy of the cluster forbids it; its words say which. `dlrover-lite k8s check` tells which rights there are."
        case 404:
            return "It isn't there, or is gone: is this the right namespace, and context?"
        case 409:
            return "Somebody else has changed or made it meanwhile: try again."
        case 422:
            return "The cluster doesn't take an object like this: `--dry-run` prints it, and its words say which field."
        case 429 | 500 | 502 | 503 | 504:
            return "The API server is busy, or starts again: try again in a moment."
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = getattr(at, "reason", None) if isinstance(getattr(at, "reason", None), BaseException) else at.__cause__


def _innermost(error: Exception) -> BaseException:
    *_, last = _chain(error)
    return last
