"""What crosses hosts: what came in at each, and for how long that takes its network card."""

from __future__ import annotations

import pytest

from dlrover_lite.master.profiling.host_transfers import HostTransfers, PsTraffic, received_by_host
from dlrover_lite.protocol.messages import PeerTransfers


def test_totals_are_by_the_peers_host() -> None:
    transfers = HostTransfers()
    transfers.located({"10.0.0.1": "a", "10.0.0.2": "a", "10.0.0.3": "b"})
    told = [
        PeerTransfers("10.0.0.1", 10, 1, 5.0),
        PeerTransfers("10.0.0.2", 20, 2, 9.0),
        PeerTransfers("10.0.0.3", 40, 4),
    ]
    assert transfers.told("ps-0", told) == {"a": (30.0, 3.0, 9.0), "b": (40.0, 4.0, 0.0)}
    told[0] = PeerTransfers("10.0.0.1", 15, 1, 5.0)
    assert transfers.told("ps-0", told)["a"] == (35.0, 3.0, 9.0)
    assert transfers.told("ps-1", told)["a"] == (35.0, 3.0, 9.0)


def test_what_came_before_a_host_was_known_is_not_taken_for_what_came_since() -> None:
    transfers = HostTransfers()
    assert transfers.told("ps-0", [PeerTransfers("10.0.0.1", 1_000, 100)]) == {}
    transfers.located({"10.0.0.1": "a"})
    assert transfers.told("ps-0", [PeerTransfers("10.0.0.1", 1_010, 101)]) == {"a": (10.0, 1.0, 0.0)}


def test_a_peer_that_is_gone_stays_counted_and_an_address_may_be_had_by_another() -> None:
    transfers = HostTransfers()
    transfers.located({"10.0.0.1": "a"})
    transfers.told("ps-0", [PeerTransfers("10.0.0.1", 10, 1)])
    assert transfers.told("ps-0", [])["a"] == (10.0, 1.0, 0.0)
    transfers.located({"10.0.0.1": "b"})
    assert transfers.told("ps-0", [PeerTransfers("10.0.0.1", 4, 4)]) == {"a": (10.0, 1.0, 0.0), "b": (4.0, 4.0, 0.0)}


def test_a_ps_that_is_gone_is_forgotten() -> None:
    transfers = HostTransfers()
    transfers.located({"10.0.0.1": "a"})
    transfers.told("ps-0", [PeerTransfers("10.0.0.1", 10, 1)])
    transfers.keep_only([])
    assert transfers.told("ps-0", [PeerTransfers("10.0.0.1", 3, 1)])["a"] == (3.0, 1.0, 0.0)


def test_rows_come_in_at_the_workers_host_and_gradients_at_the_servers() -> None:
    traffic = [PsTraffic("a", "b", 600.0, 400.0, 1_000.0), PsTraffic("a", "a", 9e9, 9e9, 9e9)]
    assert received_by_host(traffic, 10.0) == {"b": (600, pytest.approx(0.6)), "a": (400, pytest.approx(0.4))}


def test_a_card_is_as_fast_as_the_fastest_that_was_seen_there() -> None:
    traffic = [PsTraffic("a", "b", 500.0, 0.0, 100.0), PsTraffic("a", "c", 500.0, 0.0, 250.0)]
    found = received_by_host(traffic, 10.0)
    assert found["b"] == (500, pytest.approx(5.0)) and found["c"] == (500, pytest.approx(2.0))


def test_a_card_is_at_least_as_fast_as_what_came() -> None:
    """Several share it, and none is ever alone."""
    traffic = [PsTraffic(f"ps-{n}", "b", 500.0, 0.0, 100.0) for n in range(4)]
    assert received_by_host(traffic, 10.0)["b"] == (2000, pytest.approx(10.0))


def test_without_a_rate_nothing_is_known() -> None:
    assert received_by_host([PsTraffic("a", "b", 500.0, 500.0, 0.0)], 10.0) == {}
