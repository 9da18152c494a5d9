"""A real API server for tests: kube-apiserver over etcd, on loopback, without nodes. What would run pods is up to the test.

Binaries are found as controller tests of Kubernetes usually do: in ``KUBEBUILDER_ASSETS``, or its default directory. Any cluster will do as
well: ``DLROVER_LITE_TEST_KUBECONFIG`` names a kubeconfig whose user may do anything in namespaces of its own.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from dlrover_lite.backends.host import linux
from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect

ASSETS = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/usr/local/kubebuilder/bin")
BINARIES = ("etcd", "kube-apiserver")
HOW = (
    "needs kube-apiserver and etcd in KUBEBUILDER_ASSETS (setup-envtest of controller-runtime fetches them), "
    "or any cluster by DLROVER_LITE_TEST_KUBECONFIG"
)
GIVEN = os.environ.get("DLROVER_LITE_TEST_KUBECONFIG", "")
_START_SECONDS = 120.0


def is_there() -> bool:
    return bool(GIVEN) or (all((ASSETS / name).exists() for name in BINARIES) and shutil.which("openssl") is not None)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class ApiServer:
    """Users log in by tokens. ``admin`` may do anything; ``ann`` nothing, unless roles say so."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tokens = {name: secrets.token_hex(16) for name in ("admin", "ann", "master")}
        client, peer, self.port = free_ports(3)
        self._etcd_url = f"http://127.0.0.1:{client}"
        self._peer_url = f"http://127.0.0.1:{peer}"
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        groups = {"admin": '"system:masters"', "ann": '"people"', "master": '"people"'}
        lines = [f"{token},{name},{name},{groups[name]}" for name, token in self.tokens.items()]
        (self.directory / "tokens.csv").write_text("\n".join(lines) + "\n")
        key = self.directory / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        self.start_etcd()
        self.start_server()

    def start_etcd(self) -> None:
        """Start etcd alone."""
        self._spawn(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={self._peer_url}",
            f"--initial-advertise-peer-urls={self._peer_url}",
            f"--initial-cluster=default={self._peer_url}",
            "--unsafe-no-fsync=true",
            "--log-level=error",
        )

    def start_server(self) -> None:
        """Start the API server, again if it was stopped."""
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.directory / 'certificates'}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self.directory / 'accounts.key'}",
            f"--service-account-key-file={self.directory / 'accounts.key'}",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--endpoint-reconciler-type=none",
            "--watch-cache=true",
            "--profiling=false",
        )
        self._wait_until_ready()

    def _spawn(self, name: str, *arguments: str) -> None:
        log = (self.directory / f"{name}.log").open("ab")
        command = linux.tied([str(ASSETS / name), *arguments])  # it ends with the tests, however they end
        with log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory))

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + _START_SECONDS
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        pool = urllib3.PoolManager(cert_reqs="CERT_NONE", retries=False, timeout=2.0)
        headers = {"Authorization": f"Bearer {self.tokens['admin']}"}
        while time.monotonic() < end:
            if any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"The cluster's processes ended:\n{self.log('kube-apiserver')[-2000:]}")
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                if pool.request("GET", f"{self.url}/readyz", headers=headers).status == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"The API server isn't ready:\n{self.log('kube-apiserver')[-2000:]}")

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text("utf-8", "replace")

    def calls(self, directory: Path, user: str, namespace: str, url: str = "") -> Calls:
        """Return calls of a user in a namespace, by a kubeconfig that is written to the directory."""
        file = self.kubeconfig(directory / f"{user}-{namespace}", user=user, namespace=namespace, url=url)
        return Calls(connect(environment={"KUBECONFIG": str(file)}), clock=time.monotonic, sleep=time.sleep)

    def stop_server(self) -> None:
        self._end(self._processes.pop())

    def stop(self) -> None:
        for process in reversed(self._processes):
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kubeconfig(
        self,
        file: Path,
        user: str = "admin",
        namespace: str = "default",
        token: str | None = None,
        url: str = "",
    ) -> Path:
        """Write a kubeconfig for a user. ``url``: where the user asks the server; empty: at its own address."""
        authority = base64.b64encode((self.directory / "certificates" / "apiserver.crt").read_bytes()).decode()
        file.write_text(
            f"""\
apiVersion: v1
kind: Config
current-context: test
clusters:
- name: test
  cluster:
    server: {url or self.url}
    certificate-authority-data: {authority}
users:
- name: {user}
  user:
    token: {token or self.tokens[user]}
contexts:
- name: test
  context:
    cluster: test
    user: {user}
    namespace: {namespace}
"""
        )
        return file


@contextlib.contextmanager
def running(directory: Path) -> Iterator[ApiServer]:
    server = ApiServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()


needs_cluster = pytest.mark.skipif(not is_there(), reason=HOW)
