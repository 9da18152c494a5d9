"""What a job is doing, in one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dlrover_lite.master.autoscale.next_decision import next_look
from dlrover_lite.master.nodes.fleet import describe_end
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.master.profiling.job_end import job_end
from dlrover_lite.master.work.progress import finite
from dlrover_lite.protocol.nodes import Usage
from dlrover_lite.protocol.questions import NodeStatus, ShardsStatus, Status

if TYPE_CHECKING:
    from dlrover_lite.master.generation_run import GenerationRun
    from dlrover_lite.master.work.shards import ShardService

_NOTHING = Usage(0.0, 0, 0)
State = Literal["starting", "training", "evaluating", "exporting", "succeeded", "failed", "stopped"]


def describe(run: GenerationRun) -> Status:
    now = run.now()
    shards, progress = run.shards, run.progress
    recent = progress.recent()
    over = run.outcome is not None
    restoring, exporting = (None, None) if over else (run.servers.restoring, run.exporting.status)
    message, waits = "", ""
    if run.outcome is None and not run.stopping:
        waits = run.disk.waits or run.exporting.waits
    if run.outcome is not None:
        message = run.outcome.message
    elif waits:
        message = waits
    elif run.stopping:
        message = f"taking a last checkpoint: {run.stopping}"
    elif run.beginning is not None and run.beginning.waits_since is not None:
        message = f"lets its nodes go: {run.beginning.why}"
    elif run.beginning is not None:
        message = f"goes back to {run.beginning.point}"
    elif run.servers.restore is not None:
        message = f"reading checkpoint {run.servers.restore.cut}"
        if restoring is not None and restoring.text:
            message = f"{message}: {restoring.text}"
    elif exporting is not None:
        message = f"writing the model: {exporting.text}" if exporting.text else "writing the model"
    elif not run.servers.state.version:
        message = "waiting for the parameter servers"
    else:
        message = run.slots.problem
    loss, counts = recent.log_loss, run.servers.state.counts()
    return Status(
        job=run.job,
        state=_state(run),
        epoch=shards.epoch,
        epochs=shards.plan.epochs,
        samples=shards.consumed_samples,
        total_samples=shards.plan.samples * shards.plan.epochs,
        samples_per_second=progress.rate(now=now),
        loss=finite(loss),
        auc=recent.auc,
        elapsed_seconds=now - progress.began,
        nodes=[
            _node(
                node,
                run.reconciler.usage.get(node.id, _NOTHING),
                progress.node_rate(node.id, now=now),
                counts,
                run.reconciler.waits_for.get(node.id, ""),
                run.reconciler.awaited(node.id),
                run.reconciler.host_of.get(node.id, ""),
            )
            for node in run.fleet.by_id.values()
        ],
        evaluations=run.evaluations.results,
        bad_lines=progress.bad_lines,
        quarantined=len(shards.quarantined()),
        staleness_p99=progress.staleness_quantile(0.99),
        staleness_max=max(progress.staleness, default=None),
        rows=run.servers.rows,
        message=message,
        bad_examples=progress.bad_examples,
        enforcement=run.enforcement.kind,
        not_enforced=run.enforcement.cannot,
        shared_cores=run.enforcement.shared_cores,
        generation=run.facts.generation.number,
        begun=run.facts.generation.told,
        master_restarts=run.facts.restarts,
        moves=run.servers.moves(),
        slot_map_version=run.servers.state.version,
        slots_settled=run.servers.settled,
        checkpoints=run.checkpoints.status() if run.checkpoints else None,
        plan=run.executor.state.began,
        shards=_shards(shards),
        next_look=next_look(run),
        waits=waits,
        expected_end=job_end(run, now=run.wall_now()),
        restoring=restoring,
        exporting=exporting,
    )


def _node(
    node: Node, usage: Usage, rate: float, slots: dict[str, int], waits_for: str, awaited: str, host: str
) -> NodeStatus:
    return NodeStatus(
        id=node.id,
        role=node.role,
        state=_state_of(node, awaited),
        cores=node.resources.cores,
        memory=node.resources.memory,
        samples_per_second=rate,
        cpu_seconds=usage.cpu_seconds,
        used_memory=usage.memory,
        throttled_seconds=usage.throttled_seconds,
        peak_memory=usage.peak_memory,
        slots=slots.get(node.id, 0) if node.role == "ps" else None,
        wanted_cores=node.wanted.cores if node.wanted else None,
        wanted_memory=node.wanted.memory if node.wanted else None,
        waits_for=waits_for if node.wanted else "",
        host=host,
    )


def _state_of(node: Node, awaited: str) -> str:
    if node.state == "ended":
        return f"ended ({describe_end(node)})"
    return f"launched ({awaited})" if node.state == "launched" and awaited else node.state


def _shards(shards: ShardService) -> ShardsStatus:
    ledger, workers = shards.ledger, shards.ledger.leased("train")
    done = sum(ledger.done(of).total for of in ledger.passes() if of.kind == "train")
    quarantined = sum(of.kind == "train" for of, _ in shards.quarantined())
    leased = sum(workers.values())
    total = shards.plan.minibatches(shards.plan.samples) * shards.plan.epochs
    return ShardsStatus(done, leased, total - done - leased - quarantined, quarantined, workers)


def _state(run: GenerationRun) -> State:
    if run.outcome is not None:
        return run.outcome.state
    if run.exporting.begun:
        return "exporting"
    if run.shards.trained:
        return "evaluating"
    if not run.progress.recent().samples:
        return "starting"
    return "training"
