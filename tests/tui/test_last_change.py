"""The line that says what was changed last, and why."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.tui.pages import decisions_page
from dlrover_lite.tui.pages.heights import Want, divide, fitted
from dlrover_lite.tui.pages.last_change import change_of_job, change_of_jobs, is_made, mark_of
from dlrover_lite.tui.text import length, line, plain
from tests.tui.fixed import ADS, FEED, OLD, SUGGESTED
from tests.tui.recorded_jobs import HISTORIES, decisions_of, job_of

GROWN = job_of("scaling-up")
WIDTHS = (60, 80, 120, 200)


def _line(width: int = 200, detail: object = GROWN) -> str:
    return plain(change_of_job(detail, width)).rstrip()  # type: ignore[arg-type]


def test_a_change_is_told_with_cause_prediction_and_what_came() -> None:
    assert _line() == (
        "▲ +6 workers, +3 PS, PS 0.5 → 1 core 13:58: workers were the limit; 49.4 k → 255 k/s predicted, 267 k measured"
    )
    assert _line(80) == "▲ +6 workers … 13:58: workers were the limit; 49.4 k → 255 k/s, 267 k measured"
    assert GROWN.decisions[-1].action == "stay"  # which pushes nothing away


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("width", WIDTHS)
def test_whatever_was_decided_the_line_begins_with_what_and_is_cut_with_an_ellipsis(name: str, width: int) -> None:
    for at in range(1, len(decisions_of(name)) + 1):
        detail = msgspec.structs.replace(job_of(name), decisions=decisions_of(name)[:at])
        said = change_of_job(detail, width)
        assert length(said) == width
        text, whole = plain(said).rstrip(), plain(change_of_job(detail, 2000)).rstrip()
        assert text in (whole, whole.replace("/s predicted", "/s")) or "…" in text


def test_what_is_only_suggested_looks_like_that_everywhere() -> None:
    change = next(one for one in GROWN.decisions if one.action == "change")
    waits = msgspec.structs.replace(SUGGESTED, decision=change.number)
    detail = msgspec.structs.replace(GROWN, autoscaling=waits)
    assert not is_made(change, detail)
    assert mark_of(change, is_made=False)[0] == "△"
    assert _line(200, detail).startswith("suggested, waits for accept or reject △ +6 workers")
    run = decisions_page.runs(detail)[str(change.number)]
    assert "△" in plain(decisions_page._what(run, 60)) and "(suggested)" in plain(decisions_page._what(run, 60))
    refused = msgspec.structs.replace(change, done="rejected")
    assert not is_made(refused, GROWN)


def test_the_list_tells_the_newest_change_of_a_job_that_runs() -> None:
    change = GROWN.row.change
    assert change is not None
    later = msgspec.structs.replace(change, at=change.at + 1, difference="+1 worker")
    rows = [
        msgspec.structs.replace(ADS, change=msgspec.structs.replace(change, measured=None), is_changed=True),
        msgspec.structs.replace(FEED, change=later, is_changed=False),
        msgspec.structs.replace(OLD, change=msgspec.structs.replace(later, at=later.at + 9)),
    ]
    assert plain(change_of_jobs(rows[:2], 200)).startswith(f"{FEED.id}  △ +1 worker")
    assert "52.3 k now" in plain(change_of_jobs([rows[0], rows[2]], 200))
    starts = msgspec.structs.replace(rows[0], state="starting", rate=0.0)  # nothing that it could be compared with yet
    assert "now" not in plain(change_of_jobs([starts], 200))
    assert change_of_jobs([ADS], 80) == ()


def test_the_list_tells_who_gives_way_rather_than_who_begins_by_that() -> None:
    change = GROWN.row.change
    assert change is not None
    way = msgspec.structs.replace(
        change, action="preempt", difference="gives way", cause="urgent has a higher priority"
    )
    begins = msgspec.structs.replace(change, at=change.at + 2, action="start", difference="starts with 1 worker")
    later = msgspec.structs.replace(begins, at=change.at + 60)
    rows = [msgspec.structs.replace(ADS, change=way), msgspec.structs.replace(FEED, change=begins)]
    assert "gives way" in plain(change_of_jobs(rows, 200))
    rows[1] = msgspec.structs.replace(FEED, change=later)
    assert "starts with 1 worker" in plain(change_of_jobs(rows, 200))


# --- decisions --------------------------------------------------------------------------------------------------------


def test_runs_of_looks_that_changed_nothing_are_one_row() -> None:
    detail = job_of("scaling-up", "several-jobs")
    runs = list(decisions_page.runs(detail).values())
    assert sum(run.times for run in runs) == len(detail.decisions)
    assert all(a.newest.action != b.newest.action or a.newest.action == "change" for a, b in pairwise(runs))
    assert max(run.times for run in runs) >= 4
    each = decisions_page.runs(detail, each=True)
    assert len(each) == len(detail.decisions)
    only = decisions_page.runs(detail, only_changes=True)
    assert {run.newest.action for run in only.values()} == {"change", "start"}


@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("name", HISTORIES)
def test_the_reason_is_in_the_list_at_every_width(name: str, width: int) -> None:
    table = decisions_page.decisions_table()
    table.put(decisions_page.runs(job_of(name)))
    placed = {table.columns[one.at].name: one for one in table.place(width)}
    assert placed["reason"].width >= (30 if width < 120 else 40)
    for name_of, text in zip(table.shown, table.text(width)[1:], strict=True):
        why = table.rows[name_of].newest.cause or table.rows[name_of].newest.reason
        assert why[:20] in plain(text)


# --- the room ---------------------------------------------------------------------------------------------------------

WANTS = st.builds(
    Want, st.integers(1, 8), st.integers(0, 60), st.booleans(), st.integers(0, 3), st.sampled_from([False] * 4 + [True])
)


@given(st.integers(0, 80), st.lists(WANTS, max_size=6).filter(lambda wants: sum(want.spare for want in wants) <= 1))
def test_no_part_has_lines_to_spare_while_another_is_cut(room: int, wants: list[Want]) -> None:
    found = divide(room, wants)
    shown = [(want, lines) for want, lines in zip(wants, found, strict=True) if lines]
    if any(lines < want.enough for want, lines in shown):
        assert all(lines <= want.enough for want, lines in shown)
    if all(want.rank for want in wants):
        assert sum(found) <= room
    if any(want.grows and lines for want, lines in shown):
        assert sum(found) >= room
    if any(want.spare and lines for want, lines in shown):
        assert sum(found) == room and all(
            lines == want.enough for want, lines in zip(wants, found, strict=True) if not (want.spare and lines)
        )


def test_missing_lines_are_counted() -> None:
    lines = [line(str(number)) for number in range(9)]
    assert [plain(one) for one in fitted(lines, 3)] == ["0", "1", "… 7 more lines"]
    assert fitted(lines, 9) == lines and fitted(lines, 0) == []
