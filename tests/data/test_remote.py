"""Data in an object store, read through a proxy that throttles, cuts connections and leaves bytes out."""

from __future__ import annotations

import gzip
import io
import random
import threading
from collections.abc import Iterator
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from dlrover_lite.core.errors import DataError, RecipeError
from dlrover_lite.core.files import data_file
from dlrover_lite.core.files.remote import RemoteFile, Version
from dlrover_lite.core.files.retries import Retries
from dlrover_lite.data import text
from dlrover_lite.data.base import Batch, Dataset
from dlrover_lite.data.block_cache import CACHE_VARIABLE, process_cache
from dlrover_lite.data.files import resolve
from dlrover_lite.data.open import describe, open_data
from dlrover_lite.data.order import EpochOrder
from dlrover_lite.recipe import checks
from dlrover_lite.recipe.load import load_recipe
from dlrover_lite.recipe.schema import CriteoData, CsvData, ParquetData
from tests.data.criteo_lines import generated_lines
from tests.data.object_store import CREDENTIALS, FaultyProxy, ObjectStore, store_process

SEED = random.Random().randrange(10_000)
EAGER = Retries(30, 0.0, 0.0, sleep=lambda seconds: None)
"""Tries again at once."""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with store_process() as found:
        yield found


@pytest.fixture(scope="module")
def proxy_process(store: ObjectStore) -> Iterator[FaultyProxy]:
    found = FaultyProxy(store.port, SEED)
    yield found
    found.close()
    s3fs.S3FileSystem.clear_instance_cache()  # they would ask it in other tests, too


@pytest.fixture
def proxy(proxy_process: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    found = proxy_process
    found.troubles, found.share = [], 0.0
    found.met.clear()
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": found.url}.items():
        monkeypatch.setenv(name, value)
    for module, name in ((data_file, "PATIENT"), (checks, "QUICK")):
        monkeypatch.setattr(module, name, EAGER)
    yield found
    process_cache().close()
    process_cache.__globals__["_cache"].cache_clear()


def csv_text() -> bytes:
    rows = [f"{n % 2},{n / 7:.3f},item {n % 50}" for n in range(3000)]
    rows[17] = "oops"
    return "\n".join(["label,price,item", *rows]).encode()


def parquet_bytes() -> bytes:
    n = np.arange(4000)
    table = pa.table({"label": n % 2, "price": n / 3, "item": n * 7, "unused": [str(i) * 20 for i in n]})
    target = io.BytesIO()
    pq.write_table(table, target, row_group_size=900)
    return target.getvalue()


def equal(a: Batch, b: Batch) -> bool:
    bad = [(line.line, line.why) for line in a.bad] == [(line.line, line.why) for line in b.bad]
    return bad and all(np.array_equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


def assert_every_sample_once(far: Dataset, near: Dataset) -> None:
    """As a worker reads an epoch: in its order, told before of what is next."""
    assert far.samples == near.samples
    order = EpochOrder(far.samples, seed=SEED, epoch=0, block_size=700)
    numbers: list[int] = []
    for start in range(0, far.samples, 128):
        stop = min(start + 128, far.samples)
        far.expect(order.blocks(start, min(stop + 2000, far.samples)))
        wanted = order.numbers(start, stop)
        assert equal(far.read(wanted), near.read(wanted))
        numbers += wanted.tolist()
    assert sorted(numbers) == list(range(near.samples))


COLUMNS: dict[str, Any] = {"label": "label", "dense": ["price"], "categorical": ["item"]}
CASES = ("criteo", "criteo.gz", "csv", "parquet")


@cache
def case_of(name: str) -> tuple[str, bytes, Any]:
    """Return the suffix of the case's files, what is in one, and a function of files that returns the recipe's data."""
    if name == "csv":
        return "csv", csv_text(), lambda files: CsvData(train=files, eval_share=0, **COLUMNS)
    if name == "parquet":
        return "parquet", parquet_bytes(), lambda files: ParquetData(train=files, eval_share=0, **COLUMNS)
    packed = name == "criteo.gz"
    text = b"\n".join(generated_lines(2000 if packed else 20_000))
    suffix, data = ("tsv.gz", gzip.compress(text)) if packed else ("tsv", text)
    return suffix, data, lambda files: CriteoData(train=files, eval_share=0)


@pytest.mark.parametrize("case", CASES)
def test_every_sample_comes_once_and_is_that_of_the_local_file(
    case: str, store: ObjectStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    suffix, data, recipe = case_of(case)
    (tmp_path / f"a.{suffix}").write_bytes(data)
    (tmp_path / f"b.{suffix}").write_bytes(data)
    for name in "ab":
        store.put(f"{case}/{name}.{suffix}", data)
    proxy.troubles, proxy.share = ["busy", "too many", "cut", "short"], 0.25
    far = open_data(recipe([f"s3://clicks/{case}/*.{suffix}"]), directory=tmp_path, part="train")
    near = open_data(recipe([f"*.{suffix}"]), directory=tmp_path, part="train")
    assert far is not None
    assert near is not None
    assert_every_sample_once(far, near)
    assert sum(proxy.met.values()) > proxy.met["none"], f"seed {SEED} has met no trouble"
    far.close()
    near.close()


@pytest.mark.parametrize("case", ["csv", "parquet"])
def test_a_web_server_that_serves_ranges_is_a_store_too(
    case: str, store: ObjectStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    suffix, data, recipe = case_of(case)
    (tmp_path / f"near.{suffix}").write_bytes(data)
    store.put(f"web.{suffix}", data, public=True)
    proxy.troubles, proxy.share = ["busy", "too many", "cut", "short"], 0.25
    far = open_data(recipe([f"{proxy.url}/clicks/web.{suffix}?as=is"]), directory=tmp_path, part="train")
    near = open_data(recipe([f"near.{suffix}"]), directory=tmp_path, part="train")
    assert far is not None
    assert near is not None
    assert_every_sample_once(far, near)
    far.close()
    near.close()


def put_many(store: ObjectStore, folder: str, count: int) -> list[str]:
    urls = [store.put(f"{folder}/part-{n:03}.tsv", b"\n".join(generated_lines(20, 20 * n))) for n in range(count)]
    for marker in ("_SUCCESS", ".part-001.tsv.crc", "_temporary/part-9.tsv"):
        store.put(f"{folder}/{marker}", b"x")
    return urls


@pytest.mark.parametrize("pattern", ["", "*.tsv", "part-*"])
def test_many_objects_are_listed_and_none_is_asked_for_alone(
    pattern: str, store: ObjectStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    urls = put_many(store, "many", 30)
    proxy.met.clear()
    found = resolve([f"s3://clicks/many/{pattern}"], tmp_path)
    assert [one.url for one in found if isinstance(one, RemoteFile)] == urls
    assert proxy.met["none"] <= 3  # the list, and one object that says whether lists are to be believed
    for one in found[:2]:
        assert isinstance(one, RemoteFile)
        one.check()  # the version of the list is the object's own


def test_a_list_that_says_other_things_than_an_object_is_not_believed(
    store: ObjectStore, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_many(store, "doubtful", 3)
    said = Version(7, 7)
    monkeypatch.setattr(RemoteFile, "current", lambda self: said)
    assert [one.version() for one in resolve(["s3://clicks/doubtful/"], tmp_path)] == [said] * 3  # type: ignore[union-attr]


def test_a_folder_is_all_that_is_below_it(store: ObjectStore, proxy: FaultyProxy, tmp_path: Path) -> None:
    put_many(store, "all/of/it", 5)
    far = open_data(CriteoData(train=["s3://clicks/all/"], eval_share=0), directory=tmp_path, part="train")
    assert far is not None and far.samples == 100
    near = b"\n".join(line for n in range(5) for line in generated_lines(20, 20 * n))
    (tmp_path / "near.tsv").write_bytes(near)
    local = open_data(CriteoData(train=["near.tsv"], eval_share=0), directory=tmp_path, part="train")
    assert local is not None
    assert equal(far.read(np.arange(100)), local.read(np.arange(100)))
    far.close()
    local.close()


def test_small_objects_are_indexed_several_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [RemoteFile(f"s3://clicks/{name}.tsv") for name in ("a", "large", "b")]
    for file, size in zip(files, (10, 1 << 40, 20), strict=True):
        file._version = Version(size, 1)
    both = threading.Barrier(2, timeout=20)

    def index(file: RemoteFile, progress: object = None) -> RemoteFile:
        if file is not files[1]:
            both.wait()
        return file

    monkeypatch.setattr(text, "index_text", index)
    assert text._indexes_of(files, None) == files  # type: ignore[comparison-overlap]


def fetched_ahead() -> None:
    """Wait until all that is expected is here."""
    cache = process_cache()
    with cache._changed:
        blocks = cache._book._blocks
        assert cache._changed.wait_for(lambda: not cache._wanted and all(one.ready for one in blocks.values()), 20)


def test_row_groups_are_fetched_before_they_are_read_and_columns_that_nobody_names_are_not(
    store: ObjectStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    n = np.arange(120_000)
    other = pa.array([random.Random(int(i)).randbytes(10).hex() for i in n])  # 2 MB that lie between the columns
    table = pa.table({"label": n % 2, "price": n / 3, "other": other, "item": n * 7})
    target = io.BytesIO()
    pq.write_table(table, target, row_group_size=40_000)
    url = store.put("wide.parquet", target.getvalue())
    (tmp_path / "near.parquet").write_bytes(target.getvalue())
    recipe = case_of("parquet")[2]
    far = open_data(recipe([url]), directory=tmp_path, part="train")
    near = open_data(recipe(["near.parquet"]), directory=tmp_path, part="train")
    assert far is not None
    assert near is not None
    assert far.remote and not near.remote
    far.expect([range(90_000, 90_010), range(0, 10)])
    fetched_ahead()
    proxy.met.clear()
    for first in (90_000, 0):
        wanted = np.arange(first, first + 1000)
        assert equal(far.read(wanted), near.read(wanted))
    assert not proxy.met
    fetched = sum(key.last - key.first for key in process_cache()._book._blocks)
    assert fetched < len(target.getvalue()) / 2
    far.expect([range(0, 10)])  # it is decoded
    assert not process_cache()._wanted
    far.close()
    near.close()


def test_a_web_server_without_ranges_is_refused(proxy: FaultyProxy, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"\n".join(generated_lines(20_000)))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/a.tsv"
        try:
            with pytest.raises(DataError, match=f"{url} can't be read: the server sends all of it"):
                open_data(CriteoData(train=[url]), directory=tmp_path, part="train")
        finally:
            server.shutdown()
            thread.join()


def test_an_index_is_kept_for_the_version_it_was_built_of(
    store: ObjectStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    url = store.put("versions.tsv", b"\n".join(generated_lines(3000)))
    recipe = CriteoData(train=[url], eval_share=0)

    def opened() -> tuple[int, bool]:
        told: list[str] = []
        data = open_data(recipe, directory=tmp_path, part="train", progress=lambda *step: told.append(step[0]))
        assert data is not None
        data.close()
        return data.samples, bool(told)

    assert opened() == (3000, True)
    assert opened() == (3000, False)
    store.put("versions.tsv", b"\n".join(generated_lines(2000)))
    assert opened() == (2000, True)


def test_a_change_of_an_object_changes_the_fingerprint(store: ObjectStore, proxy: FaultyProxy, tmp_path: Path) -> None:
    lines = generated_lines(40)
    recipe = CriteoData(train=[store.put("print.tsv", b"\n".join(lines))])
    first = describe(recipe, tmp_path).fingerprint
    assert describe(recipe, tmp_path).fingerprint == first
    store.put("print.tsv", b"\n".join(lines[::-1]))  # of the same size
    assert describe(recipe, tmp_path).fingerprint != first


@pytest.mark.parametrize("kind", ["tsv", "parquet"])
def test_an_object_that_changes_while_it_is_read_is_an_error(
    kind: str, store: ObjectStore, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix, data, recipe = case_of("criteo" if kind == "tsv" else kind)
    url = store.put(f"changing.{suffix}", data)
    opened = open_data(recipe([url]), directory=tmp_path, part="train")
    assert opened is not None
    if kind == "tsv":
        process_cache().close()  # or else all of it is here already
        process_cache.__globals__["_cache"].cache_clear()
    store.put(f"changing.{suffix}", data[: len(data) // 2] + b"\n" + data[len(data) // 2 + 1 :])
    with pytest.raises(DataError, match=r"changing.* was changed while it was being read"):
        opened.read(np.arange(100))


def test_a_packed_object_that_is_too_large_for_the_cache_is_refused(
    store: ObjectStore, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, data, recipe = case_of("criteo.gz")
    url = store.put("packed.tsv.gz", data)
    monkeypatch.setenv(CACHE_VARIABLE, "100KiB")
    with pytest.raises(DataError, match=r"s3://clicks/packed.tsv.gz is compressed.*(?s:.*)Store it unpacked"):
        open_data(recipe([url]), directory=tmp_path, part="train")


def test_a_store_that_only_throttles_is_told_of_with_what_to_do(store: ObjectStore, proxy: FaultyProxy) -> None:
    url = store.put("busy.tsv", b"x")
    proxy.troubles, proxy.share = ["busy"], 1.0
    pauses: list[float] = []
    file = RemoteFile(url, Retries(4, 1.0, 9.0, sleep=pauses.append, chance=lambda: 1.0))
    with pytest.raises(
        DataError, match=r"s3://clicks/busy.tsv can't be read: .*(?s:.*)Start again, or resume"
    ) as caught:
        file.read(0, 1)
    assert "tried 4 times" in str(caught.value)
    assert pauses == [1, 2, 4]
    assert proxy.met["busy"] == 4  # nobody but us tries again


RECIPE = """
version: 1
name: far
model: wide_deep
data: {{format: criteo, train: "{url}"}}
"""


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://clicks/none.tsv", "s3://clicks/none.tsv: no such object"),
        ("s3://elsewhere/none.tsv", "s3://elsewhere/none.tsv: no such object, and no such bucket"),
        ("s3://clicks/none/", "no object matches s3://clicks/none/"),
        ("s3://clicks/none/*.tsv", "no object matches s3://clicks/none/*.tsv"),
        ("s3://clicks/here", "s3://clicks/here is a folder; name its files, as in s3://clicks/here/*.tsv"),
        pytest.param(
            "gs://clicks/a.tsv",
            "gs://clicks/a.tsv needs a package: pip install 'dlrover-lite[gcs]'",
            marks=pytest.mark.skipif(find_spec("gcsfs") is not None, reason="gcsfs is installed"),
        ),
        ("abfs://c@account/a.tsv?sv=1&sig=hidden-secret", "abfs://…@account/a.tsv?… has credentials in it"),
        ("nowhere://a.tsv", "nowhere:// is nothing that fsspec knows"),
        ("s3://reader:hidden-secret@clicks/a.tsv", "s3://…@clicks/a.tsv has credentials in it"),
        ("https://a.org/a.tsv?X-Amz-Signature=hidden-secret", "https://a.org/a.tsv?… has credentials in it"),
        ("zip://a.tsv::s3://clicks/a.zip", "URLs in URLs can't be read"),
        ("s3://clicks/empty.tsv", "s3://clicks/empty.tsv is empty"),
        ("s3://clicks/table.tsv", "s3://clicks/table.tsv is a Parquet file, not criteo"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_before_a_job_starts(
    url: str, message: str, store: ObjectStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    store.put("here/a.tsv", b"x")
    store.put("empty.tsv", b"")
    store.put("table.tsv", parquet_bytes())
    (tmp_path / "r.yaml").write_text(RECIPE.format(url=url))
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "r.yaml")
    assert message in str(caught.value)
    assert "hidden-secret" not in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_missing_right_is_said_before_a_job_starts(store: ObjectStore, proxy: FaultyProxy, tmp_path: Path) -> None:
    proxy.troubles, proxy.share = ["refused"], 1.0
    (tmp_path / "r.yaml").write_text(RECIPE.format(url=store.put("closed.tsv", b"x")))
    with pytest.raises(RecipeError, match=r"s3://clicks/closed.tsv may not be read: .*Credentials come from"):
        load_recipe(tmp_path / "r.yaml")
    assert proxy.met["refused"] == 1  # another try wouldn't help


def test_credentials_are_refused_wherever_the_data_are(tmp_path: Path) -> None:
    """A recipe that is checked for another machine isn't kept with secrets, either."""
    (tmp_path / "r.yaml").write_text(RECIPE.format(url="s3://reader:hidden-secret@clicks/a.tsv"))
    with pytest.raises(RecipeError, match="credentials"):
        load_recipe(tmp_path / "r.yaml", check_files=False)
