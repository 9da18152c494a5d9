"""One API server for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kubernetes.config import kube_config

from tests.k8s.cluster import ApiServer, is_there, running


@pytest.fixture(scope="session", autouse=True)
def _files_of_the_client() -> Iterator[None]:
    """The client writes a kubeconfig's certificates to temporary files, and removes them when the process exits."""
    yield
    kube_config._cleanup_temp_files()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if not is_there():
        pytest.skip("no API server")
    with running(tmp_path_factory.mktemp("cluster")) as server:
        yield server
