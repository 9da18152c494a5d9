"""The project's Python files, parsed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dlrover_lite"


def files(*directories: str) -> list[Path]:
    return sorted(path for directory in directories for path in (ROOT / directory).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each absolute import in the file, ``import_module("name")`` included."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _called(node) in {"import_module", "__import__"}:
                yield node.lineno, name
            case _:
                pass


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """(dotted name as written, call) of each call in the file whose function is a plain dotted name."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]
