"""How ``checkpoint verify`` says how far it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.cli import output
from dlrover_lite.cli.main import main
from dlrover_lite.core.units import format_bytes
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.recipe.schema import Optimizer
from tests.checkpoint.record_cuts import write_cut

Capture = pytest.CaptureFixture[str]
CONFIGURATION = Configure(7, [TableSpec("user", 4, 0.1)], DenseSpec(0, 0), Optimizer(), Optimizer())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    """A base of two servers, and an increment."""
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    made = CheckpointStore(str(tmp_path / "cuts"))
    write_cut(made, 1, CONFIGURATION, {(0, 0, i): 1.0 for i in range(5000)}, servers=2)
    write_cut(made, 2, CONFIGURATION, {(0, 0, i): 2.0 for i in range(500)}, builds_on=1)
    return made


def test_progress_of_verify_rises_to_all_stored_bytes(store: CheckpointStore) -> None:
    one, two = store.stored_bytes(1), store.stored_bytes(2, chain=False)
    assert one == sum(path.stat().st_size for path in Path(store.url).glob("cut-00000001/*.part"))
    assert store.stored_bytes(2) == one + two
    done: list[int] = []
    assert store.verify(2, progress=done.append) == []
    assert done == sorted(done) and done[-1] == one + two
    assert len(done) > 4, "also within a part"


def test_progress_of_verify_counts_missing_parts_as_done(store: CheckpointStore) -> None:
    part = sorted(Path(store.url).glob("cut-00000001/*.part"))[0]
    part.unlink()
    done: list[int] = []
    (found,) = store.verify(1, progress=done.append)
    assert found.file == str(part)
    assert done[-1] == store.stored_bytes(1)


def test_progress_of_verify_is_lines_in_a_pipe(
    store: CheckpointStore, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PLAIN_INTERVAL_SECONDS", 0.0)
    assert main(["checkpoint", "verify", store.url]) == 0
    told = capsys.readouterr().err.splitlines()
    total = store.stored_bytes(1) + store.stored_bytes(2, chain=False)
    assert told[0].startswith(f"checking 0%: checkpoint 1, 0 B of {format_bytes(total)}")
    assert told[-1].startswith(f"checking 100%: checkpoint 2, {format_bytes(total)} of {format_bytes(total)}, ")
    assert told[-1].endswith("/s")
    assert any(line.endswith(" left") for line in told)


def test_progress_of_verify_ends_at_100_percent_with_a_damaged_manifest(
    store: CheckpointStore, capsys: Capture
) -> None:
    manifest = Path(store.url) / "cut-00000002" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    assert main(["checkpoint", "verify", store.url]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[:2] == ["checkpoint 1: whole", "checkpoint 2:"]
    assert said.err.splitlines()[-1].startswith("checking 100%: ")
