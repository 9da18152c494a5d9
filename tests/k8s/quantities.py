"""Quantities of Kubernetes as numbers, for what stands in for a cluster."""

from __future__ import annotations

_FACTORS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def cores_of(text: str) -> float:
    """Return cores: "1500m" are 1.5."""
    return float(text[:-1]) / 1000 if text.endswith("m") else _number(text)


def bytes_of(text: str) -> int:
    """Return bytes: "1Gi", "500M", "12345"."""
    return int(_number(text))


def _number(text: str) -> float:
    for suffix, factor in _FACTORS.items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)
