"""Tables and progress, on a terminal and without one."""

from __future__ import annotations

import io
import re
import sys

import msgspec
import pytest

from dlrover_lite.cli import output
from dlrover_lite.cli.output import TerminalDisplay

KEY = "clicks-20260102-030405-a-job-with-a-long-name"
COLUMNS = ("job", "state", "samples", "where")
ROWS = [(KEY, "running", 1200, "/a/very/long/path/" * 8), ("b", "done", None, "x")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """From now on, both outputs are this terminal. (In a fixture, pytest's capturing would take them back.)"""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "LINES"):
        monkeypatch.delenv(name, raising=False)
    return stream


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_table_in_a_pipe_is_never_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output.table(COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["JOB", "STATE", "SAMPLES", "WHERE"]
    assert lines[1].split() == [KEY, "running", "1200", "/a/very/long/path/" * 8]
    assert lines[2].split() == ["b", "done", "-", "x"]
    assert lines[1].index("1200") + 4 == lines[2].index("-") + 1  # numbers end in the same column
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [200, 80, 60])
def test_a_terminal_is_never_exceeded_and_the_key_is_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(width))
    output.table(COLUMNS, ROWS)
    lines = without_colours(terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 3
    assert lines[1].startswith(KEY)
    assert lines[1].rstrip().endswith("…") or width > 190


def test_a_key_wider_than_the_terminal_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "30")
    output.table(("job",), [(KEY,)])
    lines = without_colours(terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= 30
    assert "".join(line.strip() for line in lines[1:]) == KEY


def test_no_color_turns_colours_off(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    output.table(("job",), [("[red]a[/red]",)])
    assert "\x1b[" in terminal.getvalue()
    terminal.truncate(0)
    monkeypatch.setenv("NO_COLOR", "1")
    output.table(("job",), [("[red]a[/red]",)])
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", terminal.getvalue())
    assert "[red]a[/red]" in terminal.getvalue()


def test_control_characters_are_removed_from_tables_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("job",), [("a\x1b[31m\nb",)])
    output.note("a\x07b\nc")
    captured = capsys.readouterr()
    assert captured.out == "JOB\na [31m b\n"
    assert captured.err == "a b\nc\n"


def test_an_empty_table_prints_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(COLUMNS, [])
    assert capsys.readouterr().out.split() == ["JOB", "STATE", "SAMPLES", "WHERE"]


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    class Job(msgspec.Struct):
        name: str

    output.emit_json({"job": Job("a\nb"), "n": 1.5})
    assert capsys.readouterr().out == '{"job":{"name":"a\\nb"},"n":1.5}\n'


def test_progress_without_a_terminal_is_a_line_now_and_then() -> None:
    now = 0.0
    stream = io.StringIO()
    with output.progress("Training", 200, clock=lambda: now, stream=stream) as report:
        for step in range(1, 26):
            now += 1
            report(step * 8, note=f"step {step}")
    assert stream.getvalue().splitlines() == [
        "Training 40%: step 10",
        "Training 80%: step 20",
        "Training 100%: step 25",
    ]


def test_progress_of_a_unit_says_how_much_how_fast_and_how_long() -> None:
    now = 100.0
    stream = io.StringIO()
    with output.progress("Checking", 200 << 20, unit="bytes", clock=lambda: now, stream=stream) as report:
        report(0)
        for step in range(1, 26):
            now += 1
            report(step * (8 << 20), note="cut 3")
    assert stream.getvalue().splitlines() == [
        "Checking 40%: cut 3, 80 MiB of 200 MiB, 8 MiB/s, 0:15 left",
        "Checking 80%: cut 3, 160 MiB of 200 MiB, 8 MiB/s, 0:05 left",
        "Checking 100%: cut 3, 200 MiB of 200 MiB, 8 MiB/s",
    ]


def test_progress_of_rows_with_unknown_total() -> None:
    now = 0.0
    stream = io.StringIO()
    with output.progress("Loading", unit="rows", clock=lambda: now, stream=stream) as report:
        now = 2.0
        report(3_000_000)
    assert stream.getvalue() == "Loading: 3.00 M rows, 1.50 M rows/s\n"


def test_progress_is_not_100_percent_before_it_is_done() -> None:
    stream = io.StringIO()
    with output.progress("Loading", 1000, stream=stream) as report:
        report(999)
    assert stream.getvalue() == "Loading 99%\n"


def test_steps_of_progress_are_shown_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalDisplay().steps() as steps:
        for done in (1, 5):
            steps("loading", done, 5, "rows")
        steps("evaluating", 7, 7, "samples")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("loading 100%: 5 of 5 rows, ")
    assert second.startswith("evaluating 100%: 7 of 7 samples, ")


def test_progress_says_nothing_twice() -> None:
    stream = io.StringIO()
    with output.progress("Training", clock=iter(range(0, 1000, 10)).__next__, stream=stream) as report:
        report(note="a")
    assert stream.getvalue() == "Training: a\n"


def test_progress_without_news_is_silent() -> None:
    stream = io.StringIO()
    with output.progress("Training", stream=stream):
        pass
    assert stream.getvalue() == ""


def test_progress_on_a_terminal_fits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "60")
    with output.progress("Indexing", 10) as report:
        report(5, note="[bold]" + "words " * 30)
    text = without_colours(terminal.getvalue())
    assert "Indexing" in text and "50%" in text and "[bold]" in text
    assert all(len(line) <= 60 for line in re.split(r"[\r\n]", text))


def test_less_important_columns_are_dropped_on_narrow_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, row = (
        ("job", "state", "started", "samples"),
        ("clicks-2mxkw3p3", "succeeded", "2026-01-02 03:04:05", "200,000"),
    )
    for width, expected in [
        (80, "clicks-2mxkw3p3 succeeded 2026-01-02 03:04:05 200,000"),
        (50, "clicks-2mxkw3p3 succeeded 2026-01-02 0… 200,000"),
        (40, "clicks-2mxkw3p3 succeeded 200,000"),
        (30, "clicks-2mxkw3p3 succeeded"),
    ]:
        terminal = on_terminal(monkeypatch)
        monkeypatch.setenv("COLUMNS", str(width))
        output.table(columns, [row], drop=("started", "samples"))
        lines = without_colours(terminal.getvalue()).splitlines()
        assert " ".join(lines[1].split()) == expected
        assert max(map(len, lines)) <= width
