"""What a PS counts of its connections: totals by peer that never fall, and the fastest rate of the last seconds."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.ps.server.transfer_meter import FASTEST_SECONDS, TransferMeter
from dlrover_lite.transport.tcp_connections import TcpConnection


class Kernel:
    def __init__(self) -> None:
        self.there: dict[int, TcpConnection] = {}
        self.now = 0.0
        self.meter = TransferMeter(lambda: list(self.there.values()), lambda: self.now)

    def totals(self) -> dict[str, tuple[int, int]]:
        return {one.peer: (one.sent_bytes, one.received_bytes) for one in self.meter.totals()}


steps = st.lists(
    st.tuples(st.sampled_from(["go", "end"]), st.integers(0, 3), st.integers(0, 1000), st.integers(0, 1000)),
    max_size=30,
)


@given(steps)
def test_totals_are_those_of_all_connections_whenever_they_end(steps: list[tuple[str, int, int, int]]) -> None:
    """A port that is used again begins at 0."""
    kernel, sent, received = Kernel(), Counter[str](), Counter[str]()
    for what, number, out, back in steps:
        peer = f"10.0.0.{number % 2}"
        before = kernel.there.get(number)
        if what == "end":
            kernel.there.pop(number, None)
        else:
            base = before or TcpConnection(7000, peer, number, 0, 0, 1)
            kernel.there[number] = base._replace(
                sent_bytes=base.sent_bytes + out, received_bytes=base.received_bytes + back
            )
            sent[peer] += out
            received[peer] += back
        told = kernel.totals()
        assert all(told[peer] == (sent[peer], received[peer]) for peer in told)
        assert set(told) >= {one.peer for one in kernel.there.values()}


def test_a_connection_that_takes_anothers_ports_at_once_is_another_one() -> None:
    kernel = Kernel()
    kernel.there[0] = TcpConnection(7000, "10.0.0.1", 5, 900, 90, 1)
    kernel.totals()
    kernel.there[0] = TcpConnection(7000, "10.0.0.1", 5, 100, 10, 1)
    assert kernel.totals() == {"10.0.0.1": (1000, 100)}


def test_the_fastest_rate_counts_for_a_while() -> None:
    kernel = Kernel()

    def fastest(rate: int) -> float:
        kernel.there[0] = TcpConnection(7000, "10.0.0.1", 5, 0, 0, rate)
        (one,) = kernel.meter.totals()
        return one.bytes_per_second

    assert fastest(500) == 500
    kernel.now = 4.0
    assert fastest(200) == 500
    kernel.now = 6.0
    assert fastest(300) == 500
    kernel.now = FASTEST_SECONDS + 1.0
    assert fastest(100) == 300
    kernel.now = FASTEST_SECONDS + 7.0
    assert fastest(50) == 100
