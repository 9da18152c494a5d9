"""The rights that jobs need in a namespace, each with what it is for. Nobody reads Secrets, and nothing is outside of the namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["MASTER_RIGHTS", "USER_RIGHTS", "Right", "rules_of"]


class Right(NamedTuple):
    group: str
    """API group; empty: the core's."""
    resource: str
    """Resource, with its subresource behind a slash."""
    verbs: tuple[str, ...]
    purpose: str
    optional: bool = False
    """Jobs run without it, and do less."""


MASTER_RIGHTS = (
    Right("", "pods", ("get", "list", "watch", "create", "delete", "patch"), "starts, watches and ends its nodes"),
    Right("", "pods/resize", ("patch",), "gives a running node more or less, without a restart", optional=True),
    Right("apps", "statefulsets", ("get",), "owns its pods, so that nothing is left of a job that is deleted"),
    Right("apps", "statefulsets/scale", ("get", "patch"), "ends itself when the job is over"),
    Right("apps", "statefulsets/status", ("patch",), "writes there how the job is, and how it has ended"),
    Right("", "events", ("create",), "tells its decisions where `kubectl describe` shows them", optional=True),
    Right("", "resourcequotas", ("list",), "asks for no more than the namespace may have", optional=True),
)
USER_RIGHTS = (
    Right(
        "apps",
        "statefulsets",
        ("get", "list", "watch", "create", "patch", "delete"),
        "makes a job's master, and removes it",
    ),
    Right("apps", "statefulsets/scale", ("get", "patch"), "starts a job, suspends it, and lets it go on"),
    Right("", "secrets", ("create", "delete"), "gives each job a key of its own, which nobody reads back"),
    Right("", "configmaps", ("get", "create", "delete"), "sends the recipe and the model's code"),
    Right("", "services", ("create", "delete"), "gives a job's master a name that its nodes find"),
    Right(
        "",
        "persistentvolumeclaims",
        ("get", "list", "create", "delete"),
        "keeps a job's directory, until `stop --purge`",
    ),
    Right(
        "",
        "pods",
        ("get", "list", "watch", "create", "delete"),
        "sees how nodes are; reads what an ended job has left, by a pod",
    ),
    Right("", "pods/log", ("get",), "shows why a pod didn't start", optional=True),
    Right("", "pods/portforward", ("get", "create"), "reaches a job's master from the workstation"),
    Right(
        "",
        "pods/exec",
        ("get", "create"),
        "reads a job's key in its pod, where it was submitted from another machine",
        optional=True,
    ),
    Right("", "events", ("list",), "passes on why a pod isn't scheduled", optional=True),
    Right("", "resourcequotas", ("list",), "says beforehand that a job wouldn't fit", optional=True),
)


def rules_of(rights: Sequence[Right]) -> list[dict[str, Any]]:
    """Make the rules of a role."""
    return [{"apiGroups": [one.group], "resources": [one.resource], "verbs": list(one.verbs)} for one in rights]
