"""The project's Python files, parsed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
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


@cache
def _imports_and_calls(path: Path) -> list[ast.AST]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each absolute import in the file, ``import_module("name")`` included."""
    for node in _imports_and_calls(path):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _called(node) in {"import_module", "__import__"}:
                yield node.lineno, name
            case _:
                pass


def imported_names(path: Path) -> set[str]:
    """Dotted names of all that a file imports, at once or later, for type checkers too: of modules, and of what is in them."""
    names: set[str] = set()
    for node in _imports_and_calls(path):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                names |= {module, *(f"{module}.{alias.name}" for alias in aliases)}
    return names


def imported_at_once(path: Path) -> set[str]:
    """Dotted names of all that is imported when the file is, whether they are modules or what is in them."""
    names: set[str] = set()
    for node in _run_at_once(tree(path).body):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                names |= {module, *(f"{module}.{alias.name}" for alias in aliases)}
    return names


def _run_at_once(statements: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """These and those within them, without what functions do, or what is there for type checkers."""
    for node in statements:
        yield node
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                pass
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=otherwise):
                yield from _run_at_once(otherwise)
            case ast.stmt() | ast.ExceptHandler():
                yield from _run_at_once(list(ast.iter_child_nodes(node)))


@cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """(dotted name as written, call) of each call in the file whose function is a plain dotted name."""
    return [(ast.unparse(node.func), node) for node in _imports_and_calls(path) if isinstance(node, ast.Call)]


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]
