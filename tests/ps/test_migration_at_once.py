"""Slots that leave a slow parameter server: frozen before the first row is copied."""

from __future__ import annotations

import numpy as np
import pytest

from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS
from dlrover_lite.ps.migration import migration
from tests.ps.rig import SGD, Rig, rows_of
from tests.ps.test_migration import gradients


def test_slots_of_a_slow_source_are_frozen_before_the_first_row_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round, and nothing more: what is pushed meanwhile waits, and goes to the target."""
    monkeypatch.setattr(migration, "CHUNK_BYTES", 600)
    rig = Rig(2, SGD)
    try:
        rig.configure_all()
        for k in range(8):
            rig.push_everywhere(0, k, gradients(np.random.default_rng(k)))
        before = rows_of(rig.engine(0))
        move = rig.move(0, 1, at_once=True)
        rounds, early = set(), 0
        while move not in rig.ready:
            rig.turn(0)
            rig.turn(1)
            source = rig.services[0]
            if source.outgoing is not None and source.engine.frozen:
                if source.outgoing._batch is not None:
                    rounds.add(source.outgoing._batch.round)
                early += source.report_in < migration.BUSY_SECONDS / 5 and not source.outgoing.given
            else:
                assert not any(group.rows for group in rig.engine(1).groups)
            rig.hear(0)
            rig.hear(1)
        assert rounds == {1} and not early
        assert rig.push(0, 0, 99, ALL_SLOTS, {"a": {1: 1.0}}) is None
        rig.commit(move)
        rig.settle()
        assert rows_of(rig.engine(1)) == before
        rig.push_everywhere(0, 99, {"a": {1: 1.0}})
        assert rows_of(rig.engine(1)) != before
    finally:
        rig.close()
