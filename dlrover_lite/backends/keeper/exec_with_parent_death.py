"""``python -m …keeper.exec_with_parent_death PARENT COMMAND…``: become COMMAND, tied to the life of the process PARENT.

Between fork and exec no Python may run in a process with threads, which a keeper is once it has begun; so its children tie themselves.
"""

from __future__ import annotations

import os
import sys

from dlrover_lite.backends.host import linux

if __name__ == "__main__":
    linux.die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
