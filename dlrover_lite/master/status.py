"""What a job is doing, in one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dlrover_lite.master.autoscale.next_decision import next_look
from dlrover_lite.master.nodes.fleet import describe_end
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.master.profiling.job_end import job_end
from dlrover_lite.master.work.progress import finite
from dlrover_lite.protocol.messages import NodeStatus, ShardsStatus, Status
from dlrover_lite.protocol.nodes import Usage

if TYPE_CHECKING:
    from dlrover_lite.master.loop import Master
    from dlrover_lite.master.work.shards import ShardService

_NOTHING = Usage(0.0, 0, 0)
State = Literal["starting", "training", "evaluating", "exporting", "succeeded", "failed", "stopped"]


def describe(master: Master) -> Status:
    now = master.now()
    shards, progress = master.shards, master.progress
    recent = progress.recent()
    over = master.outcome is not None
    restoring, exporting = (None, None) if over else (master.servers.restoring, master.exporting.status)
    message, waits = "", ""
    if master.outcome is None and not master.stopping:
        waits = master.disk.waits or master.exporting.waits
    if master.outcome is not None:
        message = master.outcome.message
    elif waits:
        message = waits
    elif master.stopping:
        message = f"taking a last checkpoint: {master.stopping}"
    elif master.beginning is not None and master.beginning.waits_since is not None:
        message = f"lets its nodes go: {master.beginning.why}"
    elif master.beginning is not None:
        message = f"goes back to checkpoint {master.beginning.cut}"
    elif master.servers.restore is not None:
        message = f"reading checkpoint {master.servers.restore.cut}"
        if restoring is not None and restoring.text:
            message = f"{message}: {restoring.text}"
    elif exporting is not None:
        message = f"writing the model: {exporting.text}" if exporting.text else "writing the model"
    elif not master.servers.state.version:
        message = "waiting for the parameter servers"
    else:
        message = master.slots.problem
    loss, counts = recent.log_loss, master.servers.state.counts()
    return Status(
        job=master.job,
        state=_state(master),
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
                master.reconciler.usage.get(node.id, _NOTHING),
                progress.node_rate(node.id, now=now),
                counts,
                master.reconciler.waits_for.get(node.id, ""),
            )
            for node in master.fleet.by_id.values()
        ],
        evaluations=master.evaluations.results,
        bad_lines=progress.bad_lines,
        quarantined=len(shards.quarantined()),
        staleness_p99=progress.staleness_quantile(0.99),
        staleness_max=max(progress.staleness, default=None),
        rows=master.servers.rows,
        message=message,
        bad_examples=progress.bad_examples,
        enforcement=master.enforcement.kind,
        not_enforced=master.enforcement.cannot,
        generation=master.facts.generation.number,
        begun=master.facts.generation.told,
        master_restarts=master.facts.restarts,
        moves=master.servers.moves(),
        slot_map_version=master.servers.state.version,
        slots_settled=master.servers.settled,
        checkpoints=master.checkpoints.status() if master.checkpoints else None,
        plan=master.executor.state.began,
        shards=_shards(shards),
        next_look=next_look(master),
        waits=waits,
        expected_end=job_end(master, now=master.wall_now()),
        restoring=restoring,
        exporting=exporting,
    )


def _node(node: Node, usage: Usage, rate: float, slots: dict[str, int], waits_for: str) -> NodeStatus:
    return NodeStatus(
        id=node.id,
        role=node.role,
        state=node.state if node.state != "ended" else f"ended ({describe_end(node)})",
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
    )


def _shards(shards: ShardService) -> ShardsStatus:
    ledger, workers = shards.ledger, shards.ledger.leased("train")
    done = sum(ledger.done(of).total for of in ledger.passes() if of.kind == "train")
    quarantined = sum(of.kind == "train" for of, _ in shards.quarantined())
    leased = sum(workers.values())
    total = shards.plan.minibatches(shards.plan.samples) * shards.plan.epochs
    return ShardsStatus(done, leased, total - done - leased - quarantined, quarantined, workers)


def _state(master: Master) -> State:
    if master.outcome is not None:
        return master.outcome.state
    if master.exporting.begun:
        return "exporting"
    if master.shards.trained:
        return "evaluating"
    if not master.progress.recent().samples:
        return "starting"
    return "training"
