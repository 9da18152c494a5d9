"""How colours look to those who don't see all of them, and how far apart they are."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

# Machado, Oliveira and Fernandes (2009), at full severity, for linear RGB.
VISIONS = {
    "all colours": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> NDArray[np.float64]:
    """A colour as #rrggbb in linear RGB."""
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def _lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    relative = _XYZ @ np.clip(rgb, 0, 1) / (_XYZ @ np.ones(3))
    x, y, z = np.where(relative > 0.008856, np.cbrt(relative), 7.787 * relative + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def least_difference(colours: list[str]) -> tuple[float, str]:
    """The smallest difference (CIE76) between any two of these colours to anybody, and to whom."""
    return min(
        (float(np.linalg.norm(_lab(seen @ linear(one)) - _lab(seen @ linear(other)))), f"{one} {other}: {name}")
        for name, seen in VISIONS.items()
        for one, other in combinations(colours, 2)
    )


def contrast(colour: str, ground: str) -> float:
    """How much a text stands out, as WCAG has it: 4.5 is enough for any text."""
    light, dark = sorted((float(_XYZ[1] @ linear(one)) for one in (colour, ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
