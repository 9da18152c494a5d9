"""``python -m dlrover_lite.jobs.start_brain``: starts a brain for a master, in place of one that has died, and prints what came of it."""

from __future__ import annotations

import sys

from dlrover_lite.errors import DlroverLiteError
from dlrover_lite.jobs import brains


def main() -> int:
    try:
        said = brains.announcement(brains.ensure(job_comes=True))
    except DlroverLiteError as error:
        print(error.message)
        return 1
    if said:
        print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
