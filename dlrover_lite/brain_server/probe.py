"""``python -P -m dlrover_lite.brain_server.probe``: asks the brain that runs here whether it answers, for a pod's liveness probe."""

from __future__ import annotations

import sys

from dlrover_lite.brain_server.brain_process import ask_status
from dlrover_lite.core.errors import DlroverLiteError


def main() -> int:
    try:
        return 0 if ask_status() is not None else 1
    except DlroverLiteError as error:
        print(error.message)
        return 1


if __name__ == "__main__":
    sys.exit(main())
