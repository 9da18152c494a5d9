"""Amounts of CPU and memory as Kubernetes writes them."""

from __future__ import annotations

import re

__all__ = ["read_quantity", "write_cores"]

_SUFFIXES = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
    "Ei": 1 << 60,
}
_QUANTITY = re.compile(r"([+-]?\d{1,20}(?:\.\d{0,20})?|[+-]?\.\d{1,20})(?:[eE]([+-]?\d{1,2})|([numkKMGTPE]i?)?)\Z")


def read_quantity(text: str) -> float:
    """Return the number of cores or bytes that a quantity says: "500m", "1.5Gi", "2e9". Raises ValueError for what is none."""
    match = _QUANTITY.match(text.strip())
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise ValueError(f"{text[:40]!r} is no quantity as Kubernetes writes it")
    number, exponent, suffix = match.groups()
    if exponent is None and "." not in number:
        return int(number) * _SUFFIXES[suffix or ""]  # exact, as bytes are
    return float(number) * (10.0 ** int(exponent) if exponent else _SUFFIXES[suffix or ""])


def write_cores(cores: float) -> str:
    """Write a number of cores, in thousandths: nothing finer is told apart. At least two of them, see ``node_pod``."""
    return f"{max(2, round(1000 * cores))}m"
