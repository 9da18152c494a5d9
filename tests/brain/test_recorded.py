"""Decisions of recorded histories come out as they were recorded: ``histories/README.md`` says what to do when they don't."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dlrover_lite.brain.planning.job_view import Policy
from tests.brain.recording import DIRECTORY, Scale, changes, differences, load, main, save
from tests.brain.scenarios import SCENARIOS

HISTORIES = sorted(DIRECTORY.glob("*.jsonl"))


def test_every_scenario_is_recorded() -> None:
    assert [path.stem for path in HISTORIES] == sorted(SCENARIOS)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_recorded_decisions_have_not_changed(path: Path) -> None:
    if found := changes(path):
        pytest.fail("\n".join([*found, f"If that is meant: python -m tests.brain.recording --accept {path.stem}"]))


@pytest.fixture
def altered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history that was decided under another policy."""
    history = load(DIRECTORY / "ageing-queue.jsonl")
    first = history.steps[2]
    assert isinstance(first, Scale)
    inputs = msgspec.structs.replace(first.inputs, policy=Policy(reserve_after_seconds=1e6))
    path = tmp_path / "altered.jsonl"
    save(path, msgspec.structs.replace(history, steps=[Scale(inputs, first.choices), *history.steps[3:]]))
    monkeypatch.setattr("tests.brain.recording.DIRECTORY", tmp_path)
    return path


def test_a_changed_decision_is_named(altered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = changes(altered)
    assert 'altered.jsonl, step 1 (scale): decided[small-1].action was "queue", and is now "start"' in found
    assert not any("step 2" in text for text in found)
    assert main([]) == 1
    assert "small-1" in capsys.readouterr().out


def test_accepting_records_a_changed_decision(altered: Path) -> None:
    inputs = load(altered).steps[0].inputs
    assert main(["--accept", "another"]) == 0
    assert changes(altered)
    assert main(["--accept", "altered"]) == 0
    assert changes(altered) == []
    assert load(altered).steps[0].inputs == inputs
    assert main([]) == 0


def test_recorded_numbers_may_differ_by_rounding() -> None:
    assert list(differences({"a": [1.0, "x"]}, {"a": [1.000001, "x"]})) == []
    assert list(differences({"a": [1.0, "x"]}, {"a": [1.1, "y"]})) == [
        "a[0] was 1.0, and is now 1.1",
        'a[1] was "x", and is now "y"',
    ]
    assert list(differences({"a": 1}, {"b": None})) == ["a was 1, and is now nothing"]
    assert list(differences([1], [1, 2])) == [" was [1], and is now [1,2]"]
