"""How often garbage in cycles is looked for."""

from __future__ import annotations

import gc

import pytest

from dlrover_lite.core.garbage_collection import infrequent_garbage_collection


def test_it_is_looked_for_less_often_only_meanwhile() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), infrequent_garbage_collection():
        assert all(now > usual for now, usual in zip(gc.get_threshold(), (700, 10, 10), strict=True))
        raise ZeroDivisionError
    assert gc.get_threshold() == before
