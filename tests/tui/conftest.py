"""Local time is UTC, and nothing that runs these tests has an influence on colours."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.tui.model import LastDecision
from dlrover_lite.tui.recordings.recorded import Recording
from dlrover_lite.tui.recordings.recorder import Recorder
from tests.tui.fixed import ADS, DETAIL, EXPLANATION, FEED, NOW, FixedSource


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True, scope="session")
def pictures_are_svg() -> None:
    """pytest-textual-snapshot names the suffix as older versions of syrupy had it."""
    from pytest_textual_snapshot import SVGImageExtension

    SVGImageExtension.file_extension = "svg"


@pytest.fixture
def with_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FixedSource:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path))
    directory = tmp_path / "state" / "jobs" / ADS.id
    logs = directory / "logs"
    logs.mkdir(parents=True)
    (directory / "job.json").touch()
    (logs / "master.log").write_text("the master\n")
    (logs / "worker-0.log").write_text("".join(f"line {i}\n" for i in range(100)))
    source = FixedSource()
    source.change(ADS.id, directory=str(directory))
    detail = source.details[ADS.id]
    source.details[ADS.id] = msgspec.structs.replace(detail, row=source.view.jobs[ADS.id])
    return source


@pytest.fixture(scope="module")
def recording() -> Recording:
    """60 s: samples every 10 s, a decision for one job at 20 s, the third and fourth of another, which is open, at 30 and 50 s."""
    now, source, file = NOW, FixedSource(), io.BytesIO()
    recorder = Recorder(source, file, clock=lambda: now, explains=False)
    decided = {
        at: msgspec.structs.replace(one, at=NOW + at) for one, at in zip(DETAIL.decisions[2:], (30, 50), strict=True)
    }
    known = DETAIL.decisions[:2]
    for second in range(0, 61, 10):
        now = NOW + second
        source.change(ADS.id, samples=second)
        if second == 20:
            source.change(FEED.id, decision=LastDecision(1, now, "start", "it is time"))
        if second in decided:
            known = (*known, decided[second])
        source.details[ADS.id] = msgspec.structs.replace(DETAIL, row=source.view.jobs[ADS.id], decisions=known)
        recorder.jobs()
        recorder.job(ADS.id)
    recorder.put_explained(EXPLANATION)
    return Recording(file.getvalue(), "it")
