"""The API server of the tests, itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.k8s.cluster import ASSETS

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import sys
from pathlib import Path
from tests.k8s.cluster import ApiServer

server = ApiServer(Path(sys.argv[1]))
server.start_etcd()
print(*server.pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not (ASSETS / "etcd").exists(), reason="needs etcd in KUBEBUILDER_ASSETS")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_tests_however_they_end(number: signal.Signals, tmp_path: Path) -> None:
    tests = subprocess.Popen(
        [sys.executable, "-c", TESTS, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with tests:
        assert tests.stdout is not None
        started = [psutil.Process(int(pid)) for pid in tests.stdout.readline().split()]
        tests.send_signal(number)
    assert len(started) == 1 and tests.returncode == -number
    _, alive = psutil.wait_procs(started, timeout=60)
    for one in alive:
        one.kill()
    assert not alive
