"""``make`` on a machine that lacks something says what to install, in one line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.sources import ROOT


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A directory with the few commands that the set-up needs, and no Python: the PATH of a bare machine."""
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    for command in ("sh", "cat", "rm", "grep"):
        (bin_directory / command).symlink_to(str(shutil.which(command)))
    return bin_directory


def _add_command(machine: Path, name: str, script: str) -> None:
    (machine / name).write_text(f"#!/bin/sh\n{script}\n")
    (machine / name).chmod(0o755)


def _add_python_without_venv(machine: Path, name: str) -> None:
    """As Debian's python3.11 package alone: ``ensurepip`` is in another one."""
    (machine / "ensurepip.py").write_text("raise ImportError\n")
    _add_command(machine, name, f'PYTHONPATH={machine} exec {sys.executable} "$@"')


def _message(machine: Path, *, python: str = "") -> str:
    """What the set-up says, in its one line, before it gives up."""
    checkout = machine.parent / "checkout"
    checkout.mkdir()
    done = subprocess.run(
        ["sh", str(ROOT / "tools" / "setup.sh"), str(checkout), python],
        env={"PATH": str(machine)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert list(checkout.iterdir()) == []
    (line,) = done.stderr.splitlines()
    return line


def test_setup_without_python_says_what_to_install(machine: Path) -> None:
    assert "apt install python3 python3-venv" in _message(machine)


def test_setup_with_python_without_venv_says_what_to_install(machine: Path) -> None:
    _add_python_without_venv(machine, "python3")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"apt install python{version}-venv" in _message(machine)


def test_python_commands_that_do_not_run_are_passed_over(machine: Path) -> None:
    _add_command(machine, "python3.11", "echo 'command not found' >&2; exit 127")
    _add_command(machine, "python3.12", "echo 3.10; exit 1")
    assert "No Python 3.11, 3.12 or 3.13 found" in _message(machine)


def test_the_chosen_python_is_not_silently_replaced(machine: Path) -> None:
    _add_python_without_venv(machine, "python3")
    assert _message(machine, python="python9").startswith("PYTHON=python9 is not")
