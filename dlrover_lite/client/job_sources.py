"""Where jobs are: on this machine, and in the clusters that jobs were submitted to from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from dlrover_lite.core.errors import DlroverLiteError, JobError, UsageError
from dlrover_lite.core.files.paths import state_directory
from dlrover_lite.jobs.backend import LOCAL, JobBackend, JobSummary
from dlrover_lite.jobs.store import Job, match_id, short_id
from dlrover_lite.recipe.kubernetes import Kubernetes

if TYPE_CHECKING:
    from dlrover_lite.backends.k8s.jobs.known_clusters import ClusterName
    from dlrover_lite.backends.k8s.jobs.kube_jobs import KubeJobs

__all__ = [
    "ListedJob",
    "backend_at",
    "cluster_jobs",
    "clusters",
    "files_of",
    "find",
    "has_clusters",
    "listed",
    "listings",
    "local_jobs",
    "remember",
]

_PATIENCE_SECONDS = 5.0
"""How long a cluster that gives no answer is asked again."""


class ListedJob(NamedTuple):
    """A job of a cluster, as its list tells."""

    summary: JobSummary
    backend: JobBackend


def local_jobs() -> JobBackend:
    """Return what runs the jobs of this machine."""
    from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs

    return LocalJobs()


def cluster_jobs(settings: Kubernetes) -> KubeJobs:
    """Return what runs the jobs of a cluster. Raises UsageError where the client isn't installed, BackendError where none is known."""
    return _connected(settings.context, settings.namespace)


@cache
def _connected(context: str, namespace: str) -> KubeJobs:
    """Connect once for each cluster: what reaches its pods is kept."""
    from importlib.util import find_spec

    if find_spec("kubernetes") is None:
        raise UsageError(
            "Clusters need the package kubernetes, which isn't installed", hint="pip install 'dlrover-lite[k8s]'"
        )
    from dlrover_lite.backends.k8s.jobs.kube_jobs import connected

    return connected(context, namespace, patience_seconds=_PATIENCE_SECONDS)


def remember(context: str, namespace: str) -> None:
    """Know a cluster's namespace from now on, as if jobs had been submitted to it from here; empty: the kubeconfig's. Raises UsageError,
    BackendError, JobError where its jobs can't be listed."""
    backend = cluster_jobs(Kubernetes(context=context, namespace=namespace))
    backend.summaries()
    backend.remember()


def backend_at(source: str) -> JobBackend:
    """Return what runs the jobs of a source that is known here; empty: this machine. Raises UsageError, BackendError, JobError."""
    if source in ("", LOCAL):
        return local_jobs()
    for name, connect in clusters():
        if name == source:
            return connect()
    raise JobError(f"{source} isn't known here any more", hint="dlrover-lite jobs --context NAME --namespace NAME")


def listed(say: Callable[[str], None]) -> list[ListedJob]:
    """List the jobs of all clusters that are known here, by a call for each, the oldest first. ``say`` is told, in a line each, of clusters
    that can't be asked."""
    found = [ListedJob(one, backend) for backend, summaries in listings(say) for one in summaries]
    return sorted(found, key=lambda one: (short_id(one.summary.id), one.summary.id))


def _known_clusters() -> Sequence[ClusterName]:
    if not (state_directory() / "clusters").is_dir():
        return ()  # nor is anything imported for it
    from dlrover_lite.backends.k8s.jobs.known_clusters import known_clusters

    return known_clusters()


def has_clusters() -> bool:
    """Return whether any cluster is known here."""
    return bool(_known_clusters())


def clusters() -> list[tuple[str, Callable[[], KubeJobs]]]:
    """List the names of the clusters that are known here, each with what reaches it, and raises DlroverLiteError where it can't be."""
    return [(str(name), partial(_connected, name.context, name.namespace)) for name in _known_clusters()]


def listings(say: Callable[[str], None]) -> Iterator[tuple[JobBackend, list[JobSummary]]]:
    """Yield each cluster with its jobs. ``say`` is told of those that can't be asked."""
    for name, connect in clusters():
        try:
            backend = connect()
            found = list(backend.summaries())
        except DlroverLiteError as error:
            say(f"The jobs of {name} aren't known: {error.message.partition(chr(10))[0]}")
        else:
            yield backend, found


def find(reference: str) -> tuple[str, JobBackend]:
    """Return the id that is meant, and what runs that job: this machine goes before clusters, but for the newest
    of all. Raises JobError, naming the nearest ids."""
    here = local_jobs()
    ids = list(here.list())
    if reference != "last" and _matches(reference, ids):
        return match_id(reference, ids, "this machine"), here
    unknown: list[str] = []
    elsewhere = {one.summary.id: one for one in listed(unknown.append)}
    if not elsewhere and not unknown:
        return here.find(reference), here
    everything = sorted({*ids, *elsewhere}, key=lambda job: (short_id(job), job))
    try:
        job = match_id(reference, everything, "any place that is known here")
    except JobError as error:
        raise JobError(error.message, hint="\n".join([*unknown, error.hint])) from None
    if job in elsewhere:
        return job, elsewhere[job].backend
    return job, here


def files_of(reference: str) -> Job:
    """Return the files of the job that is meant, as they can be read from here. Raises as ``find``."""
    job, backend = find(reference)
    return backend.files(job)


def _matches(reference: str, ids: list[str]) -> bool:
    return bool(reference) and any(job.startswith(reference) or short_id(job).startswith(reference) for job in ids)
