from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.core.errors import JobError
from dlrover_lite.tui.sources.log_tail import KEPT_LINES, LogTail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.log"


def _add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_new_lines_of_a_log_are_read_once(path: Path) -> None:
    _add(path, "one\ntwo\n")
    tail = LogTail(path)
    first = tail.read()
    assert first == ("one", "two")
    assert tail.read() is first
    _add(path, "thr")
    assert tail.read() == ("one", "two", "thr")
    _add(path, "ee\nfour\n")
    assert tail.read() == ("one", "two", "three", "four")


def test_of_a_long_log_the_end_is_read_in_whole_lines(path: Path) -> None:
    _add(path, "".join(f"line {i}\n" for i in range(100_000)))
    lines = LogTail(path).read()
    assert lines[-1] == "line 99999"
    assert len(lines) == KEPT_LINES
    assert all(line.startswith("line ") for line in lines)


def test_a_log_begun_anew_is_read_anew(path: Path) -> None:
    _add(path, "one\ntwo\n")
    tail = LogTail(path)
    tail.read()
    path.write_text("new\n")
    assert tail.read() == ("new",)


def test_control_characters_in_a_log_are_removed(path: Path) -> None:
    path.write_bytes(b"a\x1b[2Jb\tc\r\n\xff\n")
    lines = LogTail(path).read()
    assert all(line.isprintable() for line in lines)
    assert lines[0].startswith("a")


def test_an_empty_or_missing_log_says_so(path: Path) -> None:
    with pytest.raises(JobError, match="Can't read"):
        LogTail(path).read()
    path.touch()
    tail = LogTail(path)
    assert tail.read() == ("(nothing so far)",)
    _add(path, "one\n")
    assert tail.read() == ("one",)
