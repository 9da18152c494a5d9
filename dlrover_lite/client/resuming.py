"""Going on from a checkpoint: which one, whether a recipe fits it, and how the job begins with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dlrover_lite.checkpoint.manifest import Manifest, configure, known_id_kinds
from dlrover_lite.checkpoint.store import Checkpoint, CheckpointStore
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.errors import JobError, RecipeError
from dlrover_lite.jobs.checkpoint_location import Located, store_of
from dlrover_lite.jobs.endings import why_none
from dlrover_lite.jobs.restore_point import (
    InMemory,
    RestorePoint,
    Unreachable,
    Unusable,
    Usable,
    origin_of,
    own_checkpoint,
    restore_point,
    restore_point_of,
)
from dlrover_lite.jobs.store import Beginning, Job
from dlrover_lite.master.checkpoints.restored_ledger import begun_anew, check_plan, cut_facts, settings_of
from dlrover_lite.protocol.demands import autoscale_of
from dlrover_lite.protocol.ps_messages import Configure
from dlrover_lite.recipe.schema import Optimizer, Recipe

if TYPE_CHECKING:
    from dlrover_lite.jobs.backend import JobSummary, RunOptions
    from dlrover_lite.master.work.shard_plan import JobData

__all__ = [
    "Chosen",
    "beginning_of",
    "changes_of",
    "check_fits",
    "check_reachable",
    "choose",
    "chosen_for",
    "fitting_recipe",
    "next_beginning",
    "recipe_of",
]


class Chosen(NamedTuple):
    store: CheckpointStore
    """The store that it is in, as it is reached from here."""
    manifest: Manifest
    exactly: bool
    """The checkpoint was named: no older one will do."""
    passed_over: list[str]
    """What is wrong with newer ones, in words."""
    only_parameters: bool = False
    """The job began at epoch 0 with only the parameters, and begins there again."""

    @property
    def url(self) -> str:
        return self.store.url


# --- which ----------------------------------------------------------------------------------------------------------------


def choose(located: Located, cut: int | None = None) -> Chosen:
    """Return the one that is meant (``cut`` goes before), or else the newest that is whole. Raises JobError when there is none."""
    job, wanted = located.job, located.cut if cut is None else cut
    point = own_checkpoint(job) if job is not None else restore_point(located.store)
    if wanted is not None and isinstance(point, Usable | Unusable):
        whose = f"of {job.id}" if job is not None else f"in {located.store.url}"
        return Chosen(_store_at(point.url, job), _named(located.store.checkpoints(), wanted, whose), True, [])
    return _usable(point, job, located.store.url)


def _usable(point: RestorePoint, job: Job | None, url: str) -> Chosen:
    """Return what is chosen by a restore point. Raises JobError for what can't be gone on from."""
    if isinstance(point, Usable):
        origin = origin_of(job) if point.is_origin and job is not None else None
        exactly = origin is not None and origin.exactly
        return Chosen(_store_at(point.url, job), point.manifest, exactly, point.passed_over, point.only_parameters)
    if isinstance(point, InMemory):
        assert job is not None
        raise JobError(f"{job.id} still runs.", hint=f"See how far it is: dlrover-lite status {job.id}")
    if job is not None:
        message, hint = why_none(job, point, over=_known(job).over)
        raise JobError(message, hint=hint)
    where = "Is it the right place, and mounted? dlrover-lite checkpoints JOB names a job's."
    match point:
        case Unreachable(_, message, hint):
            raise JobError(message, hint=hint)
        case Unusable(_, wrong, _):
            listed = "\n".join(f"  {line}" for line in wrong)
            raise JobError(f"No checkpoint in {url} can be used:\n{listed}", hint=where)
        case _:
            raise JobError(f"There are no checkpoints in {url}: there is nothing to go on from.", hint=where)


def _store_at(url: str, job: Job | None) -> CheckpointStore:
    return CheckpointStore(url if job is None else job.destination_at(url))


def _named(cuts: list[Checkpoint], wanted: int, whose: str) -> Manifest:
    for one in cuts:
        if one.number == wanted:
            if one.state != "complete" or one.manifest is None:
                raise JobError(
                    f"Checkpoint {wanted} {whose} can't be used: {one.why}",
                    hint="Others: " + (_numbers(other.number for other in cuts if other.state == "complete") or "none"),
                )
            return one.manifest
    raise JobError(
        f"There is no checkpoint {wanted} {whose}.", hint=f"There are: {_numbers(one.number for one in cuts)}"
    )


def _numbers(cuts: Iterator[int]) -> str:
    return ", ".join(map(str, sorted(cuts)))


def chosen_for(job: Job, cut: int | None = None) -> Chosen:
    """Choose the checkpoint to go on with this job. Raises JobError when it can't."""
    now = _known(job)
    if now.state == "succeeded" and now.over:
        more = 2 * job.recipe.training.epochs
        further = (
            f"Train its model further, as a new job: dlrover-lite run --from {job.id} --set training.epochs={more}"
        )
        has_cuts = isinstance(own_checkpoint(job), Usable)
        raise JobError(f"{job.id} has succeeded: there is nothing left to do.", hint=further if has_cuts else "")
    point = restore_point_of(job, over=now.over)
    named = cut is not None and not isinstance(point, InMemory)
    chosen = choose(Located(store_of(job), job, cut)) if named else _usable(point, job, "")
    if not chosen.only_parameters and _has_data_here(job.recipe):
        _check_data(chosen, job.recipe)
    return chosen


def _has_data_here(recipe: Recipe) -> bool:
    """Return whether the data can be looked at on this machine; those of a cluster's job its master looks at."""
    return recipe.kubernetes is None or recipe.data.__struct_config__.tag in ("synthetic", "census")


def _known(job: Job) -> JobSummary:
    from dlrover_lite.client.handle import JobHandle

    return JobHandle.find(job.id).known()


def recipe_of(located: Located, chosen: Chosen) -> Recipe:
    """Return the recipe that the checkpoint was taken with. Raises JobError when it isn't known."""
    if located.job is not None:
        return located.job.recipe
    known = cut_facts(chosen.manifest).recipe
    try:
        if known is not None:
            return convert(known, Recipe)
    except msgspec.ValidationError as error:
        raise JobError(
            f"The recipe in checkpoint {chosen.manifest.cut} can't be understood: {error}", hint=_NAME_RECIPE
        ) from error
    raise JobError(f"Checkpoint {chosen.manifest.cut} doesn't have its recipe.", hint=_NAME_RECIPE)


_NAME_RECIPE = "Name one: dlrover-lite run --from CHECKPOINT RECIPE"

# --- whether it fits ------------------------------------------------------------------------------------------------------


def check_fits(chosen: Chosen, recipe: Recipe, *, only_parameters: bool) -> None:
    """Check whether a job of this recipe can begin with the checkpoint. Raises JobError that names what differs; reads the data, and builds
    the model unless it is known to be the same."""
    manifest = chosen.manifest
    before = cut_facts(manifest).recipe
    then = convert(before, Recipe) if before is not None else None
    if not only_parameters:
        if then is not None:
            _check_order(manifest, then, recipe)
        _check_data(chosen, recipe)
    else:
        _look_at_data(chosen, recipe)
    there = configure(manifest)
    wrong = [] if only_parameters else list(_differences(there, recipe))
    hint = _ONLY_PARAMETERS if wrong else _TABLES
    if not wrong and (then is None or (then.model, then.data) != (recipe.model, recipe.data)):
        from dlrover_lite.worker.parameters.dry_configuration import declare

        wrong = list(_other_tables(there, declare(recipe).configuration))
    if wrong:
        listed = "\n".join(f"  {line}" for line in wrong[:_SHOWN])
        listed += f"\n  and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise JobError(f"The recipe doesn't fit checkpoint {manifest.cut} of {manifest.job}:\n{listed}", hint=hint)


_SHOWN = 6
_TABLES = """Tables and parameters must be those it was taken with; nodes, epochs and export may be others.
With --only-parameters, data and training may be others, too."""
_ONLY_PARAMETERS = "Begin at epoch 0 with its parameters instead: --only-parameters"


def _check_data(chosen: Chosen, recipe: Recipe) -> None:
    check_plan(chosen.manifest, _look_at_data(chosen, recipe).plan)


def _look_at_data(chosen: Chosen, recipe: Recipe) -> JobData:
    """Return the recipe's data. Raises DataError when its ids are of another kind than those that the checkpoint was trained with."""
    from dlrover_lite.master.work.shard_plan import look_at_data

    manifest = chosen.manifest
    return look_at_data(recipe, known_id_kinds(manifest), whose=f"checkpoint {manifest.cut} of {manifest.job}")


def _check_order(manifest: Manifest, then: Recipe, now: Recipe) -> None:
    """Check that minibatch numbers mean the same samples. Raises JobError."""
    before, after = _data(then), _data(now)
    before["training.shuffle"], after["training.shuffle"] = then.training.shuffle, now.training.shuffle
    wrong = [
        f"{key} is {after.get(key)!r} instead of {before.get(key)!r}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
    if wrong:
        listed = "\n".join(f"  {line}" for line in wrong)
        raise JobError(
            f"Checkpoint {manifest.cut} of {manifest.job} is amid other data:\n{listed}", hint=_ONLY_PARAMETERS
        )


def _data(recipe: Recipe) -> dict[str, Any]:
    """Return what says which samples there are in which order; files by their names, as they may have been moved."""
    found = {f"data.{key}": value for key, value in msgspec.to_builtins(recipe.data).items()}
    for key in ("data.eval", "data.eval_samples", "data.max_bad_share"):
        found.pop(key, None)
    if "data.train" in found:
        found["data.train"] = [Path(file).name for file in found["data.train"]]
    return found


def _differences(there: Configure, recipe: Recipe) -> Iterator[str]:
    if recipe.training.seed != there.seed:
        yield f"training.seed is {recipe.training.seed} instead of {there.seed}"
    for name, before, now in _optimizers(there, recipe):
        for field in before.__struct_fields__:
            if getattr(before, field) != getattr(now, field):
                yield f"{name}.{field} is {getattr(now, field)} instead of {getattr(before, field)}"


def _optimizers(there: Configure, recipe: Recipe) -> Iterator[tuple[str, Optimizer, Optimizer]]:
    """Yield the key of the recipe, what the checkpoint was taken with, and what the job trains with."""
    training = recipe.training
    yield "training.optimizer", there.optimizer, training.optimizer
    yield "training.embedding_optimizer", there.embedding_optimizer, training.embedding_optimizer or training.optimizer


def changes_of(chosen: Chosen, recipe: Recipe) -> list[str]:
    """Return what a job of this recipe does otherwise than the checkpoint's, in lines: what it trains with (where it begins with the
    parameters only), and which optimizer state and counts of updates begin anew."""
    manifest = chosen.manifest
    return [*_differences(configure(manifest), recipe), *begun_anew(manifest, settings_of(recipe))]


def _other_tables(there: Configure, here: Configure) -> Iterator[str]:
    before, now = ({table.name: table for table in one.tables} for one in (there, here))
    for name in [*before, *(other for other in now if other not in before)]:
        if name not in now:
            yield f"table {name} is missing in the model"
        elif name not in before:
            yield f"table {name} is new in the model"
        elif before[name] != now[name]:
            yield (
                f"table {name} has dim {now[name].dim} and init_scale {now[name].init_scale:g} instead of "
                f"{before[name].dim} and {before[name].init_scale:g}"
            )
    if list(before) != list(now) and sorted(before) == sorted(now):
        yield f"tables come in another order: {', '.join(now)}"
    if there.dense != here.dense:
        yield (
            f"dense values fill {here.dense.parameter_blocks} blocks of parameters and {here.dense.buffer_blocks} of buffers instead of "
            f"{there.dense.parameter_blocks} and {there.dense.buffer_blocks}"
        )


def check_reachable(chosen: Chosen, job: Job | None) -> None:
    """Check that a new job can read the checkpoint. Raises JobError for one that is on the volume of another job of a cluster."""
    if job is not None and job.home != job.directory and Path(chosen.store.url).is_relative_to(job.home):
        raise JobError(
            f"Checkpoint {chosen.manifest.cut} of {job.id} is on that job's own volume, which another job doesn't see",
            hint=f"To go on with the same job: dlrover-lite run --resume {job.id}\n"
            f"To begin a new one with it on this machine: dlrover-lite fetch {job.id} --to DIR, then run --from DIR/checkpoints\n"
            "Checkpoints in an object store can be used by any job: checkpoint.directory",
        )


# --- beginning ------------------------------------------------------------------------------------------------------------


def beginning_of(chosen: Chosen, job: Job | None = None, *, only_parameters: bool = False) -> Beginning:
    """Return the beginning for a new job; or for ``job``, which goes on."""
    generation = 1 if job is None else (job.generation() or 0) + 1
    found = Beginning(
        generation,
        chosen.store.url,
        chosen.manifest.cut,
        exactly=chosen.exactly,
        only_parameters=only_parameters or chosen.only_parameters,
    )
    before, own = (job.beginning(), store_of(job).url) if job is not None else (None, "")
    return found.after(before, own, chosen.manifest.generation)


def next_beginning(job: Job, chosen: Chosen, options: RunOptions) -> Beginning:
    """Return the beginning of a job that goes on now; where the brain may change its plan, it waits for one first."""
    beginning = beginning_of(chosen, job)
    if options.brain != "off" and autoscale_of(job.recipe) != "off":  # others may have its room by now
        beginning = msgspec.structs.replace(beginning, waits_since=time.time())
    return beginning


def fitting_recipe(known: Recipe, changes: dict[str, Any]) -> Recipe:
    """Return the recipe of a checkpoint with changes. Raises RecipeError."""
    from dlrover_lite.client.handle import this_machine
    from dlrover_lite.recipe.load import parse_recipe, resolved_yaml

    try:
        return parse_recipe(resolved_yaml(known), overrides=changes, machine=this_machine())
    except RecipeError as error:
        error.hint = error.hint or _NAME_RECIPE
        raise
