"""``python -m dlrover_lite.brain_server.start``: starts a brain for a master, in place of one that has died, and prints what came of it."""

from __future__ import annotations

import sys

from dlrover_lite.brain_server import brain_process
from dlrover_lite.core.errors import DlroverLiteError


def main() -> int:
    try:
        said = brain_process.announcement(brain_process.ensure(job_comes=True))
    except DlroverLiteError as error:
        print(error.message)
        return 1
    if said:
        print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
