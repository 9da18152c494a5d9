from __future__ import annotations

from tests.directories import own_directories

__all__ = ["own_directories"]
