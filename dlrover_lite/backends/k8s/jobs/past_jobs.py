"""Past jobs that are known where a job is submitted, and that its own brain, in its master's pod, begins with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dlrover_lite.backends.k8s.jobs.code_files import recipe_in_pod
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.core.files.durable import make_private
from dlrover_lite.core.files.paths import brain_database
from dlrover_lite.core.processes.log import log
from dlrover_lite.protocol.brain_mode import BrainMode
from dlrover_lite.protocol.features import features_of
from dlrover_lite.recipe.schema import Recipe

__all__ = ["history_for", "take_up_history"]

SOURCE = "workstation"
"""What the history that has come along is called in the pod."""


def history_for(recipe: Recipe, brain: BrainMode, say: Callable[[str], None]) -> bytes:
    """Pack what is known here of jobs like one of this recipe; nothing where its pod has no brain of its own. ``say`` is told where that
    can't be read: the job begins without."""
    if brain != "embedded":
        return b""
    from dlrover_lite.brain.past_jobs import similar_jobs  # it brings numpy along
    from dlrover_lite.brain.store.history import FileHistory

    history = FileHistory(brain_database())
    try:
        return similar_jobs(history, features_of(recipe_in_pod(recipe), rows=0))
    except HistoryError as error:
        say(f"The job begins without what is known here of jobs like it: {error.message}")
        return b""
    finally:
        history.close()


def take_up_history(file: Path) -> None:
    """Add what has come along to the history of the job's own brain, before that starts. Without it the job begins as a new one."""
    if not file.exists():
        return
    from dlrover_lite.brain.past_jobs import add_similar_jobs
    from dlrover_lite.brain.store.database import ConfigStore

    try:
        make_private(brain_database().parent)
        with ConfigStore(brain_database()) as store:
            count = add_similar_jobs(store, file.read_bytes(), SOURCE)
        log(f"Past jobs that have come along: {count}")
    except (HistoryError, OSError) as error:
        message = error.message if isinstance(error, HistoryError) else str(error)
        log(f"What is known of past jobs isn't taken up: {message}")
