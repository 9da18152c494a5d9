"""When the brain looks next whether something is to be done about the job, or why it doesn't: what a person waits for who watches it.

It looks when an interval that was measured has ended: that is when it is asked. (What parameter servers hold it is told every second in
which they grow, and whatever comes of that comes at once.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlrover_lite.protocol.questions import NextLook

if TYPE_CHECKING:
    from dlrover_lite.master.autoscale.autoscaler import Autoscaler
    from dlrover_lite.master.generation_run import GenerationRun

__all__ = ["QUEUED", "next_look"]

QUEUED = NextLook(None, "it is decided as soon as other jobs leave room")


def next_look(run: GenerationRun) -> NextLook | None:
    """Return when the brain looks at the job next, or why it can't decide anything; None: the job is over."""
    if run.outcome is not None:
        return None
    if why := _over(run) or _may_not(run.executor.state) or _nobody(run):
        return NextLook(None, why)
    profiling = run.profiling
    if (ends_at := profiling.ends_at) is None:
        return NextLook(None, f"nothing can be measured: {profiling.profiler.disturbed}")
    if _is_done_before(run, profiling.seconds_left):
        return NextLook(None, "the job is done before the next interval is measured")
    first = "" if profiling.profiler.has_measured else "the first interval with these nodes is measured"
    return NextLook(round(ends_at, 1), first)


def _over(run: GenerationRun) -> str:
    if run.stopping or run.beginning is not None:
        return "the job ends"
    return "all is trained" if run.shards.trained else ""


def _may_not(state: Autoscaler) -> str:
    """Return why nothing would be done."""
    if state.mode == "off":
        return "autoscaling is off for this job"
    if state.paused:
        return f"autoscaling is paused: {state.paused}"
    if state.goal is not None:
        return f"decision {state.goal.number} is being carried out"
    if state.suggestion is not None:
        return f"decision {state.suggestion.number} waits to be accepted or rejected"
    return ""


def _nobody(run: GenerationRun) -> str:
    if run.brain is None:
        return "no brain advises this job"
    return run.brain.trouble


def _is_done_before(run: GenerationRun, seconds: float) -> bool:
    """Return whether the job is done within ``seconds`` at the present rate."""
    rate = run.progress.rate(now=run.now())
    left = run.shards.plan.samples * run.shards.plan.epochs - run.shards.consumed_samples
    return rate > 0 and left / rate < seconds
