"""The pictures in the docs are those that the screens make now. After a change that is meant to be seen: ``make pictures``, and look at
them."""

from __future__ import annotations

import gzip
import importlib.util

from tests.repository.sources import ROOT


def test_pictures_of_the_docs_are_current() -> None:
    path = ROOT / "tools" / "pictures.py"
    spec = importlib.util.spec_from_file_location("pictures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    old = [name for name, svg in module.pictures().items() if svg != (module.HERE / f"{name}.svg").read_text("utf-8")]
    assert not old, f"{', '.join(old)}: run make pictures, and look at them"


def test_the_recording_in_the_docs_has_no_paths_of_a_machine() -> None:
    text = gzip.decompress((ROOT / "docs" / "pictures" / "ads.jsonl.gz").read_bytes()).decode()
    assert not [part for part in ('"directory"', "/root", "/tmp", "/work", "/home") if part in text]
