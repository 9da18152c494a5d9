from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.backends.local.jobs.job_logs import LogFile
from dlrover_lite.tui.sources.log_tail import KEPT_LINES, LogTail
from dlrover_lite.tui.text import plain


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.log"


def tail_of(path: Path) -> LogTail:
    return LogTail(lambda lines: LogFile(path, last_lines=lines))


def texts(tail: LogTail) -> tuple[str, ...]:
    return tuple(plain(line) for line in tail.read().lines)


def _add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_new_lines_of_a_log_are_read_once(path: Path) -> None:
    _add(path, "one\ntwo\n")
    tail = tail_of(path)
    first = tail.read()
    assert texts(tail) == ("one", "two")
    assert tail.read() is first
    _add(path, "thr")
    assert texts(tail) == ("one", "two", "thr")
    _add(path, "ee\nfour\n")
    assert texts(tail) == ("one", "two", "three", "four")


def test_of_a_long_log_the_end_is_read_in_whole_lines(path: Path) -> None:
    _add(path, "".join(f"line {i}\n" for i in range(100_000)))
    lines = texts(tail_of(path))
    assert lines[-1] == "line 99999"
    assert len(lines) == KEPT_LINES
    assert all(line.startswith("line ") for line in lines)


def test_lines_that_are_not_kept_any_more_are_counted(path: Path) -> None:
    _add(path, "first\n")
    tail = tail_of(path)
    assert tail.read().gone == 0
    _add(path, "".join(f"line {i}\n" for i in range(KEPT_LINES + 2)))
    assert (tail.read().gone, texts(tail)[0]) == (3, "line 2")
    path.write_text("new\n")
    assert tail.read().gone == KEPT_LINES + 3


def test_a_log_begun_anew_is_read_anew(path: Path) -> None:
    _add(path, "one\ntwo\n")
    tail = tail_of(path)
    tail.read()
    path.write_text("new\n")
    assert texts(tail) == ("new",)
    path.write_text("")
    assert texts(tail) == ("(nothing so far)",)


def test_control_characters_in_a_log_are_removed(path: Path) -> None:
    path.write_bytes(b"a\x1b[2Jb\tc\r\n\xff\n")
    lines = texts(tail_of(path))
    assert all(line.isprintable() for line in lines)
    assert lines[0].startswith("a")


@pytest.mark.parametrize("there", [True, False])
def test_a_log_without_a_line_says_so(path: Path, there: bool) -> None:
    if there:
        path.touch()
    tail = tail_of(path)
    assert texts(tail) == ("(nothing so far)",)
    _add(path, "one\n")
    assert texts(tail) == ("one",)
