"""The process that serves a job's files, and what the brain of its master keeps of it, or one that it shares, in the job's pod and in
readers: nobody else can have the volume that they are on.

``python -P -m dlrover_lite.backends.k8s.jobs.files.server ROOT ENDPOINT …``, as ``checkpoint.file_service.server``
"""

from __future__ import annotations

import sys

import msgspec

from dlrover_lite.backends.k8s.jobs.files.shared_history import SharedHistory
from dlrover_lite.brain.store.history import FileHistory
from dlrover_lite.checkpoint.file_service import server
from dlrover_lite.core.files.paths import brain_database
from dlrover_lite.protocol.history_messages import HistoryQuestion

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    history, shared = FileHistory(brain_database()), SharedHistory.of_this_process()

    def answer(question: HistoryQuestion) -> msgspec.Struct:
        if shared is not None and not brain_database().exists():
            return shared.ask(question)
        return history.ask(question, msgspec.Struct)

    try:
        return server.main(arguments, also=server.Questions(HistoryQuestion, answer))
    finally:
        history.close()
        if shared is not None:
            shared.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
