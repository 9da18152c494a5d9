"""A list of objects that stays up to date: listed once, then watched.

A dropped connection goes on where it was, as bookmarks say; what the server has forgotten (410) is listed anew. So whoever follows sees
every object's newest state, and those that are gone, though not each state in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

import msgspec

from dlrover_lite.backends.k8s.api.calls import Calls, Stream
from dlrover_lite.backends.k8s.api.problems import ApiProblem, Unreachable
from dlrover_lite.core.decoding import json_decoder

__all__ = ["Change", "Followed", "Meta", "Watch"]

_IDLE_SECONDS = 330.0
"""Seconds without a line after which a connection counts as lost: servers send a bookmark about once a minute, and end a watch after
``timeoutSeconds``."""
_WATCH_SECONDS = 300
_LEAST_WAIT_SECONDS, _MOST_WAIT_SECONDS = 0.1, 30.0


class Meta(msgspec.Struct, rename="camel"):
    """Metadata of an object, as far as following it needs them."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None


class Followed(msgspec.Struct):
    """What every object has."""

    metadata: Meta = msgspec.field(default_factory=Meta)


T = TypeVar("T", bound=Followed)


class Listed(msgspec.Struct, Generic[T]):
    metadata: Meta
    items: list[T]


class Change(NamedTuple, Generic[T]):
    """Objects as they are now. All of them, where ``whole``: others are gone."""

    there: list[T]
    gone: list[T]
    whole: bool = False


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Failure(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


class Watch(Generic[T]):
    """Follows all objects of a kind with these labels: iterating gives all of them first, then what changes, until it is stopped."""

    def __init__(
        self,
        calls: Calls,
        kind: str,
        of: type[T],
        labels: Mapping[str, str],
        *,
        wait: Callable[[float], object],
        say: Callable[[str], None],
    ) -> None:
        """``wait`` waits for so many seconds, or until the watch is stopped. ``say`` is told of what keeps it from seeing anything new,
        once until it can again."""
        self._calls, self._kind, self._of, self._labels = calls, kind, of, labels
        self._wait, self._say = wait, say
        self._stream: Stream | None = None
        self._stopped = False

    def stop(self) -> None:
        """Stop, from any thread."""
        self._stopped = True
        if (stream := self._stream) is not None:
            stream.stop()

    def __iter__(self) -> Iterator[Change[T]]:
        version, pause, complained = "", _LEAST_WAIT_SECONDS, False
        while not self._stopped:
            try:
                if not version:
                    listed, version = self._list()
                    yield Change(listed, [], whole=True)
                for change, newest in self._changes(version):
                    version, pause, complained = newest, _LEAST_WAIT_SECONDS, False
                    if change is not None:
                        yield change
                self._wait(_LEAST_WAIT_SECONDS)  # the server ends a watch now and then
                continue
            except (ApiProblem, Unreachable) as problem:
                if isinstance(problem, ApiProblem) and problem.status == 410:
                    version = ""
                    continue
                if not complained and not self._stopped:
                    self._say(f"{problem.message}; trying again")
                complained = True
            self._wait(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _MOST_WAIT_SECONDS)

    def _list(self) -> tuple[list[T], str]:
        found = self._calls.list(self._kind, Listed[self._of], labels=self._labels)  # type: ignore[name-defined]
        return found.items, found.metadata.resource_version

    def _changes(self, version: str) -> Iterator[tuple[Change[T] | None, str]]:
        """Watch from a version on; yield what changes, if anything, with the version up to which all is known. Raises ApiProblem of status
        410 when that is too old."""
        events, objects, bookmarks = json_decoder(_Event), json_decoder(self._of), json_decoder(Followed)
        query = [
            ("labelSelector", ",".join(f"{name}={value}" for name, value in sorted(self._labels.items()))),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(_WATCH_SECONDS)),
        ]
        self._stream = stream = self._calls.stream(self._kind, query, idle_seconds=_IDLE_SECONDS)
        if self._stopped:  # before there was anything to stop
            stream.stop()
        for line in stream:
            try:
                event = events.decode(line)
                if event.type == "ERROR":
                    failure = json_decoder(_Failure).decode(event.object)
                    raise ApiProblem(failure.message, status=failure.code, reason=failure.reason)
                if event.type == "BOOKMARK":  # of the kind, with a version and nothing else
                    version = bookmarks.decode(event.object).metadata.resource_version or version
                    yield None, version
                    continue
                one = objects.decode(event.object)
            except msgspec.DecodeError as error:
                raise Unreachable(f"The watch of {self._kind} sends what can't be understood: {error}") from error
            version = one.metadata.resource_version or version
            match event.type:
                case "DELETED":
                    yield Change([], [one]), version
                case _:
                    yield Change([one], []), version
