"""The logs of all nodes as one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlrover_lite.core.errors import JobError
from dlrover_lite.tui.sources.job_log import JobLogTail
from dlrover_lite.tui.sources.log_tail import KEPT_LINES
from dlrover_lite.tui.text import plain


class FixedLog:
    def __init__(self) -> None:
        self.new: list[str] = []
        self.begun = ""
        self.restarts = 0
        self.fails = ""

    def new_lines(self, *, at_end: bool = False) -> Iterator[str]:
        if self.fails:
            raise JobError(self.fails)
        new, self.new = self.new, []
        yield from new


@pytest.fixture
def logs() -> dict[str, FixedLog]:
    return {"ps-0": FixedLog(), "worker-10": FixedLog()}


def tail_of(logs: dict[str, FixedLog]) -> JobLogTail:
    return JobLogTail(lambda: list(logs), lambda name, _lines: logs[name])


def texts(tail: JobLogTail) -> list[str]:
    return [plain(line) for line in tail.read().lines]


def test_lines_are_in_order_of_time_and_have_their_node(logs: dict[str, FixedLog]) -> None:
    tail = tail_of(logs)
    assert texts(tail) == ["(nothing so far)"]
    logs["ps-0"].new = ["2026-11-22 14:00:01 one", "2026-11-22 14:00:03 three", "Traceback", "  of three"]
    logs["worker-10"].new = ["2026-11-22T14:00:02,5 two", "2026-11-22 14:00:04 four"]
    assert texts(tail) == [
        "ps-0      │ 2026-11-22 14:00:01 one",
        "worker-10 │ 2026-11-22T14:00:02,5 two",
        "ps-0      │ 2026-11-22 14:00:03 three",
        "ps-0      │ Traceback",
        "ps-0      │   of three",
        "worker-10 │ 2026-11-22 14:00:04 four",
    ]
    assert tail.read() is tail.read()


def test_a_line_that_comes_late_is_put_where_it_belongs_and_a_new_node_is_read(logs: dict[str, FixedLog]) -> None:
    tail = tail_of(logs)
    logs["ps-0"].new = ["2026-11-22 14:00:05 later"]
    tail.read()
    logs["a"] = FixedLog()
    logs["a"].new = ["no time of its own", "2026-11-22 14:00:04 earlier"]
    logs["worker-10"].begun = "not yet who"
    assert [text.split()[-1] for text in texts(tail)] == ["own", "earlier", "later", "who"]


def test_a_log_that_cannot_be_read_is_told_and_the_others_are_shown(logs: dict[str, FixedLog]) -> None:
    tail = tail_of(logs)
    logs["ps-0"].fails = "its pod is gone"
    logs["worker-10"].new = ["2026-11-22 14:00:05 it works"]
    assert texts(tail) == ["worker-10 │ 2026-11-22 14:00:05 it works", "ps-0      │ (can't be read: its pod is gone)"]
    logs["ps-0"].fails = ""
    logs["ps-0"].restarts = 1
    assert texts(tail) == ["worker-10 │ 2026-11-22 14:00:05 it works"]


def test_a_log_begun_anew_has_none_of_its_lines_of_before(logs: dict[str, FixedLog]) -> None:
    tail = tail_of(logs)
    logs["ps-0"].new = ["old"]
    logs["worker-10"].new = ["kept"]
    tail.read()
    logs["ps-0"].restarts = 1
    logs["ps-0"].new = ["new"]
    assert [text.partition("│ ")[2] for text in texts(tail)] == ["kept", "new"]


def test_of_many_lines_the_last_are_kept_and_the_others_counted(logs: dict[str, FixedLog]) -> None:
    tail = tail_of(logs)
    logs["ps-0"].new = [f"2026-11-22 14:00:00 {i}" for i in range(KEPT_LINES)]
    logs["worker-10"].new = ["2026-11-22 14:00:01 last"]
    found = tail.read()
    assert (len(found.lines), found.gone) == (KEPT_LINES, 1)
    assert plain(found.lines[-1]).endswith("last")
