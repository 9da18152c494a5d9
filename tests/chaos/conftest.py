from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.chaos.fault_count import FaultCount
from tests.directories import no_job_goes_on, own_directories
from tests.forked_keepers import forked_keepers

__all__ = ["faults", "forked_keepers", "no_job_goes_on", "own_directories", "pytest_configure"]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FaultCount(), "fault count")


@pytest.fixture
def faults(record_property: Callable[[str, object], None]) -> Iterator[Counter[str]]:
    """Faults that a test has done, by kind: ``kill worker``, ``kill at ps.push.applied``. They are summed over all tests."""
    done: Counter[str] = Counter()
    yield done
    for kind, count in done.items():
        record_property(f"fault: {kind}", count)
