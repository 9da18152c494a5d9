"""What was shown is shown again, at any moment, from wherever one comes."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui.model import Explanation, HostRow, JobDetail, JobsView, LastDecision, NodeRow, Problem, Rate
from dlrover_lite.tui.recordings import recorder as recorder_module
from dlrover_lite.tui.recordings.frames import applied, look
from dlrover_lite.tui.recordings.player import Player
from dlrover_lite.tui.recordings.recorded import NOT_OPEN, NOT_THERE, RecordedSource, Recording, read
from dlrover_lite.tui.recordings.recorder import Recorder, create
from tests.tui.fixed import ADS, DETAIL, EXPLANATION, FEED, NOW, OLD, VIEW, FixedSource


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def _shown(row: object) -> object:
    """As others see it: without where its files are."""
    return msgspec.structs.replace(row, directory="")  # type: ignore[type-var]


def _rows(view: JobsView) -> dict[str, object]:
    return {job: _shown(row) for job, row in view.jobs.items()}


SHOWN = msgspec.structs.replace(DETAIL, row=_shown(DETAIL.row))


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Three moments: all jobs; after 10 s more samples, and a look at a job; after 20 s one job less."""
    path, clock, source = tmp_path / "a.jsonl", Clock(), FixedSource()
    recorder = Recorder(source, path.open("xb"), clock=clock, explains=False)
    recorder.jobs()
    clock.now += 10
    source.change(ADS.id, samples=5_000_000)
    recorder.jobs()
    recorder.job(ADS.id)
    clock.now += 10
    source.view = msgspec.structs.replace(source.view, jobs={k: v for k, v in source.view.jobs.items() if k != OLD.id})
    recorder.jobs()
    recorder.close()
    assert source.closed
    return path


def _played(recording: Path | Recording) -> tuple[RecordedSource, Player]:
    """It stands at its beginning."""
    one = read(recording) if isinstance(recording, Path) else recording
    player = one.player(speed=0)
    return RecordedSource(one, player), player


def test_a_recording_shows_again_what_was_shown(recording: Path) -> None:
    source, player = _played(recording)
    assert (player.begin, player.end) == (NOW, NOW + 20)
    assert source.jobs().jobs == _rows(VIEW)
    assert list(source.jobs().jobs) == list(VIEW.jobs)
    assert source.jobs().brain == "listens"
    assert source.job(FEED.id) == JobDetail(row=_shown(FEED), missing=NOT_OPEN)
    player.stand(NOW + 10)
    assert source.jobs().jobs[ADS.id].samples == 5_000_000
    assert source.job(ADS.id) == SHOWN
    assert OLD.id in source.jobs().jobs
    player.stand(player.end)
    assert OLD.id not in source.jobs().jobs
    assert source.known() == [FEED.id, ADS.id, *(job for job in VIEW.jobs if job not in (FEED.id, ADS.id, OLD.id))]


def test_hosts_are_told_again_where_they_have_changed() -> None:
    clock, source, file = Clock(), FixedSource(), io.BytesIO()
    recorder = Recorder(source, file, clock=clock, explains=False)
    hosts = (HostRow("", "", 4.0, 8), HostRow("far", "a", 16.0, 64))
    for told in ((), hosts, hosts[:1]):
        source.view = msgspec.structs.replace(source.view, hosts=told)
        recorder.jobs()
        clock.now += 10
    played, player = _played(Recording(file.getvalue(), "it"))
    for at, told in ((15, hosts), (25, hosts[:1]), (5, ())):
        player.stand(NOW + at)
        assert (played.jobs().hosts, played.jobs().brain) == (told, "listens")


def test_going_back_forgets_what_came_later(recording: Path) -> None:
    source, player = _played(recording)
    player.stand(player.end)
    source.jobs()
    player.stand(NOW + 5)
    assert source.jobs().jobs == _rows(VIEW)
    assert source.job(ADS.id).missing == NOT_OPEN
    early = source.job("another")
    assert (early.row.state, early.decisions) == (NOT_THERE, ())
    assert source.job("another") is early


def test_unchanged_rows_and_details_are_the_same_objects(recording: Path) -> None:
    source, player = _played(recording)
    first = source.jobs()
    assert source.jobs() is first
    player.step()
    assert source.jobs() is not first
    assert source.jobs().jobs[FEED.id] is first.jobs[FEED.id]
    detail = source.job(ADS.id)
    assert source.job(ADS.id) is detail
    player.step()
    assert source.job(ADS.id) is detail
    player.step(-1)
    assert source.jobs().jobs[FEED.id] is first.jobs[FEED.id]


def test_only_changes_are_written_to_a_recording(recording: Path) -> None:
    lines = [msgspec.json.decode(line) for line in recording.read_bytes().splitlines()]
    assert [len(line.get("jobs", ())) for line in lines[1:]] == [4, 1, 0, 0]
    assert lines[2]["jobs"] == {ADS.id: {"samples": 5_000_000}}
    assert lines[-1]["gone"] == [OLD.id]


def test_a_closed_detail_is_shown_with_its_age() -> None:
    clock, source, file = Clock(), FixedSource(), io.BytesIO()
    recorder = Recorder(source, file, clock=clock, explains=False)
    recorder.jobs()
    recorder.job(ADS.id)
    clock.now += 5
    recorder.forget()
    recorder.forget()
    clock.now += 5
    source.change(ADS.id, samples=7_000_000)
    recorder.jobs()
    clock.now += 5
    recorder.job(ADS.id)
    played, player = _played(Recording(file.getvalue(), "it"))
    assert played.job(ADS.id) == SHOWN
    player.stand(NOW + 10)
    old = played.job(ADS.id)
    assert old.problem == Problem("this recording", "the job wasn't open then", NOW + 5)
    assert (old.row.samples, old.nodes) == (7_000_000, SHOWN.nodes)


def test_decisions_are_marked_once_when_they_became_known() -> None:
    clock, source, file = Clock(), FixedSource(), io.BytesIO()
    recorder = Recorder(source, file, clock=clock, explains=False)
    recorder.jobs()  # their decisions are from before it began
    recorder.job(ADS.id)
    clock.now += 5
    one = Chosen(9, NOW + 4, "scale", "change", "why", "a", "b", True, 1.0, 1.0, 1.0, 1.0, None, None)
    source.change(ADS.id, decision=LastDecision(9, NOW + 4, "change", "why"))
    source.change(FEED.id, decision=LastDecision(1, NOW + 4, "start", "why"))
    source.details[ADS.id] = msgspec.structs.replace(DETAIL, decisions=(*DETAIL.decisions, one))
    recorder.jobs()
    clock.now += 1
    recorder.job(ADS.id)
    source.change(ADS.id, decision=LastDecision(10, NOW + 6, "stay", "why"))
    recorder.jobs()
    marks = Recording(file.getvalue(), "it").player().marks
    assert [(mark.at - NOW, mark.job, mark.symbol) for mark in marks] == [(5, ADS.id, "▲"), (5, FEED.id, "●")]


# --- explanations -------------------------------------------------------------------------------------------------------


def test_decisions_looked_at_keep_their_explanation(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    recorder = Recorder(FixedSource(), create(path))
    recorder.job(ADS.id)
    recorder.close()
    source, _ = _played(path)
    assert source.explain(ADS.id, 2) == EXPLANATION
    assert source.explain(ADS.id, 3) is None


def test_a_later_explanation_is_recorded_without_its_plans_again() -> None:
    clock, file = Clock(), io.BytesIO()
    recorder = Recorder(FixedSource(), file, clock=clock, explains=False)
    clock.now += 10
    recorder.put_explained(EXPLANATION)
    clock.now += 10
    later = msgspec.structs.replace(EXPLANATION, text=("now", "known"))
    recorder.put_explained(later)
    recorder.put_explained(later)
    recording = Recording(file.getvalue(), "it")
    assert file.getvalue().count(b'"plans":[{"mark"') == 1
    assert recording.explanation(ADS.id, 2, NOW) == EXPLANATION
    assert recording.explanation(ADS.id, 2, NOW + 19) == EXPLANATION
    assert recording.explanation(ADS.id, 2, NOW + 20) == later
    asked: list[float] = []

    def explain(job: str, number: int, at: float) -> Explanation:
        asked.append(at)
        return later

    source = RecordedSource(recording, recording.player(speed=0), explain=explain)
    assert source.explain(ADS.id, 2) == EXPLANATION
    assert source.explain(ADS.id, 1) == later
    assert asked == [NOW]


# --- any history --------------------------------------------------------------------------------------------------------

_CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            ["rate", "samples", "gone", "back", "node", "ended", "decision", "anew", "look", "forget", "problem"]
        ),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=60,
)


def _change(source: FixedSource, what: str, number: int) -> None:
    job = list(VIEW.jobs)[number]
    detail = source.details[ADS.id]
    change = msgspec.structs.replace
    match what:
        case "samples" if job in source.view.jobs:
            source.change(job, samples=source.view.jobs[job].samples + number)
        case "gone":
            source.view = change(source.view, jobs={k: v for k, v in source.view.jobs.items() if k != job})
        case "back":
            jobs = {**source.view.jobs, job: VIEW.jobs[job]}
            source.view = change(source.view, jobs={k: jobs[k] for k in VIEW.jobs if k in jobs})
        case "rate":
            detail = change(detail, rates=(*detail.rates, Rate(NOW + len(detail.rates), 7.0)), epoch=number)
        case "node":
            node = NodeRow(id=f"worker-{10 + number}", role="worker", state="up", cores=number + 0.5, memory=1)
            detail = change(detail, nodes=(node, *(one for one in detail.nodes if one.id != node.id)))
        case "ended":
            detail = change(detail, nodes=detail.nodes[number:])
        case "decision":
            told = change(detail.decisions[number % len(detail.decisions)], measured=float(number))
            detail = change(
                detail, decisions=tuple(told if one.number == told.number else one for one in detail.decisions)
            )
        case "anew":
            detail = change(detail, rates=detail.rates[:number], decisions=detail.decisions[: 1 + number])
        case "problem":
            source.view = change(source.view, problem=Problem("the brain", "why", NOW) if number % 2 else None)
    source.details[ADS.id] = detail


def _recorded(changes: list[tuple[str, int]], file: io.BytesIO) -> list[tuple[float, JobsView, JobDetail | None]]:
    """What was shown after each change, and when; no detail: it wasn't open."""
    clock, source = Clock(), FixedSource()
    recorder = Recorder(source, file, clock=clock, explains=False)
    shown, looking = [], False
    for what, number in changes:
        clock.now += 1
        looking = what != "forget" and (looking or what == "look")
        _change(source, what, number)
        view, detail = recorder.jobs(), recorder.job(ADS.id) if looking else None
        if not looking:
            recorder.forget()
        shown.append((clock.now, view, detail))
    return shown


@settings(max_examples=40)
@given(changes=_CHANGES, order=st.randoms(use_true_random=False))
def test_any_moment_is_shown_right_in_any_order_of_visits(
    changes: list[tuple[str, int]], order: Callable[..., None]
) -> None:
    file = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder_module, "_LEAST_BETWEEN_KEYS", 300)
        shown = _recorded(changes, file)
    source, player = _played(Recording(file.getvalue(), "it"))
    order.shuffle(shown)  # type: ignore[attr-defined]
    for at, view, detail in shown:
        player.stand(at)
        told = source.jobs()
        assert (told.jobs, list(told.jobs)) == (_rows(view), list(view.jobs))
        assert (told.brain, told.problem) == (view.brain, view.problem)
        if detail is not None:
            assert source.job(ADS.id) == msgspec.structs.replace(detail, row=_shown(detail.row))


def test_no_change_of_a_detail_is_recorded_as_nothing() -> None:
    assert look(DETAIL, DETAIL) is None
    assert look(DETAIL, msgspec.structs.replace(DETAIL, rates=tuple(DETAIL.rates))) is None
    whole = look(None, DETAIL)
    assert whole is not None
    assert whole.anew


def test_additions_to_a_detail_are_recorded_and_applied() -> None:
    later = msgspec.structs.replace(DETAIL, rates=(*DETAIL.rates, Rate(NOW, 1.0)), loss=None)
    new = look(DETAIL, later)
    assert new is not None
    assert (new.rates, new.fields, new.nodes, new.decisions) == ((Rate(NOW, 1.0),), {"loss": None}, {}, ())
    assert applied(DETAIL, new) == later


def test_going_back_in_a_long_recording_does_not_read_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "_LEAST_BETWEEN_KEYS", 64 * 1024)
    clock, source, file = Clock(), FixedSource(), io.BytesIO()
    recorder = Recorder(source, file, clock=clock, explains=False)
    for second in range(4000):
        clock.now += 1
        source.change(ADS.id, samples=second)
        recorder.jobs()
    recording = Recording(file.getvalue(), "it")
    source_, player = _played(recording)
    player.stand(player.end)
    source_.jobs()
    decoded: list[int] = []
    frame = recording.frame
    monkeypatch.setattr(recording, "frame", lambda number: (decoded.append(number), frame(number))[1])
    for at in (NOW + 3000, NOW + 2999):
        player.stand(at)
        assert source_.jobs().jobs[ADS.id].samples == at - NOW - 1
    assert len(decoded) < 3000
    assert len(file.getvalue()) < 2 * 4000 * 70


# --- files --------------------------------------------------------------------------------------------------------------


def test_a_compressed_recording_is_read(recording: Path) -> None:
    other = recording.with_suffix(".gz")
    other.write_bytes(gzip.compress(recording.read_bytes()))
    source, _ = _played(other)
    assert source.jobs().jobs == _rows(VIEW)
    other.write_bytes(other.read_bytes()[:100] + b"no such bytes" + other.read_bytes()[100:])
    with pytest.raises(HistoryError, match="Can't read"):
        read(other)


def test_a_recording_that_is_being_written_is_compressed_and_can_be_read(tmp_path: Path) -> None:
    path, clock, source = tmp_path / "a.jsonl", Clock(), FixedSource()
    recorder = Recorder(source, create(path), clock=clock, explains=False)
    recorder.jobs()
    recorder.job(ADS.id)
    assert read(path).player().end == NOW  # as after a crash
    for _ in range(200):
        clock.now += 10
        source.change(ADS.id, samples=int(clock.now) % 1000)
        recorder.jobs()
    written = path.stat().st_size
    recorder.close()
    assert read(path).player().end == clock.now
    assert written < len(gzip.decompress(path.read_bytes())) / 3
    path.write_bytes(path.read_bytes()[:-40])
    assert NOW < read(path).player().end <= clock.now


def test_what_only_goes_on_is_written_once_a_second_and_what_happens_at_once(tmp_path: Path) -> None:
    path, clock, source = tmp_path / "a.jsonl", Clock(), FixedSource()
    recorder = Recorder(source, create(path), clock=clock, explains=False)
    for half in range(20):
        clock.now = NOW + half / 2
        changed = {"samples": half} if half != 11 else {"samples": half, "state": "evaluating"}
        source.change(ADS.id, **changed)
        source.details[ADS.id] = msgspec.structs.replace(DETAIL, row=source.view.jobs[ADS.id])
        recorder.jobs()
        recorder.job(ADS.id)
    recorder.close()
    recording = read(path)
    assert len(recording.times) == 2 * 11  # each second until 5, then, as the state changed, from 5.5 on
    played, player = _played(recording)
    for second, samples in ((4.0, 8), (5.5, 11), (9.5, 19)):
        player.stand(NOW + second)
        assert (played.jobs().jobs[ADS.id].samples, played.job(ADS.id).row.samples) == (samples, samples)


def test_a_cut_off_recording_is_shown_as_far_as_it_goes(recording: Path) -> None:
    recording.write_bytes(recording.read_bytes()[:-20])
    assert read(recording).player().end == NOW + 10


def test_damage_of_a_recording_is_told_with_its_line(recording: Path) -> None:
    lines = recording.read_bytes().splitlines(keepends=True)
    recording.write_bytes(b"".join([lines[0], b"{\n", *lines[2:]]))
    with pytest.raises(HistoryError, match="line 2"):
        read(recording)
    recording.write_bytes(b"".join([lines[0], lines[1].replace(b'"samples":', b'"samples":"x","was":'), *lines[2:]]))
    source, player = _played(recording)
    player.stand(player.end)
    with pytest.raises(HistoryError, match="can't be understood"):
        source.jobs()


@pytest.mark.parametrize("text", [b"", b"no recording", b'{"recording": 1}'])
def test_other_files_are_no_recordings(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text)
    with pytest.raises(HistoryError, match="is no recording"):
        read(path)


def test_a_recording_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"recording": 99, "version": "9.9", "at": 1}\n')
    with pytest.raises(HistoryError, match=r"another version .*9\.9"):
        read(path)


def test_recording_never_overwrites_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("mine")
    with pytest.raises(HistoryError, match="is there already"):
        create(path)
    assert path.read_text() == "mine"
    with pytest.raises(HistoryError, match="can't be written"):
        create(tmp_path / "none" / "a.jsonl")


class _Full(io.BytesIO):
    full = False

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_watching_goes_on_when_the_recording_can_not_be_written() -> None:
    clock, source, file = Clock(), FixedSource(), _Full()
    recorder = Recorder(source, file, clock=clock)
    recorder.jobs()
    file.full = True
    clock.now += 1
    source.change(ADS.id, samples=1)
    view = recorder.jobs()
    assert view.jobs is source.view.jobs
    why = "it can't be written any more: No space left on device"
    assert view.problem == Problem("the recording", why, NOW + 1)
    assert recorder.jobs() is view
    assert recorder.job(ADS.id) is source.details[ADS.id]
    recorder.close()


def test_home_directories_are_not_recorded() -> None:
    source, file = FixedSource(), io.BytesIO()
    source.change(ADS.id, state="failed", message="/home/ada/state/x: No such file")
    Recorder(source, file, hidden=[Path("/home/ada/state"), Path("/home/ada"), Path("/")], explains=False).jobs()
    text = file.getvalue().decode()
    assert "~/x: No such file" in text
    assert "ada" not in text
    assert "directory" not in text
