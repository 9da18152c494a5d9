"""What the pages say; how they look is in the snapshots."""

from __future__ import annotations

import msgspec
import pytest

from dlrover_lite.errors import JobError
from dlrover_lite.tui import explanation_page, job_page, jobs_page
from dlrover_lite.tui.model import Expected, JobDetail, JobsView, Problem, Shards
from dlrover_lite.tui.once import frame
from dlrover_lite.tui.table import text_of
from dlrover_lite.tui.text import length
from tests.tui.fixed import ADS, BROKEN, DETAIL, EXPLANATION, NOW, VIEW, FixedSource


def test_a_frame_of_all_jobs_has_what_is_known_of_each() -> None:
    text = frame(FixedSource(), job=None, width=300, now=NOW)
    head, columns, *rows = text.splitlines()
    assert "2 running, 4 in all" in head
    assert "brain listens" in head
    assert columns.split()[:4] == ["JOB", "STATE", "DONE", "ENDS"]
    feed, ads, broken, _ = rows
    assert "it waits, number 1 in the queue" in feed
    assert all(part in ads for part in ("42%", "14:01 ±9s", "52.3 k", "3w 1p", "1.8/2", "0.49 core-h", "13:56 change"))
    assert "✗ failed" in broken
    assert "shapes differ" in broken


def test_a_frame_of_one_job_has_its_nodes_and_decisions() -> None:
    text = frame(FixedSource(), job=ADS.id, width=220, now=NOW)
    for part in (
        "8,223 done, 160 leased, 11,149 left",
        "checkpoint 12 at 13:57, 84 MiB in 2.3 s",
        "checkpoint 13 taking",
        "◆ 13:58 heal worker-1",
        "-31% came",
        "ps-0",
        "4,096 slots",
        "✗ OOMKilled",
        "AUC 0.7812",
        "epoch 2/3",
    ):
        assert part in text, part


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    lines = [
        *job_page.headline(DETAIL, width),
        *job_page.chart(DETAIL, width, 9)[:-1],
        *job_page.facts(DETAIL, width, 20),
    ]
    assert max(map(length, lines)) <= width


def test_facts_keep_within_their_height() -> None:
    for height in range(12):
        assert len(job_page.facts(DETAIL, 60, height)) <= height


def test_of_a_job_that_has_just_begun_it_says_what_it_waits_for() -> None:
    detail = JobDetail(row=msgspec.structs.replace(ADS, expected=None, rate=None))
    assert "Nothing is measured yet" in text_of(job_page.chart(detail, 80, 8))
    assert "nothing so far" in text_of(job_page.facts(detail, 80, 8))
    over = JobDetail(row=BROKEN)
    assert "Nothing was measured of it" in text_of(job_page.chart(over, 80, 8))
    assert "shapes differ" in text_of(job_page.headline(over, 120))


def test_quarantined_minibatches_are_told() -> None:
    detail = msgspec.structs.replace(DETAIL, shards=Shards(5, 1, 0, 2))
    assert "2 minibatchs" not in (text := text_of(job_page.facts(detail, 80, 8)))
    assert "2 failed twice, left out" in text


def test_a_newcomer_is_told_what_to_run() -> None:
    text = frame(FixedSource(JobsView()), job=None, width=80)
    assert "dlrover-lite run job.yaml" in text


def test_an_unknown_job_is_an_error() -> None:
    with pytest.raises(JobError, match="No job is called 'none'"):
        frame(FixedSource(), job="none", width=80)


def test_what_is_old_is_said_in_words() -> None:
    problem = Problem("its master", "it did not answer", NOW - 12)
    source = FixedSource(VIEW, msgspec.structs.replace(DETAIL, problem=problem))
    assert "12.0 s ago: it did not answer" in frame(source, job=ADS.id, width=80, now=NOW)


def test_an_end_on_another_day_says_which() -> None:
    row = msgspec.structs.replace(ADS, expected=Expected(NOW + 86_400, 7200.0))
    assert "23 Nov 14:00 ±2h00" in text_of([jobs_page.describe(row, 80)[4]])


@pytest.mark.parametrize(
    ("action", "grows", "symbol"), [("change", True, "▲"), ("change", False, "▼"), ("heal", True, "◆")]
)
def test_marks(action: str, grows: bool, symbol: str) -> None:
    one = msgspec.structs.replace(DETAIL.decisions[1], action=action, grows=grows)
    assert job_page.mark_of(one)[0] == symbol


@pytest.mark.parametrize("width", [76, 116, 200])
def test_an_explanation_has_all_plans_and_why_they_lost(width: int) -> None:
    lines = explanation_page.lines_of(EXPLANATION, width)
    assert max(map(length, lines)) <= width
    text = text_of(lines)
    for part in ("-31%", "◉ chosen", "= until then", "4 x 0.5, 1 x 0.25", "54.6 k", "ends 117 s later"):
        assert part in text, part
    assert "WHY" not in text_of(explanation_page.lines_of(msgspec.structs.replace(EXPLANATION, plans=()), width))


def test_what_a_source_has_not_got_is_said_and_the_rest_is_from_the_list() -> None:
    detail = JobDetail(row=ADS, missing="no more is known")
    facts = text_of(job_page.facts(detail, 80, 8))
    assert "! no more is known" in facts
    assert "13:56 change: it changes to" in facts
    assert "no checkpoints are taken" not in facts
    assert "What was measured of it isn't known here" in text_of(job_page.chart(detail, 80, 8))
