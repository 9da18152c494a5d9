"""What a process prints on a disk that is full."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from dlrover_lite.core import failpoints
from dlrover_lite.core.files.log_stream import LogFile


def test_lost_log_lines_are_counted_while_the_disk_is_full(tmp_path: Path) -> None:
    flag, log = tmp_path / "full", tmp_path / "log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with failpoints.armed(f"job.log=full@{flag}"):
        stream = io.TextIOWrapper(io.BufferedWriter(LogFile(descriptor)), line_buffering=True)
        print("one", file=stream)
        flag.touch()
        print("two", file=stream)
        print("and three", file=stream, flush=True)
        flag.unlink()
        print("four", file=stream)
    stream.close()
    os.close(descriptor)
    assert log.read_text() == "one\n[14 bytes are missing here: the disk was full]\nfour\n"


def test_a_process_prints_on_whatever_the_disk_says(tmp_path: Path) -> None:
    """/dev/full never has room."""
    code = (
        "import sys\n"
        "from dlrover_lite.core.files.log_stream import pass_over_full_disk\n"
        "pass_over_full_disk()\n"
        "for _ in range(3):\n"
        "    print('x' * 10_000, flush=True)\n"
        "    print('y', file=sys.stderr)\n"
        "open(sys.argv[1], 'w').write('done')\n"
    )
    if not Path("/dev/full").exists():
        return
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        command = [sys.executable, "-c", code, str(tmp_path / "out")]
        assert subprocess.run(command, stdout=full, stderr=full, check=False).returncode == 0
    assert (tmp_path / "out").read_text() == "done"
