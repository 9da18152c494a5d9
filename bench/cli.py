"""How long ``dlrover-lite --help`` takes, beside ``python -c "import click"``: nothing heavy may be imported for it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Figure, arguments, emit, medians

# What pip writes as the console script of "dlrover-lite = dlrover_lite.cli.main:main".
CONSOLE_SCRIPT = """\
import re
import sys
from dlrover_lite.cli.main import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""


def seconds_of(command: list[str]) -> float:
    """Wall seconds of one run of the command."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    options = arguments("How long --help takes, beside importing click.")
    source = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "dlrover-lite"
        script.write_text(CONSOLE_SCRIPT)
        taken = medians(
            {
                "help": lambda: seconds_of([sys.executable, str(script), "--help"]),
                "click": lambda: seconds_of([sys.executable, "-c", "import click"]),
            },
            rounds=7 if options.quick else 41,
        )
    ratio = taken["help"] / taken["click"]
    seconds = {"help_seconds": taken["help"]}
    emit(options, [Figure("cli.help_ratio", ratio, "x", "<= 4", baseline=taken["click"], detail=seconds)])


if __name__ == "__main__":
    main()
