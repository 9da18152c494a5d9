"""State that the version before has left: jobs, a checkpoint, an export and the brain's database are read, and a job goes on.

``older/state.zip`` is a home directory of commit f0b94a4, before modules and classes were renamed: a job that succeeded, and one whose
keeper was killed amid training, with what its master had noted in the ledger.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.client.handle import JobHandle

STATE = Path(__file__).parent / "older" / "state.zip"
ENDED, KILLED = "clicks-2n5xns16", "views-2n5xsf2p"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path))
    with zipfile.ZipFile(STATE) as archive:
        archive.extractall(tmp_path)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    yield tmp_path
    main(["brain", "stop"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["jobs"], "lost"),
        (["status", ENDED], "succeeded"),
        (["status", KILLED], f"run --resume {KILLED}"),
        (["checkpoints", KILLED], "complete"),
        (["checkpoint", "verify", KILLED], ""),
        (["story", KILLED], "begins with 1 ps x 0.5 cores"),
        (["evaluate", ENDED], "AUC"),
        (["history"], KILLED),
        (["history", ENDED], "decision 1: start"),
        (["explain", ENDED], "Decision 1"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("home")
def test_what_the_version_before_has_left_is_read(
    command: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(command)
    told = capsys.readouterr()
    assert code == 0, told.err
    assert said in told.out


@pytest.mark.usefixtures("home")
def test_a_job_of_the_version_before_goes_on_from_its_checkpoint() -> None:
    assert main(["run", "--resume", KILLED]) == 0
    result = JobHandle(KILLED).result()
    assert result is not None and result.state == "succeeded"
    assert result.status is not None
    assert result.status["samples"] == result.status["total_samples"] == 480_000
