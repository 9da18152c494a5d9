"""Names and labels of what a job has in a namespace."""

from __future__ import annotations

from dlrover_lite.core.version import __version__

__all__ = [
    "APP",
    "BRAIN",
    "BRAIN_PORT",
    "FILES_PORT",
    "JOB_LABEL",
    "MASTER_ACCOUNT",
    "MASTER_PORT",
    "NODE_ACCOUNT",
    "NODE_PORT",
    "USER_ROLE",
    "component_labels",
    "job_labels",
]

APP = "dlrover-lite"
JOB_LABEL = "dlrover-lite.io/job"
MASTER_ACCOUNT = "dlrover-lite-master"
"""Service account of masters, and the role that it has."""
NODE_ACCOUNT = "dlrover-lite-node"
"""Service account of parameter servers and workers: it has no rights, and no token."""
USER_ROLE = "dlrover-lite-user"
"""Role of people who run jobs from their workstation."""
BRAIN = "dlrover-lite-brain"
"""Name of the brain that the jobs of a namespace share: of its Deployment, Service and claim, and of the Secret with its key."""
MASTER_PORT, NODE_PORT, FILES_PORT = 7070, 7071, 7072
"""Ports of a master, of what speaks for its nodes, and of the job's files, which nodes write and commands read."""
BRAIN_PORT = 7074
"""Port of the brain that jobs share."""


def job_labels(job: str) -> dict[str, str]:
    """Return the labels by which all that a job has is found."""
    return {"app.kubernetes.io/name": APP, JOB_LABEL: job}


def component_labels(job: str, component: str) -> dict[str, str]:
    """Return the labels of an object. ``component``: "master", "ps", "worker", "storage"."""
    return {
        **job_labels(job),
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": APP,
        "app.kubernetes.io/version": __version__.replace("+", "_"),
    }
