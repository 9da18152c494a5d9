"""What a job has to go through, and by which names the ledger knows it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from dlrover_lite.core.errors import DataError
from dlrover_lite.data.open import open_data
from dlrover_lite.data.order import BLOCK_SIZE
from dlrover_lite.protocol.questions import EvaluationResult
from dlrover_lite.recipe.id_kinds import Agreement, FileIds, IdKinds, reconcile
from dlrover_lite.recipe.schema import Recipe

__all__ = [
    "FINAL_ROUND",
    "ID_KINDS",
    "PLAN",
    "ROUNDS_DUE",
    "JobData",
    "RoundResult",
    "ShardPlan",
    "look_at_data",
    "result_fact",
    "samples_fact",
]

PLAN, ROUNDS_DUE, FINAL_ROUND, ID_KINDS = "plan", "evaluation_rounds_due", "final_evaluation_round", "id_kinds"
"""Names of facts of the ledger."""


def samples_fact(round_index: int) -> str:
    """Return the name of the fact that has the consumed samples when an evaluation round was opened."""
    return f"evaluation.{round_index}.samples"


def result_fact(round_index: int) -> str:
    """Return the name of the fact with the ``RoundResult`` of a round that was through before a cut was taken."""
    return f"evaluation.{round_index}.result"


class ShardPlan(msgspec.Struct, frozen=True):
    """What a job has to go through. It never changes within a job: minibatch numbers mean something only with it."""

    samples: int
    """Number of samples in one epoch."""
    batch_size: int
    epochs: int
    eval_samples: int = 0
    evaluate_every: int = 0
    """Number of consumed samples between evaluation rounds; 0: only the final one (none at all without ``eval_samples``)."""
    max_skipped_minibatches: int = 0
    block_minibatches: int = 0
    """Length in minibatches of the blocks the samples are shuffled in, 0 if there are none: leases rather end where a block does."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch_size < 1 or self.epochs < 1:
            raise ValueError(f"nothing to train on in {self}")

    def minibatches(self, samples: int) -> int:
        return -(-samples // self.batch_size)


class RoundResult(msgspec.Struct, frozen=True):
    """Result of an evaluation round that was through when a cut was taken."""

    at_samples: int
    samples: int
    loss: float | None
    auc: float | None
    unknown_ids: dict[str, float] = {}
    """Unknown ids as in ``EvaluationResult``, as are ``unusual_ids``."""
    unusual_ids: dict[str, float | None] = {}

    def message(self) -> EvaluationResult:
        return EvaluationResult(*msgspec.structs.astuple(self))


class JobData(NamedTuple):
    """What a look at a recipe's data shows."""

    plan: ShardPlan
    ids: Agreement
    """Agreement on the ids of the files to train on and to evaluate on, without problems."""


def look_at_data(recipe: Recipe, expected: IdKinds | None = None, *, whose: str = "the job") -> JobData:
    """Look at a recipe's data. Raises DataError when there is nothing to train on, and when ids are of another kind than ``expected``, or
    than in other files; ``whose`` kinds are expected is named in the message."""
    directory, training = Path(recipe.directory), recipe.training
    samples: list[int] = []
    files: list[FileIds] = []
    parts: tuple[Literal["train", "eval"], ...] = ("train", "eval")
    for part in parts:
        dataset = open_data(recipe.data, directory=directory, part=part)
        samples.append(dataset.samples if dataset is not None else 0)
        if dataset is not None:
            files += (one for one in dataset.look_at_ids() if one not in files)
            dataset.close()
    ids = reconcile(files, expected, whose=whose)
    ids.require()
    if not samples[0]:
        raise DataError("there are no samples to train on", hint="Check data.train and data.eval_share.")
    plan = ShardPlan(
        samples=samples[0],
        batch_size=training.batch_size,
        epochs=training.epochs,
        eval_samples=samples[1],
        evaluate_every=training.evaluate_every,
        max_skipped_minibatches=training.max_skipped_minibatches,
        block_minibatches=BLOCK_SIZE // training.batch_size if training.shuffle else 0,
    )
    return JobData(plan, ids)
