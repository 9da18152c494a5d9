"""Objects of a real API server as they are followed: through cut connections, answers of 410, and changes meanwhile."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.watch import Change, Followed, Meta, Watch
from dlrover_lite.backends.k8s.objects.pod_view import PodView
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.proxy import Fault, Proxy

pytestmark = needs_cluster
_numbers = itertools.count()
_SECONDS = 30.0


class Follower:
    """Follows ConfigMaps in a thread, and keeps what it was told."""

    def __init__(self, proxy: Proxy, label: str) -> None:
        self.label = label
        self.changes: queue.Queue[Change[Followed]] = queue.Queue()
        self.said: list[str] = []
        self.there: dict[str, str] = {}
        self._stop = threading.Event()
        calls = Calls(proxy.connection(), clock=lambda: 0.0, sleep=lambda _: None, patience_seconds=0.0)
        self._watch = Watch(
            calls, "ConfigMap", Followed, {"test": label}, wait=lambda _: self._stop.wait(0.01), say=self.said.append
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for change in self._watch:
            self.changes.put(change)

    def sees(self, **values: str) -> None:
        """Wait until just these are there, by what they are called in the test."""
        self.until(lambda: self.there == {f"{self.label}-{name}": value for name, value in values.items()})

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            change = self.changes.get(timeout=_SECONDS)
            if change.whole:
                self.there.clear()
            for one in change.there:
                self.there[one.metadata.name] = one.metadata.annotations.get("value", "")
            for one in change.gone:
                del self.there[one.metadata.name]

    def stop(self) -> None:
        self._stop.set()
        self._watch.stop()
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive()


class Maps:
    """ConfigMaps of a test."""

    def __init__(self, proxy: Proxy) -> None:
        self.label = f"watch-{next(_numbers)}"
        self._calls = Calls(proxy.connection(), clock=lambda: 0.0, sleep=lambda _: None)

    def name(self, short: str) -> str:
        return f"{self.label}-{short}"

    def put(self, short: str, value: str = "") -> None:
        meta = {"name": self.name(short), "labels": {"test": self.label}, "annotations": {"value": value}}
        self._calls.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})

    def change(self, short: str, value: str) -> None:
        self._calls.patch("ConfigMap", self.name(short), {"metadata": {"annotations": {"value": value}}})

    def remove(self, short: str) -> None:
        assert self._calls.delete("ConfigMap", self.name(short), propagation="Background")


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[Proxy]:
    found = Proxy(api_server)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def maps(proxy: Proxy) -> Maps:
    return Maps(proxy)


@pytest.fixture
def follower(proxy: Proxy, maps: Maps) -> Iterator[Follower]:
    maps.put("first", "1")
    found = Follower(proxy, maps.label)
    try:
        found.sees(first="1")
        yield found
    finally:
        found.stop()


def lists(proxy: Proxy) -> int:
    return sum("watch=true" not in one for one in proxy.requests if one.startswith("GET") and "configmaps?" in one)


def test_what_comes_changes_and_goes_is_told(maps: Maps, follower: Follower, proxy: Proxy) -> None:
    maps.put("second")
    maps.change("first", "2")
    maps.remove("first")
    maps.change("second", "3")
    follower.sees(second="3")
    assert lists(proxy) == 1 and follower.said == []


def test_a_cut_connection_goes_on_where_it_was(maps: Maps, follower: Follower, proxy: Proxy) -> None:
    for number in range(5):
        assert proxy.cut_watches() <= 1
        maps.change("first", f"cut {number}")
        follower.sees(first=f"cut {number}")
    maps.put("second")
    proxy.cut_watches()
    maps.remove("first")
    follower.sees(second="")
    assert lists(proxy) == 1, "nothing was listed again"


def test_what_the_server_has_forgotten_is_listed_again(maps: Maps, follower: Follower, proxy: Proxy) -> None:
    proxy.faults.append(Fault("GET", "watch=true", 410, "Expired"))
    maps.put("second")
    follower.until(lambda: len(follower.there) == 2)
    proxy.cut_watches()
    maps.remove("first")
    follower.sees(second="")
    assert lists(proxy) == 2


def test_a_server_that_has_no_time_is_said_once_and_asked_again(maps: Maps, follower: Follower, proxy: Proxy) -> None:
    proxy.faults += [Fault("GET", "watch=true", 500, "InternalError")] * 3
    proxy.cut_watches()
    maps.change("first", "after")
    follower.sees(first="after")
    assert len(follower.said) <= 2  # the cut itself may be one
    assert all("trying again" in one for one in follower.said)


class _Enough(Exception):
    pass


class Scripted:
    """Calls that answer with what a server has sent, once."""

    def __init__(self, *lines: bytes) -> None:
        self.lines, self.versions = lines, list[str]()

    def list(self, _: str, of: Any, **__: Any) -> Any:
        return of(Meta(resource_version="5"), [])

    def stream(self, _: str, query: Any, **__: Any) -> Any:
        self.versions.append(dict(query)["resourceVersion"])
        if len(self.versions) > 1:
            raise _Enough
        return iter(self.lines)


def test_a_bookmark_is_understood_though_its_object_is_empty() -> None:
    empty = b'{"kind": "Pod", "metadata": {"resourceVersion": "7"}, "spec": {"containers": null}}'
    calls, said = Scripted(b'{"type": "BOOKMARK", "object": ' + empty + b"}"), list[str]()
    watch: Watch[PodView] = Watch(calls, "Pod", PodView, {}, wait=lambda _: None, say=said.append)  # type: ignore[arg-type]
    with suppress(_Enough):
        for _ in watch:
            pass
    assert calls.versions == ["5", "7"] and said == []
