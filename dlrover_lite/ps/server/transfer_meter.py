"""What goes over the network between a PS and each of its peers, for the profile of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from dlrover_lite.protocol.messages import PeerTransfers
from dlrover_lite.transport.tcp_connections import TcpConnection

__all__ = ["FASTEST_SECONDS", "TransferMeter"]

FASTEST_SECONDS = 10.0
"""Seconds for which the fastest rate counts: what a path can carry shows when nothing else uses it (Cardwell et al., BBR, ACM Queue
2016)."""


class TransferMeter:
    """Adds up connections by the peer's address. ``look`` lists those that there are now."""

    def __init__(self, look: Callable[[], Iterable[TcpConnection]], clock: Callable[[], float]) -> None:
        self._look, self._clock = look, clock
        self._there: dict[tuple[int, str, int], TcpConnection] = {}
        self._sent: Counter[str] = Counter()
        """Bytes of connections that have ended, by the peer's address."""
        self._received: Counter[str] = Counter()
        self._rates: dict[str, list[tuple[float, int]]] = {}
        """Rates that none later has been above, each with its time, the earliest and fastest first."""

    def totals(self) -> list[PeerTransfers]:
        """Return what has come and gone so far, by peer."""
        now = self._clock()
        there = {(one.port, one.peer, one.peer_port): one for one in self._look()}
        for key, before in self._there.items():
            if key not in there or there[key].sent_bytes < before.sent_bytes:
                self._sent[before.peer] += before.sent_bytes
                self._received[before.peer] += before.received_bytes
        self._there = there
        sent, received = self._sent.copy(), self._received.copy()
        for one in there.values():
            sent[one.peer] += one.sent_bytes
            received[one.peer] += one.received_bytes
            self._saw(one, now)
        return [PeerTransfers(peer, sent[peer], received[peer], self._fastest(peer, now)) for peer in sorted(sent)]

    def _saw(self, one: TcpConnection, now: float) -> None:
        rates = self._rates.setdefault(one.peer, [])
        while rates and rates[-1][1] <= one.bytes_per_second:
            rates.pop()
        rates.append((now, one.bytes_per_second))

    def _fastest(self, peer: str, now: float) -> float:
        rates = self._rates.get(peer, [])
        while len(rates) > 1 and rates[0][0] < now - FASTEST_SECONDS:
            rates.pop(0)
        return float(rates[0][1]) if rates else 0.0
