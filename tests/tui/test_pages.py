"""What the pages say; how they look is in the snapshots."""

from __future__ import annotations

import msgspec
import pytest

from dlrover_lite.brain.explain.explanation_data import MemoryAhead, Used
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.expected_end import ExpectedEnd
from dlrover_lite.core.units import GIB, MIB
from dlrover_lite.tui.model import JobDetail, JobsView, Look, Problem, Rate, Shards
from dlrover_lite.tui.pages import explanation_page, job_page, jobs_page, throughput_chart
from dlrover_lite.tui.pages.last_change import mark_of
from dlrover_lite.tui.pages.memory_chart import memory_chart
from dlrover_lite.tui.pages.once import frame
from dlrover_lite.tui.table import text_of
from dlrover_lite.tui.text import length, plain
from tests.tui.fixed import (
    ADS,
    BROKEN,
    DETAIL,
    EVALUATED,
    EXPLANATION,
    MEMORY,
    NOW,
    RESTS_ON,
    TREATED,
    VIEW,
    FixedSource,
)


def test_a_frame_of_all_jobs_has_what_is_known_of_each() -> None:
    text = frame(FixedSource(), job=None, width=300, now=NOW)
    head, columns, *rows = text.splitlines()
    assert "2 running, 4 in all" in head
    assert "brain listens" in head
    assert columns.split()[:4] == ["JOB", "STATE", "DONE", "ENDS"]
    feed, ads, broken, _ = rows
    assert "it waits, number 1 in the queue" in feed
    assert all(
        part in ads for part in ("42%", "14:01:52 ±9s", "52.3 k", "3w 1p", "1.8/2", "0.49 core-h", "13:56 change")
    )
    assert "✗ failed" in broken
    assert "shapes differ" in broken


def test_a_frame_of_one_job_has_its_nodes_and_decisions() -> None:
    text = frame(FixedSource(), job=ADS.id, width=220, now=NOW)
    for part in (
        "8,223 done, 160 leased, 11,149 left",
        "checkpoint 12 at 13:57, 84 MiB in 2.3 s, held up 14 ms (11 ms without)",
        "ps-0: 148 MiB now, 180 MiB (±17) at the end, limit 210 MiB",
        "decided next look in 7 s",
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


def _drawn(rates: tuple[Rate, ...]) -> str:
    """Which of the 40 columns of the curve have a dot, from NOW - 40 on; a second each."""
    row = msgspec.structs.replace(ADS, started_at=NOW - 40)
    lines = throughput_chart.chart(msgspec.structs.replace(DETAIL, row=row, rates=rates, decisions=()), 48, 9)
    rows = [plain(one).ljust(48)[8:] for one in lines[1:-2]]
    return "".join("#" if any(dots[x] != " " for dots in rows) else "." for x in range(40))


def test_rates_are_drawn_from_the_start_of_their_intervals_with_gaps() -> None:
    measured = Rate(NOW - 20, 100.0, 10.0), Rate(NOW - 10, 100.0, 10.0), Rate(NOW, 100.0, 5.0)
    assert _drawn(measured) == "." * 10 + "#" * 20 + "." * 5 + "#" * 5


def test_an_interval_of_unknown_length_is_drawn_as_long_as_most() -> None:
    measured = Rate(NOW - 25, 100.0), Rate(NOW - 20, 100.0), Rate(NOW - 15, 100.0), Rate(NOW, 100.0)
    assert _drawn(measured) == "." * 10 + "#" * 15 + "." * 10 + "#" * 5


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    lines = [
        *job_page.headline(DETAIL, width),
        *throughput_chart.chart(DETAIL, width, 9)[:-1],
        *job_page.facts(DETAIL, width, 20, NOW),
        *job_page.memory(DETAIL, width, 10)[:-1],
    ]
    assert max(map(length, lines)) <= width


def test_facts_of_a_job_keep_within_their_height() -> None:
    for height in range(12):
        assert len(job_page.facts(DETAIL, 60, height, NOW)) <= height


def test_page_of_a_new_or_unmeasured_job_says_so() -> None:
    detail = JobDetail(row=msgspec.structs.replace(ADS, expected=None, rate=None))
    assert "Nothing is measured yet" in text_of(throughput_chart.chart(detail, 80, 8))
    assert "nothing so far" in text_of(job_page.facts(detail, 80, 8, NOW))
    over = JobDetail(row=BROKEN)
    assert "Nothing was measured of it" in text_of(throughput_chart.chart(over, 80, 8))
    assert "shapes differ" in text_of(job_page.headline(over, 120))


def test_a_restore_is_in_the_headline_and_in_the_list() -> None:
    """As the master says it, from what matters most to what matters least."""
    said = "reading checkpoint 12: 34%, 12.2 M of 36.0 M rows, 1 GiB of 3 GiB, 210 MiB/s, 0:12 left"
    row = msgspec.structs.replace(DETAIL.row, state="starting", message=said)
    detail = msgspec.structs.replace(DETAIL, row=row)
    assert said in text_of(job_page.headline(detail, 140))
    assert "reading checkpoint 12: 34%" in text_of(job_page.headline(detail, 80))
    assert said in "".join(span.text for span in jobs_page._decision(row, 100))


def test_quarantined_minibatches_are_told() -> None:
    detail = msgspec.structs.replace(DETAIL, shards=Shards(5, 1, 0, 2))
    assert "2 minibatchs" not in (text := text_of(job_page.facts(detail, 80, 8, NOW)))
    assert "2 failed twice, left out" in text


def test_page_without_jobs_says_what_to_run() -> None:
    text = frame(FixedSource(JobsView()), job=None, width=80)
    assert "dlrover-lite run job.yaml" in text


def test_a_frame_of_an_unknown_job_is_an_error() -> None:
    with pytest.raises(JobError, match="No job is called 'none'"):
        frame(FixedSource(), job="none", width=80)


def test_old_data_is_marked_with_its_age() -> None:
    problem = Problem("its master", "it did not answer", NOW - 12)
    source = FixedSource(VIEW, msgspec.structs.replace(DETAIL, problem=problem))
    assert "12.0 s ago: it did not answer" in frame(source, job=ADS.id, width=80, now=NOW)


def test_an_end_on_another_day_says_which() -> None:
    row = msgspec.structs.replace(ADS, expected=ExpectedEnd(NOW + 86_400, 7200.0))
    assert "23 Nov 14:00 ±2h00" in text_of([jobs_page.describe(row, 80, NOW)[4]])


@pytest.mark.parametrize(
    ("action", "grows", "symbol"), [("change", True, "▲"), ("change", False, "▼"), ("heal", True, "◆")]
)
def test_decisions_have_marks_by_action_and_growth(action: str, grows: bool, symbol: str) -> None:
    one = msgspec.structs.replace(DETAIL.decisions[1], action=action, grows=grows)
    assert mark_of(one)[0] == symbol


@pytest.mark.parametrize("width", [76, 116, 200])
def test_an_explanation_has_all_plans_and_why_they_lost(width: int) -> None:
    lines = explanation_page.lines_of(EXPLANATION, width)
    assert max(map(length, lines)) <= width
    text = text_of(lines)
    for part in ("-31%", "◉ chosen", "= until then", "4 x 0.5, 1 x 0.25", "54.6 k", "ends 117 s later"):
        assert part in text, part
    assert "WHY" not in text_of(explanation_page.lines_of(msgspec.structs.replace(EXPLANATION, plans=()), width))


@pytest.mark.parametrize("width", [76, 116, 200])
def test_an_explanation_shows_the_measurements_it_rests_on(width: int) -> None:
    text = " ".join(text_of(explanation_page.lines_of(EXPLANATION, width)).split())
    for part in (
        "What was known",
        "28,800 samples/s (80% band",
        "its nodes used 0.72 cores, others 0.31, of 4",
        "● within the model's band",
        "○ not",
        "2 worker x 0.25, 1 ps x 0.25 cores",
        "+7.3%",
        "half of them are within 2.1% of the model, 13 of 14 within its 80% band",
        "What limits 3 worker x 0.25",
        "55,900",
        "16.2 us",
        "910 us in a sum a worker's CPU, by minibatch",
        "ps-0: 148 MiB now, 180 MiB (±17) at the end",
        "░",
    ):
        assert part in text, part
    order = [text.index(part) for part in ("-31%", "◉ chosen", "What was known", "○ not", "The model", "Its costs")]
    assert order == sorted(order)


@pytest.mark.parametrize("width", [76, 116, 200])
def test_a_treatment_shows_the_node_beside_its_peers(width: int) -> None:
    lines = explanation_page.lines_of(TREATED, width)
    assert max(map(length, lines)) <= width
    text = text_of(lines)
    slow, fast = (next(one for one in text.splitlines() if name in one) for name in ("* worker-1", "  worker-3"))
    assert slow.split()[:5] == ["*", "worker-1", "0.5", "6.2", "31%"] or slow.split()[:4] == [
        "*",
        "worker-1",
        "6.2",
        "31%",
    ]
    assert "102%" in fast
    assert "What was measured before isn't kept any more." in text


def test_an_explanation_recorded_by_an_older_version_is_shown() -> None:
    one = msgspec.json.decode(
        msgspec.json.encode({"job": "a", "number": 1, "text": ["why"], "plans": []}), type=type(EXPLANATION)
    )
    assert text_of(explanation_page.lines_of(one, 80)) == "why\n"
    again = msgspec.json.decode(msgspec.json.encode(EXPLANATION), type=type(EXPLANATION))
    assert again.rests_on == RESTS_ON


def test_the_front_names_the_chosen_and_the_present_plan_and_the_cores_there_were() -> None:
    front = [plain(one) for one in explanation_page.lines_of(EXPLANATION, 110)]
    front = front[next(at for at, one in enumerate(front) if "samples/s by cores" in one) :][:15]
    assert any("◉ chosen: 3 x 0.25, 1 x 0.25" in one for one in front)
    assert any("= until then: 1 x 0.25, 1 x 0.25" in one for one in front)
    assert any("╎ 1.25 cores were left" in one for one in front)
    assert [one[front[-3].index("╎")] for one in front[1:4]] == ["╎"] * 3
    assert front[-1].split() == ["0", "0.4", "0.8", "1.2", "1.6", "2", "2.4", "2.8"]


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(40, 8), (76, 12), (116, 10), (190, 14)])
def test_a_memory_curve_has_what_was_used_what_is_foreseen_and_the_limits(width: int, height: int) -> None:
    lines = memory_chart(MEMORY, width, height)
    assert len(lines) == height
    assert max(map(length, lines[1:])) <= width
    rows = [plain(one)[8:] for one in lines[1:-2]]
    now = plain(lines[-2])[8:].index("┴")
    used, ahead = ("".join(row[:now] for row in rows), "".join(row[now + 1 :] for row in rows))
    assert any("\u2800" < one < "\u28ff" for one in used) and "░" not in used
    assert "░" in ahead and any("\u2800" < one < "\u28ff" for one in ahead)
    limits = [at for at, row in enumerate(rows) if "─" in row]
    assert limits[0] < limits[-1]  # it was lower once
    assert plain(lines[-1]).split() == ["13:45", "14:01"]


def test_a_memory_curve_without_a_forecast_is_what_was_used() -> None:
    curve = msgspec.structs.replace(MEMORY, ahead=())
    text = text_of(memory_chart(curve, 76, 9)[1:])
    assert "░" not in text and "┴" not in text
    assert memory_chart(msgspec.structs.replace(MEMORY, used=()), 76, 9) == []
    assert memory_chart(MEMORY, 12, 9) == []


def test_a_memory_curve_is_scaled_to_the_present_limit() -> None:
    before = msgspec.structs.replace(MEMORY, limits=(Used(NOW - 890, 5 * GIB), *MEMORY.limits[1:]))
    lines = memory_chart(before, 90, 10)
    assert plain(lines[1]).startswith("300 MiB┤")
    assert "limit (5 GiB until 13:48)" in plain(lines[0])
    wild = msgspec.structs.replace(MEMORY, ahead=(MemoryAhead(NOW + 60, 150 * MIB, 140 * MIB, 90 * GIB),))
    assert plain(memory_chart(wild, 90, 10)[1]).startswith("300 MiB┤")  # a band may end anywhere


@pytest.mark.parametrize(("limit", "lines"), [(210, 9), (490, 9), (4096, 0)])
def test_memory_far_below_its_limit_is_no_curve(limit: int, lines: int) -> None:
    curve = msgspec.structs.replace(MEMORY, limits=(Used(NOW - 890, limit * MIB),))
    assert len(job_page.memory(msgspec.structs.replace(DETAIL, memory=curve), 80, 9)) == lines


def test_memory_that_will_be_full_says_when() -> None:
    detail = msgspec.structs.replace(DETAIL, memory=msgspec.structs.replace(MEMORY, full_at=NOW + 60))
    assert "limit 210 MiB, full at 14:01:00" in text_of(job_page.facts(detail, 90, 8, NOW))


# --- the next look --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "now", "text"),
    [
        (Look(NOW + 7.0), NOW, "next look in 7 s"),
        (Look(NOW + 7.0), NOW + 6.2, "next look in 1 s"),
        (Look(NOW + 7.0), NOW + 8, "next look any moment"),
        (Look(NOW + 7.0, "it is measured"), NOW, "next look in 7 s, when it is measured"),
        (
            Look(None, "autoscaling is paused: by request"),
            NOW,
            "no look for now: autoscaling is paused: by request",
        ),
    ],
)
def test_pages_say_when_the_brain_looks_next(look: Look, now: float, text: str) -> None:
    row = msgspec.structs.replace(ADS, look=look)
    detail = msgspec.structs.replace(DETAIL, row=row)
    assert f"decided {text}" in text_of(job_page.facts(detail, 90, 9, now))
    assert f"brain      {text}" in text_of(jobs_page.describe(row, 90, now))
    silent = msgspec.structs.replace(ADS, look=None)
    assert "brain  " not in text_of(jobs_page.describe(silent, 90, now))


def test_a_job_without_detail_is_shown_from_the_list() -> None:
    detail = JobDetail(row=ADS, missing="no more is known")
    facts = text_of(job_page.facts(detail, 80, 8, NOW))
    assert "! no more is known" in facts
    assert "13:56 change: it changes to" in facts
    assert "no checkpoints are taken" not in facts
    assert "What was measured of it isn't known here" in text_of(throughput_chart.chart(detail, 80, 8))


def test_newest_evaluation_is_shown_with_unknown_ids_and_advice() -> None:
    facts = text_of(job_page.facts(msgspec.structs.replace(DETAIL, evaluated=EVALUATED), 78, 14, NOW))
    assert "quality AUC 0.7634, loss 0.4702  after 4.00 M samples" in facts
    assert "unknown user 97.2%, item 61%, 24 more at most 3.1% (ids evaluated)" in facts
    words = " ".join(facts.split())
    assert words.startswith(f"! {EVALUATED.warnings[0]} ! the same in 1 more column: dlrover-lite status {ADS.id}")
    usual = msgspec.structs.replace(EVALUATED, unknown="", warnings=())
    plain = text_of(job_page.facts(msgspec.structs.replace(DETAIL, evaluated=usual), 78, 14, NOW))
    assert "quality" in plain and "unknown" not in plain and "!" not in plain


@pytest.mark.parametrize("height", [3, 4, 5, 8])
def test_little_room_still_shows_unknown_ids_and_the_last_decision(height: int) -> None:
    facts = job_page.facts(msgspec.structs.replace(DETAIL, evaluated=EVALUATED, checkpoints=None), 60, height, NOW)
    assert len(facts) <= height
    text = text_of(facts)
    assert text.startswith("! 97.2% of the ids evaluated in column 'user'") and "shards" in text
    assert "decided" in text or height == 3


def test_a_job_of_which_nothing_was_heard_asks_and_says_nothing_else() -> None:
    detail = JobDetail(row=msgspec.structs.replace(ADS, decision=None), heard=False)
    facts = text_of(job_page.facts(detail, 80, 8, NOW))
    assert "asking" in facts and "no checkpoints" not in facts and "nothing so far" not in facts
    chart = text_of(throughput_chart.chart(detail, 80, 8))
    assert "asking" in chart and "Nothing is measured" not in chart


@pytest.mark.parametrize(("busy", "tones"), [(0.02, set()), (0.35, {"warn"}), (0.49, {"warn", "bad"})])
def test_slots_are_in_colours_of_alarm_only_where_their_server_is_busy(busy: float, tones: set[str]) -> None:
    strip = msgspec.structs.replace(DETAIL.slots[0], busy=busy)
    lines = job_page.facts(msgspec.structs.replace(DETAIL, slots=(strip,), memory=None), 80, 20, NOW)
    drawn = next(one for one in lines if plain(one).startswith("ps-0"))
    assert {span.tone for span in drawn} & {"warn", "bad"} <= tones
    assert bool(tones) == any(span.tone in ("warn", "bad") for span in drawn)
