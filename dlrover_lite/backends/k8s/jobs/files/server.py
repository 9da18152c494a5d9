"""The process that serves a job's files, and what the brain of its master keeps of it, in the job's pod and in readers: nobody else can
have the volume that they are on.

``python -P -m dlrover_lite.backends.k8s.jobs.files.server ROOT ENDPOINT …``, as ``checkpoint.file_service.server``
"""

from __future__ import annotations

import sys

import msgspec

from dlrover_lite.brain.store.history import FileHistory
from dlrover_lite.checkpoint.file_service import server
from dlrover_lite.core.files.paths import brain_database
from dlrover_lite.protocol.history_messages import HistoryQuestion

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    history = FileHistory(brain_database())
    try:
        return server.main(
            arguments, also=server.Questions(HistoryQuestion, lambda body: history.ask(body, msgspec.Struct))
        )
    finally:
        history.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
