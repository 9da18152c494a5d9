"""What a throughput depends on, and the forms of that dependence: `bottleneck`, ours, and `additive`, the paper's.

A form gives times per minibatch that are linear in its coefficients, none of them negative. Their p-norm is the time from one minibatch to
the next of the whole job. The form's exponent p is 1 where times add up; the larger it is, the more the longest time alone counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dlrover_lite.brain.profiles import Observation

__all__ = ["ADDITIVE", "AXES", "BOTTLENECK", "FORMS", "Engine", "Floats", "Form", "Setting"]

Floats = NDArray[np.float64]


class Engine(msgspec.Struct, frozen=True):
    """What the forms need to know of how training is done."""

    depth: float = 2.0
    """Minibatches that a worker has pulled and not yet pushed."""
    depth_below_a_core: float = 1.0
    """Of a worker with less than a core."""
    compute_share: float = 0.8
    """Of a worker's CPU that is spent on the computing thread, which has one thread of its own for each whole core."""
    serial_share: float = 0.8
    """Of the CPU of workers and PS that lies between a minibatch's pull and its push: reading ahead and the push's work don't."""
    ps_cores: float = 1.0
    """A PS can use: one thread does all the work on rows."""
    dense_bytes: float = 1.0
    """Of dense parameters. This and what follows: `additive` only, where they scale coefficients."""
    sample_bytes: float = 1.0
    """Of embedding rows per sample."""
    bandwidth: float = 1.0
    """Bytes per second."""


class Setting(NamedTuple):
    """Plans under given circumstances: numbers or arrays that broadcast together. Fields as of ``Observation``."""

    batch_size: Floats
    workers: Floats
    worker_cores: Floats
    worker_speed: Floats
    ps: Floats
    ps_cores: Floats
    ps_speed: Floats
    ps_share: Floats
    free_power: Floats
    host_workers: Floats
    host_ps: Floats

    @staticmethod
    def even(
        *,
        workers: ArrayLike,
        ps: ArrayLike,
        worker_cores: ArrayLike,
        ps_cores: ArrayLike,
        batch_size: ArrayLike,
        free_cores: ArrayLike,
        hosts: ArrayLike = 1.0,
        speed: ArrayLike = 1.0,
    ) -> Setting:
        """Nodes of a role alike, the PS equally loaded, all spread evenly over ``hosts``, each with ``free_cores``. Arguments broadcast:
        for a lattice give each axis a dimension of its own; what depends on few axes is then computed on those only."""
        w, p, w_cores, p_cores, batch, free, n, fast = (
            np.asarray(value, np.float64)
            for value in (workers, ps, worker_cores, ps_cores, batch_size, free_cores, hosts, speed)
        )
        return Setting(batch, w, w_cores, fast, p, p_cores, fast, 1 / p, free * fast, 1 / n, 1 / n)

    @staticmethod
    def of(observations: Sequence[Observation]) -> Setting:
        """Arrays [n]."""
        return Setting(*(np.array([getattr(o, name) for o in observations], np.float64) for name in Setting._fields))


class Form(NamedTuple):
    name: str
    coefficients: tuple[str, ...]
    times: Callable[[Any, Setting, Engine], tuple[Floats, ...]]
    """Seconds per minibatch, given the coefficients."""
    exponents: tuple[float, ...]
    """To choose from, rising."""
    exponent: float
    """Where nothing is known."""


_ROUNDING = 1e-6
AXES = ("workers", "ps", "worker_cores", "ps_cores", "batch_size")
"""Along which a setting may lie outside of what has been seen; the host's free cores are told apart by what the nodes could use."""


def _bottleneck(c: Any, s: Setting, engine: Engine) -> tuple[Floats, ...]:
    """Of the workers, of the busiest PS, of the pipeline when nobody waits for a core, and of the fullest host.

    A limit of CPU is a limit of the rate, not of the speed: who is below it runs at the speed of a whole core. So the pipeline's time holds
    CPU seconds as they are, and limits of less than a core don't lengthen it.
    """
    worker_sample, worker_minibatch, worker_request, ps_sample, ps_request, latency = c
    worker = worker_sample * s.batch_size + worker_minibatch + worker_request * s.ps
    ps_all = ps_sample * s.batch_size
    hot = ps_all * s.ps_share + ps_request
    depth = np.where(s.worker_cores >= 1, engine.depth, engine.depth_below_a_core) * s.workers
    threads = np.maximum(np.floor(s.worker_cores + _ROUNDING), 1.0)
    worker_cores = np.minimum(s.worker_cores, threads / engine.compute_share)
    between = worker / (s.worker_speed * threads) + hot / s.ps_speed
    return (
        worker / (s.workers * worker_cores * s.worker_speed),
        hot / (np.minimum(s.ps_cores, engine.ps_cores) * s.ps_speed),
        (latency + engine.serial_share * between) / depth,
        (worker * s.host_workers + (ps_all + ps_request * s.ps) * s.host_ps) / s.free_power,
    )


def _additive(c: Any, s: Setting, engine: Engine) -> tuple[Floats, ...]:
    """Phases of a worker's iteration, one after the other; four constants of the paper are one, since nothing tells them apart."""
    gradient, update, synchronise, embed, constant = c
    dense = engine.dense_bytes / engine.bandwidth * s.workers / s.ps
    rows = engine.sample_bytes / engine.bandwidth * s.batch_size * s.workers / s.ps
    iteration = gradient * s.batch_size / (s.worker_cores * s.worker_speed) + update * s.workers / (
        s.ps * s.ps_cores * s.ps_speed
    )
    return ((iteration + synchronise * dense + embed * rows + constant) / s.workers,)


BOTTLENECK = Form(
    "bottleneck",
    ("worker_sample", "worker_minibatch", "worker_request", "ps_sample", "ps_request", "latency"),
    _bottleneck,
    (1.5, 3.0, 6.0, 12.0),
    6.0,
)
"""Coefficients in seconds: CPU of a worker per sample, per minibatch and per PS it asks; CPU of all PS per sample, and of each PS per
minibatch; and what a minibatch takes beside CPU, pull to push."""
ADDITIVE = Form("additive", ("gradient", "update", "synchronise", "embed", "constant"), _additive, (1.0,), 1.0)
FORMS = {form.name: form for form in (BOTTLENECK, ADDITIVE)}
