from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.criteo_lines import REAL_SAMPLE, generated_lines


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State and caches of each test are its own."""
    directory = tmp_path / "home"
    monkeypatch.setenv("DLROVER_LITE_HOME", str(directory))
    return directory


@pytest.fixture(params=["real", "generated"])
def criteo_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "generated":
        path = tmp_path / "generated.tsv"
        path.write_bytes(b"\n".join(generated_lines(2500)))
        yield path
    elif REAL_SAMPLE.exists():
        yield REAL_SAMPLE
    else:
        pytest.skip("the sample of real lines is not here")
