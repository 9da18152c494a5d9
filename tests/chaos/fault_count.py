"""How many faults all tests of a run have done, by kind: printed at its end, also when several processes ran the tests."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.points import POINTS

__all__ = ["FaultCount"]

_PROPERTY = "fault: "


class FaultCount:
    """A plugin of pytest's."""

    def __init__(self) -> None:
        self._done: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":  # each report of a test has its properties, the last one all of them
            return
        for name, value in report.user_properties:
            if name.startswith(_PROPERTY) and isinstance(value, int):
                self._done[name.removeprefix(_PROPERTY)] += value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._done:
            return
        terminalreporter.section("faults done")
        for line in lines(self._done):
            terminalreporter.write_line(line)


def lines(done: Counter[str]) -> list[str]:
    """A line for each kind, and the sum; failpoints are summed up by what was done there."""
    kinds: Counter[str] = Counter()
    points: dict[str, set[str]] = {}
    for kind, count in done.items():
        action, at, name = kind.partition(" at ")
        if at:
            points.setdefault(action, set()).add(name)
        kinds[f"{action} at a failpoint" if at else kind] += count
    told = []
    for kind, count in sorted(kinds.items()):
        reached = points.get(kind.partition(" at ")[0]) if " at " in kind else None
        told.append(f"{count:>8,} x {kind}" + (f" ({len(reached)} of {len(POINTS)})" if reached else ""))
    return [*told, f"{kinds.total():>8,} in all"]
