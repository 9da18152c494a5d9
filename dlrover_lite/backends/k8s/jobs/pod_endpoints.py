"""Reaches the pods of jobs: straight where there is a route, else by port-forwards that are kept while they are used."""

from __future__ import annotations

import threading

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.port_forward import PortForward
from dlrover_lite.backends.k8s.jobs.job_watch import JobPod
from dlrover_lite.transport.endpoints import tcp_address

__all__ = ["PodEndpoints"]

_MOST_FORWARDS = 16


class PodEndpoints:
    """Endpoints of pods as they are from here. For several threads."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._forwards: dict[tuple[str, int], PortForward] = {}
        self._lock = threading.Lock()

    def endpoint(self, pod: JobPod, port: int) -> str:
        """Return where a port of a pod is reached: at its IP from within the cluster, or where pods run on this machine."""
        if self._is_direct(pod):
            return f"{tcp_address(pod.status.pod_ip)}:{port}"
        key = (pod.metadata.uid, port)
        with self._lock:
            found = self._forwards.pop(key, None)
            if found is None:
                while len(self._forwards) >= _MOST_FORWARDS:
                    self._forwards.pop(next(iter(self._forwards))).close()
                found = PortForward(self._calls.connection, pod.metadata.name, port)
            self._forwards[key] = found  # the newest at the end
            return found.endpoint

    def close(self) -> None:
        with self._lock:
            for one in self._forwards.values():
                one.close()
            self._forwards.clear()

    def _is_direct(self, pod: JobPod) -> bool:
        return not self._calls.connection.context or pod.status.pod_ip.startswith("127.")
