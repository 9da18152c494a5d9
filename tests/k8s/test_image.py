"""What an image is built from, and that every role starts in a container that allows nothing more than it has to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest

from dlrover_lite.backends.k8s.image.build import build, choose_builder
from dlrover_lite.backends.k8s.image.context import pinned, write_context
from dlrover_lite.backends.k8s.objects.pod_security import SCRATCH, scratch_environment
from dlrover_lite.core.errors import UsageError
from tests.k8s.kubelet import REPOSITORY, needs_root

PACKAGES = {
    "dlrover-lite": (
        "1",
        ["a>=1", "Torch>=2", "tool; extra == 'dev'", "k[fast]>=2; extra == 'k8s'", "w; sys_platform == 'win32'"],
    ),
    "a": ("1.5", ["b_c>1", "old; python_version < '3'"]),
    "b_c": ("2", ["a"]),
    "Torch": ("2.6.0", []),
    "k": ("3", ["fast-lane; extra == 'fast'", "docs; extra == 'docs'"]),
    "fast-lane": ("4", []),
}


def known(name: str) -> tuple[str, Iterable[str]]:
    if name not in PACKAGES:
        raise metadata.PackageNotFoundError(name)
    return PACKAGES[name]


def test_an_image_has_the_versions_of_all_packages_that_it_needs_and_no_others() -> None:
    assert pinned(known) == ["a==1.5", "b-c==2", "fast-lane==4", "k==3", "torch==2.6.0+cpu"]


def test_an_image_reads_the_stores_whose_drivers_are_installed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    version, required = PACKAGES["dlrover-lite"]
    monkeypatch.setitem(
        PACKAGES, "dlrover-lite", (version, [*required, "gcsfs; extra == 'gcs'", "adlfs; extra == 'azure'"])
    )
    monkeypatch.setitem(PACKAGES, "gcsfs", ("7", []))
    assert [one for one in pinned(known) if "fs" in one] == ["gcsfs==7"]


def test_a_package_that_is_missing_here_is_named() -> None:
    with pytest.raises(UsageError, match="needs fast-lane, which isn't installed"):
        pinned(lambda name: known("?" if name == "fast-lane" else name))


def test_a_context_has_the_package_and_all_that_pip_needs(tmp_path: Path) -> None:
    file = write_context(tmp_path / "context")
    source = file.parent / "source"
    assert (source / "dlrover_lite/__main__.py").is_file()
    assert {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "dlrover_lite").rglob("*.py")} == {
        path.relative_to(source).as_posix() for path in (source / "dlrover_lite").rglob("*.py")
    }
    requirements = (source / "requirements.txt").read_text().splitlines()
    assert any(line.startswith("torch==") and line.endswith("+cpu") for line in requirements)
    assert all(line.count("==") == 1 for line in requirements)
    copied = [words[1] for line in file.read_text().splitlines() if (words := line.split())[:1] == ["COPY"]]
    assert copied == ["source", "--from=build"]


def test_an_image_is_built_and_pushed_by_what_is_there(tmp_path: Path) -> None:
    ran: list[list[str]] = []
    said: list[str] = []

    def run(command: Iterable[str]) -> int:
        ran.append(list(command))
        context = Path(ran[0][-1])
        assert (context / "Containerfile").is_file() and (context / "source").is_dir()
        return 0

    tool = tmp_path / "podman"
    tool.write_text("")
    tool.chmod(0o755)
    assert choose_builder(find=lambda name: str(tool) if name == "podman" else None) == str(tool)
    build("r/x:1", push=True, builder=str(tool), base="b:2", say=said.append, run=run)
    assert [command[1] for command in ran] == ["build", "push"]
    assert ran[0][2:8] == ["--file", f"{ran[0][-1]}/Containerfile", "--tag", "r/x:1", "--build-arg", "BASE=b:2"]
    assert ran[1] == [str(tool), "push", "r/x:1"]
    assert not Path(ran[0][-1]).exists()
    with pytest.raises(UsageError, match=r"r/x:1 couldn't be pushed: podman ended with exit code 7"):
        build("r/x:1", push=True, builder=str(tool), say=said.append, run=lambda command: 7 * (command[1] == "push"))
    with pytest.raises(UsageError, match="None of docker, podman, buildah"):
        choose_builder(find=lambda _: None)


@needs_root
def test_every_role_starts_as_any_user_with_a_root_that_cannot_be_written_to(tmp_path: Path) -> None:
    modules = (
        "dlrover_lite.__main__",
        "dlrover_lite.master_process.__main__",
        "dlrover_lite.backends.keeper.keeper",
        "dlrover_lite.backends.template.template",
        "dlrover_lite.ps.server.main",
        "dlrover_lite.worker.main",
        "dlrover_lite.backends.k8s.jobs.files.server",
    )
    says = (
        "import importlib, os, tempfile\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "from dlrover_lite.core.files.paths import state_directory, make_state\n"
        "make_state('jobs')\n"
        "print(os.getuid(), str(state_directory()).startswith('/scratch'), tempfile.gettempdir())\n"
    )
    scratch, root, hosts = (tmp_path / name for name in ("scratch", "root", "hosts"))
    scratch.mkdir()
    scratch.chmod(0o777)
    root.mkdir()
    hosts.write_text("127.0.0.1 localhost\n")
    container = {
        "root": str(root),
        "mounts": [
            (str(REPOSITORY), str(REPOSITORY), True),
            (sys.base_prefix, sys.base_prefix, True),
            (sys.prefix, sys.prefix, True),
            (str(scratch), SCRATCH, False),
        ],
        "hosts": str(hosts),
        "directory": "/",
        "user": 54321,
        "cgroups": [],
        "command": [sys.executable, "-P", "-c", says],
        "environment": {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), **scratch_environment()},
    }
    file = tmp_path / "container.json"
    file.write_text(json.dumps(container))
    command = [sys.executable, "-P", str(REPOSITORY / "tests/k8s/pod_root.py"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["54321", "True", SCRATCH]), done.stderr
