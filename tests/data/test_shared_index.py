from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from dlrover_lite.core.files.remote import RemoteFile
from dlrover_lite.data import index_store, shared_index
from dlrover_lite.data.index import find_index, index_text
from dlrover_lite.data.index_store import index_file, index_name, index_piece
from dlrover_lite.data.shared_index import take_indexes
from dlrover_lite.recipe.schema import CriteoData
from tests.data.criteo_lines import generated_lines

URL = "memory://shared/a.tsv"
DATA = CriteoData(train=["memory://shared/*.tsv"])


@pytest.fixture
def masters_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a master that has built the index; the worker's is another."""
    fsspec.filesystem("memory").pipe_file("/shared/a.tsv", b"\n".join(generated_lines(5000)))
    monkeypatch.setattr(index_store, "_PIECE_BYTES", 24)
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "master"))
    index_text(RemoteFile(URL))
    return tmp_path / "master"


def asker(master: Path, worker: Path, monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> shared_index.Ask:
    def ask(name: str, offset: int) -> tuple[int, bytes]:
        asked.append(offset)
        monkeypatch.setenv("DLROVER_LITE_HOME", str(master))
        found = index_piece(name, offset)
        monkeypatch.setenv("DLROVER_LITE_HOME", str(worker))
        return found

    monkeypatch.setenv("DLROVER_LITE_HOME", str(worker))
    return ask


def test_a_worker_gets_the_masters_index_in_pieces(
    masters_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = asker(masters_index, tmp_path / "worker", monkeypatch, asked)
    assert take_indexes(DATA, tmp_path, ask) == 1
    assert len(asked) > 2
    index = find_index(RemoteFile(URL))
    assert index is not None
    assert index.lines == 5000
    assert take_indexes(DATA, tmp_path, ask) == 0  # it is here
    told: list[str] = []
    index_text(RemoteFile(URL), lambda *step: told.append(step[0]))
    assert not told  # nothing is left to build


@pytest.mark.parametrize("trouble", ["none", "damaged", "of another version", "shrinks"])
def test_what_doesnt_fit_is_built_by_the_worker(
    trouble: str, masters_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = index_file(index_name(RemoteFile(URL)))
    if trouble == "none":
        kept.unlink()
    elif trouble == "damaged":
        data = bytearray(kept.read_bytes())
        data[-3] ^= 1
        kept.write_bytes(data)
    elif trouble == "of another version":
        fsspec.filesystem("memory").pipe_file("/shared/a.tsv", b"\n".join(generated_lines(4000)))
    asked: list[int] = []
    ask = asker(masters_index, tmp_path / "worker", monkeypatch, asked)

    def shrinking(name: str, offset: int) -> tuple[int, bytes]:
        total, piece = ask(name, offset)
        return total - (8 if offset and trouble == "shrinks" else 0), piece

    assert take_indexes(DATA, tmp_path, shrinking) == 0
    assert index_text(RemoteFile(URL)).lines == (4000 if trouble == "of another version" else 5000)


def test_only_indexes_are_handed_out(masters_index: Path) -> None:
    assert index_piece("../" * 9 + "etc/passwd", 0) == (0, b"")
    assert index_piece("0" * 32, 0) == (0, b"")
    assert index_piece(index_name(RemoteFile(URL)), 1 << 50)[1] == b""
