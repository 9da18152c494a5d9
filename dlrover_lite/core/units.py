"""Resources and the units they are written in: cores (float) for CPU, bytes for memory, seconds for time."""

from __future__ import annotations

import re

import msgspec

from dlrover_lite.core.bounds import Bytes, Cores

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

LEAST_CORES, MOST_CORES = 0.01, 100_000.0
"""Least and most cores of a node, or of a job: less can't be enforced (the kernel's smallest quota is a hundredth of a core in a tenth of a
second), and no machine has more."""
LEAST_MEMORY, MOST_MEMORY = 16 * MIB, 1024 * TIB
"""Least and most bytes of memory of a node, or of a job: less isn't enough for any process of ours to start."""

_SUFFIXES = {
    "": 1,
    "B": 1,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_MEMORY = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)\s*\Z")


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node is given: ``cores`` of CPU (a share of one is allowed) and ``memory`` in bytes."""

    cores: Cores
    memory: Bytes

    def within(self, most: Resources) -> Resources:
        """Return as much of it as ``most`` allows."""
        return Resources(min(self.cores, most.cores), min(self.memory, most.memory))

    def or_more(self, other: Resources | None) -> Resources:
        """Return the more of both, of each resource."""
        return self if other is None else Resources(max(self.cores, other.cores), max(self.memory, other.memory))


def parse_memory(text: str | int) -> int:
    """Parse ``"512MiB"``, ``"1.5 GiB"``, ``"2GB"`` or a plain number into bytes.

    Raises ValueError when the text is not an amount of memory; the message says what is accepted.
    """
    if isinstance(text, int):
        return text
    match = _MEMORY.match(text)
    if match is None or match[2] not in _SUFFIXES:
        shown = repr(text[:40]) + "…" * (len(text) > 40)
        raise ValueError(f"{shown} is not an amount of memory (write 512MiB, 1.5GiB or a number of bytes)")
    return int(float(match[1]) * _SUFFIXES[match[2]])


def format_bytes(count: float) -> str:
    """Write ``count`` bytes as a short text for people, in binary units."""
    for suffix, unit in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= unit:
            value = count / unit
            return f"{value:.0f} {suffix}" if abs(value) >= 999.5 else f"{value:.3g} {suffix}"
    return f"{count:.0f} B"
