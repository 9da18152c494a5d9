"""Every sentence that the brain can write, with an example of each in ``sentences.txt``: read it when one changes.

python -m tests.brain.test_sentences      # write the file anew
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from dlrover_lite.brain.treatment import Cause
from tests.brain.sentences import examples

BRAIN = Path(__file__).parents[2] / "dlrover_lite" / "brain"
FILE = Path(__file__).parent / "sentences.txt"
MODULES = (
    "reasons",
    "change_policy",
    "prescale",
    "slow_nodes",
    "memory_rules",
    "spare_rules",
    "ceiling",
    "health",
    "effect",
)
"""Where reasons are written."""
_LEAST_WORDS = 3
_WORD = re.compile(r"[a-zA-Z']{2,}")


def fragments(module: str) -> Iterator[str]:
    """Parts of sentences: constant text of a few words, but for docstrings and messages of errors."""
    tree = ast.parse((BRAIN / f"{module}.py").read_text())
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            skipped.update(id(inner) for inner in ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            words = [word for word in node.value.split() if _WORD.search(word)]
            if len(words) >= _LEAST_WORDS and node.value not in get_args(Cause):
                yield node.value


@cache
def written() -> str:
    """The file as it is to be: by module, the shortest example of each part of a sentence."""
    known = sorted(examples(), key=lambda text: (len(text), text))
    lines: list[str] = []
    for module in MODULES:
        found = {}
        for part in fragments(module):
            found.setdefault(next((text for text in known if part in text), f"NO EXAMPLE OF: {part!r}"), None)
        lines += [f"--- {module}", *found, ""]
    return "\n".join(lines)


def test_every_sentence_has_an_example() -> None:
    missing = [line for line in written().splitlines() if line.startswith("NO EXAMPLE")]
    assert not missing, "add a case of it to tests/brain/sentences.py"


def test_the_sentences_are_those_that_were_read() -> None:
    """But for numbers, which another processor may round in another way."""
    if masked(FILE.read_text()) != masked(written()):
        pytest.fail(
            "The brain's sentences have changed. Read them: python -m tests.brain.test_sentences; git diff tests/brain/sentences.txt"
        )


def masked(text: str) -> str:
    return re.sub(r"\d[\d.,]*", "#", text)


@pytest.mark.parametrize("text", sorted(set(written().splitlines())))
def test_a_sentence_is_fit_to_be_read(text: str) -> None:
    if text.startswith("---"):
        return
    assert not re.search(r"saves? (up to )?-", text), "nothing is saved: it ends later"
    assert not re.search(r"\b(nan|inf|None)\b", text)
    assert not re.search(r"\b\d{4,} (bytes|B)\b", text), "MiB"
    assert not re.search(r"(?<![x.] )(?<![\d.,])1 (cores|intervals|requests|jobs|windows)\b", text)
    assert "  " not in text and ".." not in text and "{" not in text
    if "others need what it had" in text:
        assert re.search(r"more: [\w-]+ (gets|begins with) [\d.]+ core", text), "say who, and how much"


if __name__ == "__main__":
    FILE.write_text(written())
