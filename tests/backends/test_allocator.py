"""What nodes tell the allocator."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc's allocator")

BUFFERS = """
import resource, sys
from dlrover_lite.backends.template.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def minibatches(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        buffers = [bytearray(4 << 20) for _ in range(3)]
        del buffers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
minibatches(3)
print(minibatches(20))
"""
PAGES = 20 * 3 * (4 << 20) // os.sysconf("SC_PAGE_SIZE")


def faults(which: str, **variables: str) -> int:
    """Pages that a process fetches from the kernel, of ``PAGES`` that it needs and frees again."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    found = subprocess.run(
        [sys.executable, "-c", BUFFERS, which],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(found.stdout)


def test_freed_memory_is_reused_by_the_next_minibatch_without_page_faults() -> None:
    assert faults("left") > PAGES / 2, "glibc keeps it by itself now: this isn't needed any more"
    assert faults("kept") < PAGES / 20


def test_malloc_settings_of_the_user_are_respected() -> None:
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="131072") > PAGES / 2
