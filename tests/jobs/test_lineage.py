"""Which of a job's checkpoints led to where it is, after it has gone on from some of them, in any order."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.checkpoint.lineage import Lineage
from dlrover_lite.jobs.store import Beginning

OWN, OTHER = "/own", "/other"
moves = st.lists(st.one_of(st.just("takes"), st.just("begins again"), st.integers(0, 30)), max_size=40)


@given(moves)
def test_lineage_holds_the_checkpoints_that_led_to_the_present(moves: list[str | int]) -> None:
    """It takes checkpoints, goes on from any of them, or begins again with another job's: those that led to where it is are the chosen
    one and all that led to that."""
    generation, lineage = 0, Lineage()
    taken_in: dict[int, int] = {}
    led_to: dict[int, set[int]] = {}
    now: set[int] = set()
    for move in moves:
        if move == "takes":
            cut = len(taken_in) + 1
            taken_in[cut], led_to[cut] = generation, now | {cut}
            now = led_to[cut]
        elif move == "begins again":
            generation, now = generation + 1, set()
            lineage = lineage.begin(generation, 7, None)
        elif taken_in:
            cut = 1 + int(move) % len(taken_in)
            generation, now = generation + 1, led_to[cut]
            lineage = lineage.begin(generation, cut, taken_in[cut])
        assert {cut for cut, of in taken_in.items() if lineage.has(cut, of)} == now
        assert all(lineage.taken_in(cut, generation) == taken_in[cut] for cut in now)


def test_lineage_forgets_a_beginning_that_never_came_about() -> None:
    """Its generation's number is used again."""
    chosen = Lineage().begin(1, 3, 0).begin(1, 5, 0)
    assert [chosen.has(cut, 0) for cut in (3, 5, 6)] == [True, True, False]


def test_a_beginning_noted_by_an_older_version_is_read() -> None:
    """It kept neither: all that there was before counts as what led there, and the origin is known while it is what was noted last."""
    text = msgspec.json.encode({"generation": 2, "url": OWN, "cut": 12})
    before = msgspec.json.decode(text, type=Beginning)
    assert before.lineage.has(20, 1) and before.began_with(OWN) is None
    after = Beginning(3, OWN, 15).after(before, OWN, 2)
    assert [after.lineage.has(*one) for one in ((12, 1), (15, 2), (16, 2))] == [True, True, False]
    before = Beginning(1, OTHER, 4, only_parameters=True)
    after = Beginning(2, OWN, 6).after(before, OWN, 1)
    assert after.origin == before.began_with(OWN)
    assert after.origin is not None and (after.origin.url, after.origin.cut) == (OTHER, 4)
    assert after.origin.only_parameters
