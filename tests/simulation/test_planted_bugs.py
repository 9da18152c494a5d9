"""Seeds of simulated faults find bugs that were planted on purpose: each within a thousand seeds, here by the one that is known to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlrover_lite.simulation.fuzz.run import run_seed
from tests.simulation.planted_bugs import PLANTED

MOST_SEEDS = 1000
NEAR_SEEDS = 30
"""Seeds from the known one on, of which one has to find a bug."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    planted = PLANTED[bug]
    with planted.there():
        for seed in range(planted.seed, planted.seed + NEAR_SEEDS):
            (directory := tmp_path / str(seed)).mkdir()
            if run_seed(seed, directory=directory).problems:
                return
    pytest.fail(f"no seed from {planted.seed} on finds that {bug}: SIM_SEARCH=1 searches for one")


@pytest.mark.skipif("SIM_SEARCH" not in os.environ, reason="takes minutes: SIM_SEARCH=1")
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found_within_a_thousand_seeds(bug: str) -> None:
    with PLANTED[bug].there():
        seed = next((seed for seed in range(1, MOST_SEEDS + 1) if run_seed(seed).problems), None)
    assert seed is not None, f"no seed up to {MOST_SEEDS} finds that {bug}"
    print(f"seed {seed} finds that {bug}")
