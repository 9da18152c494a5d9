"""Whether jobs can run somewhere: a list of checks, each with what to do where something is wrong."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Check", "Level"]

Level = Literal["ok", "warning", "problem"]


class Check(msgspec.Struct, frozen=True):
    """``text`` says what was found, ``hint`` what to do about it. With a problem, a job can't run."""

    name: str
    level: Level
    text: str
    hint: str = ""
