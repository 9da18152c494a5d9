"""Checks as commands print them."""

from __future__ import annotations

import json

import pytest

from dlrover_lite.backends.checks import Check
from dlrover_lite.cli.checks import show_checks


def test_what_several_say_is_to_be_done_is_said_once_after_them(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [
        Check("rights", "problem", "you may not make pods", "Ask for it."),
        Check("rights", "warning", "you may not list events", "Ask for it."),
        Check("server", "ok", "v1", ""),
        Check("quotas", "problem", "none is left", "Ask for more."),
    ]
    assert show_checks(checks, as_json=False) == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[-1] for line in lines] == ["pods", "events", "it.", "v1", "left", "more."]


def test_json_has_every_checks_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_checks([Check("rights", "warning", "a", "Do."), Check("rights", "ok", "b", "Do.")], as_json=True) == 0
    assert [one["hint"] for one in json.loads(capsys.readouterr().out)["checks"]] == ["Do.", "Do."]
