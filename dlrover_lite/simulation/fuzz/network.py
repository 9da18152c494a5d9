"""What happens to messages: a network that loses, doubles, holds up and reorders them for a while, or cuts somebody off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlrover_lite.simulation.fuzz.faults import Kind
from dlrover_lite.simulation.world import World
from dlrover_lite.transport.memory import Delivery

__all__ = ["DisturbedNetwork"]

_MOST_LATE_SECONDS = 2.0
_LOST_SHARE, _DOUBLED_SHARE, _REORDERED_SHARE, _LATE_SHARE = 0.4, 0.5, 0.5, 0.3
"""Shares of the messages that it happens to, at most."""


class _Disturbance(NamedTuple):
    kind: Kind
    until: float
    endpoint: str
    """The only server whose messages it happens to; empty: all."""
    amount: float


class DisturbedNetwork:
    """Says how each message of a world arrives."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance("messages")
        self._usual = world.network.deliveries
        self._under_way: list[_Disturbance] = []
        world.network.deliveries = self._deliveries

    def disturb(self, kind: Kind, seconds: float, amount: float, endpoint: str = "") -> None:
        """Have that happen for a while."""
        self._under_way.append(_Disturbance(kind, self._world.clock.now + seconds, endpoint, amount))

    def _deliveries(self, endpoint: str) -> Sequence[Delivery]:
        found = self._usual(endpoint)
        if not self._under_way:
            return found
        now = self._world.clock.now
        self._under_way = [one for one in self._under_way if one.until > now]
        for one in self._under_way:
            if one.endpoint in ("", endpoint):
                found = self._changed(found, one)
        return found

    def _changed(self, found: Sequence[Delivery], one: _Disturbance) -> Sequence[Delivery]:
        drawn, seconds = self._chance.random(), self._chance.random()
        match one.kind:
            case "a server is cut off" | "the master is cut off":
                return ()
            case "messages are lost" if drawn < _LOST_SHARE * one.amount:
                return ()
            case "messages come twice" if drawn < _DOUBLED_SHARE * one.amount:
                return (*found, Delivery(seconds))
            case "messages overtake each other" if drawn < _REORDERED_SHARE * one.amount:
                return [Delivery(delivery.seconds + 0.2 * seconds, in_order=False) for delivery in found]
            case "messages come late" if drawn < _LATE_SHARE * one.amount:
                return [
                    delivery._replace(seconds=delivery.seconds + _MOST_LATE_SECONDS * seconds) for delivery in found
                ]
            case _:
                return found
