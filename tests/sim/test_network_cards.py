"""Jobs whose nodes are on the same machines share what these have of a network."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.backends.sim.fluid.job import JobRequest
from dlrover_lite.backends.sim.fluid.world import FluidWorld
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.memory import MemoryCosts, Table
from dlrover_lite.backends.sim.physics.network_cards import NetworkCards
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.backends.sim.physics.startup import Startup
from dlrover_lite.core.units import GIB, Resources

CARDS = {0: 100.0, 1: 100.0}
WISHES = st.dictionaries(st.integers(0, 1), st.floats(1.0, 300.0), max_size=2)


def test_a_card_that_carries_all_slows_nobody() -> None:
    cards = NetworkCards[str]()
    assert cards.wants("a", {0: 60.0}, CARDS) == []
    assert cards.wants("b", {0: 40.0}, CARDS) == []
    assert cards.parts("a") == cards.parts("b") == {}


def test_what_one_doesnt_want_goes_to_the_others_and_comes_back_from_them() -> None:
    cards = NetworkCards[str]()
    cards.wants("a", {0: 25.0, 1: 10.0}, CARDS)
    assert cards.wants("b", {0: 90.0}, CARDS) == ["a"]
    assert (cards.parts("a"), cards.parts("b")) == ({0: 0.25}, {0: 0.75})
    assert cards.wants("c", {0: 90.0}, CARDS) == ["b"], "what the first wants it has as before"
    assert cards.parts("b") == cards.parts("c") == {0: 0.375}
    assert cards.wants("b", {}, CARDS) == ["c"]
    assert cards.wants("c", {}, CARDS) == ["a"]
    assert cards.parts("a") == {}


@given(st.lists(st.tuples(st.sampled_from("abcd"), WISHES), max_size=12))
def test_parts_follow_from_what_is_wanted_alone_and_everyone_is_told(
    wishes: list[tuple[str, dict[int, float]]],
) -> None:
    """Whatever came before; and nobody has another part than it was told of."""
    cards, known = NetworkCards[str](), dict[str, dict[int, float]]()
    told: dict[str, dict[int, float]] = {}
    for job, wanted in wishes:
        known[job] = wanted
        for other in [*cards.wants(job, wanted, CARDS), job]:
            told[other] = dict(cards.parts(other))
    anew = NetworkCards[str]()
    for job, wanted in known.items():
        anew.wants(job, wanted, CARDS)
    for job in known:
        assert dict(cards.parts(job)) == dict(anew.parts(job)) == told[job]
        assert all(host in known[job] for host in told[job])
    for host, card in CARDS.items():
        if sum(wanted.get(host, 0.0) for wanted in known.values()) <= card:
            assert all(host not in parts for parts in told.values())


def jobs(bytes_per_second: float, count: int, *, shorter: float = 1.0) -> list[float]:
    """Return how long each of so many jobs takes whose servers are on one machine, and their workers on others. The first one has that
    part of what each of the others has to do."""
    job = JobRequest(
        "ads",
        0.0,
        4e6,
        Costs(sample_bytes=4_000.0),
        MemoryCosts((Table(1e5, count=26),)),
        workers=2,
        worker=Resources(1.0, GIB),
        servers=1,
        server=Resources(1.0, 8 * GIB),
    )
    # servers find room on the first machine alone, and workers most cores on the others
    servers = Machine(1.0 * count, bytes_per_second=bytes_per_second, memory=8 * count * GIB)
    machines = [servers, *[Machine(8.0, bytes_per_second=1e12, memory=4 * GIB)] * count]
    found = FluidWorld(
        machines,
        [replace(job, name=f"ads-{at}", samples=job.samples * (1.0 if at else shorter)) for at in range(count)],
        startup=Startup(pending_seconds=1.0, starting_seconds=1.0, joining_seconds=0.0, variation=0.0),
        rates=RATES,
    )
    found.run_until(1e6)
    assert all(one.state == "succeeded" for one in found.jobs)
    return [one.ended_at or 0.0 for one in found.jobs]


RATES = Rates()


def test_jobs_whose_servers_share_a_card_take_longer() -> None:
    wide, narrow = 1.25e9, 60e6
    (alone,) = jobs(narrow, 1)
    three = jobs(narrow, 3)
    assert min(three) > 1.5 * alone
    assert max(jobs(wide, 3)) == pytest.approx(jobs(wide, 1)[0], rel=0.05)


def test_who_is_left_on_a_card_is_as_fast_as_alone_again() -> None:
    """Two that share it all the time, and one that has it for itself once the other one has ended, which had half as much to do."""
    (alone,) = jobs(60e6, 1)
    both = jobs(60e6, 2)
    short, long = jobs(60e6, 2, shorter=0.5)
    assert both[0] > 1.5 * alone
    assert short < long < 0.9 * both[1]
