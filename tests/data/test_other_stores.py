"""Data in Google's and Azure's object stores, as emulators play them, where those and fsspec's drivers are installed: azurite from npm,
gcp-storage-emulator from PyPI."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files import data_file
from dlrover_lite.core.files.remote import RemoteFile
from dlrover_lite.core.files.retries import Retries
from dlrover_lite.data.block_cache import process_cache
from dlrover_lite.data.files import resolve
from dlrover_lite.data.open import open_data
from dlrover_lite.recipe.schema import CriteoData
from tests.backends.support import until
from tests.data.criteo_lines import generated_lines
from tests.data.object_store import FaultyProxy
from tests.data.test_remote import EAGER, SEED, assert_every_sample_once, case_of

AZURITE = shutil.which("azurite-blob")
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The one that all emulators have."""
GOOGLES = """
import sys
from gcp_storage_emulator.server import create_server
create_server("127.0.0.1", int(sys.argv[1]), in_memory=True).run()
"""
FORMATS = ("criteo", "parquet")
LINES = [generated_lines(500, number) for number in range(3)]


def emulator(store: str, port: int, directory: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command of an emulator, and the environment in which its store is found."""
    if store == "gs":
        variables = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        return [sys.executable, "-c", GOOGLES, str(port)], variables
    place = f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
    account = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={AZURE_KEY};{place}"
    command = [str(AZURITE), "--blobPort", str(port), "--location", str(directory), "--skipApiVersionCheck", "--silent"]
    return command, {"AZURE_STORAGE_CONNECTION_STRING": account}


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: is_listening(port), f"{command[0]} to listen")
            yield
        finally:
            process.kill()


def is_listening(port: int) -> bool:
    with closing(socket.socket()) as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(
    params=[
        pytest.param(
            "gs",
            marks=pytest.mark.skipif(
                find_spec("gcsfs") is None or find_spec("gcp_storage_emulator") is None,
                reason="needs gcsfs and gcp-storage-emulator: pip install gcsfs gcp-storage-emulator",
            ),
        ),
        pytest.param(
            "abfs",
            marks=pytest.mark.skipif(
                find_spec("adlfs") is None or AZURITE is None,
                reason="needs adlfs and azurite: pip install adlfs, npm install --global azurite",
            ),
        ),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A file system with three objects in it."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command, variables = emulator(request.param, port, tmp_path / "azure")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with running(command, port):
        system = fsspec.filesystem(request.param, skip_instance_cache=True)
        system.port = port
        system.mkdir("clicks")
        for number, lines in enumerate(LINES):
            system.pipe_file(f"clicks/day/{number}.tsv", b"\n".join(lines))
        yield system
        process_cache().close()
        process_cache.__globals__["_cache"].cache_clear()
        type(system).clear_instance_cache()


@pytest.fixture
def proxy(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy by which whoever reads comes to the store, with two files of each format in it."""
    for case in FORMATS:
        for name in "ab":
            store.pipe_file(f"clicks/{case}/{name}.{case_of(case)[0]}", case_of(case)[1])
    found = FaultyProxy(store.port, SEED)
    scheme = "gs" if "gs" in store.protocol else "abfs"
    for name, value in emulator(scheme, int(found.url.rpartition(":")[2]), tmp_path)[1].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(data_file, "PATIENT", EAGER)
    type(store).clear_instance_cache()
    yield found
    found.close()


@pytest.mark.parametrize("case", FORMATS)
def test_every_sample_comes_once_whatever_happens_to_answers(
    case: str, store: Any, proxy: FaultyProxy, tmp_path: Path
) -> None:
    scheme = "gs" if "gs" in store.protocol else "abfs"
    suffix, data, recipe = case_of(case)
    for name in "ab":
        (tmp_path / f"{name}.{suffix}").write_bytes(data)
    proxy.troubles, proxy.share = ["busy", "too many", "cut", "short"], 0.25
    far = open_data(recipe([f"{scheme}://clicks/{case}/*.{suffix}"]), directory=tmp_path, part="train")
    near = open_data(recipe([f"*.{suffix}"]), directory=tmp_path, part="train")
    assert far is not None
    assert near is not None
    assert_every_sample_once(far, near)
    assert sum(proxy.met.values()) > proxy.met["none"], f"seed {SEED} has met no trouble"
    if scheme == "abfs":
        one = RemoteFile(f"abfs://clicks/{case}/a.{suffix}", Retries(2, 0.0, 0.0, sleep=lambda seconds: None))
        one.version()
        proxy.troubles, proxy.share = ["busy"], 1.0
        proxy.met.clear()
        with pytest.raises(DataError, match="tried 2 times"):
            one.read(0, 10)
        assert proxy.met["busy"] == 2, "its driver doesn't try again, and pause, beside us"
        again = fsspec.filesystem("abfs").service_client._config.retry_policy
        assert again.total_retries, "who writes there isn't tried for by us"
    far.close()
    near.close()


def test_its_objects_are_listed_read_and_seen_to_change(store: Any, tmp_path: Path) -> None:
    scheme = "gs" if "gs" in store.protocol else "abfs"
    (tmp_path / "near.tsv").write_bytes(b"\n".join(line for lines in LINES for line in lines))
    listed = resolve([f"{scheme}://clicks/day/"], tmp_path)
    assert [str(one) for one in listed] == [f"{scheme}://clicks/day/{number}.tsv" for number in range(3)]
    for one in listed:
        assert isinstance(one, RemoteFile)
        one.check()  # lists say the same of it as it does itself
    far = open_data(CriteoData(train=[f"{scheme}://clicks/day/*.tsv"], eval_share=0), directory=tmp_path, part="train")
    near = open_data(CriteoData(train=["near.tsv"], eval_share=0), directory=tmp_path, part="train")
    assert far is not None
    assert near is not None
    far.expect([range(far.samples)])
    numbers = np.random.default_rng(0).permutation(1500)
    for mine, others in zip(far.read(numbers)[:3], near.read(numbers)[:3], strict=True):
        assert np.array_equal(mine, others)
    far.close()
    near.close()
    with pytest.raises(DataError, match="no such object"):
        resolve([f"{scheme}://clicks/none.tsv"], tmp_path)
    with pytest.raises(DataError, match="no object matches"):
        resolve([f"{scheme}://clicks/none/*.tsv"], tmp_path)
    first = listed[0]
    assert isinstance(first, RemoteFile)
    store.pipe_file("clicks/day/0.tsv", b"\n".join(LINES[0][::-1]))  # of the same size
    with pytest.raises(DataError, match="was changed"):
        first.check()
