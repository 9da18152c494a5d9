"""A fitted throughput model where its job is: what the decisions ask for, answered by ``throughput.predict``; and its stored form."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from dlrover_lite.brain.job_view import ModelData
from dlrover_lite.brain.lattice import FloatArray
from dlrover_lite.brain.settings import BOTTLENECK, Setting
from dlrover_lite.brain.throughput import Fit, predict, times
from dlrover_lite.errors import HistoryError

__all__ = ["Bottleneck", "FittedModel", "load_model", "model_data"]

_KIND = "fit-1"


class FittedModel(msgspec.Struct, frozen=True, kw_only=True):
    """``fit`` under these circumstances; a ``ThroughputModel``."""

    fit: Fit
    batch_size: float
    free_cores: float
    """Of each host, for this job's nodes."""
    hosts: float = 1.0
    speed: float = 1.0

    def predict(
        self, w: FloatArray, p: FloatArray, worker_cores: FloatArray, ps_cores: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        found = predict(self.fit, self._setting(w, p, worker_cores, ps_cores))
        return found.samples_per_second, found.low, found.high

    def extrapolated(self, w: FloatArray, p: FloatArray, worker_cores: FloatArray, ps_cores: FloatArray) -> Any:
        """Which of these plans lie outside of what has been seen."""
        return predict(self.fit, self._setting(w, p, worker_cores, ps_cores)).extrapolated

    def _setting(self, w: ArrayLike, p: ArrayLike, worker_cores: ArrayLike, ps_cores: ArrayLike) -> Setting:
        return Setting.even(
            workers=w,
            ps=p,
            worker_cores=worker_cores,
            ps_cores=ps_cores,
            batch_size=self.batch_size,
            free_cores=self.free_cores,
            hosts=self.hosts,
            speed=self.speed,
        )


class Bottleneck(FittedModel, frozen=True, kw_only=True):
    """One whose limits are either the workers', whatever a PS has, or a PS's, however many workers there are: a ``SeparableModel``."""

    def slowness(
        self, w: FloatArray, p: FloatArray, worker_cores: FloatArray, ps_cores: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        one = np.ones((1, 1, 1))
        # Each limit is asked for on the axes it depends on; on the others any one value does.
        workers, _, pipeline, host = times(self.fit, self._setting(w, p, worker_cores, one))
        _, servers, _, _ = times(self.fit, self._setting(one, p, one, ps_cores))
        exponent = self.fit.exponent
        first = _power(workers, exponent)  # on all the axes that the others are on
        first += _power(pipeline, exponent)
        first += _power(host, exponent)
        return first, _power(servers, exponent)


def _power(base: FloatArray, exponent: float) -> FloatArray:
    """``base ** exponent``; for multiples of a half by multiplying, which is much faster than by logarithms."""
    halves = exponent * 2
    if halves != int(halves) or halves < 2:
        result: FloatArray = base**exponent
        return result
    left, square = int(exponent), base.copy()
    found: FloatArray | None = np.sqrt(base) if halves % 2 else None
    while True:
        if left & 1:
            found = square.copy() if found is None else np.multiply(found, square, out=found)
        left >>= 1
        if not left:
            assert found is not None  # the highest bit is set
            return found
        np.multiply(square, square, out=square)


def model_data(fit: Fit, *, batch_size: float, free_cores: float, hosts: float = 1.0, speed: float = 1.0) -> ModelData:
    """As data, to be decided from and stored."""
    model = FittedModel(fit=fit, batch_size=batch_size, free_cores=free_cores, hosts=hosts, speed=speed)
    return ModelData(_KIND, msgspec.to_builtins(model))


def load_model(data: ModelData) -> FittedModel:
    """The model that ``model_data`` made data of. Raises HistoryError when it is of a form that isn't known any more."""
    try:
        if data.kind != _KIND:
            raise HistoryError(f"There is no throughput model {data.kind!r}", hint="It was stored by another version.")
        form = data.parameters.get("fit", {}).get("form")
        return msgspec.convert(data.parameters, Bottleneck if form == BOTTLENECK.name else FittedModel)
    except msgspec.ValidationError as error:
        raise HistoryError(
            f"A stored throughput model can't be read: {error}", hint="It was stored by another version."
        ) from error
