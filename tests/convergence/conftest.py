from __future__ import annotations

from tests.directories import no_job_goes_on, own_directories
from tests.forked_keepers import forked_keepers

__all__ = ["forked_keepers", "no_job_goes_on", "own_directories"]
