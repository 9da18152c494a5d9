"""The ``dlrover-lite`` command: which commands there are, and what becomes of errors.

Exit codes: 0 done, 1 failed, 2 a recipe, command line or system that can't work, 70 a bug of ours, 130 interrupted.
Nothing but click is imported until a command runs.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

import click

from dlrover_lite.cli.follow import silence
from dlrover_lite.cli.groups import LazyCommand, LazyGroup
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.version import __version__

__all__ = ["COMMANDS", "cli", "main"]

EXIT_FAILED, EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 70, 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def _command(target: str, text: str) -> LazyCommand:
    """Make a command of ``dlrover_lite.cli.commands``: "module:attribute", and its short help."""
    return LazyCommand(f"dlrover_lite.cli.commands.{target}", text)


COMMANDS = {
    "run": _command("job.run:run", "Train a recipe."),
    "jobs": _command("job.jobs:jobs", "List the jobs of this machine, and of clusters."),
    "status": _command("job.jobs:status", "Show how a job is doing."),
    "logs": _command("job.logs:logs", "Print what a job's processes wrote."),
    "story": _command("job.story:story", "Tell what has happened to a node or minibatch."),
    "scale": _command("job.scale:scale", "Give a running job more or fewer nodes."),
    "move": _command("job.scale:move", "Move slots to another parameter server."),
    "drain": _command("job.scale:drain", "End a node in good order, without loss."),
    "kill": _command("job.scale:kill", "End a node at once; another takes its place."),
    "resize": _command("job.scale:resize", "Give a running node more or less."),
    "autoscale": _command("brain.autoscale:autoscale", "Hold the brain's changes of a job, or let them be."),
    "explain": _command("brain.explain:explain_", "Explain what the brain has decided for a job."),
    "whatif": _command("brain.whatif:whatif", "Foresee what other plans would bring a job."),
    "slots": _command("job.slots:slots", "Show which slots keep parameter servers busy."),
    "profile": _command("job.profile:profile", "Show what nodes spend their time on."),
    "stop": _command("job.jobs:stop", "Stop a job."),
    "suspend": _command("job.suspend:suspend", "Stop a job to go on with it later."),
    "resume": _command("job.suspend:resume", "Go on with a job that was suspended or stopped."),
    "fetch": _command("job.fetch:fetch", "Copy the files of a cluster's job to this machine."),
    "checkpoints": _command("job.checkpoints:checkpoints", "List the checkpoints of a job."),
    "checkpoint": _command("job.checkpoints:checkpoint", "Take a checkpoint, or check those there are."),
    "tui": _command("tui:tui", "Watch jobs and decisions as they are made."),
    "top": _command("top:top", "Watch one job in a small terminal."),
    "history": _command("brain.history:history", "List past jobs, and what came of them."),
    "evaluate": _command("model.models:evaluate", "Evaluate a trained model on data."),
    "export": _command("model.models:export_", "Write a job's model to files."),
    "census": _command("model.census:census", "Prove that samples are applied exactly once."),
    "data": _command("model.data:data", "Make training data."),
    "simulate": _command("simulate:simulate", "Run a trace of jobs on simulated machines."),
    "plan": _command("brain.plan:plan", "Show the plan that a job would start with."),
    "validate": _command("model.recipe:validate", "Check a recipe and say what it will do."),
    "brain": _command("brain.brain:brain", "Look after the process that advises all jobs."),
    "k8s": _command("k8s.k8s:k8s", "Prepare a namespace of a Kubernetes cluster, and check it."),
    "doctor": _command("doctor:doctor", "Check whether this machine can run jobs."),
    "recipe": _command("model.recipe:recipe", "Start a recipe, or print its schema."),
}


@click.command(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A first job: dlrover-lite recipe init job.yaml && dlrover-lite run job.yaml",
)
@click.version_option(__version__, prog_name="dlrover-lite", message="%(prog)s %(version)s")
def cli() -> None:
    """Train deep recommendation models with parameter servers, from a recipe."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: this process's) and return its exit code; errors go to stderr, as text."""
    if sys.platform == "win32":
        print(
            "dlrover-lite runs on Linux and macOS; on Windows, use it inside WSL2: https://aka.ms/wsl", file=sys.stderr
        )
        return EXIT_USAGE
    _open_closed_streams()
    if not _directory_exists():
        print("Error: The current directory doesn't exist any more.\nChange to another one.", file=sys.stderr)
        return EXIT_USAGE
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough (as in "| head")
        silence(sys.stdout)
        return 1
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        silence(sys.stdout)
        print(
            f"Error: {error.filename or 'the output'} can't be written: {error.strerror}\nMake room there.",
            file=sys.stderr,
        )
        return EXIT_FAILED
    return code


def _directory_exists() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - a path isn't wanted
    except FileNotFoundError:
        return False
    return True


def _open_closed_streams() -> None:
    """Open streams that are closed: started with stdout or stderr closed (">&-"), Python has none, and the next file opened would be taken
    for it."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = cli.main(arguments, prog_name="dlrover-lite", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        return _usage_error(error)
    except DlroverLiteError as error:
        if user_traceback := getattr(error, "user_traceback", ""):  # of the model's own code
            print(user_traceback, file=sys.stderr)
        listed = getattr(error, "problems", ())  # these lines start with their file
        print(error.message if listed else f"Error: {error.message}", file=sys.stderr)
        if error.hint:
            print(error.hint, file=sys.stderr)
        return error.exit_code
    except (BrokenPipeError, SystemExit):
        raise
    except Exception as error:  # the one place where a bug becomes a message
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise
        from dlrover_lite.core.processes.limits import exhausted

        if (shortage := exhausted(error)) is not None:
            print(f"Error: {shortage.message}\n{shortage.hint}", file=sys.stderr)
            return EXIT_FAILED
        return _bug(error)
    return result if isinstance(result, int) else 0


def _usage_error(error: click.ClickException) -> int:
    no_command = getattr(click.exceptions, "NoArgsIsHelpError", ())
    if no_command and isinstance(error, no_command):  # a plain click group: as our own groups do
        print(error.format_message())
        return 0
    error.show()
    return error.exit_code


def _bug(error: Exception) -> int:
    """Report a bug in one line that says where the traceback is; with the traceback itself if it can't be kept."""
    import traceback
    from datetime import UTC, datetime

    from dlrover_lite.core.files.durable import write_whole
    from dlrover_lite.core.files.paths import make_state, state_directory

    text = "".join(traceback.format_exception(error))
    path = state_directory() / "crashes" / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.txt"
    summary = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        make_state(path.parent.name)
        head = f"dlrover-lite {__version__}, Python {sys.version}\n{sys.argv}\n\n"
        write_whole(path, (head + text).encode(errors="replace"))
        where = f"The traceback is in {path}"
    except OSError:
        print(text, file=sys.stderr)
        where = "The traceback is above"
    print(f"This is a bug in dlrover-lite, not in what you did ({summary}). {where}", file=sys.stderr)
    return EXIT_BUG
