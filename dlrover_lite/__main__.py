"""``python -m dlrover_lite`` is ``dlrover-lite``, which starts here too."""

import sys

__all__ = ["main"]


def main() -> int:
    """As ``cli.main.main``. A ctrl-C while that is still being imported is no traceback either."""
    try:
        from dlrover_lite.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
