"""How all is, in a few lines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from dlrover_lite.tui.model import JobsView, Problem
from dlrover_lite.tui.pages.overview_page import pulse
from dlrover_lite.tui.text import length, plain
from tests.tui.driving import drive, taken, type_at_once
from tests.tui.fixed import ADS, BROKEN, FEED, NOW, VIEW
from tests.tui.overview import OVERVIEW


def text_of(view: JobsView, width: int = 100, height: int = 30) -> list[str]:
    return [plain(one).rstrip() for one in pulse(view, width, height, NOW)]


def test_the_pulse_tells_jobs_by_state_and_what_went_wrong() -> None:
    silent = msgspec.structs.replace(ADS, id="ads-silent", silent_since=NOW - 60)
    problem = Problem("gke/ml", "its server does not answer", NOW - 120)
    text = text_of(JobsView({**VIEW.jobs, silent.id: silent}, "doesn't run", problem))
    assert text[0] == "jobs      ● 1 training  … 1 queued  ? 1 silent  ✓ 1 succeeded  ✗ 1 failed"
    assert "brain     doesn't run, next look in 7 s (ads-7f3k2m1p)" in text
    assert "problem   ✗ what gke/ml says is as of 13:58: its server does not answer" in text
    assert any(one.startswith(f"failed    ✗ {BROKEN.id} 1 h 56 min ago: minibatch 17") for one in text)
    assert text[-1].startswith("          ads-")


def test_each_machine_and_cluster_tells_what_is_used() -> None:
    text = text_of(OVERVIEW)
    at = text.index("gke/ml")
    assert "2.8 used, 3.5 of 4 given" in text[at - 2]
    assert "2.5 GiB used, 5 GiB of 8 GiB given" in text[at - 1]
    assert "11.2 used, 14 of 24 given" in text[at + 1]
    assert "samples/s 208 k in 4 jobs" in text


def test_changes_are_the_newest_first_and_what_has_no_room_is_counted() -> None:
    rows = [
        msgspec.structs.replace(ADS, id=f"job-{at}", decision=msgspec.structs.replace(ADS.decision, at=NOW - at * 60))
        for at in range(9)
    ]
    text = text_of(JobsView({row.id: row for row in reversed(rows)}), height=10)
    assert [one[10:15] for one in text if "13:" in one or "14:" in one] == [f"job-{at}" for at in range(4)]
    assert text[-1].endswith("and 5 more jobs")


@given(st.integers(20, 140), st.integers(10, 40), st.sets(st.sampled_from(list(VIEW.jobs) + list(OVERVIEW.jobs))))
def test_the_pulse_is_as_wide_as_asked(width: int, height: int, jobs: set[str]) -> None:
    known = {**VIEW.jobs, **OVERVIEW.jobs}
    lines = pulse(JobsView({job: known[job] for job in jobs}, "", None, OVERVIEW.hosts), width, height, NOW)
    assert all(length(one) == width for one in lines)


@pytest.mark.parametrize("command", [":pulse", ":pu"])
def test_the_pulse_is_shown_by_a_command_and_goes_on(command: str) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        type_at_once(app, *command, "enter")
        await taken(pilot)
        assert "… 1 queued" in plain(app.screen.lines[0])
        app.view = JobsView({FEED.id: msgspec.structs.replace(FEED, state="training")})
        app.screen.tell_age()
        assert "● 1 training" in plain(app.screen.lines[0])

    drive(steps, size=(60, 15))
