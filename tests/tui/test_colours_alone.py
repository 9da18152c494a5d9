"""Nothing is said by a colour alone: what looks the same without colours has the same colours."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
import re
from collections.abc import Iterator
from typing import get_args

import msgspec
from textual.widget import Widget

import dlrover_lite.tui.screens
import dlrover_lite.tui.widgets
from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui.keys import JOB
from dlrover_lite.tui.model import JobDetail, JobRow, JobsView, NodeRow, Problem
from dlrover_lite.tui.pages import decisions_page, job_page, jobs_page, throughput_chart
from dlrover_lite.tui.pages.key_line import KeyShown, line_of, place
from dlrover_lite.tui.pages.last_change import change_of_job, change_of_jobs
from dlrover_lite.tui.pages.notices_page import Notice, Notices, Severity, notices_lines
from dlrover_lite.tui.pages.overview_page import overview, pulse
from dlrover_lite.tui.text import ANSI, Line, Tone, plain
from dlrover_lite.tui.widgets.toned import TONE_STYLES
from tests.tui.fixed import ADS, DETAIL, EVALUATED, NOW, SUGGESTED

ROUNDS = 80
STATES = ("queued", "training", "succeeded", "failed", "stopped", "suspended", "lost", "starting")
NODE_STATES = ("up", "launched", "ended", "ended (OOMKilled)", "ended (Succeeded)", "pending")
OF_STATES: tuple[Tone, ...] = ("good", "warn", "bad")


def _row(draw: random.Random, number: int = 0) -> JobRow:
    state = draw.choice(STATES)
    over = state in ("succeeded", "failed", "stopped", "suspended", "lost")
    return msgspec.structs.replace(
        ADS,
        id=f"ads-{number}",
        state=state,
        message=draw.choice(["", "why"]),
        ended_at=NOW - 60 if over else None,
        silent_since=None if over else draw.choice([None, None, NOW - 60]),
        used_cores=draw.choice([0.2, 1.7, 2.0]),
        used_memory=ADS.memory and draw.choice([ADS.memory // 4, ADS.memory]),
        samples=draw.choice([0, 9_000_000]),
    )


def _node(draw: random.Random, one: NodeRow) -> NodeRow:
    return msgspec.structs.replace(
        one,
        state=draw.choice(NODE_STATES),
        used_cores=draw.choice([0.1, 0.45, 0.5]),
        used_memory=draw.choice([one.memory // 4, one.memory]),
        throttled=draw.choice([None, 0.0, 0.5]),
        restarts=draw.choice([0, 3]),
        note=draw.choice(["", "waits"]),
    )


def _decision(draw: random.Random, one: Chosen) -> Chosen:
    error = draw.choice([None, 0.01, 0.2, -0.5]) if one.predicted is not None else None
    return msgspec.structs.replace(
        one,
        error=error,
        measured=None if error is None or one.predicted is None else one.predicted * (1 + error),
        done=draw.choice(["", "done", "failed", "rejected"]),
        action=draw.choice([one.action, "stay", "heal", "explore", "preempt", "refuse", "tell"]),
    )


def _detail(draw: random.Random) -> JobDetail:
    checkpoints = DETAIL.checkpoints
    assert checkpoints is not None
    decisions = tuple(_decision(draw, one) for one in DETAIL.decisions)
    return msgspec.structs.replace(
        DETAIL,
        row=_row(draw),
        nodes=tuple(_node(draw, one) for one in DETAIL.nodes),
        decisions=decisions,
        autoscaling=draw.choice([DETAIL.autoscaling, SUGGESTED, None]),
        checkpoints=msgspec.structs.replace(checkpoints, problem=draw.choice(["", "the disk is full"])),
        evaluated=draw.choice([None, EVALUATED]),
        heard=draw.choice([True, False]),
        slots=tuple(msgspec.structs.replace(one, busy=draw.choice([0.1, 0.35, 0.49])) for one in DETAIL.slots),
        shards=DETAIL.shards and msgspec.structs.replace(DETAIL.shards, quarantined=draw.choice([0, 2])),
    )


def _shown(draw: random.Random) -> Iterator[tuple[str, list[Line]]]:
    """What the screens show of jobs in any state: lines that are read one by one, and pictures that are seen as a whole."""
    detail, rows = _detail(draw), [_row(draw, number) for number in range(3)]
    view = JobsView(
        {row.id: row for row in rows},
        draw.choice(["listens", "doesn't run"]),
        draw.choice([None, Problem("gke/ml", "it does not answer", NOW - 60)]),
    )
    width = draw.choice([58, 80, 118])
    jobs, nodes, decided = jobs_page.jobs_table(), job_page.nodes_table(), decisions_page.decisions_table()
    jobs.put(view.jobs)
    nodes.put({node.id: node for node in detail.nodes})
    decided.put(decisions_page.runs(detail, each=True, only_changes=False))
    of_decisions = [one for decision in detail.decisions for one in decisions_page.describe(decision, width)]
    lines = {
        "jobs": jobs.text(width),
        "nodes": nodes.text(width),
        "decisions": decided.text(width),
        "decision": of_decisions,
        "head": job_page.headline(detail, width),
        "change": [change_of_job(detail, width), change_of_jobs(rows, width)],
        "facts": job_page.facts(detail, width, 40, NOW),
        "node": [one for node in detail.nodes for one in job_page.describe_node(node, width)],
        "job": [one for row in rows for one in jobs_page.describe(row, width, NOW)],
        "pulse": pulse(view, width, 20, NOW),
    }
    for page, found in lines.items():
        for one in found:
            yield page, [one]
    yield "overview", overview(view, width, 20, NOW)
    yield "chart", throughput_chart.chart(detail, width, 12, None)
    works = [KeyShown(key, key.short, draw.choice(["", "why not"])) for key in JOB if key.short]
    yield "keys", [line_of(place(works, width), width)]


def _tones(lines: list[Line]) -> tuple[Tone, ...]:
    """The tone of each character that can be seen, where it is that of a state."""
    return tuple(
        tone if tone in OF_STATES else "plain" for line in lines for text, tone in line for one in text if one.strip()
    )


def test_what_looks_the_same_without_colours_has_the_same_colours() -> None:
    draw, known = random.Random(1), dict[tuple[str, str], tuple[Tone, ...]]()
    seen = set[Tone]()
    for _ in range(ROUNDS):
        for page, lines in _shown(draw):
            text, tones = "\n".join(map(plain, lines)), _tones(lines)
            assert known.setdefault((page, text), tones) == tones, f"{page} says it by a colour alone:\n{text}"
            seen.update(tones)
    assert seen >= set(OF_STATES)
    assert len(known) > 800


def test_notices_say_how_severe_they_are() -> None:
    said = []
    for kind in get_args(Severity):
        notices = Notices()
        notices.add(Notice("x", kind, NOW), now=0.0, seconds=9.0)
        said.append("".join(map(plain, notices_lines(notices, 80))))
    assert len(set(said)) == len(said) > 2


_STATE_COLOUR = re.compile(r"\$(?:text-)?(?:success|warning|error)\b")
_ASKS = "Confirm"
"""Its border has a warning's colour; in it is a question."""


def _widgets() -> Iterator[type[Widget]]:
    for package in (dlrover_lite.tui.screens, dlrover_lite.tui.widgets):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for _, one in inspect.getmembers(importlib.import_module(found.name), inspect.isclass):
                if issubclass(one, Widget) and one.__module__ == found.name:
                    yield one


def test_styles_have_colours_of_states_for_tones_alone() -> None:
    """A widget has no colour of a state by itself, which no text would come with."""
    widgets = {one.__name__: one for one in _widgets()}
    assert len(widgets) > 15
    wrong = [
        f"{name}: {line.strip()}"
        for name, one in widgets.items()
        for line in vars(one).get("DEFAULT_CSS", "").splitlines()
        if _STATE_COLOUR.search(line) and name != _ASKS
    ]
    assert not wrong
    assert all(_STATE_COLOUR.search(TONE_STYLES[tone]) for tone in OF_STATES)


def test_every_tone_has_a_style_on_the_screen_and_in_a_terminal() -> None:
    tones = set(get_args(Tone))
    assert set(ANSI) == tones
    assert set(TONE_STYLES) == tones


def test_what_a_search_finds_is_no_colour() -> None:
    assert "$" not in TONE_STYLES["found"] + TONE_STYLES["here"]
    assert "underline" in TONE_STYLES["found"] and "reverse" in TONE_STYLES["here"]
