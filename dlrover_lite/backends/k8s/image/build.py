"""Builds an image with whichever of docker, podman and buildah is there, and pushes it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dlrover_lite.backends.k8s.image.context import write_context
from dlrover_lite.core.errors import UsageError

__all__ = ["BUILDERS", "build", "choose_builder", "commands"]

BUILDERS = ("docker", "podman", "buildah")

Run = Callable[[Sequence[str]], int]
"""Runs a command in the foreground; returns its exit code."""


def choose_builder(wanted: str = "", *, find: Callable[[str], str | None] = shutil.which) -> str:
    """Return the path of the builder that is wanted, or of the first that is there. Raises UsageError."""
    for name in [wanted] if wanted else BUILDERS:
        if found := find(name):
            return found
    raise UsageError(
        f"{wanted} isn't installed here" if wanted else f"None of {', '.join(BUILDERS)} is installed here",
        hint="Install one, or write what the image is built from with --context DIR, and build it elsewhere.",
    )


def commands(
    builder: str, tag: str, context: Path, *, base: str, push: bool, arguments: Sequence[str]
) -> list[list[str]]:
    """Return the commands that build, and ``push``, an image."""
    build = [builder, "build", "--file", str(context / "Containerfile"), "--tag", tag]
    build += ["--build-arg", f"BASE={base}"] if base else []
    build += [*arguments, str(context)]
    return [build, *([[builder, "push", tag]] if push else [])]


def build(
    tag: str,
    *,
    push: bool = False,
    builder: str = "",
    base: str = "",
    arguments: Sequence[str] = (),
    say: Callable[[str], None],
    run: Run = lambda command: subprocess.run(command, check=False).returncode,
) -> None:
    """Build the image ``tag`` from this package. ``base``: image that it starts from, with Python; empty: Python's own. Raises UsageError
    where it can't be built or pushed."""
    chosen = choose_builder(builder)
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-image-") as directory:
        context = Path(directory)
        write_context(context)
        for command in commands(chosen, tag, context, base=base, push=push, arguments=arguments):
            say(" ".join(command))
            if code := run(command):
                what = "pushed" if command[1] == "push" else "built"
                raise UsageError(
                    f"The image {tag} couldn't be {what}: {Path(chosen).name} ended with exit code {code}",
                    hint="What it has written above says why."
                    + (" Does a daemon run, and may you use it?" if Path(chosen).name == "docker" else ""),
                )
