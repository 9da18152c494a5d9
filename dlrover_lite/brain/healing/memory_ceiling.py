"""A job whose tables will need more memory than it may ever have: said as soon as it is sure, while something can be done about it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dlrover_lite.brain.healing.memory_relief import forecast_of
from dlrover_lite.brain.healing.mitigation import HealInputs, Treatment
from dlrover_lite.brain.models.memory_forecast import Forecast
from dlrover_lite.brain.models.memory_model import at_most_bytes, peak_bytes, worker_limit
from dlrover_lite.brain.models.throughput_forms import Floats
from dlrover_lite.brain.planning.plan_grid import MemoryBand
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import duration
from dlrover_lite.protocol.acts import Tell
from dlrover_lite.protocol.profiles import Level

__all__ = ["treat_ceiling"]


class _Ahead(NamedTuple):
    """What all PS together are forecast to need, and have at most."""

    samples: Floats
    """[n]: numbers of samples that the job will have trained on, from now on."""
    needed: Floats
    """[3, n]: bytes needed: the lower end of the 80% band, the expected, the upper end."""
    most: int


def treat_ceiling(inputs: HealInputs) -> list[Treatment]:
    """Warn, once in a job, of memory that all PS together will lack: nothing but words can be done. Give at most one treatment, which names
    the PS that takes the most."""
    policy, last = inputs.policy.ceiling, inputs.held[-1]
    told = any(one.cause == "ceiling" for one in inputs.past)
    if (
        told
        or inputs.most is None
        or not last.ps
        or len(inputs.held) < policy.least_levels
        or last.samples_per_second <= 0
    ):
        return []
    most = inputs.most.memory - _of_workers(inputs)
    until = policy.times_so_far * last.samples_so_far
    if inputs.total_samples is not None:
        until = min(until, max(inputs.total_samples, last.samples_so_far))
    if _surely_fits(last, until, inputs.spill_part, most) or (found := forecast_of(inputs)) is None:
        return []
    ahead = _look(found, last, np.linspace(last.samples_so_far, until, policy.steps), most)
    if ahead.needed[0, -1] <= most:
        return []
    use = max(last.ps, key=lambda use: (use.used_bytes, use.node))
    return [
        Treatment(
            at=inputs.at,
            node=use.node,
            host=next((node.host for node in inputs.nodes if node.node == use.node), ""),
            cause="ceiling",
            act=Tell(),
            reason=_words(inputs, ahead, last),
            memory=_band(ahead),
        )
    ]


def _of_workers(inputs: HealInputs) -> int:
    """Compute the memory that workers need, and no PS can have."""
    workers = [node for node in inputs.nodes if node.role == "worker"]
    return sum(
        min(node.resources.memory, worker_limit(node.used_bytes)) if node.used_bytes else node.resources.memory
        for node in workers
    )


def _surely_fits(last: Level, until: float, spill_part: float, most: int) -> bool:
    """Say whether memory suffices even if each sample to come brought as many rows as those before: a forecast takes longer than to see
    that."""
    times = until / max(1, last.samples_so_far)
    return sum(at_most_bytes(use.used_bytes, use.row_bytes, times, spill_part=spill_part) for use in last.ps) <= most


def _look(found: Forecast, last: Level, samples: Floats, most: int) -> _Ahead:
    needed: Floats = sum(
        (peak_bytes(*found.of(use.node), samples, (0.1, 0.5, 0.9)) for use in last.ps),
        start=np.zeros((3, len(samples))),
    )
    return _Ahead(samples, needed, most)


def _band(ahead: _Ahead) -> MemoryBand:
    lower, expected, upper = (int(value) for value in ahead.needed[:, -1])
    return MemoryBand(expected, lower, upper, ahead.most)


def _words(inputs: HealInputs, ahead: _Ahead, last: Level) -> str:
    assert inputs.most is not None
    band, whole = _band(ahead), inputs.most.memory
    at_end = inputs.total_samples is not None and ahead.samples[-1] >= inputs.total_samples
    when = "by its end" if at_end else f"when it has trained {inputs.policy.ceiling.times_so_far:.0f} times as much"
    full = float(ahead.samples[int((ahead.needed[1] > ahead.most).argmax())])
    seconds = (full - last.samples_so_far) / last.samples_per_second
    return (
        f"the job's parameter servers will need {format_bytes(band.expected)} (80% band {format_bytes(band.lower)} to "
        f"{format_bytes(band.upper)}) {when}, and of the {format_bytes(whole)} that it may have {format_bytes(ahead.most)} are "
        f"left for them beside its workers: they are full in about {duration(seconds)}, and one that is too full is killed. Give it more "
        "(resources.total, or a larger machine), or have it need less: a smaller embedding_dim, an optimizer with less state, "
        "fewer different ids"
    )
