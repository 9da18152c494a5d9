from __future__ import annotations

from tests.directories import no_job_goes_on, own_directories

__all__ = ["no_job_goes_on", "own_directories"]
