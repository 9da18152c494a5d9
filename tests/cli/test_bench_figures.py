"""Figures that were measured are kept, and the page of them says what is kept."""

from __future__ import annotations

import datetime
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.repository.sources import ROOT


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("_figures")


def measured(name: str, value: float, target: str = ">= 1.5") -> dict[str, object]:
    return {"figure": name, "value": value, "unit": "x", "target": target, "ok": True, "baseline": 1.0, "detail": {}}


def test_the_page_of_figures_is_up_to_date_with_the_records(figures: ModuleType) -> None:
    """And every figure that was says what it is."""
    assert figures.PAGE.read_text() == figures.page(figures.read())


def test_the_median_of_the_newest_commits_runs_counts(figures: ModuleType, tmp_path: Path) -> None:
    records = tmp_path / "figures.jsonl"
    figures.add([measured("train.ratio", 9.0)], "0000001", records)
    for value in (1.6, 1.2, 1.4):
        figures.add([measured("train.ratio", value)], "0000002", records)
    figures.add([measured("wire.curve_ratio", 2500.0, "")], "0000002", records)
    rows = [line for line in figures.page(figures.read(records)).splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    date = json.loads(records.read_text().splitlines()[0])["date"]
    assert [row[0] for row in cells] == ["`train.ratio`", "`wire.curve_ratio`"]
    assert cells[0][2:] == ["1.4 x (1.2 to 1.6)", ">= 1.5", "**no**", "3", date, "30", "`0000002`"]
    assert cells[1][2:] == ["2,500 x", "", "", "1", date, "60", "`0000002`"]


def test_no_figure_is_older_than_its_code_by_more_than_its_row_says(figures: ModuleType) -> None:
    assert {name.partition(".")[0] for name in figures.MEANINGS} == figures.AGES.keys()
    for group, age in figures.AGES.items():
        assert [path for path in age["code"] if not (ROOT / path).exists()] == [], group
    if not (ROOT / ".git").exists():
        pytest.skip("without its history nothing says when code has changed")
    assert figures.overdue(figures.read()) == []


def test_a_figure_that_is_too_old_is_named(figures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        figures.Record(name, 1.0, "x", "", None, date, "0000001")
        for name, date in (
            ("cli.help_ratio", "2026-01-01"),
            ("wire.curve_ratio", "2026-01-01"),
            ("cli.help_ratio", "2026-02-01"),
        )
    ]
    monkeypatch.setattr(figures, "_changed_on", lambda _: datetime.date(2026, 3, 3))
    assert figures.overdue(records) == [
        "wire.curve_ratio was measured 61 days before its code changed last: python bench/all.py --record"
    ]
    monkeypatch.setattr(figures, "_changed_on", lambda _: datetime.date(2026, 3, 4))
    assert [line.split()[0] for line in figures.overdue(records)] == ["cli.help_ratio", "wire.curve_ratio"]


def test_a_figure_without_an_explanation_is_refused(figures: ModuleType, tmp_path: Path) -> None:
    records = tmp_path / "figures.jsonl"
    figures.add([measured("train.unheard_of", 1.0)], "0000001", records)
    with pytest.raises(KeyError, match="unheard_of"):
        figures.page(figures.read(records))


def test_a_figure_that_nothing_explains_is_kept_and_named(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It must not cost the scripts after it."""
    every, records = importlib.import_module("all"), tmp_path / "figures.jsonl"
    found = iter([[measured("train.unheard_of", 1.0)], [measured("train.ratio", 1.6)]])
    monkeypatch.setattr(every, "run", lambda *_, **__: (next(found), True))
    monkeypatch.setattr(figures, "version", lambda: "0000001")
    for name in ("add", "read"):
        original = getattr(figures, name)
        monkeypatch.setattr(figures, name, lambda *given, original=original: original(*given, records))
    monkeypatch.setattr(sys, "argv", ["all.py", "--record", "cli", "wire"])
    assert every.main() == 1
    assert [record.figure for record in figures.read()] == ["train.unheard_of", "train.ratio"]
    assert "train.unheard_of: kept, but not in docs/figures.md" in capsys.readouterr().err


def test_every_figure_of_checkpoints_is_explained_before_it_is_measured(figures: ModuleType) -> None:
    """It takes a quarter of an hour to find out otherwise."""
    names = {f"checkpoint.{name}" for name in importlib.import_module("checkpoint").FIGURES}
    assert not names - figures.MEANINGS.keys()


def test_only_committed_code_can_be_measured(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True
        )

    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "code.py").write_text("1\n")
    (tmp_path / "bench" / "figures.jsonl").write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "code")
    monkeypatch.setattr(figures, "HERE", tmp_path / "bench")
    assert len(figures.version()) == 7
    (tmp_path / "bench" / "figures.jsonl").write_text("{}\n")  # what recording itself writes
    assert figures.version()
    for name in ("bench/code.py", "recipe.yaml"):
        (tmp_path / name).write_text("2\n")
        git("add", "-N", name)
        with pytest.raises(SystemExit, match=name):
            figures.version()
        git("add", name)
        git("commit", "-qm", "more", "--", name)
