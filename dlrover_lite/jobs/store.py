"""Job directories: what a job is, was and has left, as files that are always whole.

::

    <state directory>/jobs/<job id>/
        recipe.yaml    the recipe as resolved, for people
        recipe.json    the same, for the job's processes
        job.json       who runs it and where (written by the launching command, then by the keeper only)
        result.json    how it ended; whoever writes it first decides
        status.json    the master's status a few seconds ago, for when nothing can be asked any more
        ledger.sqlite  how far it is (``master.work.ledger_store``); ledger-N.sqlite since it has gone back to a checkpoint for the Nth time
        beginning.json which checkpoint it went back to last, or began from
        story.jsonl    what has happened to its nodes and minibatches (``jobs.events``)
        logs/          one file per process
        checkpoints/   its cuts (``checkpoint.store``), unless the recipe names another place
        export/        the trained model

All of it is its owner's alone (``files``).
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import itertools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from dlrover_lite.checkpoint.destination import Destination, open_destination
from dlrover_lite.checkpoint.lineage import Lineage, Origin
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import DiskFull, JobError
from dlrover_lite.core.failpoints import needs_room
from dlrover_lite.core.files.durable import (
    UnsafeName,
    checked_name,
    close_to_others,
    make_private,
    sync_directory,
    write_whole,
)
from dlrover_lite.core.files.locks import held_by
from dlrover_lite.core.files.paths import make_state, state_directory
from dlrover_lite.core.files.regular import read_file
from dlrover_lite.core.processes.identity import ProcessIdentity, identify
from dlrover_lite.core.progress import Steps, no_steps
from dlrover_lite.core.units import MIB
from dlrover_lite.core.version import __version__
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.transport.endpoints import KEEPER_SOCKET, MASTER_ENDPOINT_FILE, MASTER_SOCKET, TransportKind

__all__ = [
    "Beginning",
    "EndState",
    "Job",
    "JobRecord",
    "Result",
    "State",
    "abandoned_directories",
    "create_job",
    "find_job",
    "job_ids",
    "job_of",
    "list_jobs",
    "match_id",
    "short_id",
    "take_up_job",
    "this_process",
    "unwritable",
]

State = Literal["starting", "running", "succeeded", "failed", "stopped", "suspended", "lost"]

EndState = Literal["succeeded", "failed", "stopped", "suspended", "lost"]

_EPOCH_SECONDS = 1_704_067_200
"""Seconds since the epoch at 2024-01-01, where the time in job ids starts."""
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_SUFFIX_LENGTH = 8
_RESERVE = ".reserve"
_RESERVE_BYTES = 1 << 16
_LEDGER = re.compile(r"ledger(?:-(\d+))?\.sqlite")
_SHOWN_CHARACTERS = 120
_ABANDONED_SECONDS = 3600.0
_MOST_FILE_BYTES = 64 * MIB
"""Size limit of a file that is read whole: a recipe's text in a job's record is the longest thing in any of them."""

T = TypeVar("T")


class JobRecord(msgspec.Struct, frozen=True):
    """``job.json``. ``state`` is as last written; the job's backend says what it is now."""

    state: Literal["starting", "running", "ended"]
    created_at: float
    """Seconds since the epoch, as all times here."""
    versions: dict[str, str]
    launcher: ProcessIdentity
    detached: bool = False
    keeper: ProcessIdentity | None = None
    master: ProcessIdentity | None = None
    runtime_directory: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    master_exit_code: int | None = None
    """Exit code of the master; minus the signal's number when a signal ended it."""
    stop_reason: str = ""
    """Why the keeper has asked the master to end; the master puts it into the result."""
    suspends: bool = False
    """Whether it ends to go on later: its result says that it is suspended, not that it was stopped."""
    transport: TransportKind = "unix"
    listen: str = ""
    """Address that the master is to listen at, over TCP; empty: any port of this machine."""
    advertised: str = ""
    """Address by which nodes know the master; empty: where it listens."""

    @property
    def keeper_endpoint(self) -> str:
        return f"ipc://{self.runtime_directory}/{KEEPER_SOCKET}"

    @property
    def master_endpoint(self) -> str:
        """Where the master listens. Over TCP it says so itself: raises FileNotFoundError before it has."""
        if self.transport == "unix":
            return f"ipc://{self.runtime_directory}/{MASTER_SOCKET}"
        return Path(self.runtime_directory, MASTER_ENDPOINT_FILE).read_text(encoding="ascii")

    @property
    def has_master(self) -> bool:
        """Whether a master has begun to listen. Raises PermissionError where only somebody else may know."""
        return Path(
            self.runtime_directory, MASTER_SOCKET if self.transport == "unix" else MASTER_ENDPOINT_FILE
        ).exists()


class Result(msgspec.Struct, frozen=True):
    """``result.json``. ``message`` says why the job failed or was stopped, ``hint`` what to do next.

    ``state`` is ``lost`` only in what a backend says of a job that was ended with no word of its own: it is never written.
    """

    state: EndState
    ended_at: float
    message: str = ""
    hint: str = ""
    traceback: str = ""
    """Traceback of the person's own code, if that is what failed."""
    export: str | None = None
    """Directory of the exported model."""
    status: dict[str, Any] | None = None
    """The master's last ``Status``, by field names."""

    @property
    def ok(self) -> bool:
        return self.state == "succeeded"

    @property
    def auc(self) -> float | None:
        """AUC of the last evaluation; that of the latest training samples where nothing was evaluated; None before there are any."""
        return self._quality("auc")

    @property
    def loss(self) -> float | None:
        """Mean log loss, of the same samples as ``auc``."""
        return self._quality("loss")

    def _quality(self, metric: Literal["auc", "loss"]) -> float | None:
        status = self.status or {}
        evaluations = status.get("evaluations") or []
        value: float | None = (evaluations[-1] if evaluations else status).get(metric)
        return value

    def __repr__(self) -> str:
        """Return a short text, as a notebook shows it: the status alone may have pages."""
        first, _, rest = self.message.partition("\n")
        message = first if len(first) <= _SHOWN_CHARACTERS and not rest else first[:_SHOWN_CHARACTERS] + "…"
        parts = [self.state + (f": {message}" if message else "")]
        parts += [f"AUC {self.auc:.4f}"] if self.auc is not None else []
        parts += [f"export={self.export!r}"] if self.export else []
        names = [f".{name}" for name in ("message", "hint", "traceback", "status") if getattr(self, name)]
        parts += [f"more in {', '.join(names)}"] if names else []
        return f"<Result {'; '.join(parts)}>"


class Beginning(msgspec.Struct, frozen=True):
    """``beginning.json``: a generation of a job begins with this cut. It is noted first, then whatever is left of the one before is ended,
    then there is a ledger of it: until then nothing else may go on, and whoever comes next does what is missing."""

    generation: int
    url: str
    """URL of a ``CheckpointStore``."""
    cut: int
    """Number of the cut; 0: none, as the job had taken none yet, and begins again at its start."""
    why: str = ""
    """Why the job goes on from this cut, in words: "the parameters of ps-0 are lost"; empty: a person wanted it."""
    exactly: bool = False
    """No older checkpoint may be used in its place."""
    only_parameters: bool = False
    """The job goes through its data from the beginning."""
    went_back: int = 0
    """How often the job has gone back by itself without a newer cut in between."""
    damaged: dict[str, dict[int, str]] = {}
    """Cuts that were found damaged when they were read, and why, by URL: they aren't tried again."""
    waits_since: float | None = None
    """Time since which the job waits for a plan of the brain, as it gave way to others or was resumed then. None: it begins at once."""
    decision: int = 0
    """Number of the brain's decision that the job gave way by; 0: it didn't."""
    lineage: Lineage = Lineage()
    """Lineage of the job's checkpoints, up to this generation."""
    origin: Origin | None = None
    """Checkpoint that the job began with, whatever it has gone on from since; None: with nothing, or an older version has noted this."""

    def after(self, before: Beginning | None, own: str, taken_in: int | None) -> Beginning:
        """Return the beginning with lineage and origin, which follow from what was noted ``before``. ``own``: URL of the job's own
        checkpoints; empty: it is a new job. ``taken_in``: the generation that has taken the cut, if it is one of those."""
        is_own = bool(own) and self.url == own
        lineage = (before.lineage if before is not None else Lineage()).begin(
            self.generation, self.cut, taken_in if is_own else None
        )
        known = before if is_own and before is not None else self
        return msgspec.structs.replace(self, lineage=lineage, origin=known.began_with(own))

    def began_with(self, own: str) -> Origin | None:
        """Return the checkpoint of another job that the job began with. ``own``: URL of its own checkpoints."""
        if self.origin is not None or self.url in ("", own):
            return self.origin
        return Origin(self.url, self.cut, self.exactly, self.only_parameters)

    @property
    def point(self) -> str:
        """What the job goes back to, in words."""
        return f"checkpoint {self.cut}" if self.cut else "its start"

    @property
    def by_itself(self) -> bool:
        """Whether nobody had ended the job: it went on by itself."""
        return self.went_back > 0 or self.decision > 0


class Job:
    """One job's directory. Cheap to make: nothing is read before it is asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.id = directory.name
        self.logs = directory / "logs"
        self.export = directory / "export"

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    @property
    def short_id(self) -> str:
        """The id without the recipe's name; sorts by creation."""
        return short_id(self.id)

    @property
    def home(self) -> Path:
        """The directory as the job's own processes name it."""
        return self.directory

    def destination_at(self, url: str) -> Destination:
        """Open what the job's processes know by this path or URL, as it is reached from here. Raises JobError for what can't be."""
        return open_destination(url)

    def model_directory(self, noted: str | None, _steps: Steps = no_steps) -> Path:
        """Return the directory of the exported model, which is here then: the one that is ``noted``, or the job's own if it was moved."""
        return Path(noted) if noted is not None and Path(noted).is_dir() else self.export

    def log(self, process: str) -> Path:
        """Return the log of ``keeper``, ``master``, ``template`` or a node. Raises JobError for a name that no process has."""
        try:
            return self.logs / checked_name(f"{process}.log")
        except UnsafeName as error:
            raise JobError(f"{self.id} has no log of {process!r}: {error}") from error

    @property
    def key_file(self) -> Path:
        """The key of a job whose processes talk over TCP: its owner's alone."""
        return self.directory / "key"

    def write_key(self, text: str) -> None:
        """Give the job a new key: no process of before can take part any more."""
        _write(self.key_file, text.encode("ascii"))

    @cached_property
    def recipe(self) -> Recipe:
        return _read(self.directory / "recipe.json", Recipe)

    def record(self) -> JobRecord:
        return _read(self.directory / "job.json", JobRecord)

    def write_record(self, record: JobRecord) -> None:
        _write(self.directory / "job.json", _json(record))

    def status(self) -> dict[str, Any] | None:
        """Return the master's ``Status`` as last written, by field names; None where there is none that can be read."""
        with suppress(JobError):
            return _read(self.directory / "status.json", dict[str, Any])
        return None

    def write_status(self, status: dict[str, Any]) -> None:
        """Write the status, not synced to the disk: it is about processes that were killed, not about power that has failed."""
        _write(self.directory / "status.json", _json(status), sync=False)

    def result(self) -> Result | None:
        """Return the job's result; None while the job runs, and for one that was lost."""
        path = self.directory / "result.json"
        return _read(path, Result) if path.exists() else None

    def write_result(self, result: Result) -> bool:
        """Record how the job ended; False when that had been recorded before (and stays as it is)."""
        path, reserve = self.directory / "result.json", self.directory / _RESERVE
        data = _json(result)
        try:
            written = _write(path, data, replace=False)
        except JobError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # The disk is full: the space set aside when the job was created is for exactly this.
            reserve.unlink(missing_ok=True)
            return _write(path, data, replace=False)
        reserve.unlink(missing_ok=True)
        return written

    def beginning(self) -> Beginning | None:
        """Return the beginning of the job's newest generation; None for a job that began with nothing, and never went back."""
        path = self.directory / "beginning.json"
        return _read(path, Beginning) if path.exists() else None

    def write_beginning(self, beginning: Beginning) -> None:
        _write(self.directory / "beginning.json", _json(beginning))

    def ledger(self, generation: int | None = None) -> Path:
        """Return the path of a generation's ledger; by default of the newest that has one (or will be the first)."""
        generation = self.generation() or 0 if generation is None else generation
        return self.directory / (f"ledger-{generation}.sqlite" if generation else "ledger.sqlite")

    def generation(self) -> int | None:
        """Return the newest generation that has a ledger; None: none has."""
        found = [int(match[1] or 0) for path in self.directory.iterdir() if (match := _LEDGER.fullmatch(path.name))]
        return max(found, default=None)

    def start_again(
        self, beginning: Beginning, *, launcher: ProcessIdentity, detached: bool, is_over: Callable[[], bool]
    ) -> None:
        """Have the job go on with this cut: what it ended with is gone, all else stays. ``is_over``: whether nothing of it runs any more.

        Raises JobError when somebody else is at it.
        """
        close_to_others(self.directory)
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_over():
                raise JobError(f"{self.id} runs again already", hint=f"See: dlrover-lite status {self.id}")
            self.write_beginning(beginning)
            self.write_record(JobRecord("starting", self.record().created_at, _versions(), launcher, detached))
            for name in ("result.json", "status.json"):
                (self.directory / name).unlink(missing_ok=True)
            _write(self.directory / _RESERVE, os.urandom(_RESERVE_BYTES))
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                by = held_by(self.directory)
                raise JobError(
                    f"{self.id} is just being started again: {self.directory} is locked{f', {by}' if by else ''}",
                    hint=f"See: dlrover-lite status {self.id}",
                ) from error
            raise unwritable(self.directory, error) from error
        finally:
            os.close(descriptor)

    def last_log_lines(self, process: str, count: int = 15) -> str:
        try:
            with self.log(process).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-count:])


def _jobs_directory() -> Path:
    return state_directory() / "jobs"


def create_job(
    recipe: Recipe,
    *,
    launcher: ProcessIdentity,
    detached: bool = False,
    clock: Callable[[], float] = time.time,
) -> Job:
    """Create a directory for a new run of ``recipe``, which it gets with everything in it, or not at all. ``launcher``: who starts it.

    Raises JobError, naming the path, when it can't be written.
    """
    now = clock()
    record = JobRecord("starting", now, _versions(), launcher, detached)
    jobs = _jobs_directory()
    made: Path | None = None
    try:
        make_state(jobs.name)
        made = _filled(jobs, recipe, record)
        job = _name(made, recipe.name, now)
        made = None
        sync_directory(jobs)
        return job
    except OSError as error:
        raise unwritable(jobs, error) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def this_process() -> ProcessIdentity:
    """Return this process as a job's launcher."""
    found = identify(os.getpid())
    assert found is not None
    return found


def take_up_job(directory: Path, recipe: Recipe, *, created_at: float) -> Job:
    """Return the job with this directory, which is made if it isn't there: whoever runs it finds it where it left it. ``created_at``: in
    seconds since the epoch. Raises JobError when it can't be written."""
    made: Path | None = None
    try:
        if not (directory / "job.json").exists():
            make_private(directory.parent)
            record = JobRecord("starting", created_at, _versions(), this_process(), True)
            made = _filled(directory.parent, recipe, record)
            made.rename(directory)
            made = None
            sync_directory(directory.parent)
        return Job(directory)
    except OSError as error:
        raise unwritable(directory, error) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _filled(place: Path, recipe: Recipe, record: JobRecord) -> Path:
    """Make a directory in ``place`` with all that a new job has, under a name that no job has."""
    from dlrover_lite.recipe.load import resolved_yaml

    made = Path(tempfile.mkdtemp(prefix=".new-", dir=place))
    try:
        for name in ("logs", "export"):
            make_private(made / name)
        _write(made / "recipe.yaml", resolved_yaml(recipe).encode())
        _write(made / "recipe.json", _json(recipe))
        _write(made / _RESERVE, os.urandom(_RESERVE_BYTES))
        _write(made / "job.json", _json(record))
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return made


def job_ids(name: str, at: float) -> Iterator[str]:
    """Yield ids for a new job of this name, the first of them by the time in seconds since the epoch: one is free sooner or later."""
    for milliseconds in itertools.count(int((at - _EPOCH_SECONDS) * 1000)):
        suffix = "".join(_DIGITS[milliseconds >> 5 * i & 31] for i in reversed(range(_SUFFIX_LENGTH)))
        yield f"{name}-{suffix}"


def short_id(job: str) -> str:
    """Return a job's id without the recipe's name; it sorts by creation."""
    return job.rpartition("-")[2]


def _name(made: Path, name: str, at: float) -> Job:
    """Move a finished directory to its id: the recipe's name and the time, moved on while another job has it."""
    for job in job_ids(name, at):
        try:
            return Job(made.rename(made.parent / job))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    raise AssertionError("there are always more ids")


def list_jobs() -> list[Job]:
    """List all jobs, oldest first. Where they are is closed to other users, if an older version has left it open."""
    try:
        close_to_others(state_directory())
        entries = [entry for entry in _jobs_directory().iterdir() if not entry.name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JobError(f"Can't read {_jobs_directory()}: {error.strerror}") from error
    jobs = [Job(entry) for entry in entries if (entry / "job.json").exists()]
    return sorted(jobs, key=lambda job: (job.short_id, job.id))


def job_of(job_id: str) -> Job:
    """Return the job with this id, whether or not there is one. Raises JobError for what can't be an id."""
    try:
        return Job(_jobs_directory() / checked_name(job_id))
    except UnsafeName as error:
        raise JobError(f"No job is called {job_id!r}: {error}", hint="All: dlrover-lite jobs") from error


def find_job(reference: str) -> Job:
    """Return the job with this id, the only one whose id (or the part after the name) starts so, or with ``last`` the newest.

    Raises JobError naming the nearest ids.
    """
    return job_of(match_id(reference, [job.id for job in list_jobs()], str(_jobs_directory())))


def match_id(reference: str, ids: Sequence[str], where: str) -> str:
    """Return the id that is meant, as ``find_job``. ``ids``: all, oldest first; ``where`` they are, in words."""
    if not ids:
        raise JobError(f"There are no jobs in {where}.", hint="Start one: dlrover-lite run recipe.yaml")
    if reference == "last":
        return ids[-1]
    matches = [job for job in ids if job == reference] or [
        job for job in ids if reference and (job.startswith(reference) or short_id(job).startswith(reference))
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(reversed(matches[-5:]))
        raise JobError(
            f"{len(matches)} jobs start with {reference!r}: {shown}{', …' if len(matches) > 5 else ''}",
            hint="Write more of the id, or 'last' for the newest job.",
        )
    newest = list(reversed(ids))
    nearest = difflib.get_close_matches(reference, newest, n=3, cutoff=0.5) or newest[:3]
    raise JobError(f"No job is called {reference!r}; the nearest: {', '.join(nearest)}", hint="All: dlrover-lite jobs")


def abandoned_directories(now: float) -> Iterator[Path]:
    """Find job directories whose making was never finished, at ``now`` in seconds since the epoch."""
    jobs = _jobs_directory()
    for entry in jobs.glob(".new-*") if jobs.is_dir() else ():
        with suppress(FileNotFoundError):
            if now - entry.stat().st_mtime > _ABANDONED_SECONDS:
                yield entry


def _versions() -> dict[str, str]:
    import platform

    return {"dlrover_lite": __version__, "python": platform.python_version(), "platform": platform.platform()}


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _read(path: Path, kind: type[T]) -> T:
    try:
        return from_json(read_file(path, _MOST_FILE_BYTES), kind)
    except OSError as error:
        raise JobError(f"Can't read {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise JobError(
            f"{path} can't be understood: {error}", hint="Was it written by a newer dlrover-lite, or edited by hand?"
        ) from error


def _write(path: Path, data: bytes, *, replace: bool = True, sync: bool = True) -> bool:
    """Write a file with ``files.write_whole``, whose errors become ours."""
    try:
        needs_room("job.file")
        return write_whole(path, data, replace=replace, sync=sync)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> JobError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"The disk is full: can't write {path}",
            directory=path.parent,
            hint="Make room there, or point DLROVER_LITE_HOME elsewhere.",
        )
    return JobError(
        f"Can't write {path}: {error.strerror}",
        hint="Make it writable, or point DLROVER_LITE_HOME to a directory that is.",
    )
