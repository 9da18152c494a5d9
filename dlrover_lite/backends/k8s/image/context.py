"""What an image of dlrover-lite is built from: this package as it is installed here, and the versions of the packages it runs with."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.version import __version__

__all__ = ["EXTRAS", "pinned", "write_context"]

PACKAGE = "dlrover-lite"
EXTRAS = ("k8s", "parquet", "s3")
"""Extras that an image has."""
_WHERE_INSTALLED = {"azure": "adlfs", "gcs": "gcsfs"}
"""Extras that an image has, too, where what they bring is installed here."""
_CONTAINERFILE = "Containerfile"
Requirements = Callable[[str], tuple[str, Iterable[str]]]
"""Returns the version of an installed package, and what it requires. Raises metadata.PackageNotFoundError."""


def installed(name: str) -> tuple[str, Iterable[str]]:
    return metadata.version(name), metadata.requires(name) or []


def pinned(requirements: Requirements = installed) -> list[str]:
    """Return ``name==version`` of all packages that the image needs, direct or not, as they are installed here; PyTorch without CUDA.

    Raises UsageError for one that isn't installed."""
    found: dict[str, str] = {}
    also = [extra for extra, package in _WHERE_INSTALLED.items() if _is_installed(package, requirements)]
    waiting = [Requirement(f"{PACKAGE}[{','.join([*EXTRAS, *also])}]")]
    looked_at: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in looked_at:
            continue
        looked_at.add((name, frozenset(wanted.extras)))
        try:
            found[name], required = requirements(wanted.name)
        except metadata.PackageNotFoundError:
            raise UsageError(
                f"The image needs {wanted.name}, which isn't installed here",
                hint=f"pip install '{PACKAGE}[{','.join(EXTRAS)}]': an image has the versions that its builder runs with.",
            ) from None
        waiting += [one for one in map(Requirement, required) if _is_needed(one, wanted.extras)]
    del found[PACKAGE]
    if "torch" in found:
        found["torch"] = found["torch"].partition("+")[0] + "+cpu"
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _is_installed(name: str, requirements: Requirements) -> bool:
    try:
        requirements(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _is_needed(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Say whether a requirement holds in an image, of Linux with this Python."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "python_version": python}
    return requirement.marker is None or any(
        requirement.marker.evaluate({**linux, "extra": one}) for one in ("", *extras)
    )


def write_context(directory: Path, requirements: Requirements = installed) -> Path:
    """Write all that an image is built from into ``directory``; return the Containerfile's path. Raises UsageError."""
    source = directory / "source"
    source.mkdir(parents=True)
    package = Path(__file__).parents[3]
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(package, source / package.name, ignore=ignored)
    (source / "requirements.txt").write_text("\n".join([*pinned(requirements), ""]), "utf-8")
    (source / "pyproject.toml").write_text(_PROJECT.format(name=PACKAGE, version=__version__), "utf-8")
    file = directory / _CONTAINERFILE
    shutil.copyfile(Path(__file__).with_name(_CONTAINERFILE), file)
    return file


_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"

[project.scripts]
dlrover-lite = "dlrover_lite.__main__:main"

[tool.setuptools.packages.find]
include = ["dlrover_lite*"]

[tool.setuptools.package-data]
"*" = ["*"]
"""
