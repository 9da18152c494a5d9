"""Costs that are found from profiles are those that the profiles were made with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs, Node, run
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.backends.sim.physics.shared_cores import share_cores
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, WorkerUse
from dlrover_lite.simulation.calibration import calibrate, rate_of

TRUE = Costs(worker=0.013, worker_request=0.001, ps=0.004, ps_request=0.0009, latency=0.02, batch_size=512)


def profile_of(workers: int, servers: int, cores: float, *, costs: Costs = TRUE, seconds: float = 20.0) -> Profile:
    nodes, their = [Node(cores)] * workers, [Node(0.5)] * servers
    window = run(nodes, their, [Machine(8.0)], costs, seed=3, seconds=seconds)
    done, cpu = window.minibatches.tolist(), window.cpu_seconds.tolist()
    return Profile(
        job="ads",
        at=0.0,
        seconds=seconds,
        batch_size=costs.batch_size,
        samples=sum(done) * costs.batch_size,
        samples_so_far=0,
        workers=tuple(
            WorkerUse(f"worker-{at}", "here", cores, count, used)
            for at, (count, used) in enumerate(zip(done, cpu[:workers], strict=True))
        ),
        ps=tuple(PsUse(f"ps-{at}", "here", 0.5, sum(done), used) for at, used in enumerate(cpu[workers:])),
        hosts=(HostUse("here", 10.0, other_cores=2.0),),
    )


def test_costs_are_found_from_a_few_plans_and_predict_others() -> None:
    found = calibrate([profile_of(1, 1, 1.0), profile_of(2, 2, 0.25), profile_of(3, 1, 0.5)])
    assert found.worker == pytest.approx(TRUE.worker, rel=0.1)
    assert found.ps == pytest.approx(TRUE.ps, rel=0.1)
    assert found.latency == pytest.approx(TRUE.latency, rel=0.25)
    rates = Rates()
    for other in (profile_of(1, 2, 1.0), profile_of(4, 1, 1.0), profile_of(8, 2, 0.5)):
        assert rate_of(found, other, rates) == pytest.approx(other.samples_per_second, rel=0.08)


def test_what_a_worker_does_beside_its_busiest_thread_is_counted() -> None:
    true = replace(TRUE, overlapped=0.3, latency=0.001)
    known = [profile_of(1, 1, 1.0, costs=true), profile_of(2, 2, 0.25, costs=true)]
    for phases, found in (
        ({"compute": 0.7, "read": 0.1, "pull": 0.1}, 0.3),
        ({"compute": 0.2, "read": 0.3, "pull": 0.2, "push": 0.2}, 0.3),
        ({}, 0.0),
    ):
        costs = calibrate([with_phases(one, phases) for one in known])
        assert costs.overlapped == pytest.approx(found)
    larger = profile_of(1, 1, 1.8, costs=true)
    costs = calibrate([with_phases(one, {"compute": 0.7}) for one in known])
    assert rate_of(costs, larger, Rates()) == pytest.approx(larger.samples_per_second, rel=0.05)
    assert rate_of(replace(costs, overlapped=0.0), larger, Rates()) < 0.8 * larger.samples_per_second


def test_of_threads_that_compute_together_one_tells_nothing() -> None:
    assert calibrate([with_phases(profile_of(1, 1, 2.0), {"compute": 0.4})]).overlapped == 0.0


def with_phases(profile: Profile, shares: dict[str, float]) -> Profile:
    """``shares``: of each worker's CPU seconds, by phase."""
    workers = (
        changed(worker, phase_cpu_seconds={name: share * worker.cpu_seconds for name, share in shares.items()})
        for worker in profile.workers
    )
    return changed(profile, workers=tuple(workers))


def test_with_one_number_of_servers_the_costs_of_a_request_are_the_usual_part() -> None:
    found, usual = calibrate([profile_of(1, 1, 1.0)]), Costs()
    assert found.ps_request / found.ps == pytest.approx(usual.ps_request / usual.ps)
    assert found.ps + found.ps_request == pytest.approx(TRUE.ps + TRUE.ps_request, rel=0.1)


def test_what_others_take_of_a_machine_is_not_there() -> None:
    crowded = replace(TRUE, worker=0.05)
    alone = profile_of(8, 1, 1.0, costs=crowded)
    beside = Profile(
        **{**{name: getattr(alone, name) for name in alone.__struct_fields__}, "hosts": (HostUse("here", 10.0, 8.0),)}
    )
    rates = Rates()
    assert rate_of(crowded, beside, rates) < 0.4 * rate_of(crowded, alone, rates)


def test_nodes_that_shared_their_cores_are_taken_for_such() -> None:
    def shared(workers: int, servers: int, cores: float) -> Profile:
        nodes = [Node(cores)] * workers, [Node(0.125)] * servers
        window = run(*share_cores(*nodes, [Machine(8.0)]), TRUE, seed=3, seconds=20.0)
        one = profile_of(workers, servers, cores)
        done, used = int(window.minibatches.sum()), window.cpu_seconds.tolist()
        return changed(
            one,
            samples=done * TRUE.batch_size,
            workers=tuple(changed(worker, cpu_seconds=cpu) for worker, cpu in zip(one.workers, used, strict=False)),
            ps=tuple(changed(ps, cores=0.125, cpu_seconds=cpu) for ps, cpu in zip(one.ps, used[workers:], strict=True)),
            shared_cores=True,
        )

    found, rates = calibrate([shared(1, 1, 0.25), shared(2, 2, 0.5), shared(3, 1, 0.5)]), Rates()
    for other in (shared(1, 1, 0.125), shared(4, 2, 0.75)):
        assert rate_of(found, other, rates) == pytest.approx(other.samples_per_second, rel=0.08)
        as_own = changed(other, shared_cores=False)
        assert rate_of(found, as_own, rates) < 0.9 * other.samples_per_second


def test_a_job_that_was_not_measured_is_refused_with_what_to_do() -> None:
    with pytest.raises(DlroverLiteError) as refused:
        calibrate([])
    assert "profile" in refused.value.hint
