"""What a master needs in its pod: the backend of its nodes, and the address by which nodes reach its files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import connect
from dlrover_lite.backends.k8s.api.watch import Followed
from dlrover_lite.backends.k8s.jobs.code_files import mounted_files
from dlrover_lite.backends.k8s.jobs.pod_options import PodOptions
from dlrover_lite.backends.k8s.nodes.backend import KubeBackend
from dlrover_lite.backends.k8s.nodes.capacity import bounds_of
from dlrover_lite.backends.k8s.objects.names import FILES_PORT
from dlrover_lite.backends.k8s.objects.node_pod import AGENT_MEMORY, JOB_FILES, PodSettings
from dlrover_lite.backends.keeper.agent import OPTIONS_VARIABLE
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.jobs.store import Job
from dlrover_lite.recipe.schema import ResourceLimits
from dlrover_lite.transport.connector import Connector

__all__ = ["scratch_size_of", "start_backend", "url_for_nodes"]

START_PATIENCE_SECONDS = 1800.0
"""How long the API server may be away when a master starts, as while a control plane is upgraded: no job fails for that."""


def start_backend(job: Job, *, connector: Connector, say: Callable[[str], None]) -> KubeBackend:
    """Start the backend of the nodes of a job whose master runs in this pod. Raises BackendError."""
    connection = connect()
    calls = Calls(connection, clock=time.monotonic, sleep=time.sleep, patience_seconds=START_PATIENCE_SECONDS)
    owner: Followed = calls.get("StatefulSet", job.id, Followed)
    recipe, settings = job.recipe, job.recipe.kubernetes
    if settings is None:
        raise BackendError(f"The recipe of {job.id} says that it doesn't run in a cluster")
    options = from_json(Path(JOB_FILES, "options.json").read_bytes(), PodOptions)
    if options.agent:
        settings = msgspec.structs.replace(settings, env={**settings.env, OPTIONS_VARIABLE: options.agent})
    pods = PodSettings(
        job=job.id,
        namespace=connection.namespace,
        owner_uid=owner.metadata.uid,
        kubernetes=settings,
        name=recipe.name,
        agent_memory=AGENT_MEMORY,
        files=mounted_files(Path(JOB_FILES)),
        scratch_size=settings.scratch_size or scratch_size_of(recipe.resources),
    )
    worker = recipe.resources.worker
    backend = KubeBackend(
        connection,
        pods,
        job,
        connector=connector,
        say=say,
        bounds=bounds_of(recipe.resources, options.seen_capacity),
        spares=Resources(worker.cores, worker.memory) if worker is not None else None,
    )
    backend.start()
    return backend


def scratch_size_of(limits: ResourceLimits) -> int:
    """Return how much a worker's pod may write: a model is put together there that may fill all parameter servers, and a table of it is
    there twice meanwhile. 0: nothing tells."""
    bounds = bounds_of(limits)
    ceiling = bounds.ceiling or bounds.otherwise
    return 0 if ceiling is None else GIB + 2 * ceiling.memory


def url_for_nodes(job: Job) -> Callable[[str], str]:
    """Return what turns the master's paths into URLs by which nodes reach the same: those in the job's directory."""
    served = f"dlrover-lite://{job.id}.{os.environ['DLROVER_LITE_NAMESPACE']}.svc:{FILES_PORT}"
    own = PurePosixPath(job.directory)

    def turned(url: str) -> str:
        path = PurePosixPath(url.removeprefix("file://"))
        return f"{served}/{path.relative_to(own)}" if path.is_relative_to(own) else url

    return turned
