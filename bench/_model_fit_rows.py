"""What ``bench/model_fit.py`` measures, as rows of a file, and how well models fitted to a part of them predict the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.models.throughput import fit, predict
from dlrover_lite.brain.models.throughput_forms import Form, Setting
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.protocol.profiles import Observation, Profile, host_speeds, observe

__all__ = ["Errors", "Row", "busy_share", "errors_of", "load", "paces", "predictions", "save"]

SPLITS = 40
PART = 3
"""One in so many is fitted to."""


class Row(msgspec.Struct, frozen=True):
    """A window of a job with a plan."""

    model: str
    round: int
    plan: Candidate
    fits: bool
    """The limits of its nodes leave the daemons room on the machine; else it is oversubscribed."""
    profile: Profile
    others: float
    """Share of the machine's CPU that others took."""
    off: float
    """Of the calibration runs before and after it, the one further from the usual one: how much longer the same work took there."""
    why: str = ""
    """It doesn't count."""


class Errors(NamedTuple):
    """Relative, of predictions of plans that weren't fitted to: over all splits."""

    within: list[float]
    oversubscribed: list[float]
    covered: float
    """Part of those within that their band of 80% held."""


class Prediction(NamedTuple):
    row: Row
    predicted: float
    held: bool
    """By its band."""

    @property
    def error(self) -> float:
        return self.predicted / self.row.profile.samples_per_second - 1


def save(path: Path, rows: Sequence[Row]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def load(path: Path) -> list[Row]:
    decoder = msgspec.json.Decoder(Row)
    return [decoder.decode(line) for line in path.read_bytes().splitlines() if line.strip()]


def predictions(rows: Sequence[Row], form: Form, *, splits: int = SPLITS) -> Iterator[list[Prediction]]:
    """Of each split: the plans within the machine that weren't fitted to, and those oversubscribed. ``rows``: of one model and round."""
    within = [row for row in rows if row.fits]
    beyond = [row for row in rows if not row.fits]
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(within))
        taken = [within[i] for i in order[: max(2, len(within) // PART)]]
        yield list(_predicted(taken, [*(within[i] for i in order[len(taken) :]), *beyond], form))


def errors_of(rows: Sequence[Row], form: Form, *, splits: int = SPLITS) -> Errors:
    found = [one for split in predictions(rows, form, splits=splits) for one in split]
    within = [one for one in found if one.row.fits]
    return Errors(
        [abs(one.error) for one in within],
        [abs(one.error) for one in found if not one.row.fits],
        sum(one.held for one in within) / max(1, len(within)),
    )


def _predicted(taken: Sequence[Row], rest: Sequence[Row], form: Form) -> Iterator[Prediction]:
    """By the plans alone, and by what strangers and daemons left of the host while the fitted ones were measured: nothing of ``rest`` is
    known."""
    seen = observations([row.profile for row in taken])
    setting = Setting.even(
        workers=[row.plan.workers for row in rest],
        ps=[row.plan.servers for row in rest],
        worker_cores=[row.plan.worker_cores for row in rest],
        ps_cores=[row.plan.ps_cores for row in rest],
        batch_size=seen[0].batch_size,
        free_cores=median(_free_cores(row.profile) for row in taken),
        shared_cores=all(row.profile.shared_cores for row in taken),
    )
    found = predict(fit(seen, form=form), setting)
    for row, rate, low, high in zip(rest, found.samples_per_second, found.low, found.high, strict=True):
        yield Prediction(row, float(rate), bool(low <= row.profile.samples_per_second <= high))


def _free_cores(profile: Profile) -> float:
    """Compute what others leave of the one host, or what the nodes took if that is more."""
    return max(_own_cores(profile), sum(host.cores - host.other_cores for host in profile.hosts))


def _own_cores(profile: Profile) -> float:
    """Cores that the nodes took."""
    own = sum(use.cpu_seconds for use in profile.workers) + sum(use.cpu_seconds for use in profile.ps)
    return own / profile.seconds


def paces(rows: Sequence[Row]) -> list[float]:
    """Of each row, what a minibatch cost in CPU seconds over what the form fitted to all of them has for its plan. Where that follows the
    plan, or how busy the host is, the form lacks something; where it doesn't, others have made the machine slow."""
    seen = observations([row.profile for row in rows])
    cost = fit(seen).coefficients
    found = []
    for one in seen:
        worker = cost["worker_sample"] * one.batch_size + cost["worker_minibatch"] + cost["worker_request"] * one.ps
        servers = cost["ps_sample"] * one.batch_size + cost["ps_request"] * one.ps
        measured = (one.worker_cpu_seconds or 0.0) + (one.ps_cpu_seconds or 0.0) * one.ps
        found.append(measured / (worker + servers))
    return found


def busy_share(row: Row) -> float:
    """Of the host's cores, by whomever."""
    profile = row.profile
    own = _own_cores(profile)
    return sum(own + host.other_cores for host in profile.hosts) / sum(h.cores for h in profile.hosts)


def observations(profiles: Sequence[Profile]) -> list[Observation]:
    speeds = host_speeds(profiles)
    return [one for profile in profiles if (one := observe(profile, speeds)) is not None]
