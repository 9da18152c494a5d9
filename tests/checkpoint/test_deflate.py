"""Checksums and compression are those of zlib, whichever library does them."""

from __future__ import annotations

import importlib.util
import sys
import zlib
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.checkpoint import deflate


def without_isal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deflate_without_isal", deflate.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "isal", None)
        spec.loader.exec_module(module)
    return module


EITHER = [deflate, without_isal()]


@given(st.lists(st.binary(max_size=20_000), max_size=4))
def test_checksums_and_streams_equal_those_of_zlib(pieces: list[bytes]) -> None:
    together = b"".join(pieces)
    for library in EITHER:
        assert library.crc32(pieces) == zlib.crc32(together)
        packed = library.compress(pieces)
        assert zlib.decompress(packed) == together
        assert all(other.decompress(memoryview(packed), len(together) + 1) == together for other in EITHER)


@pytest.mark.parametrize("library", EITHER)
def test_broken_streams_are_refused(library: ModuleType) -> None:
    packed = library.compress([b"some text " * 1000])
    for broken in (packed[:-5], b"\0\1\2" + packed, packed[:9], b""):
        with pytest.raises(library.BrokenStream):
            library.decompress(memoryview(broken), 10_000)
