"""``python -m dlrover_lite`` is ``dlrover-lite``."""

import sys

from dlrover_lite.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
