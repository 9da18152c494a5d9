"""Serves the files of a job that is over, from its volume, while somebody asks.

``python -P -m dlrover_lite.backends.k8s.jobs.reader_pod``
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from dlrover_lite.backends.k8s.jobs.files.server import FileServer
from dlrover_lite.backends.k8s.objects.job import STORAGE
from dlrover_lite.backends.k8s.objects.names import DIRECTORY_PORT
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.process_log import log
from dlrover_lite.jobs.store import Job
from dlrover_lite.transport.connector import Connector

IDLE_SECONDS = 300.0
"""Seconds for which nobody has asked for anything, after which it ends."""


def main() -> int:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    job = Job(Path(STORAGE, "jobs", os.environ["DLROVER_LITE_JOB"]))
    try:
        with Connector.of_this_process() as connector:
            server = FileServer(job, f"tcp://{os.environ['DLROVER_LITE_LISTEN']}:{DIRECTORY_PORT}", connector)
            log(f"The files of {job.id} are served at {server.endpoint}")
            while not told and time.monotonic() - server.asked_at < IDLE_SECONDS:
                server.serve(1.0)
            server.close()
    except DlroverLiteError as error:
        log(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
