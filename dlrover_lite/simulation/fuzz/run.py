"""One seed from its beginning to its end: what was drawn, what has happened, and what mustn't have."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.garbage_collection import infrequent_garbage_collection
from dlrover_lite.jobs import events
from dlrover_lite.simulation.fuzz.case import Case
from dlrover_lite.simulation.fuzz.faults import Fault
from dlrover_lite.simulation.fuzz.final_checks import problems_at_end
from dlrover_lite.simulation.fuzz.injection import Injection
from dlrover_lite.simulation.fuzz.invariants import Invariants
from dlrover_lite.simulation.fuzz.schedule import LEAST_SURE, draw
from dlrover_lite.simulation.world import World

__all__ = ["Ran", "run_seed"]

_MOST_SECONDS = 400.0
"""Time on the world's clock by which all jobs must have ended."""
_MOST_STEPS = 200_000
LEAST_STEPS, LEAST_FAULTS = 500, LEAST_SURE
"""Steps that somebody takes, after each of which is looked at what must hold, and faults that strike: fewer don't count as a seed."""
_MOST_JOBS = 4
"""Number of jobs that somebody starts after one another, until there were as many."""
_NEWEST_NOTES = 40
_MEMORY = Path("/dev/shm")
"""A file system in memory: nothing that is synced there waits for a disk."""


class Ran(NamedTuple):
    seed: int
    problems: list[str]
    """What mustn't have been; empty: nothing."""
    steps: int
    """Number of steps that somebody has taken: a master, the brain, a node, a person. What must hold is looked at after each."""
    seconds: float
    """Time on the world's clock when it was over."""
    faults: list[Fault]
    """Faults that have met somebody."""
    case: list[str]
    """Machines and jobs, a line each."""
    schedule: list[Fault]
    notes: list[str]
    """The last of what has happened."""
    log: bytes
    """All that jobs have told, and how often somebody took a step: the same for the same seed."""

    def report(self) -> str:
        """Return what somebody needs who looks for the reason."""
        lines = [f"seed {self.seed}: {self.problems[0] if self.problems else 'nothing is wrong'}"]
        lines += [f"  {problem}" for problem in self.problems[1:5]]
        lines += ["jobs:", *(f"  {line}" for line in self.case)]
        lines += ["faults:", *(f"  {fault.describe()}" for fault in self.schedule)]
        lines += ["the last of what has happened:", *(f"  {note}" for note in self.notes)]
        lines.append(f"again: python -m dlrover_lite.simulation.fuzz --seed {self.seed}")
        return "\n".join(lines)


def run_seed(seed: int, *, directory: Path | None = None) -> Ran:
    """Run a seed. ``directory``: where the files go, and stay; None: they go when it is over."""
    case = Case(seed)
    faults = draw(seed, checkpoints=case.takes_checkpoints, autoscales=case.autoscales)
    place = directory or Path(tempfile.mkdtemp(prefix="simulated-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), infrequent_garbage_collection():
            warnings.simplefilter("error", RuntimeWarning)  # numbers that are none
            return _run(case, faults, place)
    finally:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)


def _run(case: Case, faults: list[Fault], directory: Path) -> Ran:
    world = case.world(directory)
    injection = Injection(world, faults)
    Invariants(world)
    try:
        _until_over(world, case, injection)
    except DlroverLiteError as error:
        world.problems.append(f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody has thought of it: that is what is looked for
        world.problems.append(_described(error))
    finally:
        world.close()
    if not world.problems:
        for job in world.jobs.values():
            world.problems += problems_at_end(world, job)
            world.problems += _wrong_outcome(world, injection, job.id)
    world.problems += [f"somebody has said: {line}" for line in world.said]
    if not (world.problems or _is_enough(world, injection)):
        world.problems.append(f"{world.steps} steps and {len(injection.done)} faults are too few to count")
    return Ran(
        case.seed,
        world.problems,
        world.steps,
        world.clock.now,
        injection.done,
        case.describe(),
        faults,
        list(world.notes)[-_NEWEST_NOTES:],
        _log(world),
    )


def _is_enough(world: World, injection: Injection) -> bool:
    return world.steps >= LEAST_STEPS and len(injection.done) >= LEAST_FAULTS


def _until_over(world: World, case: Case, injection: Injection) -> None:
    while not world.problems:
        if world.is_over and not injection.is_stopped:
            if _is_enough(world, injection) or len(world.jobs) >= _MOST_JOBS:
                return
            case.start_another(
                world
            )  # the one before was too short: it has failed, or was stopped without a checkpoint
        world.happen()
        if world.clock.now > _MOST_SECONDS or world.steps > _MOST_STEPS:
            states = {job.id: job.outcome for job in world.jobs.values()}
            world.problems.append(f"after {world.clock.now:g} s and {world.steps} steps it isn't over: {states}")


def _wrong_outcome(world: World, injection: Injection, job: str) -> list[str]:
    """Return what is wrong with how a job has ended."""
    outcome = world.jobs[job].outcome
    assert outcome is not None
    kinds = {fault.kind for fault in injection.done}
    if outcome.state == "succeeded" or (outcome.state == "stopped" and "stopped and resumed" in kinds):
        return []
    if outcome.state == "failed" and world.jobs[job].crashes and "keep ending" in outcome.message:
        return []
    return [f"{job} has {outcome.state}: {outcome.message}"]


def _described(error: BaseException) -> str:
    """Return an exception that nobody had thought of, with where it was raised."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = "" if where is None else f" at {where.tb_frame.f_code.co_filename}:{where.tb_lineno}"
    return f"{type(error).__name__}: {error}{place}"


def _log(world: World) -> bytes:
    stories = [job.files.directory / events.FILE for job in world.jobs.values()]
    told = [path.read_bytes() for path in stories if path.exists()]
    whole = b"".join(told) + "\n".join([*world.notes, f"{world.steps} steps until {world.clock.now!r}"]).encode()
    return whole.replace(str(world.directory).encode(), b"DIRECTORY")
