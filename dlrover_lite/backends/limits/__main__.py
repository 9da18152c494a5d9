"""``python -m dlrover_lite.backends.limits``: prints, as JSON, how limits would be enforced on a job started like this process."""

from __future__ import annotations

import os
import sys

import msgspec

from dlrover_lite.backends.limits.choose import choose


def main() -> None:
    limiter = choose("auto", f"dlrover-lite-probe-{os.getpid()}", lambda _: None)
    try:
        sys.stdout.buffer.write(msgspec.json.encode(limiter.enforcement()))
    finally:
        limiter.remove_all()


if __name__ == "__main__":
    main()
