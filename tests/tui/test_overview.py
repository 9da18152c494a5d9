"""The machine, or the clusters, as a picture."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from textual.pilot import Pilot

from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.news import JobNews, PlanNews, WatchedJobs
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.tui.model import Given, HostShare, JobsView
from dlrover_lite.tui.pages.overview_page import jobs_in, overview, picture
from dlrover_lite.tui.pages.stack_chart import Layer, Look, look_of, stack_chart
from dlrover_lite.tui.screens.job import JobScreen
from dlrover_lite.tui.text import length, plain
from dlrover_lite.tui.view_state import JobsFold, LocalNode, LocalStatus
from dlrover_lite.tui.widgets.panel import Panel
from tests.tui.driving import drive, screen_text, settled, the_app, told
from tests.tui.fixed import NOW, VIEW, FixedSource
from tests.tui.overview import ADS, FAR, FEED, HERE, LONG_GONE, OVERVIEW, WAITS, job
from tests.tui.screen_rules import broken_rules


def _text(view: JobsView = OVERVIEW, width: int = 120, height: int = 40) -> str:
    return "\n".join(plain(one).rstrip() for one in overview(view, width, height, NOW))


def test_each_machine_and_cluster_tells_what_is_given_and_used() -> None:
    text = _text()
    assert text.splitlines()[0].startswith("3 jobs running, 1 waiting  brain listens, next look in 7 s (ads-7f3k2m1p)")
    assert "this machine  3.5 of 4 cores given, 2.8 used; 5 GiB of 8 GiB given" in text
    assert "gke/ml  14 of 24 cores given, 11.2 used; 30 GiB of 96 GiB given, 15 GiB used; 3 hosts" in text
    assert "gke-pool-1           ▕██████████████▏ 8 of 8 cores, 32 GiB: wide-7f3k2bbb 2w 1p" in text
    assert "0 of 8 cores, 32 GiB: nothing" in text
    assert "waits rank-7f3k2zzz  it waits, number 1 in the queue" in text
    assert LONG_GONE.id not in text


def test_nothing_is_left_out_in_silence() -> None:
    many = [job(f"job-{at:04}", (600.0, 0.5, 1.0)) for at in range(100)]
    text = _text(JobsView({one.id: one for one in many}, "", None, (HERE,)))
    assert "and 89 more jobs" in text
    assert " 88 others " in text


def test_without_hosts_or_plans_what_is_known_is_drawn() -> None:
    row = msgspec.structs.replace(FEED, given=(), started_at=NOW - 900)
    text = _text(JobsView({row.id: row}))
    assert "this machine  2 cores given, 1.6 used" in text
    assert " feed-7f3k2q8d " in text
    assert "no host is known" in _text(JobsView())


@pytest.mark.parametrize("size", [(20, 10), (55, 11), (75, 19), (115, 35), (195, 55)])
def test_the_overview_fits_its_width_and_of_one_machine_its_height(size: tuple[int, int]) -> None:
    here = msgspec.structs.replace(OVERVIEW, jobs={one.id: one for one in (WAITS, FEED, ADS)}, hosts=(HERE,))
    lines = overview(here, *size, NOW)
    assert max(map(length, lines)) <= size[0]
    assert len(lines) <= max(size[1], 17)


@pytest.mark.parametrize("size", [(56, 11), (76, 20), (116, 36), (196, 56)])
def test_no_number_of_the_overview_is_cut(size: tuple[int, int]) -> None:
    text = [plain(one).rstrip() for one in overview(OVERVIEW, *size, NOW)]
    assert any(one.endswith("given") or "given," in one for one in text if "this machine" in one)
    told = [one for one in text[1:] if "waits" not in one and "GiB: " not in one]
    assert not [one for one in told if re.search(r"[\d ][KMGT]?i?…", one)]


@given(st.integers(20, 200), st.integers(1, 60), st.sets(st.sampled_from(sorted(OVERVIEW.jobs))))
@example(20, 9, set(OVERVIEW.jobs))
def test_a_picture_fits_and_says_what_is_missing(width: int, height: int, jobs: set[str]) -> None:
    view = msgspec.structs.replace(OVERVIEW, jobs={job: OVERVIEW.jobs[job] for job in jobs})
    lines = picture(view, width, height, NOW)
    assert len(lines) <= height and all(length(one) <= width for one in lines)
    text = "\n".join(map(plain, lines))
    sources = {OVERVIEW.jobs[job].source for job in jobs if job != WAITS.id}
    if lines and len(sources) == 2:
        assert ("gke/ml" in text) != ("1 more cluster: v" in text)


def test_the_room_below_all_jobs_shows_who_had_what() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await settled(pilot)
        panel = pilot.app.screen.query_one("#picture", Panel)
        assert panel.display and "cores given, by job" in panel.text and "ads-7f3k2m1p" in panel.text
        await pilot.resize_terminal(80, 24)
        await settled(pilot)
        assert not panel.display and not broken_rules(pilot.app.screen)

    drive(steps, size=(120, 40))


def _drawn(layers: list[Layer], most: float | None, height: int = 12, width: int = 48) -> list[str]:
    lines = stack_chart(layers, width, height, span=(0.0, 40.0), ends=("a", "b"), most=most, written=str)
    return [plain(one).ljust(width)[8:] for one in lines[:-2]]


A, B = (
    Layer("a", Look("A", "good"), ((0.0, 4.0), (20.0, 2.0)), 99.0),
    Layer("b", Look("B", "warn"), ((10.0, 6.0),), 30.0),
)


def test_layers_lie_upon_each_other_from_their_beginning_to_their_end() -> None:
    rows = _drawn([A, B], 10.0)
    columns = ["".join(row[at] for row in rows)[::-1].strip() for at in (5, 15, 25, 35)]
    assert [column.replace("a", "A").replace(" ", "A") for column in columns] == [
        "AAAA",
        "AAAABBBBBB",
        "AABBBBBB",
        "AA",
    ]


def test_a_layer_that_is_thin_is_still_seen() -> None:
    thin = Layer("t", Look("T", "good"), ((0.0, 0.01),), 99.0)
    assert "".join(_drawn([A, thin], 100.0, height=6)).count("T") == 37  # and its name


STEPS = st.lists(st.tuples(st.floats(0, 40), st.floats(0, 1e6)), max_size=5).map(lambda steps: tuple(sorted(steps)))


@given(st.lists(STEPS, max_size=8), st.integers(1, 90), st.integers(1, 30), st.one_of(st.none(), st.floats(1, 1e6)))
def test_stacks_fit_their_size(
    jobs: list[tuple[tuple[float, float], ...]], width: int, height: int, most: float | None
) -> None:
    layers = [Layer(f"job-{at}", look_of(at), steps, 30.0) for at, steps in enumerate(jobs)]
    lines = stack_chart(layers, width, height, span=(0.0, 40.0), ends=("a", "b"), most=most, written=str)
    assert len(lines) in (0, height)
    assert all(length(one) == width for one in lines)


def test_rows_know_what_a_job_was_given_and_where_it_is() -> None:
    fold = JobsFold()
    plan = Plan(RolePlan(1, Resources(1.0, GIB)), RolePlan(2, Resources(0.5, GIB)))
    fold.put(JobNews("a", "a", "me", "m", "running", NOW, NOW, None, 0, "", ""))
    fold.take(WatchedJobs(plans=(PlanNews("a", NOW + 1, plan),)))
    nodes = tuple(
        LocalNode(role, "up", 0.5, GIB, host=host) for role, host in (("ps", "x"), ("worker", "x"), ("worker", "y"))
    )
    fold.hear("a", LocalStatus("training", 1, 2, 3.0, 4.0, nodes), NOW + 2)
    row = fold.rows(NOW + 2)["a"]
    assert [one.at for one in row.given] == [NOW + 1]
    assert row.given[0].memory == 3 * GIB
    assert row.hosts == (HostShare("x", 1, 1, 1.0, 2 * GIB), HostShare("y", 1, 0, 0.5, GIB))
    fold.hear("a", LocalStatus("queued", 1, 2, 3.0, 4.0), NOW + 3)
    assert fold.rows(NOW + 3)["a"].given[-1] == Given(NOW + 3, 0.0, 0)
    assert FAR.hosts[0].host == "gke-pool-1"


def test_what_is_used_is_a_part_of_what_is_given_and_that_of_what_there_is() -> None:
    here = msgspec.structs.replace(OVERVIEW, jobs={one.id: one for one in (FEED, ADS)}, hosts=(HERE,))
    bars = next(one for one in _text(here, width=100).splitlines() if "used ▒ given" in one)
    cores, memory = re.findall(r"▕([^▏]*)▏", bars)
    assert len(cores) == len(memory) == 32
    assert (cores.count("█"), cores.count("▒")) == (round(32 * 2.8 / 4), round(32 * 3.5 / 4) - round(32 * 2.8 / 4))
    assert (memory.count("█"), memory.count("▒")) == (10, 10)


def test_the_job_that_is_pointed_to_is_among_those_that_are_told_of() -> None:
    many = {one.id: one for one in (job(f"job-{at:04}", (600.0, 0.5, 1.0)) for at in range(100))}
    waiting = {one.id: one for one in (job(f"wait-{at:02}", state="queued") for at in range(30))}
    view = JobsView(many | waiting, "", None, (HERE,))
    jobs = jobs_in(view, NOW)
    assert set(jobs) == set(many) | set(waiting)
    for chosen in (jobs[0], jobs[50], jobs[99], jobs[100], jobs[129]):
        pointed = [plain(one) for one in overview(view, 120, 40, NOW, chosen) if "▸" in plain(one)]
        assert len(pointed) == 1 and chosen in pointed[0]


def test_tab_points_to_jobs_and_enter_opens_one() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("v", "tab", "tab", "shift+tab")
        jobs = jobs_in(VIEW, NOW)
        assert len(jobs) == 2
        await settled(pilot)
        assert f"▸ waits {jobs[1]}" in screen_text(pilot)
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, JobScreen)
        assert pilot.app.screen.job == jobs[1]

    drive(steps)


def test_without_a_job_that_runs_enter_opens_none() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("v", "enter", "tab")
        assert told(pilot.app) == ["There is no job that runs or waits"]  # type: ignore[arg-type]

    drive(steps, the_app(FixedSource(JobsView())))
