from __future__ import annotations

import gzip
import os
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.paths import cache_directory
from dlrover_lite.data import index
from dlrover_lite.data.files import atomic_file
from dlrover_lite.data.index import find_index, index_text
from dlrover_lite.data.lines import LineReader, line_starts
from tests.file_calls import recorded


def text_of(count: int) -> bytes:
    return b"".join(b"%d%s\n" % (i, b"x" * (i * 7919 % 40)) for i in range(count))


def lines_read(path: Path, numbers: list[int]) -> list[bytes]:
    reader = LineReader([index_text(path)])
    found: dict[int, bytes] = {}
    for spans in reader.find(0, np.array(numbers)):
        for row, start, end in zip(spans.rows, spans.starts, spans.ends, strict=True):
            found[int(row)] = bytes(spans.buffer[start:end])
    reader.close()
    return [found[row] for row in range(len(numbers))]


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 2048, 70_000])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_every_line_of_an_indexed_text_is_found(tmp_path: Path, count: int, end: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text_of(count)[:-1] + end)
    assert index_text(path).lines == count
    wanted = sorted({0, count - 1, count // 2, min(count - 1, 1024), min(count - 1, 32_768)}, reverse=True)
    assert lines_read(path, wanted) == [path.read_bytes().split(b"\n")[number] for number in wanted]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=30), st.integers(0, 20))
def test_line_starts_agree_with_split(parts: list[bytes], junk: int) -> None:
    text = b"\n".join(parts)
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        return
    buffer = np.frombuffer(b"j" * junk + text, np.uint8)
    starts = line_starts(buffer, junk, len(lines))
    assert starts is not None
    ends = starts[1:] - 1
    assert [bytes(buffer[a:b]) for a, b in zip(starts, ends, strict=False)] == lines
    assert line_starts(buffer, junk, len(lines) + 1) is None


def test_an_index_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text_of(3000))
    assert find_index(path) is None
    calls: list[tuple[str, int, int]] = []
    index_text(path, lambda *call: calls.append(call))
    assert calls[-1][1:] == (path.stat().st_size, path.stat().st_size)
    calls.clear()
    index_text(path, lambda *call: calls.append(call))
    assert calls == []
    os.utime(path, ns=(1, 1))
    assert find_index(path) is None
    path.write_bytes(text_of(10))
    assert index_text(path).lines == 10


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\0" * 4096])
def test_a_damaged_cache_entry_is_built_again(tmp_path: Path, home: Path, damage: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text_of(3000))
    index_text(path)
    (cached,) = (home / "cache" / "indexes").iterdir()
    cached.write_bytes(damage)
    assert find_index(path) is None
    assert index_text(path).lines == 3000
    assert find_index(path) is not None


@pytest.mark.parametrize("packed", [False, True])
def test_texts_are_read_uncached_without_a_writable_cache(tmp_path: Path, home: Path, packed: bool) -> None:
    home.write_bytes(b"a file where the directory would be")
    path = tmp_path / "a.txt"
    path.write_bytes(gzip.compress(text_of(3000)) if packed else text_of(3000))
    assert lines_read(path, [2999, 5]) == [text_of(3000).split(b"\n")[2999], text_of(3000).split(b"\n")[5]]
    assert find_index(path) is None
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.txt", "home"]


def test_a_gz_is_unpacked_once_until_it_changes(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text_of(5000)) + gzip.compress(b"second member"))
    whats: list[str] = []
    first = index_text(path, lambda what, done, total: whats.append(what))
    assert first.text.read_bytes() == text_of(5000) + b"second member"
    assert set(whats) == {"unpacking a.gz"}
    assert index_text(path).text == first.text
    assert lines_read(path, [5000]) == [b"second member"]
    path.write_bytes(gzip.compress(b"new\n"))
    assert lines_read(path, [0]) == [b"new"]
    assert len(list((home / "cache" / "indexes").iterdir())) == 2


def test_an_unpacked_text_that_vanishes_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text_of(100)))
    index_text(path).text.unlink()
    assert find_index(path) is None
    assert lines_read(path, [0]) == [b"0"]


LINES = 100_000
"""In four windows of 32,768 lines, the last one not whole."""


def flip(path: Path, at: int) -> None:
    """A bit, as a disk or a memory that fails does it: size and modification time stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x04]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("chunk_bytes", [997, 1 << 20, 64 << 20])
@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("where", [0.0, 0.3, 0.99999])
def test_damage_to_an_unpacked_text_is_found_and_mended(
    tmp_path: Path,
    where: float,
    end: bytes,
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(index, "_CHUNK_BYTES", chunk_bytes)
    text = text_of(LINES)[:-1] + end
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text, 1))
    lines, numbers = text.split(b"\n"), [*range(0, LINES, 1000), LINES - 1]
    assert lines_read(path, numbers) == [lines[number] for number in numbers]
    unpacked = index_text(path).text
    flip(unpacked, int(len(text) * where))
    assert find_index(path) is not None
    assert capfd.readouterr().err == ""
    assert lines_read(path, numbers) == [lines[number] for number in numbers]
    assert capfd.readouterr().err == f"The unpacked text {unpacked} of {path} is damaged: it is unpacked anew\n"
    assert unpacked.read_bytes() == text
    assert lines_read(path, numbers) == [lines[number] for number in numbers]
    assert capfd.readouterr().err == ""


def test_one_of_several_readers_unpacks_a_damaged_text_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text_of(3000)))
    readers = [LineReader([index_text(path)]) for _ in range(3)]
    next(readers[0].find(0, np.array([5])))  # it has the file open, the others don't yet
    readers[0]._windows.clear()
    flip(index_text(path).text, 100)
    unpacked: list[Path] = []
    unpack = index._unpack

    def counted(source: Path, *rest: object) -> index.TextIndex:
        unpacked.append(source)
        return unpack(source, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "_unpack", counted)
    for reader in readers:
        (span,) = reader.find(0, np.array([2999]))
        assert bytes(span.buffer[span.starts[0] : span.ends[0]]) == text_of(3000).split(b"\n")[2999]
        reader.close()
    assert unpacked == [path]


def test_a_damaged_text_is_not_repaired_from_a_changed_gz(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text_of(3000)))
    reader = LineReader([index_text(path)])
    flip(index_text(path).text, 100)
    path.write_bytes(gzip.compress(text_of(2000)))
    with pytest.raises(DataError, match=r"a\.gz was changed"):
        list(reader.find(0, np.array([1])))
    reader.close()


def test_a_disk_that_keeps_damaging_a_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text_of(3000)))
    reader = LineReader([index_text(path)])
    flip(index_text(path).text, 100)
    build = index._build

    def damaged(source: Path, progress: None) -> index.TextIndex:
        built = build(source, progress)
        flip(built.text, 200)
        return built

    monkeypatch.setattr(index, "_build", damaged)
    with pytest.raises(DataError, match="is damaged again, just after it was unpacked anew"):
        list(reader.find(0, np.array([1])))
    reader.close()


@pytest.mark.parametrize("keep", [0.5, 0.999])
@pytest.mark.parametrize("size", [100, 600_000])
def test_a_truncated_gz_is_named(tmp_path: Path, home: Path, keep: float, size: int) -> None:
    path = tmp_path / "cut.tsv.gz"
    data = gzip.compress(text_of(size))
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(DataError, match=r"cut\.tsv\.gz is cut short"):
        index_text(path)
    assert not list((home / "cache").rglob("*.txt"))
    assert not list((home / "cache").rglob("*.tmp"))


def test_a_corrupt_gz_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv.gz"
    data = bytearray(gzip.compress(text_of(10_000)))
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"bad\.tsv\.gz is (not intact|cut short)"):
        index_text(path)


def test_too_little_disk_is_reported_before_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.gz"
    path.write_bytes(gzip.compress(text_of(1000)))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 0))
    with pytest.raises(DataError, match=r"big\.gz needs about 2\d\.\d KiB in .*, where 0 B are free"):
        index_text(path)


def test_a_text_changed_after_indexing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text_of(3000))
    reader = LineReader([index_text(path)])
    next(reader.find(0, np.array([1])))
    os.truncate(path, 10)
    with pytest.raises(DataError, match=r"a\.txt was changed"):
        next(reader.find(0, np.array([2999])))


def test_an_atomic_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_file(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    with recorded() as calls, atomic_file(path) as file:
        file.write(b"new")
    calls.check_durable(path)
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_cached_data_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    cache_directory().mkdir(parents=True, exist_ok=True)
    cache_directory().chmod(0o755)  # as older versions have made it
    (tmp_path / "a.txt").write_bytes(text_of(30))
    (tmp_path / "b.gz").write_bytes(gzip.compress(text_of(30)))
    before = os.umask(0)
    try:
        kept = [index_text(tmp_path / name).text for name in ("a.txt", "b.gz")][1]
    finally:
        os.umask(before)
    indexes = kept.parent
    assert indexes.is_relative_to(cache_directory())
    assert {path.stat().st_mode & 0o777 for path in (cache_directory(), indexes)} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in indexes.iterdir()} == {0o600}
