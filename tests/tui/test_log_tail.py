from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.backends.local.jobs.job_logs import LogFile
from dlrover_lite.tui.sources.log_tail import KEPT_LINES, LogTail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.log"


def tail_of(path: Path) -> LogTail:
    return LogTail(lambda lines: LogFile(path, last_lines=lines))


def _add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_new_lines_of_a_log_are_read_once(path: Path) -> None:
    _add(path, "one\ntwo\n")
    tail = tail_of(path)
    first = tail.read()
    assert first == ("one", "two")
    assert tail.read() is first
    _add(path, "thr")
    assert tail.read() == ("one", "two", "thr")
    _add(path, "ee\nfour\n")
    assert tail.read() == ("one", "two", "three", "four")


def test_of_a_long_log_the_end_is_read_in_whole_lines(path: Path) -> None:
    _add(path, "".join(f"line {i}\n" for i in range(100_000)))
    lines = tail_of(path).read()
    assert lines[-1] == "line 99999"
    assert len(lines) == KEPT_LINES
    assert all(line.startswith("line ") for line in lines)


def test_a_log_begun_anew_is_read_anew(path: Path) -> None:
    _add(path, "one\ntwo\n")
    tail = tail_of(path)
    tail.read()
    path.write_text("new\n")
    assert tail.read() == ("new",)
    path.write_text("")
    assert tail.read() == ("(nothing so far)",)


def test_control_characters_in_a_log_are_removed(path: Path) -> None:
    path.write_bytes(b"a\x1b[2Jb\tc\r\n\xff\n")
    lines = tail_of(path).read()
    assert all(line.isprintable() for line in lines)
    assert lines[0].startswith("a")


@pytest.mark.parametrize("there", [True, False])
def test_a_log_without_a_line_says_so(path: Path, there: bool) -> None:
    if there:
        path.touch()
    tail = tail_of(path)
    assert tail.read() == ("(nothing so far)",)
    _add(path, "one\n")
    assert tail.read() == ("one",)
