"""What a throughput depends on, and the forms of that dependence: `bottleneck`, ours, and `additive`, the paper's.

A form gives times per minibatch that are linear in its coefficients, none of them negative: it is a row of factors for each of the
times, which the coefficients are multiplied by. The p-norm of the times is the time from one minibatch to the next of the whole job. The
form's exponent p is 1 where times add up; the larger it is, the more the longest time alone counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dlrover_lite.brain.models.arithmetic import bottleneck_rows, even_card_share
from dlrover_lite.protocol.profiles import Observation

__all__ = ["ADDITIVE", "AXES", "BOTTLENECK", "DEPTH", "FORMS", "Engine", "Floats", "Form", "Setting"]

Floats = NDArray[np.float64]

DEPTH = 2.0
"""Number of minibatches under way in a worker's pipeline, where a job's recipe doesn't say otherwise."""


class Engine(msgspec.Struct, frozen=True):
    """What the forms need to know of how training is done."""

    depth: float = DEPTH
    """Number of minibatches that a worker has pulled and not yet pushed."""
    depth_below_a_core: float = 1.0
    """Number of minibatches that a worker with less than a core has pulled and not yet pushed."""
    compute_share: float = 0.8
    """Share of a worker's CPU that is spent on the computing thread, which has one thread of its own for each whole core."""
    serial_share: float = 0.8
    """Share of the CPU of workers and PS that lies between a minibatch's pull and its push: reading ahead and the push's work don't."""
    ps_cores: float = 1.0
    """The most cores that a PS can use: one thread does all the work on rows."""
    throttle_cores: float = 0.0
    """Cores of a worker's limit that are lost where the limit is what holds it back: it is stopped and goes on in each period."""
    parallel_share: float = 1.0
    """Share of a worker's work that its threads do at the same time."""
    dense_bytes: float = 1.0
    """Bytes of dense parameters. ``additive`` only, as the bandwidth: they scale coefficients."""
    sample_bytes: float = 1.0
    """Bytes of rows per sample that go to a worker, and of gradients that come back."""
    bandwidth: float = 1.0
    """Bandwidth in bytes per second."""

    @property
    def numbers(self) -> tuple[float, float, float, float, float, float, float, float]:
        """The numbers in the order in which the arithmetic takes them."""
        shares = self.compute_share, self.serial_share
        cores = self.ps_cores, self.throttle_cores
        return self.depth, self.depth_below_a_core, *shares, *cores, self.parallel_share, self.sample_bytes


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
    card_share: Floats
    shared_cores: Floats
    """1 where nodes share the cores that they have together, else 0."""

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
        shared_cores: bool = False,
    ) -> Setting:
        """Make the setting of nodes that are alike within a role, the PS equally loaded, all spread evenly over ``hosts``, each with
        ``free_cores``. Arguments broadcast. ``shared_cores``: nodes share the cores that they have together,
        on one host."""
        w, p, w_cores, p_cores, batch, free, n, fast = (
            np.asarray(value, np.float64)
            for value in (workers, ps, worker_cores, ps_cores, batch_size, free_cores, hosts, speed)
        )
        if shared_cores:
            free = np.minimum(free, w * w_cores + p * p_cores)
        there = free * fast, 1 / n, 1 / n, even_card_share(p, n), np.asarray(float(shared_cores))
        return Setting(batch, w, w_cores, fast, p, p_cores, fast, 1 / p, *there)

    @staticmethod
    def of(observations: Sequence[Observation]) -> Setting:
        """Make the setting of these observations, with arrays [n]."""
        return Setting(*(np.array([getattr(o, name) for o in observations], np.float64) for name in Setting._fields))

    def table(self) -> tuple[Floats, tuple[int, ...]]:
        """Spread all fields over each other and flatten them: [13, n] in the order of the fields, and the shape that n comes from."""
        shape = np.broadcast(*self).shape
        table = np.empty((len(self), *shape))
        for at, values in enumerate(self):
            table[at] = values
        return table.reshape(len(self), -1), shape


class Form(NamedTuple):
    name: str
    coefficients: tuple[str, ...]
    rows: Callable[[Floats, Engine, int], Floats]
    """Maps a setting's ``table`` [13, n] to [n, times, coefficients]: seconds per minibatch and unit of each coefficient. The last argument
    is the number of coefficients that count, from the first one on: others, and times of these alone, may be left out."""
    exponents: tuple[float, ...]
    """Exponents to choose from, rising."""
    exponent: float
    """The exponent where nothing is known."""
    optional: frozenset[str] = frozenset()
    """Coefficients that a fit has only where something was measured of them. Without, they are 0."""


AXES = ("workers", "ps", "worker_cores", "ps_cores", "batch_size")
"""Axes along which a setting may lie outside of what has been seen; the host's free cores are told apart by what the nodes could use."""


def _bottleneck(table: Floats, engine: Engine, known: int) -> Floats:
    """Compute the times of the workers, of the busiest PS, of the pipeline when nobody waits for a core, of the fullest host; then those of
    workers' own readers, of the source that all read from, and of the fullest host's network card."""
    return bottleneck_rows(table, engine.numbers, max(6, known))


def _additive(table: Floats, engine: Engine, _known: int) -> Floats:
    """Compute the phases of a worker's iteration, one after the other; four constants of the paper are one, since nothing tells them
    apart."""
    s = Setting(*table)
    rows = np.empty((table.shape[1], 1, 5))
    rows[:, 0, 0] = s.batch_size / (s.worker_cores * s.worker_speed)
    rows[:, 0, 1] = s.workers / (s.ps * s.ps_cores * s.ps_speed)
    rows[:, 0, 2] = engine.dense_bytes / engine.bandwidth * s.workers / s.ps
    rows[:, 0, 3] = engine.sample_bytes / engine.bandwidth * s.batch_size * s.workers / s.ps
    rows[:, 0, 4] = 1.0
    rows /= s.workers[:, None, None]
    return rows


_MEASURED_ONLY = "reader_sample", "source_sample", "network_byte"
BOTTLENECK = Form(
    "bottleneck",
    ("worker_sample", "worker_minibatch", "worker_request", "ps_sample", "ps_request", "latency", *_MEASURED_ONLY),
    _bottleneck,
    (1.5, 3.0, 6.0, 12.0),
    6.0,
    frozenset(_MEASURED_ONLY),
)
"""Coefficients in seconds: CPU of a worker per sample, per minibatch and per PS it asks; CPU of all PS per sample, and of each PS per
minibatch; what a minibatch takes beside CPU, pull to push; reading per sample, of a worker that reads alone and of the source that all
read from; and a network card per byte."""
ADDITIVE = Form("additive", ("gradient", "update", "synchronise", "embed", "constant"), _additive, (1.0,), 1.0)
FORMS = {form.name: form for form in (BOTTLENECK, ADDITIVE)}
