"""The network as a limit of its own: what crosses hosts, how long that takes, and what it limits."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.brain.models.arithmetic import even_card_share
from dlrover_lite.brain.models.bottleneck import bottleneck
from dlrover_lite.brain.models.throughput import fit, predict
from dlrover_lite.brain.models.throughput_forms import Engine
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, WorkerUse, observe
from tests.brain.test_throughput import TRUE, exact, setting, true_fit

SAMPLE_BYTES, BYTE_SECONDS, BATCH = 1664.0, 1 / 1.25e8, 1024


def crossing(workers: list[int], servers: list[int]) -> dict[int, float]:
    """Bytes that come in at each host for one minibatch of each worker, counted transfer by transfer."""
    found: dict[int, float] = {}
    for worker in workers:
        for server in servers:
            if worker != server:
                each = BATCH * SAMPLE_BYTES / len(servers)
                found[worker] = found.get(worker, 0.0) + each
                found[server] = found.get(server, 0.0) + each
    return found


def measured(workers: list[int], servers: list[int], *, seconds: float = 10.0, each: int = 100) -> Profile:
    """Each worker trains so many minibatches; nodes are on the hosts with these numbers."""
    came = {host: each * size for host, size in crossing(workers, servers).items()}
    total = each * len(workers)
    return Profile(
        job="job",
        at=0.0,
        seconds=seconds,
        batch_size=BATCH,
        samples=total * BATCH,
        samples_so_far=total * BATCH,
        workers=tuple(WorkerUse(f"worker-{i}", f"host-{at}", 1.0, each, 2.2) for i, at in enumerate(workers)),
        ps=tuple(PsUse(f"ps-{i}", f"host-{at}", 1.0, total, 2.0) for i, at in enumerate(servers)),
        hosts=tuple(
            HostUse(f"host-{at}", 16.0, 0.0, int(came.get(at, 0.0)), came.get(at, 0.0) * BYTE_SECONDS)
            for at in sorted({*workers, *servers})
        ),
    )


def test_transfers_tell_bytes_of_a_sample_and_seconds_of_a_byte() -> None:
    seen = observe(measured([0, 0, 1, 1, 2, 2], [0, 1]))
    assert seen is not None
    assert seen.sample_bytes == pytest.approx(SAMPLE_BYTES, rel=1e-6)
    assert seen.byte_seconds == pytest.approx(BYTE_SECONDS, rel=1e-6)


def test_on_one_host_nothing_is_transferred() -> None:
    seen = observe(measured([0, 0], [0]))
    assert seen is not None
    assert (seen.card_share, seen.sample_bytes, seen.byte_seconds) == (0.0, None, None)
    assert "network_byte" not in fit([seen]).coefficients


def test_where_transfers_arent_measured_nothing_is_known_of_them() -> None:
    profile = measured([0, 1], [0, 1])
    silent = tuple(msgspec.structs.replace(host, received_bytes=0, receiving_seconds=0.0) for host in profile.hosts)
    seen = observe(msgspec.structs.replace(profile, hosts=silent))
    assert seen is not None and seen.card_share > 0
    assert (seen.sample_bytes, seen.byte_seconds) == (None, None)
    assert "network_byte" not in fit([seen]).coefficients


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_the_fullest_cards_share_is_what_crosses(workers: list[int], servers: list[int]) -> None:
    """Counted by transfers of all pairs, for any placement."""
    seen = observe(measured(workers, servers))
    assert seen is not None
    most = max(crossing(workers, servers).values(), default=0.0)
    assert seen.card_share * BATCH * SAMPLE_BYTES * len(workers) == pytest.approx(most, abs=1e-6)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))
def test_evenly_spread_nodes_have_the_share_of_their_placement(hosts: int, workers: int, servers: int) -> None:
    """With a number of nodes that each host can have as many of; or with fewer PS than hosts."""
    spread = [at for at in range(hosts) for _ in range(workers)]
    for ps in ([at for at in range(hosts) for _ in range(servers)], list(range(min(servers, hosts)))):
        seen = observe(measured(spread, ps))
        assert seen is not None
        assert float(even_card_share(np.float64(len(ps)), hosts)) == pytest.approx(seen.card_share)


def slow_network(**changes: Any) -> Any:
    return {
        "workers": 16.0,
        "ps": 4.0,
        "worker_cores": 1.0,
        "ps_cores": 1.0,
        "free_cores": 16.0,
        "hosts": 4.0,
        **changes,
    }


def test_a_known_bandwidth_is_found_again_and_limits_what_it_limits() -> None:
    known = {**TRUE, "network_byte": BYTE_SECONDS}
    true = true_fit(known)
    true = msgspec.structs.replace(true, engine=msgspec.structs.replace(true.engine, sample_bytes=SAMPLE_BYTES))
    plans = setting(**slow_network(workers=np.array([4.0, 8.0, 16.0, 8.0]), ps=np.array([2.0, 4.0, 4.0, 1.0])))
    rng = np.random.default_rng(1)
    seen = [
        msgspec.structs.replace(o, sample_bytes=SAMPLE_BYTES, byte_seconds=BYTE_SECONDS * math.exp(rng.normal(0, 0.05)))
        for o in exact(true, plans, rng, 0.02)
    ]
    found = fit(seen)
    assert found.coefficients["network_byte"] == pytest.approx(BYTE_SECONDS, rel=0.1)
    assert found.engine.sample_bytes == pytest.approx(SAMPLE_BYTES)
    assert found.coefficients.keys() == {*TRUE, "network_byte"}, "nothing was measured of reading"
    other = setting(**slow_network(workers=np.array([16.0, 32.0]), ps=np.array([2.0, 8.0])))
    assert predict(found, other).samples_per_second == pytest.approx(predict(true, other).samples_per_second, rel=0.1)


def test_the_limit_is_called_network() -> None:
    """Each of four hosts with workers and a PS takes 37.5% of a minibatch's bytes in; they take all the time there is."""
    workers, servers = [at for at in range(4) for _ in range(4)], list(range(4))
    share = 2 / 4 * (1 - 1 / 4)
    seconds = 100 * len(workers) * BATCH * SAMPLE_BYTES * share * BYTE_SECONDS
    found = bottleneck([measured(workers, servers, seconds=seconds)] * 4)
    assert found is not None
    nearest = found.limits[0]
    assert (nearest.name, nearest.whatever_plan) == ("network", False)
    assert nearest.samples_per_second == pytest.approx(1 / (SAMPLE_BYTES * share * BYTE_SECONDS), rel=0.1)
    assert found.clear


def test_more_hosts_have_more_cards() -> None:
    model = true_fit({**TRUE, "network_byte": BYTE_SECONDS})
    model = msgspec.structs.replace(model, engine=Engine(sample_bytes=SAMPLE_BYTES))
    rate = {
        hosts: float(
            predict(
                model, setting(**slow_network(workers=64.0, ps=16.0, free_cores=64.0, hosts=hosts))
            ).samples_per_second
        )
        for hosts in (1.0, 4.0, 8.0)
    }
    assert rate[4.0] < rate[8.0] < rate[1.0]
