"""What a job is doing, in one message."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from dlrover_lite.wire.messages import NodeStatus, Status

if TYPE_CHECKING:
    from dlrover_lite.master.service import Master

State = Literal["starting", "training", "evaluating", "exporting", "succeeded", "failed", "stopped"]


def describe(master: Master) -> Status:
    now = master.now()
    shards, progress = master.shards, master.progress
    recent = progress.recent()
    message = ""
    if master.outcome is not None:
        message = master.outcome.message
    elif not master.nodes.all_ps_up:
        message = "waiting for the parameter servers"
    loss = recent.log_loss
    return Status(
        job=master.job,
        state=_state(master),
        epoch=shards.epoch,
        epochs=shards.plan.epochs,
        samples=shards.consumed_samples,
        total_samples=shards.plan.samples * shards.plan.epochs,
        samples_per_second=progress.rate(now=now),
        loss=None if loss is None or math.isnan(loss) else loss,
        auc=recent.auc,
        elapsed_seconds=now - progress.began,
        nodes=[
            NodeStatus(
                id=node.id,
                role=node.role,
                state=node.state if node.state != "ended" else f"ended ({node.reason})",
                cores=node.resources.cores,
                memory=node.resources.memory,
                samples_per_second=progress.node_rate(node.id, now=now),
                cpu_seconds=master.cpu_seconds.get(node.id, 0.0),
                used_memory=master.used_memory.get(node.id, 0),
            )
            for node in master.nodes.by_id.values()
        ],
        evaluations=master.evaluations.results,
        bad_lines=progress.bad_lines,
        quarantined=len(shards.quarantined()),
        staleness_p99=progress.staleness_quantile(0.99),
        staleness_max=max(progress.staleness, default=None),
        rows=sum(report.rows for report in master.ps_reports.values()),
        message=message,
        bad_examples=progress.bad_examples,
    )


def _state(master: Master) -> State:
    if master.outcome is not None:
        return master.outcome.state
    if master.exporting:
        return "exporting"
    if master.shards.trained:
        return "evaluating"
    if not master.progress.recent().samples:
        return "starting"
    return "training"
