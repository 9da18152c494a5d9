"""The progress line's words, and logs that grow."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.backends.local.jobs.job_logs import LogFile
from dlrover_lite.cli.summary import summary_lines
from dlrover_lite.client.progress_line import ProgressLine, evaluation_text, progress_text
from dlrover_lite.core import words
from dlrover_lite.core.expected_end import ExpectedEnd
from dlrover_lite.jobs import final_status
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.questions import EvaluationResult, ExportStatus, NodeStatus, RestoreStatus, Status

END = ExpectedEnd(1_000_053.0, 4.0)


def node(name: str, state: str) -> NodeStatus:
    return NodeStatus(name, name.partition("-")[0], state, 1.0, 1 << 30)


def status(**changes: object) -> Status:
    known = {name: getattr(final_status.starting(Job(Path("a-job"))), name) for name in Status.__struct_fields__}
    training = {"state": "training", "samples": 1_234_567, "total_samples": 4_000_000, "samples_per_second": 52_236.4}
    nodes = [node("ps-0", "up"), node("worker-0", "up"), node("worker-1", "up")]
    return Status(
        **{**known, **training, "loss": 0.43137, "auc": 0.81657, "nodes": nodes, "expected_end": END, **changes}
    )


def test_progress_shows_everything_when_there_is_room() -> None:
    expected = "30%  1,234,567/4,000,000  52,236/s  loss 0.4314  AUC 0.8166  3 nodes  0:53 left ±4s"
    assert progress_text(status(), now=1_000_000.0) == expected
    assert progress_text(status(), 83, now=1_000_000.0) == expected
    short = "30%  1.23 M/4.00 M  52.2 k/s  loss 0.4314  AUC 0.8166  3 nodes  0:53 left ±4s"
    assert progress_text(status(), 82, now=1_000_000.0) == short


def test_an_unknown_expected_end_is_not_shown() -> None:
    assert "left" not in progress_text(status(expected_end=None))
    assert "left" not in progress_text(status(state="evaluating"), now=1_000_000.0)
    assert "0:00 left ±?" in progress_text(status(expected_end=ExpectedEnd(5.0, None)), now=6.0)


@pytest.mark.parametrize("width", range(1, 90))
def test_progress_fits_any_width_and_begins_with_the_percentage(width: int) -> None:
    text = progress_text(status(), width)
    assert 0 < len(text) <= width
    assert text.startswith("30%"[: width - 1])


def test_progress_counts_nodes_that_are_not_up() -> None:
    nodes = [node("ps-0", "up"), node("worker-0", "ended (Killed: SIGKILL)"), node("worker-1", "launched")]
    assert "1/2 nodes" in progress_text(status(nodes=nodes))


def test_without_a_terminal_progress_is_a_line_now_and_then_with_news() -> None:
    now, stream = 0.0, io.StringIO()
    line = ProgressLine(stream, clock=lambda: now)
    for _ in range(100):
        now += 1.0
        line.show(status())
    assert len(stream.getvalue().splitlines()) == 1
    for samples in range(100):
        now += 1.0
        line.show(status(samples=samples))
    assert len(stream.getvalue().splitlines()) == 1 + 20


def test_evaluations_are_told_once_whichever_of_them_a_status_has() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream, clock=lambda: 0.0)
    known = [EvaluationResult(1000 * i, 500, 0.5, 0.75) for i in range(5)]
    line.show(status(evaluations=known[:4]))
    line.show(status(state="starting", evaluations=[]))  # its master is away
    line.show(status(state="succeeded", evaluations=known[2:]))  # the newest ones
    again = msgspec.structs.replace(known[1], loss=0.25)  # after a checkpoint was gone back to
    line.show(status(evaluations=[known[0], again]))
    told = [text for text in stream.getvalue().splitlines() if text.startswith("evaluated")]
    assert told == [evaluation_text(one) for one in [*known, again]]


def test_a_node_that_finds_no_place_is_told_once_and_again_when_it_happens_again() -> None:
    clock, stream = [0.0], io.StringIO()
    line = ProgressLine(stream, clock=lambda: clock[0])
    words = "worker-1 is pending: 0/1 nodes are available: 1 Insufficient cpu."

    def told(at: float, state: str) -> int:
        clock[0] = at
        line.show(status(nodes=[node("worker-1", state)]))
        return stream.getvalue().splitlines().count(words)

    pending = "launched (pending: 0/1 nodes are available: 1 Insufficient cpu.)"
    assert [told(at, pending) for at in (0.0, 9.0, 11.0, 30.0)] == [0, 0, 1, 1]
    assert told(31.0, "up") == 1
    assert [told(at, pending) for at in (40.0, 49.0, 51.0, 60.0)] == [1, 1, 2, 2]


def test_evaluations_and_lost_nodes_get_a_line_of_their_own_once() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream, clock=lambda: 0.0)
    first = EvaluationResult(1000, 500, 0.5, 0.75)
    lost = [node("worker-0", "ended (Killed: SIGKILL, sent by the system)"), node("worker-1", "ended (Succeeded)")]
    line.show(status(evaluations=[first]))
    line.show(status(evaluations=[first], nodes=lost))
    line.show(status(evaluations=[first, EvaluationResult(2000, 500, float("nan"), None)], nodes=lost))
    lines = [text for text in stream.getvalue().splitlines() if "%" not in text]
    assert lines == [
        "evaluated at 1,000 samples: AUC 0.7500, loss 0.5000 (on 500 samples)",
        "worker-0 ended (Killed: SIGKILL, sent by the system)",
        "evaluated at 2,000 samples: AUC -, loss - (on 500 samples)",
    ]


def test_queue_place_and_plan_get_a_line_of_their_own_once() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream, clock=lambda: 0.0)
    place, begins = (
        "it waits, number {} in the queue: there is no room",
        "begins with 1 ps, 1 worker (decision {}: why)",
    )
    for state, message, plan in (
        ("starting", "waits for its first plan", ""),
        ("queued", place.format(2), ""),
        ("queued", place.format(2), ""),
        ("queued", place.format(1), ""),
        ("starting", "", begins.format(3)),
        ("training", "", begins.format(3)),
        ("queued", place.format(1), begins.format(3)),
        ("training", "", begins.format(9)),
    ):
        line.show(status(state=state, message=message, plan=plan, total_samples=0))
    lines = [text for text in stream.getvalue().splitlines() if text.startswith(("queued: ", "begins"))]
    queued = [f"queued: {place.format(number)}" for number in (2, 1)]
    assert lines == [*queued, begins.format(3), queued[1], begins.format(9)]


def test_lines_of_large_jobs_fit_the_usual_terminal() -> None:
    large = EvaluationResult(12_345_678_901, 200_000_000, 0.5, 0.75)
    assert evaluation_text(large) == "evaluated at 12.3 G samples: AUC 0.7500, loss 0.5000 (on 200 M samples)"
    ended = status(
        state="succeeded",
        evaluations=[large],
        samples=23_456_789_012,
        total_samples=23_456_789_012,
        epochs=100,
        elapsed_seconds=1e6,
        staleness_p99=1_000,
        staleness_max=10_000,
    )
    lines = summary_lines(None, ended, 0.8)
    assert max(map(len, lines)) <= 80, lines
    assert any("best reachable AUC 0.8000" in line for line in lines)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999.7, "1.00 k"),
        (1234, "1.23 k"),
        (52_236, "52.2 k"),
        (999_600, "1.00 M"),
        (4e9, "4.00 G"),
    ],
)
def test_large_numbers_are_shortened(number: float, text: str) -> None:
    assert words.compact(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.9, "59.9 s"),
        (59.97, "1 min 0 s"),
        (125, "2 min 5 s"),
        (12_000, "3 h 20 min"),
        (190_000, "2 d 4 h"),
    ],
)
def test_durations_are_worded(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_remaining_time_is_formatted() -> None:
    assert [words.remaining(seconds) for seconds in (0.2, 59.5, 12_000, 190_000)] == [
        "0:01",
        "1:00",
        "3:20:00",
        "2 d 4 h",
    ]


def test_log_file_follows_a_log_that_grows_is_cut_off_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    log = LogFile(path)
    assert list(log.new_lines()) == []
    path.write_text("one\ntw")
    assert list(log.new_lines()) == ["one"]
    with path.open("a") as file:
        file.write("o\nthree\n")
    assert list(log.new_lines()) == ["two", "three"]
    path.write_text("new\n")
    assert list(log.new_lines()) == ["new"]
    (tmp_path / "other").write_text("again\nand more than there was before\nend")
    (tmp_path / "other").replace(path)
    assert list(log.new_lines()) == ["again", "and more than there was before"]
    assert list(log.new_lines(at_end=True)) == ["end"]


@pytest.mark.parametrize("text", ["a\nb\nc\n", "a\nb\nc", "\n\n\n", "", "a"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 9])
def test_log_file_gives_its_last_lines(text: str, count: int, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(text)
    lines = text.splitlines()
    assert list(LogFile(path, last_lines=count).new_lines(at_end=True)) == lines[max(0, len(lines) - count) :]


def test_an_endless_log_line_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 3_000_000 + b"\ny\n")
    parts = list(LogFile(path).new_lines())
    assert "".join(parts[:-1]) == "x" * 3_000_000 and parts[-1] == "y"
    assert max(map(len, parts)) < 1_000_000


def test_progress_shows_how_far_a_restore_is() -> None:
    """Before anything else: nothing is trained meanwhile."""
    restoring = RestoreStatus(12, 1e9, 12_240_000, 36_000_000, 1 << 30, 3 << 30, 3e6, 210 << 20, 12.0)
    text = "reading checkpoint 12: 34%, 12.2 M of 36.0 M rows, 1 GiB of 3 GiB, 210 MiB/s, 0:12 left"
    assert progress_text(status(restoring=restoring)).startswith(f"{text}  30%")
    starting = status(state="starting", restoring=restoring, message=text)
    assert progress_text(starting).startswith(f"starting ({text})")
    assert progress_text(starting).count("34%") == 1


def test_progress_shows_how_far_an_export_is() -> None:
    exporting = ExportStatus(1e9, 9_000_000, 36_000_000, 3e6, 9.0)
    text = progress_text(status(state="exporting", exporting=exporting))
    assert text.startswith("exporting  25%, 9.00 M of 36.0 M rows, 3.00 M rows/s, 0:09 left")
    through = ExportStatus(1e9, 36_000_000, 36_000_000, 3e6, None)
    text = progress_text(status(state="exporting", exporting=through))
    assert text.startswith("exporting  100%, 36.0 M of 36.0 M rows, its files are finished")


def test_without_a_terminal_a_restore_is_a_line_now_and_then() -> None:
    now, stream = 0.0, io.StringIO()
    line = ProgressLine(stream, clock=lambda: now)
    for second in range(12):
        now = float(second)
        line.show(status(state="starting", message=f"reading checkpoint 3: {second}%", expected_end=None))
    said = stream.getvalue().splitlines()
    assert [text.partition("  ")[0] for text in said] == [
        f"starting (reading checkpoint 3: {second}%)" for second in (0, 5, 10)
    ]
