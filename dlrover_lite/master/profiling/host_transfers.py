"""What crosses hosts: from what each PS tells of its peers' addresses, to what came in through a host's network card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dlrover_lite.protocol.messages import PeerTransfers

__all__ = ["HostTransfers", "PsTraffic", "received_by_host"]


class PsTraffic(NamedTuple):
    """What has gone between a PS and the workers of one host in an interval. ``bytes_per_second``: the fastest that was seen to be sent."""

    ps_host: str
    worker_host: str
    sent_bytes: float
    received_bytes: float
    bytes_per_second: float


class HostTransfers:
    """Totals of each PS by its peers' hosts. What is told of an address before its host is known counts nowhere."""

    def __init__(self) -> None:
        self._host_of: dict[str, str] = {}
        self._before: dict[str, dict[str, PeerTransfers]] = {}
        """What each PS told last, by peer."""
        self._totals: dict[str, dict[str, tuple[float, float]]] = {}
        """Bytes sent and received by each PS, by the peers' host."""

    def located(self, host_of: Mapping[str, str]) -> None:
        """Take note of the hosts of addresses."""
        self._host_of.update(host_of)

    def told(self, node: str, transfers: Iterable[PeerTransfers]) -> dict[str, tuple[float, float, float]]:
        """Take note of what a PS tells. Return its totals by host: bytes sent, bytes received, and bytes/s of the fastest."""
        before, totals, fastest = self._before.get(node, {}), self._totals.setdefault(node, {}), dict[str, float]()
        now = {one.peer: one for one in transfers}
        for peer, one in now.items():
            if (host := self._host_of.get(peer)) is None:
                continue
            last = before.get(peer, PeerTransfers(peer, 0, 0))
            sent, received = totals.get(host, (0.0, 0.0))
            totals[host] = (
                sent + max(0, one.sent_bytes - last.sent_bytes),
                received + max(0, one.received_bytes - last.received_bytes),
            )
            fastest[host] = max(fastest.get(host, 0.0), one.bytes_per_second)
        self._before[node] = now
        return {host: (*both, fastest.get(host, 0.0)) for host, both in totals.items()}

    def keep_only(self, nodes: Iterable[str]) -> None:
        """Forget PS other than these."""
        present = set(nodes)
        for known in (self._before, self._totals):
            for node in [node for node in known if node not in present]:
                del known[node]


def received_by_host(traffic: Sequence[PsTraffic], seconds: float) -> dict[str, tuple[int, float]]:
    """Compute the bytes that came in from other hosts at each host, and the seconds that its card takes for them, at the fastest rate that
    was seen there, or that it must have had for all of them to come."""
    received: dict[str, float] = {}
    fastest: dict[str, float] = {}
    for one in traffic:
        if one.ps_host == one.worker_host:
            continue
        received[one.worker_host] = received.get(one.worker_host, 0.0) + one.sent_bytes
        received[one.ps_host] = received.get(one.ps_host, 0.0) + one.received_bytes
        for host in (one.ps_host, one.worker_host):  # what a card can send it can receive
            fastest[host] = max(fastest.get(host, 0.0), one.bytes_per_second)
    return {
        host: (round(size), size / max(fastest[host], size / seconds))
        for host, size in received.items()
        if size > 0 and fastest[host] > 0
    }
