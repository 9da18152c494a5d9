"""``k8s …``: what a cluster's namespace needs for jobs, and whether it has that."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from dlrover_lite.cli.checks import show_checks
from dlrover_lite.cli.groups import CommandGroup
from dlrover_lite.cli.output import note
from dlrover_lite.core.errors import UsageError

if TYPE_CHECKING:
    from dlrover_lite.backends.checks import Check

__all__ = ["k8s"]


@click.group(cls=CommandGroup, short_help="Prepare a namespace of a Kubernetes cluster, and check it.")
def k8s() -> None:
    """Prepare a namespace of a Kubernetes cluster for jobs, and check whether they can run there.

    Nothing is installed in the cluster but a namespace's worth of rights: no operator, no resource definitions.
    """


@k8s.command(short_help="Print what a namespace needs.")
@click.option(
    "--namespace", "-n", default="default", show_default=True, metavar="NAME", help="Namespace that jobs run in."
)
@click.option("--create-namespace", is_flag=True, help="Begin with the namespace itself, for restricted pods alone.")
@click.option(
    "--user", "users", multiple=True, metavar="NAME", help="Who may run jobs, as the cluster knows them (repeatable)."
)
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A group that may run jobs (repeatable).")
@click.option("--brain", is_flag=True, help="Add a brain that all jobs of the namespace may share.")
@click.option("--image", default="", metavar="REF", help="Image of that brain: the one that jobs run.")
@click.option(
    "--storage-class", default="", metavar="NAME", help="Storage class of that brain's volume (default: the cluster's)."
)
@click.option(
    "--fs-group",
    type=click.IntRange(0, 2**31 - 1),
    default=65532,
    show_default=True,
    help="Group that the brain's volume is given to; 0: none, where the namespace gives one of its own, as on OpenShift.",
)
def manifests(
    namespace: str,
    create_namespace: bool,
    users: tuple[str, ...],
    groups: tuple[str, ...],
    brain: bool,
    image: str,
    storage_class: str,
    fs_group: int,
) -> int:
    """Print what a namespace needs before it can have jobs: two service accounts, two roles, a network policy. Plain YAML:

        dlrover-lite k8s manifests --namespace ads --user ann | kubectl apply -f -

    Whoever applies it needs the right to make roles. Nothing here reads Secrets, or reaches beyond the namespace.

    With --brain, a Deployment with a Service and a volume follow. Its key is made once, by the command that is printed to stderr;
    jobs use it whose recipe says so: `backend: {k8s: {brain: dlrover-lite-brain}}`.
    """
    from dlrover_lite.backends.k8s.objects.brain import brain_objects, how_to_make_its_key
    from dlrover_lite.backends.k8s.objects.manifests import as_yaml, manifests

    if brain and not image:
        raise UsageError("Which image does the brain run?", hint="--image REF: the one that jobs run.")
    objects = manifests(namespace, users=users, groups=groups, create_namespace=create_namespace)
    if brain:
        objects += brain_objects(namespace, image, storage_class=storage_class, fs_group=fs_group)
        note(f"The brain's key, to be made once: {how_to_make_its_key(namespace)}")
    click.echo(as_yaml(objects), nl=False)
    return 0


@k8s.command(short_help="Check whether jobs can run in a namespace.")
@click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig (default: the present one).")
@click.option("--namespace", "-n", default="", metavar="NAME", help="Namespace (default: the context's).")
@click.option("--image", default="", metavar="REF", help="Image of the nodes.")
@click.option(
    "--storage-class", default="", metavar="NAME", help="Storage class of jobs' volumes (default: the cluster's)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(context: str, namespace: str, image: str, storage_class: str, as_json: bool) -> int:
    """Check whether jobs can run in a namespace: the server and its release, your rights, service accounts, quotas, storage, and whether a
    pod would be admitted. Nothing is left there.

    A warning is something that jobs have to do without. Exit codes: 0 a job can run; 1 there is a problem.
    """
    _need_client()
    return show_checks(_checks(context, namespace, image, storage_class), as_json=as_json)


def _checks(context: str, namespace: str, image: str, storage_class: str) -> Iterator[Check]:
    import time

    from dlrover_lite.backends.k8s.api.calls import Calls
    from dlrover_lite.backends.k8s.api.connection import connect
    from dlrover_lite.backends.k8s.check.check import Wanted, check_cluster

    calls = Calls(connect(context, namespace), clock=time.monotonic, sleep=time.sleep, patience_seconds=5.0)
    yield from check_cluster(calls, Wanted(image, storage_class))


@k8s.group(cls=CommandGroup, short_help="Make the image that pods run.")
def image() -> None:
    """Make the image that all pods of a job run."""


@image.command("build", short_help="Build the image of this version.")
@click.argument("tag", required=False, default="")
@click.option("--push", is_flag=True, help="Push it then.")
@click.option(
    "--with", "builder", default="", metavar="NAME", help="docker, podman or buildah (default: the first there is)."
)
@click.option(
    "--base",
    default="",
    metavar="REF",
    help="Image to start from, with Python 3.11 or later (default: python:3.11-slim-bookworm).",
)
@click.option(
    "--argument", "arguments", multiple=True, metavar="ARG", help="A further argument for the builder (repeatable)."
)
@click.option("--context", "directory", metavar="DIR", help="Write what it is built from into a new directory instead.")
def build_image(
    tag: str, push: bool, builder: str, base: str, arguments: tuple[str, ...], directory: str | None
) -> int:
    """Build the image of this version of dlrover-lite, with the other packages' versions that it runs with here, and PyTorch
    without CUDA:

        dlrover-lite k8s image build registry.example.com/ads/dlrover-lite:1 --push

    The image runs as any user, on a root file system that can't be written to. A recipe names it as backend.k8s.image.
    """
    from pathlib import Path

    from dlrover_lite.backends.k8s.image.build import build
    from dlrover_lite.backends.k8s.image.context import write_context

    if directory is not None:
        if Path(directory).exists():
            raise UsageError(f"{directory} exists already", hint="Name a new directory.")
        click.echo(f"Written: {write_context(Path(directory))}")
        return 0
    if not tag:
        raise UsageError("Which image?", hint="Give it a name: dlrover-lite k8s image build REGISTRY/NAME:TAG")
    build(tag, push=push, builder=builder, base=base, arguments=arguments, say=lambda line: click.echo(f"+ {line}"))
    click.echo(f"{tag} is {'pushed' if push else 'built'}. Use it: backend: {{k8s: {{image: {tag}}}}}")
    return 0


def _need_client() -> None:
    """Raise UsageError where the client of Kubernetes isn't installed."""
    if find_spec("kubernetes") is None:
        raise UsageError(
            "Clusters need the package kubernetes, which isn't installed",
            hint="pip install 'dlrover-lite[k8s]'",
        )
