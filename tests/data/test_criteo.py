from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dlrover_lite.core.errors import DataError
from dlrover_lite.data.base import CRITEO_SCHEMA, Batch
from dlrover_lite.data.criteo import CriteoParser
from dlrover_lite.data.kernels.criteo import category_id
from dlrover_lite.data.order import EpochOrder
from dlrover_lite.data.text import TextDataset
from tests.data.criteo_lines import generated_lines

GOOD = generated_lines(1)[0]


def dataset(path: Path, lines: Sequence[bytes] | None = None, newline: bytes = b"\n") -> TextDataset:
    if lines is not None:
        path.write_bytes(newline.join(lines))
    return TextDataset([path], CriteoParser())


def reference(lines: Sequence[bytes]) -> tuple[list[float], list[list[float]], list[list[int]]]:
    """The same by the book, in plain Python: labels, dense rows, id rows."""
    labels, dense, ids = [], [], []
    for line in lines:
        fields = [field.decode() for field in line.split(b"\t")]
        fields += [""] * (40 - len(fields))
        labels.append(float(fields[0]))
        numbers = [int(field or 0) for field in fields[1:14]]
        dense.append([math.copysign(math.log1p(abs(number)), number) for number in numbers])
        ids.append([int(field, 16) + 1 if field else 0 for field in fields[14:]])
    return labels, dense, ids


def assert_holds(batch: Batch, lines: Sequence[bytes]) -> None:
    labels, dense, ids = reference(lines)
    assert batch.labels.tolist() == labels
    np.testing.assert_allclose(batch.dense, dense, rtol=1e-6)
    assert batch.ids.T.tolist() == ids


def test_reads_every_line_in_any_order(criteo_file: Path) -> None:
    lines = criteo_file.read_bytes().removesuffix(b"\n").split(b"\n")
    whole = [i for i, line in enumerate(lines) if line.count(b"\t") >= 14]
    data = dataset(criteo_file)
    assert data.samples == len(lines)
    assert data.schema == CRITEO_SCHEMA
    order = EpochOrder(len(lines), seed=1, epoch=0, block_size=256)
    for start in range(0, len(lines), 300):
        numbers = order.numbers(start, min(start + 300, len(lines)))
        batch = data.read(numbers)
        assert batch.bad == []
        assert (batch.labels.dtype, batch.dense.dtype, batch.ids.dtype) == (np.float32, np.float32, np.uint64)
        assert batch.ids.shape == (26, len(numbers))
        assert_holds(batch, [lines[number] for number in numbers])
    assert {lines[i].count(b"\t") + 1 for i in whole} >= {37, 38, 40}
    data.close()


def test_windows_lines_and_a_byte_order_mark_make_no_difference(tmp_path: Path) -> None:
    lines = generated_lines(50)
    plain = dataset(tmp_path / "a", lines).read(np.arange(50))
    other = dataset(tmp_path / "b", [b"\xef\xbb\xbf" + lines[0], *lines[1:], b""], b"\r\n").read(np.arange(50))
    for left, right in zip(plain, other, strict=True):
        assert np.array_equal(left, right)


FIELDS = GOOD.split(b"\t")


def changed(column: int, value: bytes) -> bytes:
    return b"\t".join([*FIELDS[:column], value, *FIELDS[column + 1 :]])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "the line is empty"),
        (changed(0, b"2"), "the label is '2', expected 0 or 1"),
        (changed(0, b""), "the label is '', expected 0 or 1"),
        (changed(0, b"01"), "the label is '01', expected 0 or 1"),
        (changed(3, b"1.5"), "I3 is '1.5', expected an integer"),
        (changed(13, b"-"), "I13 is '-', expected an integer"),
        (changed(2, b"9" * 19), f"I2 is '{'9' * 19}', out of range: an integer has at most 18 digits"),
        (b"1", "1 field separated by tabs, expected 15 to 40"),
        (b"\t".join(FIELDS[:14]), "14 fields separated by tabs, expected 15 to 40"),
        (b"\t".join([*FIELDS, b"x"]), "41 fields separated by tabs, expected 15 to 40"),
        (b"\t".join([*FIELDS, b""]), "41 fields separated by tabs, expected 15 to 40"),
    ],
)
def test_a_bad_line_is_left_out_with_its_number_and_reason(tmp_path: Path, line: bytes, why: str) -> None:
    lines = [*generated_lines(5), line, *generated_lines(5, seed=1)]
    batch = dataset(tmp_path / "a.tsv", lines).read(np.array([6, 5, 4]))
    assert batch.bad == [(str(tmp_path / "a.tsv"), 6, why)]
    assert_holds(batch, [lines[6], lines[4]])


def test_the_shortest_line_has_one_category(tmp_path: Path) -> None:
    batch = dataset(tmp_path / "a", [b"1" + b"\t" * 13 + b"\tff", GOOD]).read(np.array([0]))
    assert batch.ids[:, 0].tolist() == [256] + [0] * 25
    assert not batch.dense.any()


def test_categories_of_any_form_have_distinct_ids(tmp_path: Path) -> None:
    texts = [
        "0",
        "ff",
        "FFFFFFFF",
        "0123456789abcdef",
        "f" * 16,
        "f" * 17,
        "hello",
        "hellohel",
        "0x12",
        "1234567g",
        "ü",
    ]
    lines = [changed(14, text.encode()) for text in texts]
    ids = dataset(tmp_path / "a", lines).read(np.arange(len(texts))).ids[0].tolist()
    assert ids[:4] == [1, 256, 0x100000000, 0x0123456789ABCDF0]
    assert len(set(ids)) == len(texts)
    assert 0 not in ids
    assert ids == [category_id(text) for text in texts]
    assert category_id("") == 0


def test_several_files_are_read_as_one_sequence(tmp_path: Path) -> None:
    lines = generated_lines(3000)
    paths = [tmp_path / name for name in "abc"]
    for path, part in zip(paths, (lines[:10], lines[10:1500], lines[1500:]), strict=True):
        path.write_bytes(b"\n".join(part))
    data = TextDataset(paths, CriteoParser())
    numbers = np.random.default_rng(0).permutation(3000)[:700]
    assert_holds(data.read(numbers), [lines[number] for number in numbers])
    assert data.read(np.array([], np.int64)).labels.shape == (0,)


def test_reading_beyond_the_kept_windows_gives_the_same_samples(tmp_path: Path) -> None:
    lines = generated_lines(200)
    for number in range(100):
        (tmp_path / f"{number:03}").write_bytes(b"\n".join(lines[2 * number : 2 * number + 2]))
    data = TextDataset(sorted(tmp_path.glob("[0-9]*")), CriteoParser())
    for seed in range(3):
        numbers = np.random.default_rng(seed).permutation(200)
        assert_holds(data.read(numbers), [lines[number] for number in numbers])
    long = [line for line in lines for _ in range(1000)]
    data = dataset(tmp_path / "long", long)
    for seed in range(3):
        numbers = np.random.default_rng(seed).permutation(200_000)[:300]
        assert_holds(data.read(numbers), [long[number] for number in numbers])


@pytest.mark.parametrize("number", [-1, 3])
def test_sample_numbers_out_of_range_are_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(ValueError, match="within"):
        dataset(tmp_path / "a", generated_lines(3)).read(np.array([0, number]))


@pytest.mark.parametrize("content", [os.urandom(50_000), b"\0" * 600_000, b"\n" * 5000, b"a,b\n1,2\n", b"x"])
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.bin .*|.*lines of .*a\.bin"):
        dataset(tmp_path / "a.bin")


def test_one_good_line_among_the_first_thousand_is_enough(tmp_path: Path) -> None:
    assert dataset(tmp_path / "a", [b"junk"] * 999 + [GOOD]).samples == 1000
    with pytest.raises(DataError, match="none of the first 1000 lines"):
        dataset(tmp_path / "a", [b"junk"] * 1000 + [GOOD])


def test_a_dataset_works_in_a_forked_process(tmp_path: Path) -> None:
    lines = generated_lines(100)
    data = dataset(tmp_path / "a", lines)
    data.read(np.array([0]))
    child = os.fork()
    if child == 0:
        same = data.read(np.array([7])).ids[:, 0].tolist() == reference(lines)[2][7]
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
