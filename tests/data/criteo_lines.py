"""Lines in Criteo's format for tests."""

from __future__ import annotations

import random
from pathlib import Path

REAL_SAMPLE = Path(__file__).parents[2].parent / "shared" / "data" / "criteo_sample.tsv"


def generated_lines(count: int, seed: int = 0) -> list[bytes]:
    """Lines with the traits of Criteo's published ones: empty fields, negative integers, empty columns cut off."""
    draw = random.Random(seed)
    lines = []
    for number in range(count):
        integers = ["" if draw.random() < 0.2 else str(int(draw.expovariate(0.01))) for _ in range(13)]
        integers[1] = str(draw.randint(-3, 20))
        categories = ["" if draw.random() < 0.1 else f"{draw.getrandbits(32):08x}" for _ in range(26)]
        kept = (26, 24, 23)[number % 3]
        categories[kept:] = [""] * (26 - kept)
        categories[kept - 1] = f"{draw.getrandbits(32):08x}"
        lines.append("\t".join([str(draw.randint(0, 1)), *integers, *categories]).rstrip("\t").encode())
    return lines
