"""An agent where a pod is restricted: the first process of its container, any user, no home, and a root that can't be written to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dlrover_lite.core.units import MIB
from tests.backends.agent_rig import AgentRig
from tests.backends.support import until

USER = 1_500_000 + os.getpid()
"""Nobody else's number."""
_RESTRICTED = """
user=$1 scratch=$2 closed=$3 python=$4; shift 4
if [ -n "$closed" ]; then  # as root's home is: the interpreter in it is shown to all, in this namespace
    mkdir "$scratch/python"
    mount --rbind "$python" "$scratch/python"
    mount -t tmpfs -o mode=755 none "$closed"
    mkdir -p "$python"
    mount --rbind "$scratch/python" "$python"
    umount "$scratch/python"
    rmdir "$scratch/python"
fi
mount --bind "$scratch" "$scratch"
mount -o remount,bind,ro /
if touch "$(dirname "$scratch")/written" 2>/dev/null; then
    echo "the root can be written to"
    exit 1
fi
exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs --bounding-set=-all "$@"
"""


def _closed() -> str:
    """The uppermost directory around this Python that others may not enter; empty: they may."""
    around = reversed(Path(sys.base_prefix).parents)
    return next((str(directory) for directory in around if not directory.stat().st_mode & 0o001), "")


class RestrictedRig(AgentRig):
    def start(self) -> None:
        os.chown(self.scratch, USER, USER)
        self.directory.chmod(0o755)
        for path in (self.directory / "key", *(self.directory / "files").iterdir()):
            path.chmod(0o644)
        for name in [*self.environment]:
            if name in ("HOME", "USER", "LOGNAME", "TMPDIR", "DLROVER_LITE_HOME") or name.startswith(("XDG_", "TORCH")):
                del self.environment[name]
        self.environment |= {"HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
        become = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        become += ["sh", "-ec", _RESTRICTED, "sh", str(USER), str(self.scratch), _closed(), sys.base_prefix]
        with (self.directory / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [*become, sys.executable, "-P", "-m", "dlrover_lite.backends.keeper.agent"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                cwd="/",
            )

    def agent(self) -> psutil.Process:
        return next(process for process in self.descendants() if process.name() == "dl:agent")


@pytest.fixture
def restricted() -> Iterator[RestrictedRig]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv"))):
        pytest.skip("only root can become another user")
    rig = RestrictedRig(beneath="/tmp", imports={"worker": ["torch", "numba"]})
    try:
        rig.start()
        until(lambda: "listens" in rig.printed() or (rig.process is not None and rig.process.poll()), "the agent")
        if "listens" not in rig.printed():
            if "The agent can't start" in rig.printed():
                pytest.fail(rig.printed())
            pytest.skip(f"another user can't run this Python in a namespace of its own: {rig.printed()[-300:]}")
        yield rig
    finally:
        rig.close()


def test_nodes_of_any_user_run_on_a_root_that_cannot_be_written_to(restricted: RestrictedRig) -> None:
    scripted = restricted.scripted()
    node = scripted.launch("torch", memory=1024 * MIB)
    ended = scripted.event(node, "exited")
    assert ended.reason == "Succeeded", scripted.output(node)
    server = scripted.launch("keep:something", "ps")
    scripted.wait_for_output(server, "kept")
    agent = restricted.agent()
    assert {process.uids().real for process in [agent, *agent.children(recursive=True)]} == {USER}
    assert {"tmp", "job", "run"} <= {path.name for path in restricted.scratch.iterdir()}
    restricted.agent().terminate()
    assert restricted.wait() == 0
    assert "Traceback" not in restricted.printed()
