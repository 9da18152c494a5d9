"""How the packages of the tree lie: who imports whom, and what their names say."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter

from tests.repository.sources import PACKAGE, ROOT, files, imported_names, module_name

MOST_MODULES = 20
"""The most modules of a folder; above a dozen it is worth a look."""
FULL: set[str] = set()
"""Folders with more, for now."""

PLAIN = set((ROOT / "tests" / "repository" / "plain_words.txt").read_text(encoding="utf-8").split())
"""Words of module names that need no explanation: ordinary ones, and names of formats, models and libraries. All others are terms that
docs/architecture.md explains."""


def _package_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def _graph() -> dict[str, set[str]]:
    """The packages, and the module `dlrover_lite` itself as "", each with those that it imports, for type checkers too."""
    names = {module_name(path) for path in files("dlrover_lite")}
    graph: dict[str, set[str]] = {}
    for path in files("dlrover_lite"):
        here = _package_of(module_name(path))
        found = graph.setdefault(here, set())
        for name in imported_names(path):
            if (name in names or name.rpartition(".")[0] in names) and _package_of(name) not in {"", here}:
                found.add(_package_of(name))
    return graph


def test_packages_import_each_other_without_cycles() -> None:
    """The graph is drawn from the sources, apart from the list in pyproject.toml."""
    graph = {package: imported for package, imported in _graph().items() if package not in {"", "__main__"}}
    assert {"core", "master", "brain", "cli"} <= graph.keys()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" needs ".join(reversed(error.args[1]))) from None


def test_folders_have_few_enough_files() -> None:
    counts: dict[str, int] = {}
    for path in files("dlrover_lite"):
        folder = str(path.parent.relative_to(PACKAGE))
        counts[folder] = counts.get(folder, 0) + (path.stem != "__init__")
    assert {folder for folder, count in counts.items() if count > MOST_MODULES} == FULL


def test_terms_of_art_in_names_are_explained() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    glossary = page[page.index("## Words") : page.index("## Processes")]
    terms = " ".join(re.findall(r"^\| ([^|]+) \|", glossary, re.M)).lower()
    explained = set(re.findall(r"[a-z0-9]+", terms))
    explained |= {word.removesuffix("s") for word in explained} | {f"{word}s" for word in explained}
    used = {
        word: path
        for path in files("dlrover_lite")
        for part in path.relative_to(PACKAGE).with_suffix("").parts
        for word in part.strip("_").split("_")
    }
    missing = {word: str(path.relative_to(ROOT)) for word, path in used.items() if word not in explained | PLAIN}
    assert not PLAIN - used.keys(), "no module has these words"
    assert not missing, "explain it in docs/architecture.md, or choose a name that needs no explanation"
