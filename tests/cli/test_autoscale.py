"""``autoscale`` over a master that runs, and ``plan`` with the index that ``run --check-index`` compares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dlrover_lite.cli.main import cli
from tests.cli.documented import check

RECIPE = "version: 1\nname: ads\nmodel: wide_deep\ndata: {format: synthetic, samples: 100000}\ncheckpoint: off\n"


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    path = tmp_path / "ads.yaml"
    path.write_text(RECIPE)
    yield str(path)


def ask(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_a_plan_is_shown_with_an_index_that_holds_until_the_world_moves(recipe: str) -> None:
    shown = ask("plan", recipe, "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    check("## plan", found)
    check("### a candidate", found["candidates"][0])
    assert [one["chosen"] for one in found["candidates"]].count(True) == 1
    assert json.loads(ask("plan", recipe, "--json").stdout)["index"] == found["index"]
    other = json.loads(ask("plan", recipe, "--set", "training.batch_size=64", "--json").stdout)
    assert other["index"] != found["index"]
    refused = ask("run", recipe, "--set", "training.batch_size=64", "--check-index", found["index"])
    assert refused.exit_code != 0 and "has moved" in str(refused.exception)
    text = ask("plan", recipe).output
    assert f"index {found['index']}" in text and "It would end at" in text


def test_explain_without_a_decision_is_an_error(recipe: str) -> None:
    assert "no history" in str(ask("explain", "ads-1").exception)
    ask("plan", recipe)
    assert "no job" in str(ask("explain", "ads-1").exception)
