"""From a cut to a ledger and back: what of the master's knowledge goes into a manifest, and the ledger that is made of one. Pure but for
``write_ledger``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dlrover_lite.checkpoint.destination import damaged
from dlrover_lite.checkpoint.manifest import Manifest, configure
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.files.durable import sync_directory, sync_file
from dlrover_lite.core.intervals import IntervalSet
from dlrover_lite.jobs.store import unwritable
from dlrover_lite.master.work.ledger_data import Change, Failure, Pass, Span, TokensReserved
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.progress import Counters, Evaluations, Progress
from dlrover_lite.master.work.shard_plan import (
    FINAL_ROUND,
    PLAN,
    ROUNDS_DUE,
    RoundResult,
    ShardPlan,
    result_fact,
    samples_fact,
)
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.protocol.messages import TrainingSettings
from dlrover_lite.recipe.id_kinds import IdKind
from dlrover_lite.recipe.schema import Optimizer, Recipe
from dlrover_lite.tables.optimizer_state import COUNTING, STATE_PARTS, keeps_state

__all__ = [
    "CutFacts",
    "begun_anew",
    "check_plan",
    "consumed_minibatches",
    "cut_facts",
    "facts_for",
    "ledger_of",
    "settings_of",
    "write_ledger",
]


class CutFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest's ``facts``. What a newer minor version adds is passed over."""

    recipe: dict[str, Any] | None = None
    """The recipe as in ``recipe.json``."""
    plan: ShardPlan | None = None
    id_kinds: dict[str, IdKind] = {}
    """Kind of ids of each categorical column. Empty in checkpoints from before kinds were kept."""
    minibatches: int | None = None
    """Number of minibatches in an epoch."""
    failures: list[Failure] = []
    """Minibatches of training that have failed: those in quarantine, and those that failed once."""
    evaluations: list[RoundResult] = []
    """Results of the evaluation rounds that were through."""
    rounds_due: int = 0
    final_round: bool = False
    """The last of the evaluation rounds is the one at the end of the job."""
    progress: Counters | None = None
    elapsed_seconds: float = 0.0
    """Seconds in which the job ran, since it began."""


def facts_for(
    recipe: Recipe, shards: ShardService, evaluations: Evaluations, progress: Progress, *, now: float
) -> dict[str, Any]:
    """Return the facts for the manifest of a cut whose consumed set is noted at the same moment. ``now``: of the clock that ``progress``
    began by."""
    through, rounds_due, final = shards.rounds_through()
    results = evaluations.results[:through]
    facts = CutFacts(
        recipe=msgspec.to_builtins(recipe),
        plan=shards.plan,
        id_kinds=dict(shards.id_kinds),
        minibatches=shards.plan.minibatches(shards.plan.samples),
        failures=[failure for of, failure in shards.ledger.failures() if of.kind == "train"],
        evaluations=[RoundResult(*msgspec.structs.astuple(one)) for one in results],
        rounds_due=rounds_due if len(results) == through else max(0, rounds_due - 1),
        final_round=final and len(results) == through,
        progress=progress.counters(),
        elapsed_seconds=now - progress.began,
    )
    plain: dict[str, Any] = msgspec.to_builtins(facts, str_keys=True)
    return plain


def cut_facts(manifest: Manifest) -> CutFacts:
    """Return the facts in a manifest. Raises CheckpointDamaged for facts that make no sense."""
    try:
        return convert(manifest.facts, CutFacts, strict=False)
    except msgspec.ValidationError as error:
        raise damaged(f"the manifest of checkpoint {manifest.cut}", f"its facts make no sense: {error}") from error


def check_plan(manifest: Manifest, plan: ShardPlan) -> None:
    """Check that minibatch numbers mean the same as in the cut. Raises JobError when they don't."""
    then = cut_facts(manifest).plan
    if then is None:
        raise JobError(f"Checkpoint {manifest.cut} doesn't say what data it is of", hint=_ONLY_PARAMETERS)
    pairs = (
        ("samples an epoch", then.samples, plan.samples),
        ("samples a minibatch", then.batch_size, plan.batch_size),
        ("minibatches a shuffled block", then.block_minibatches, plan.block_minibatches),
    )
    wrong = [f"{now:,} {what} instead of {before:,}" for what, before, now in pairs if before != now]
    if wrong:
        raise JobError(
            f"Checkpoint {manifest.cut} is of other data, or another batch size: there are {', '.join(wrong)}",
            hint=f"Use the data and batch_size it was taken with. {_ONLY_PARAMETERS}",
        )
    begun = _epochs_begun(manifest)
    if begun > plan.epochs:
        raise JobError(
            f"Checkpoint {manifest.cut} is in epoch {begun - 1}, and the recipe has {plan.epochs} epochs",
            hint=f"Let it have more: --set training.epochs={begun}",
        )


_ONLY_PARAMETERS = "Or begin a new job with its parameters, at epoch 0: run --from CHECKPOINT --only-parameters"


def _epochs_begun(manifest: Manifest) -> int:
    return max([manifest.consumed.below, *(epoch + 1 for epoch, _ in manifest.consumed.ranges)])


class NewLedger(NamedTuple):
    changes: list[Change]
    facts: dict[str, str]


def ledger_of(manifest: Manifest, plan: ShardPlan, *, tokens_reserved: int = 1) -> NewLedger:
    """Make the ledger of a cut: what was consumed when the cut was taken is, all else is to do. In epochs under way that includes
    minibatches that have failed: what made them fail may have been mended. Not so those that count as consumed: parameter servers take no
    push of theirs any more. ``tokens_reserved``: those below may be in use elsewhere.

    Raises as ``check_plan`` and ``cut_facts``, and CheckpointDamaged for ranges that can't be.
    """
    check_plan(manifest, plan)
    known = cut_facts(manifest)
    changes: list[Change] = [TokensReserved(tokens_reserved)]
    try:
        for of, ranges in _epochs(manifest, plan):
            done = IntervalSet(ranges)
            mine = [failure for failure in known.failures if failure.pass_number == of.number and failure.k in done]
            for failure in mine:
                done.remove(failure.k, failure.k + 1)
            changes.append(of)
            changes += [Span(of.number, start, stop) for start, stop in done]
            changes += mine
    except ValueError as error:
        raise damaged(f"the manifest of checkpoint {manifest.cut}", f"its ledger makes no sense: {error}") from error
    facts = {PLAN: msgspec.json.encode(plan).decode()}
    changes += _evaluations(known, plan, facts)
    return NewLedger(changes, facts)


def _epochs(manifest: Manifest, plan: ShardPlan) -> Iterator[tuple[Pass, list[tuple[int, int]]]]:
    minibatches = plan.minibatches(plan.samples)
    for epoch in range(manifest.consumed.below):
        yield Pass("train", epoch, minibatches), [(0, minibatches)]
    for epoch, ranges in manifest.consumed.ranges:
        if epoch >= manifest.consumed.below:
            yield Pass("train", epoch, minibatches), list(ranges)


def _evaluations(known: CutFacts, plan: ShardPlan, facts: dict[str, str]) -> Iterator[Change]:
    """Yield the changes for evaluation rounds that were through; on other evaluation data they would be something else."""
    before = known.plan
    same = before is not None and before.eval_samples == plan.eval_samples > 0
    for index, result in enumerate(known.evaluations if same else []):
        of = Pass("eval", index, plan.minibatches(plan.eval_samples))
        facts[samples_fact(index)] = str(result.at_samples)
        facts[result_fact(index)] = msgspec.json.encode(result).decode()
        yield of
        yield Span(of.number, 0, of.minibatches)
    if before is not None and before.evaluate_every == plan.evaluate_every:
        facts[ROUNDS_DUE] = str(known.rounds_due)
    if same and known.final_round and before is not None and before.epochs == plan.epochs:
        facts[FINAL_ROUND] = str(len(known.evaluations) - 1)


def settings_of(recipe: Recipe) -> TrainingSettings:
    """Return what workers configure servers with."""
    training = recipe.training
    embedding_optimizer = training.embedding_optimizer or training.optimizer
    return TrainingSettings(training.seed, training.optimizer, embedding_optimizer, recipe.export.optimizer_state)


def begun_anew(manifest: Manifest, now: TrainingSettings) -> list[str]:
    """List what begins anew, a line each: optimizer state in a cut that doesn't fit what the job trains with, and counts of updates that
    the job is to keep and doesn't begin with."""
    before = configure(manifest)
    pairs = (
        ("embeddings", before.embedding_optimizer, now.embedding_optimizer),
        ("dense parameters", before.optimizer, now.optimizer),
    )
    anew = [f"the optimizer's state of {what} begins anew" for what, then, here in pairs if _is_spoilt(then, here)]
    # version 1, which has no such key, keeps all counts
    counted = before.counted or "counted" not in manifest.configuration
    without = [
        f"counts of updates of {what} begin at 0"
        for what, then, here in pairs
        if now.counted and not (keeps_state(then, here) and (counted or then.use in COUNTING))
    ]
    return anew + without


def _is_spoilt(then: Optimizer, here: Optimizer) -> bool:
    """Say whether there is state, or is to be, and it doesn't fit."""
    return not keeps_state(then, here) and (STATE_PARTS[then.use] > 0 or STATE_PARTS[here.use] > 0)


def consumed_minibatches(manifest: Manifest, plan: ShardPlan) -> int:
    return sum(stop - start for _, ranges in _epochs(manifest, plan) for start, stop in ranges)


def write_ledger(path: Path, ledger: NewLedger, facts: Mapping[str, str], *, block_minibatches: int) -> None:
    """Write a new ledger to ``path``, whole or not at all; there is none yet. Raises JobError when it can't be written, or would make no
    sense."""
    made = path.with_name(f"{path.name}.new")
    for left in (made, *(made.with_name(made.name + ending) for ending in ("-wal", "-shm"))):
        left.unlink(missing_ok=True)
    with LedgerStore(made) as store:
        store.apply(ledger.changes)
        for name, value in {**ledger.facts, **facts}.items():
            store.put_fact(name, value)
        store.commit()
        store.load(block_minibatches=block_minibatches)
    try:
        sync_file(made)
        made.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
