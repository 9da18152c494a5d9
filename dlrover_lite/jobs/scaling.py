"""What can be asked of a job's numbers of nodes, and what to say when it can't."""

from __future__ import annotations

import time
from typing import Literal

from dlrover_lite.errors import JobError, UsageError
from dlrover_lite.jobs.store import Job
from dlrover_lite.wire.messages import Status

__all__ = ["MOST_NODES", "check", "has_ended"]

MOST_NODES = 4096
"""Of one role: each PS needs a slot of its own. What the machine can hold is for the master to judge."""

_OPTIONS: tuple[tuple[Literal["worker", "ps"], str, str], ...] = (
    ("worker", "--workers", "workers"),
    ("ps", "--ps", "parameter servers"),
)


def check(workers: int | None, ps: int | None) -> None:
    """Raises UsageError unless there is a number, and each is one that some job could have."""
    if workers is None and ps is None:
        raise UsageError("Nothing to change: write --workers N, --ps N, or both")
    for (_, option, what), count in zip(_OPTIONS, (workers, ps), strict=True):
        if count is None:
            continue
        if count < 1:
            raise UsageError(
                f"{option} {count}: a job needs at least one; write {option} 1 or more, or end the job with dlrover-lite stop"
            )
        if count > MOST_NODES:
            raise UsageError(f"{option} {count}: a job can have at most {MOST_NODES:,} {what}")


def has_ended(job: Job, last: Status, workers: int | None, ps: int | None) -> JobError:
    """How the job ended, and the command that trains it again with these numbers."""
    result = job.result()
    at = (result.ended_at if result else job.record().ended_at) or None
    when = time.strftime(" at %H:%M:%S on %Y-%m-%d", time.localtime(at)) if at else ""
    first = last.message.partition("\n")[0].rstrip(" :")
    why = f" ({first})" if first else ""
    command = ["dlrover-lite run", str(job.directory / "recipe.yaml"), *_settings(job, last, workers, ps)]
    return JobError(
        f"{job.id} can't be scaled: it has {_ended(job)}{when}{why}. To train it again so: {' '.join(command)}"
    )


def _ended(job: Job) -> str:
    state = job.state()
    return {"stopped": "been stopped", "lost": "been lost"}.get(state, state)


def _settings(job: Job, last: Status, workers: int | None, ps: int | None) -> list[str]:
    """Of a role whose resources were chosen for it, all must be given."""
    settings = []
    for (role, _, _), count in zip(_OPTIONS, (workers, ps), strict=True):
        if count is None:
            continue
        settings.append(f"--set resources.{role}.count={count}")
        like = next((node for node in last.nodes if node.role == role), None)
        if getattr(job.recipe.resources, role) is None and like is not None:
            settings += [f"--set resources.{role}.cores={like.cores:g}", f"--set resources.{role}.memory={like.memory}"]
    return settings
