"""A fitted throughput model where its job is: what the decisions ask for, answered by ``throughput.predict``; and its stored form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from dlrover_lite.brain.models.arithmetic import bottleneck_sides, minibatch_cpu_seconds, shared_cores_times
from dlrover_lite.brain.models.bottleneck import LimitName, limit_times
from dlrover_lite.brain.models.throughput import Fit, predict, vector
from dlrover_lite.brain.models.throughput_forms import BOTTLENECK, Setting
from dlrover_lite.brain.planning.job_view import ModelData
from dlrover_lite.brain.planning.pareto import SharedCores, Sides
from dlrover_lite.brain.planning.plan_grid import FloatArray
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.errors import HistoryError

__all__ = [
    "Bottleneck",
    "FittedModel",
    "KeptModel",
    "at_reading_limit",
    "load_model",
    "model_data",
    "most_read",
    "shares_cores",
    "with_fit",
]

_KIND = "fit-1"


class FittedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted model under the circumstances of its job; a ``ThroughputModel``."""

    fit: Fit
    batch_size: float
    free_cores: float
    """Cores that are free for this job's nodes, the mean over hosts."""
    hosts: float = 1.0
    """Number of hosts: nodes are taken to be spread evenly over them."""
    speed: float = 1.0
    """Mean speed of the cores that are free."""
    ps_speeds: tuple[float, ...] = ()
    """Mean speed of the cores of one PS, of two, and so on, where it differs between hosts; empty: all are as fast as ``speed`` says."""
    worker_speeds: tuple[float, ...] = ()
    """Mean speed of the cores that workers have beside as many PS."""
    shared_cores: bool = False
    """The job's nodes share the cores that they have together."""

    def _speeds(self, servers: ArrayLike) -> tuple[Any, Any]:
        """Return the speeds of workers and PS, for these numbers of PS."""
        if not self.ps_speeds:
            return self.speed, self.speed
        at = np.clip(np.asarray(servers, np.int64), 1, len(self.ps_speeds)) - 1
        return np.array(self.worker_speeds)[at], np.array(self.ps_speeds)[at]

    def predict(
        self, w: FloatArray, p: FloatArray, worker_cores: FloatArray, ps_cores: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        found = predict(self.fit, self.setting(w, p, worker_cores, ps_cores))
        return found.samples_per_second, found.low, found.high

    def extrapolated(self, w: FloatArray, p: FloatArray, worker_cores: FloatArray, ps_cores: FloatArray) -> Any:
        """Say which of these plans lie outside of what has been seen."""
        return predict(self.fit, self.setting(w, p, worker_cores, ps_cores)).extrapolated

    def setting(self, w: ArrayLike, p: ArrayLike, worker_cores: ArrayLike, ps_cores: ArrayLike) -> Setting:
        """Make the setting that these plans have under the circumstances of the job."""
        of_workers, of_ps = self._speeds(p)
        setting = Setting.even(
            workers=w,
            ps=p,
            worker_cores=worker_cores,
            ps_cores=ps_cores,
            batch_size=self.batch_size,
            free_cores=self.free_cores,
            hosts=self.hosts,
            speed=self.speed,
            shared_cores=self.shared_cores,
        )
        return setting._replace(worker_speed=of_workers, ps_speed=of_ps)


class Bottleneck(FittedModel, frozen=True, kw_only=True):
    """A fitted model whose limits are either the workers', whatever a PS has, or a PS's, however many workers there are: a
    ``SeparableModel``."""

    def sides(self, servers: FloatArray, worker_sizes: FloatArray, ps_sizes: FloatArray) -> Sides:
        fitted = self.fit
        of_workers, of_ps = self._speeds(servers)
        found = bottleneck_sides(
            (servers, worker_sizes, ps_sizes),
            vector(fitted),
            fitted.engine.numbers,
            exponent=fitted.exponent,
            batch=self.batch_size,
            speeds=(of_workers, of_ps),
            power=self.free_cores * self.speed,
            hosts=self.hosts,
            shared_cores=self.shared_cores,
        )
        return Sides(*found, fitted.exponent, self._shared(servers) if self.shared_cores else None)

    def _shared(self, servers: FloatArray) -> SharedCores:
        engine = self.fit.engine.numbers
        of_worker, of_each_ps = minibatch_cpu_seconds(servers, vector(self.fit), self.batch_size)

        of_all_ps = of_each_ps * servers

        def seconds(at: int, cores: FloatArray, workers: FloatArray) -> FloatArray:
            within = np.minimum(cores, self.free_cores)
            return shared_cores_times(of_worker[at] + of_all_ps[at], within, workers, engine, self.speed)

        return SharedCores(of_worker / np.maximum(of_all_ps, 1e-12), seconds)

    def nearest_limit(self, w: ArrayLike, p: ArrayLike, worker_cores: ArrayLike, ps_cores: ArrayLike) -> LimitName:
        """Name what limits the throughput of one plan."""
        return limit_times(self.fit, self.setting(w, p, worker_cores, ps_cores))[0].name


def model_data(
    fit: Fit,
    *,
    batch_size: float,
    free_cores: Mapping[str, float],
    speed: float = 1.0,
    worker_speeds: Sequence[float] = (),
    ps_speeds: Sequence[float] = (),
    shared_cores: bool = False,
) -> ModelData:
    """Turn a fitted model into data, to be decided from and stored. ``free_cores``: those that are free for the job's nodes, by host;
    speeds and ``shared_cores`` as ``FittedModel`` has them."""
    hosts = float(len(free_cores))
    mean = sum(free_cores.values()) / hosts
    model = FittedModel(
        fit=fit,
        batch_size=batch_size,
        free_cores=mean,
        hosts=hosts,
        speed=speed,
        worker_speeds=tuple(worker_speeds),
        ps_speeds=tuple(ps_speeds),
        shared_cores=shared_cores,
    )
    return ModelData(_KIND, msgspec.to_builtins(model))


class KeptModel:
    """A fitted model as data, kept until it is another one: who has the same object needn't load it again."""

    def __init__(self) -> None:
        self._kept: tuple[Fit, dict[str, Any], ModelData] | None = None

    def data(self, fit: Fit, **around: Any) -> ModelData:
        """Return ``model_data`` of these."""
        if self._kept is None or self._kept[0] is not fit or self._kept[1] != around:
            self._kept = fit, around, model_data(fit, **around)
        return self._kept[2]


def with_fit(data: ModelData, fit: Fit) -> ModelData:
    """Return the data of another fit under the same circumstances."""
    return ModelData(data.kind, {**data.parameters, "fit": msgspec.to_builtins(fit)})


def load_model(data: ModelData) -> FittedModel:
    """Load the model that ``model_data`` made data of. Raises HistoryError when it is of a form that isn't known any more."""
    try:
        if data.kind != _KIND:
            raise HistoryError(f"There is no throughput model {data.kind!r}", hint="It was stored by another version.")
        form = data.parameters.get("fit", {}).get("form")
        return convert(data.parameters, Bottleneck if form == BOTTLENECK.name else FittedModel)
    except msgspec.ValidationError as error:
        raise HistoryError(
            f"A stored throughput model can't be read: {error}", hint="It was stored by another version."
        ) from error


def at_reading_limit(data: ModelData, rates: FloatArray) -> FloatArray:
    """Compute samples/s [n] that a model has for plans (``rates``) as they are where reading limits them for good: the least of what can be
    read and of what nodes can do. The model rounds the corner between the two off, which takes up to a ninth off ``rates``."""
    most = most_read(data)
    if most is None:
        return rates
    power = float(data.parameters["fit"]["exponent"])
    slowness = np.maximum(most / rates, 1.0)
    others = np.maximum(slowness**power - 1.0, 1e-300) ** (-1 / power)  # what nodes can do, over what can be read
    return np.minimum(others, 1.0) * most


def shares_cores(data: ModelData) -> bool:
    """Return whether a job's nodes share the cores that they have together. The model isn't loaded for it, as of ``most_read``."""
    return data.kind == _KIND and bool(data.parameters.get("shared_cores"))


def most_read(data: ModelData) -> float | None:
    """Return the most samples/s that can be read, whatever the plan; None: nothing is known of that. The model isn't loaded for it: a
    thousand jobs are asked in a round."""
    fitted = data.parameters.get("fit") if data.kind == _KIND else None
    seconds = fitted["coefficients"].get("source_sample") if isinstance(fitted, Mapping) else None
    return 1 / seconds if seconds else None
