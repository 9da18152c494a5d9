"""What a job's StatefulSet tells of the job: its annotations are all that a list of jobs is made from. Pure: data in, data out."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import datetime
from typing import Literal

import msgspec

from dlrover_lite.backends.k8s.api.watch import Followed, Meta
from dlrover_lite.core.bounds import clipped
from dlrover_lite.core.decoding import from_json
from dlrover_lite.jobs.backend import JobSummary
from dlrover_lite.jobs.store import Beginning, Result, State

__all__ = [
    "KILLED",
    "JobSet",
    "again_annotations",
    "end_annotations",
    "new_annotations",
    "running_annotations",
    "stop_annotations",
    "summary_of",
]

_PREFIX = "dlrover-lite.io/"
_STATE, _CREATED, _STARTED, _RESULT = (f"{_PREFIX}{name}" for name in ("state", "created-at", "started-at", "result"))
_STOP, _ATTEMPT, _BEGINNING = (f"{_PREFIX}{name}" for name in ("stop", "attempt", "beginning"))
_LAUNCH_SECONDS = 120.0
"""Seconds after its creation for which a job without pods counts as being launched; later, whoever launched it is gone."""
_MOST_TEXT = 4000
"""The most characters of each text in a result: all annotations of an object may have 256 KiB."""
_KEPT = (
    "samples",
    "total_samples",
    "epochs",
    "elapsed_seconds",
    "auc",
    "loss",
    "evaluations",
    "rows",
    "quarantined",
    "bad_lines",
)
"""Fields of a master's last status that a result keeps."""
_MOST_EVALUATIONS = 3
KILLED = "killed by request"

StopWord = Literal["request", "terminal closed", "suspend", "kill"]


class _SetMeta(Meta, rename="camel"):
    creation_timestamp: str = ""
    generation: int = 0


class _SetSpec(msgspec.Struct):
    replicas: int = 1


class _SetStatus(msgspec.Struct, rename="camel"):
    replicas: int = 0
    observed_generation: int = 0


class JobSet(Followed):
    """A job's StatefulSet, as far as the state of the job needs it."""

    metadata: _SetMeta = msgspec.field(default_factory=_SetMeta)
    spec: _SetSpec = msgspec.field(default_factory=_SetSpec)
    status: _SetStatus = msgspec.field(default_factory=_SetStatus)

    @property
    def job(self) -> str:
        return self.metadata.name

    def annotation(self, name: str) -> str:
        return self.metadata.annotations.get(name, "")

    @property
    def created_at(self) -> float:
        """When the job was made, in seconds since the epoch."""
        return _number(self.annotation(_CREATED)) or _seconds(self.metadata.creation_timestamp)

    @property
    def attempt(self) -> int:
        """How often the job was started by somebody."""
        return int(_number(self.annotation(_ATTEMPT)) or 1)

    @property
    def beginning(self) -> Beginning | None:
        """What the present attempt begins with."""
        text = self.annotation(_BEGINNING)
        return from_json(text, Beginning) if text else None

    @property
    def stop(self) -> StopWord:
        """Why its pod is to end, if it is."""
        word = self.annotation(_STOP)
        return word if word in ("terminal closed", "suspend", "kill") else "request"  # type: ignore[return-value]

    @property
    def is_wanted(self) -> bool:
        """Whether its master is to run."""
        return self.spec.replicas > 0 and self.metadata.deletion_timestamp is None

    @property
    def result(self) -> Result | None:
        text = self.annotation(_RESULT)
        try:
            return from_json(text, Result) if text else None
        except msgspec.MsgspecError as error:
            return Result(
                "lost", self.created_at, f"the result that its StatefulSet tells can't be understood: {error}"
            )


def new_annotations(created_at: float, beginning: Beginning | None) -> dict[str, str]:
    """Make the annotations of a new job."""
    more = {} if beginning is None else {_BEGINNING: msgspec.json.encode(beginning).decode()}
    return {_STATE: "starting", _CREATED: repr(created_at), _ATTEMPT: "1", **more}


def again_annotations(one: JobSet, beginning: Beginning) -> dict[str, str | None]:
    """Make the changes of annotations by which a job that is over goes on."""
    return {
        _STATE: "starting",
        _ATTEMPT: str(one.attempt + 1),
        _BEGINNING: msgspec.json.encode(beginning).decode(),
        **dict.fromkeys((_STARTED, _RESULT, _STOP)),
    }


def running_annotations(started_at: float) -> dict[str, str]:
    """Make the annotations of a job whose master has been started."""
    return {_STATE: "running", _STARTED: repr(started_at)}


def stop_annotations(why: StopWord) -> dict[str, str]:
    return {_STOP: why}


def end_annotations(result: Result) -> dict[str, str]:
    """Make the annotations of a job that has ended: of its result, what fits."""
    status = {name: value for name, value in (result.status or {}).items() if name in _KEPT}
    if isinstance(evaluations := status.get("evaluations"), list):
        status["evaluations"] = evaluations[-_MOST_EVALUATIONS:]
    texts = {name: clipped(getattr(result, name), _MOST_TEXT) for name in ("message", "hint", "traceback")}
    short = msgspec.structs.replace(result, status=status or None, **texts)
    return {_STATE: result.state, _RESULT: msgspec.json.encode(short).decode()}


def summary_of(one: JobSet, now: float) -> JobSummary:
    """Return how a job is. ``now``: seconds since the epoch."""
    result, status = one.result, one.status
    unseen = 0 < status.observed_generation < one.metadata.generation
    idle = not one.is_wanted and status.replicas == 0 and not unseen
    launching = one.annotation(_STATE) == "starting" and now - one.created_at < _LAUNCH_SECONDS and one.attempt == 1
    started_at = _number(one.annotation(_STARTED))
    over = idle and (result is not None or not (launching and started_at is None and not one.annotation(_STOP)))
    state: State = "running" if one.annotation(_STATE) == "running" else "starting"
    if over and result is None:
        message = "its master's pod was removed, and what it has trained with it: nothing says how it ended"
        result = Result(
            "lost", started_at or one.created_at, message, f"Its events: kubectl describe statefulset {one.job}"
        )
    return JobSummary(
        one.job,
        state if result is None else result.state,
        over,
        one.created_at,
        started_at,
        None if result is None else result.ended_at,
        result,
    )


def _number(text: str) -> float | None:
    """Return a number of an annotation; None for what is none."""
    with suppress(ValueError):
        number = float(text)
        return number if math.isfinite(number) else None
    return None


def _seconds(time: str) -> float:
    """Return a time of the API's as seconds since the epoch."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0
