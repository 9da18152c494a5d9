"""Throughput models with known coefficients, and jobs to decide for."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from dlrover_lite.brain.planning import pareto
from dlrover_lite.brain.planning.job_view import JobView, ModelData
from dlrover_lite.brain.planning.plan_grid import Bounds


class Sides(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest of what the workers, each PS, the pipeline and the host allow, smoothed; in minibatches of ``batch`` samples/s."""

    batch: float = 1000.0
    worker: float = 0.02
    """CPU seconds of a worker per minibatch."""
    request: float = 0.001
    """More of them for each PS."""
    server: float = 0.01
    """CPU seconds of all PS per minibatch."""
    latency: float = 0.01
    host: float = 1e9
    """Cores."""
    spread: float = 0.1
    """Half of the band, as a difference of logarithms."""
    upper_share: float = 1.0
    """The band's upper half, as a part of the lower one."""
    power: int = 4

    def sides(self, servers: Any, worker_sizes: Any, ps_sizes: Any) -> pareto.Sides:
        p = servers[:, None]
        one = self.worker + self.request * p
        of_worker = (one / worker_sizes) ** self.power + self.latency**self.power
        host = ((one + self.server) / self.host) ** self.power
        return pareto.Sides(of_worker, host[:, 0], (self.server / (p * ps_sizes)) ** self.power, self.power)

    def predict(self, w: Any, p: Any, worker_cores: Any, ps_cores: Any) -> tuple[Any, Any, Any]:
        one = self.worker + self.request * p
        of_workers = (one / (w * worker_cores)) ** self.power + (self.latency / w) ** self.power
        host = ((one + self.server) / self.host) ** self.power
        rate = self.batch * (of_workers + host + (self.server / (p * ps_cores)) ** self.power) ** (-1 / self.power)
        return rate, rate * np.exp(-self.spread), rate * np.exp(self.spread * self.upper_share)


class Bumpy(msgspec.Struct, frozen=True, kw_only=True):
    """Any values at all, of nothing but the plan: it has no sides."""

    seed: int = 0

    def predict(self, w: Any, p: Any, worker_cores: Any, ps_cores: Any) -> tuple[Any, Any, Any]:
        noise = np.sin(self.seed + w * 12.9898 + p * 78.233 + worker_cores * 37.719 + ps_cores * 4.581) * 43758.5453
        rate = 1 + np.floor((noise - np.floor(noise)) * 50)
        return rate, rate * 0.9, rate * 1.1


def load(data: ModelData) -> Sides | Bumpy:
    return msgspec.convert(data.parameters, {"sides": Sides, "bumpy": Bumpy}[data.kind])


def data(**parameters: Any) -> ModelData:
    return ModelData("sides", parameters)


SMALL = Bounds(max_workers=6, max_servers=3, worker_sizes=(0.25, 0.5, 0.75, 1.0), ps_sizes=(0.25, 0.5, 0.75, 1.0))


def view(job: str = "a", *, model: ModelData | None = None, bounds: Bounds = SMALL, **fields: Any) -> JobView:
    fields = {"remaining_samples": 1e7, **fields}
    return JobView(job=job, bounds=bounds, model=model or data(), **fields)
