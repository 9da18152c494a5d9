"""Parameter servers (PS) whose host turns slow, as two of 0.2 cores have been measured, with a worker: they are at work on requests for a
third of the time even where all wait for them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.healing.mitigation import HealInputs, NodeNow, Treatment
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.acts import Replace, Resize
from dlrover_lite.protocol.profiles import Profile, PsUse, WorkerUse


class Ps(NamedTuple):
    """Shares of the time, but for requests that wait on average, and cores."""

    busy: float
    cpu: float
    throttled: float
    queue: float
    cores: float = 0.2


class Window(NamedTuple):
    seconds: float
    minibatches: int
    first: Ps
    second: Ps


USUAL = (
    Window(10.0, 650, Ps(0.31, 0.189, 0.53, 0.27), Ps(0.21, 0.167, 0.20, 0.13)),
    Window(10.0, 569, Ps(0.35, 0.191, 0.58, 0.30), Ps(0.21, 0.160, 0.17, 0.14)),
    Window(10.0, 538, Ps(0.33, 0.191, 0.62, 0.26), Ps(0.22, 0.160, 0.17, 0.13)),
    Window(6.3, 324, Ps(0.34, 0.182, 0.57, 0.32), Ps(0.23, 0.155, 0.18, 0.14)),
)
SLOW = (
    Window(2.5, 32, Ps(0.47, 0.052, 0.01, 0.28), Ps(0.03, 0.048, 0.02, 0.02)),
    Window(2.5, 32, Ps(0.50, 0.048, 0.00, 0.20), Ps(0.03, 0.042, 0.01, 0.01)),
    Window(2.5, 31, Ps(0.30, 0.048, 0.02, 0.24), Ps(0.03, 0.039, 0.00, 0.02)),
    Window(2.5, 30, Ps(0.29, 0.048, 0.01, 0.26), Ps(0.03, 0.039, 0.01, 0.01)),
    Window(10.0, 127, Ps(0.35, 0.047, 0.01, 0.18), Ps(0.03, 0.041, 0.01, 0.01)),
    Window(10.0, 122, Ps(0.38, 0.048, 0.01, 0.25), Ps(0.03, 0.040, 0.01, 0.01)),
    Window(10.0, 124, Ps(0.34, 0.047, 0.01, 0.20), Ps(0.03, 0.039, 0.01, 0.01)),
)
UNEVEN = (
    Window(10.0, 551, Ps(0.24, 0.164, 0.20, 0.15), Ps(0.42, 0.191, 0.62, 0.39)),
    Window(10.0, 587, Ps(0.20, 0.158, 0.15, 0.12), Ps(0.38, 0.190, 0.65, 0.41)),
    Window(10.0, 590, Ps(0.23, 0.167, 0.24, 0.14), Ps(0.35, 0.190, 0.56, 0.31)),
)
SLOW_SINCE_THE_OTHER_GREW = (
    Window(5.5, 175, Ps(0.37, 0.091, 0.24, 0.37), Ps(0.07, 0.086, 0.00, 0.03, 0.4)),
    Window(2.5, 36, Ps(0.48, 0.050, 0.05, 0.19), Ps(0.03, 0.049, 0.00, 0.02, 0.4)),
    Window(2.5, 38, Ps(0.38, 0.049, 0.04, 0.34), Ps(0.03, 0.048, 0.00, 0.01, 0.4)),
    Window(2.5, 32, Ps(0.34, 0.046, 0.10, 0.37), Ps(0.03, 0.043, 0.00, 0.01, 0.4)),
)
HOT_BEFORE = (
    Window(10.0, 339, Ps(0.53, 0.191, 0.73, 0.48), Ps(0.35, 0.177, 0.32, 0.21)),
    Window(2.5, 20, Ps(0.38, 0.046, 0.07, 0.30), Ps(0.05, 0.044, 0.02, 0.02)),
    Window(2.5, 20, Ps(0.55, 0.050, 0.05, 0.55), Ps(0.07, 0.042, 0.04, 0.03)),
)
"""Its limit holds it back, until its host does."""

UNSURE = (
    Window(10.0, 801, Ps(0.272, 0.187, 0.336, 0.203), Ps(0.283, 0.185, 0.319, 0.216)),
    Window(10.0, 798, Ps(0.284, 0.187, 0.300, 0.205), Ps(0.309, 0.190, 0.362, 0.245)),
    Window(10.0, 703, Ps(0.285, 0.174, 0.316, 0.176), Ps(0.271, 0.171, 0.304, 0.208)),
    Window(2.5, 47, Ps(0.228, 0.048, 0.004, 0.128), Ps(0.044, 0.044, 0.016, 0.028)),
)
"""In the first window it takes three times as long for the same work, and the job four times."""


def profiles(windows: tuple[Window, ...], *, servers: int, work: float | None) -> tuple[Profile, ...]:
    """``work``: seconds that the worker is at work on a minibatch, while a PS is slow; it is 6.3 ms before. None: that isn't measured."""
    found, at, done = [], 1000.0, 0
    for window in windows:
        at += window.seconds
        done += 1024 * window.minibatches
        uses = [
            PsUse(
                f"ps-{index}", "here", ps.cores, window.minibatches, ps.cpu * window.seconds, ps.busy * window.seconds,
                ps.queue * window.seconds, ps.throttled * window.seconds,
            )
            for index, ps in enumerate((window.first, window.second)[:servers])
        ]  # fmt: skip
        each = None if work is None else work if window in SLOW else 0.0063
        phases = {} if each is None else {"compute": each * window.minibatches, "wait": 0.7 * window.seconds}
        worker = WorkerUse("worker-0", "here", 1.0, window.minibatches, 0.6 * window.seconds, phase_seconds=phases)
        samples = 1024 * window.minibatches
        found.append(Profile("job", at, window.seconds, 1024, samples, done, (worker,), tuple(uses), ()))
    return tuple(found)


def treatments(
    windows: tuple[Window, ...], past: tuple[Treatment, ...] = (), *, servers: int = 2, work: float | None = 0.0065
) -> list[Treatment]:
    found = profiles(windows, servers=servers, work=work)
    last = found[-1]
    nodes = [NodeNow(use.node, "ps", "here", Resources(use.cores, GIB)) for use in last.ps]
    inputs = HealInputs(
        job="job",
        at=last.at,
        profiles=found,
        nodes=(*nodes, NodeNow("worker-0", "worker", "here", Resources(1.0, GIB))),
        free={"here": Resources(0.2, 8 * GIB)},
        least={"ps": GIB, "worker": GIB},
        total_samples=7_700_000.0,
        start_seconds=2.0,
        past=past,
    )
    return [one.treatment for one in heal(inputs) if one.treatment is not None]


def test_no_ps_is_replaced_while_none_is_slow() -> None:
    for count in range(1, len(USUAL) + 1):
        assert treatments(USUAL[:count]) == []


@pytest.mark.parametrize("count", range(1, 4))
def test_slow_ps_is_replaced_from_the_first_window_though_few_requests_wait(count: int) -> None:
    (found,) = treatments(USUAL + SLOW[:count])
    assert (found.node, found.cause, found.act) == ("ps-0", "hot ps", Replace(Resources(0.2, GIB), "here"))
    assert "its host is slow" in found.reason


def test_slow_ps_is_replaced_at_once_if_only_it_explains_the_slower_job() -> None:
    (found,) = treatments(UNSURE)
    assert (found.node, found.act) == ("ps-0", Replace(Resources(0.2, GIB), "here"))
    assert "its host is slow" in found.reason


@pytest.mark.parametrize(
    "last",
    [
        Window(2.5, 20, Ps(0.110, 0.048, 0.004, 0.020), Ps(0.020, 0.020, 0.000, 0.010)),
        UNSURE[-1]._replace(second=Ps(0.044, 0.044, 0.016, 0.300)),
    ],
    ids=["asked for a moment now and then", "as much waits at its peer"],
)
def test_slow_ps_stays_if_the_job_does_not_wait_for_it(last: Window) -> None:
    assert treatments((*UNSURE[:-1], last)) == []


def test_slow_ps_is_replaced_after_a_treatment_of_its_peer() -> None:
    (grown,) = treatments(UNEVEN)
    assert (grown.node, grown.act) == ("ps-1", Resize(Resources(0.4, GIB)))
    done = msgspec.structs.replace(grown, done_at=grown.at + 0.3)
    (found,) = treatments(UNEVEN + SLOW_SINCE_THE_OTHER_GREW, past=(done,))
    assert (found.node, found.act) == ("ps-0", Replace(Resources(0.2, GIB), "here"))


def test_slow_ps_is_replaced_though_it_was_throttled_before() -> None:
    """It is hot in three windows, but more cores would be of no use any more."""
    (found,) = treatments(HOT_BEFORE)
    assert (found.node, found.act) == ("ps-0", Replace(Resources(0.2, GIB), "here"))
    assert "its host is slow" in found.reason


@pytest.mark.parametrize("count", [5, 7])
def test_ps_that_is_slow_from_the_beginning_is_replaced(count: int) -> None:
    """Its peer takes a twelfth of the time for the same CPU seconds."""
    (found,) = treatments(SLOW[:count])
    assert (found.node, found.act) == ("ps-0", Replace(Resources(0.2, GIB), "here"))


@pytest.mark.parametrize(("work", "seen"), [(0.0065, ["hot ps"]), (0.02, []), (None, [])])
def test_slow_ps_without_peers_is_found_unless_workers_slowed_too(work: float | None, seen: list[str]) -> None:
    """As seconds that they work on a minibatch say. (There is no other host for it.)"""
    assert [found.cause for found in treatments(USUAL + SLOW[:4], servers=1, work=work)] == seen


def test_slow_ps_that_holds_nobody_up_stays() -> None:
    """Most of the time is the worker's, and minibatches come as fast as before."""
    usual = Window(10.0, 300, Ps(0.05, 0.05, 0.0, 0.02), Ps(0.05, 0.05, 0.0, 0.02))
    slowed = usual._replace(first=Ps(0.4, 0.05, 0.0, 0.08))
    assert treatments((usual,) * 4 + (slowed,)) == []
    assert treatments((usual,) * 4 + (slowed._replace(minibatches=200),)) != []
