"""Every sentence that the brain can write, with an example of each in ``sentences.txt``: read it when one changes.

python -m tests.brain.test_sentences      # write the file anew

Parts of sentences are found in the code. That each has an example is checked twice: its text is in one, and the code that makes it has run
while the examples were made, so that an example of another sentence doesn't stand for one of few words.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, get_args

import pytest

from dlrover_lite.protocol.acts import Cause
from tests.brain.sentences import examples

BRAIN = Path(__file__).parents[2] / "dlrover_lite" / "brain"
FILE = Path(__file__).parent / "sentences.txt"
MODULES = (
    "explain/reasons",
    "planning/allowed_changes",
    "planning/work_shift",
    "planning/prescale",
    "planning/rules",
    "healing/slow_nodes",
    "healing/memory_relief",
    "healing/memory_reclaim",
    "healing/memory_ceiling",
    "healing/health",
    "effect",
    "job_tracker",
    "explain/decision_text",
    "explain/explanation",
    "explain/inputs_text",
    "explain/model_fit",
    "explain/explanation_text",
    "explain/what_if",
    "explain/what_if_text",
)
"""Where reasons and explanations are written, below ``brain/``."""
OTHERS = {
    "advisor": "what keeps it from deciding",
    "past_jobs": "statements for the database",
    "planning/decision": "what a replay finds different",
    "planning/plan_grid": "why bounds hold no plan",
}
"""Where other text is written, and which."""
_CAUSES = get_args(Cause)
_LEAST_WORDS = 2
_WORD = re.compile(r"[a-zA-Z']{2,}")


def words(text: str) -> int:
    return sum(bool(_WORD.search(word)) for word in text.split())


def text_nodes(tree: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """All but docstrings, messages of errors, formats of numbers, and names of causes."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            skipped.update(id(inner) for inner in ast.walk(node))
        elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            skipped.update(id(inner) for inner in ast.walk(node.format_spec))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in get_args(Cause)
        ):
            yield node


def fragments(module: str) -> Iterator[str]:
    """Parts of sentences: text of a few words, with ``{}`` where values come."""
    tree = ast.parse((BRAIN / f"{module}.py").read_text())
    parts = {id(one) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for one in node.values}
    for node in text_nodes(tree):
        if id(node) not in parts and words(text := text_of(node)) >= _LEAST_WORDS:
            yield text


def text_of(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)


def finder(part: str) -> Callable[[str], bool]:
    """Make what says whether a part, which may begin a sentence, is in a text."""
    pieces = re.split(r"\{[^}]*\}", part)
    longest = max((*pieces[1:], pieces[0][1:]), key=len)
    first = f"(?i:{re.escape(part[:1])}){re.escape(pieces[0][1:])}" if part[:1].isalpha() else re.escape(pieces[0])
    found = re.compile(".*?".join([first, *map(re.escape, pieces[1:])])).search
    return lambda text: (
        longest in text and found(text) is not None
    )  # most have nothing in common, which is seen soonest so


# --- code that has run ------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Of an expression in a file: first line, last line, first column, last column."""

    line: int | None
    end: int | None
    column: int | None
    end_column: int | None


class Run:
    """Notes which expressions of some files run meanwhile."""

    def __init__(self, files: set[str]) -> None:
        self._files = files
        self._ran: dict[CodeType, set[int]] = {}
        """Offsets of the instructions that have run, in bytes."""

    def __enter__(self) -> Run:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    @property
    def places(self) -> dict[str, set[Place]]:
        """What has run, by file."""
        found: dict[str, set[Place]] = {file: set() for file in self._files}
        for code, offsets in self._ran.items():
            positions = list(code.co_positions())
            found[code.co_filename].update(Place(*positions[offset // 2]) for offset in offsets)
        return found

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in self._files:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        ran = self._ran.setdefault(code, set())

        def stepped(frame: FrameType, event: str, _arg: Any) -> Any:
            if event == "opcode":
                ran.add(frame.f_lasti)
            return stepped

        return stepped


def written_in_functions(tree: ast.Module) -> Iterator[tuple[str, Place]]:
    """Text with words that functions write, and where; a tuple of constants is one constant."""
    inside: dict[int, ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and all(isinstance(one, ast.Constant) for one in node.elts):
            inside.update((id(one), node) for one in node.elts)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in function.body:
            parts = {id(one) for node in ast.walk(statement) if isinstance(node, ast.JoinedStr) for one in node.values}
            for node in text_nodes(statement):
                formatted = isinstance(node, ast.JoinedStr)
                text = text_of(node)
                if id(node) not in parts and words(text) >= (1 if formatted else _LEAST_WORDS):
                    place: Any = inside.get(id(node), node)
                    yield text, Place(place.lineno, place.end_lineno, place.col_offset, place.end_col_offset)


class Examples(NamedTuple):
    texts: list[str]
    """The shortest first."""
    ran: dict[str, set[Place]]
    """By module."""


@cache
def made() -> Examples:
    files = {str(BRAIN / f"{module}.py"): module for module in MODULES}
    with Run(set(files)) as run:
        texts = set(examples())
    known = sorted(texts, key=lambda text: (len(text), text))
    return Examples(known, {files[file]: places for file, places in run.places.items()})


@cache
def written() -> str:
    """The file as it is to be: by module, the shortest example of each part of a sentence."""
    lines: list[str] = []
    for module in MODULES:
        found = {}
        for part in fragments(module):
            is_in = finder(part)
            found.setdefault(next((text for text in made().texts if is_in(text)), f"NO EXAMPLE OF: {part!r}"))
        lines += [f"--- {module}", *found, ""]
    return "\n".join(lines)


def test_every_sentence_has_an_example() -> None:
    missing = [line for line in written().splitlines() if line.startswith("NO EXAMPLE")]
    assert not missing, "add a case of it to tests/brain/sentences.py or explaining.py"


@pytest.mark.parametrize("module", MODULES)
def test_all_code_that_writes_sentences_is_covered_by_examples(module: str) -> None:
    tree = ast.parse((BRAIN / f"{module}.py").read_text())
    ran = made().ran[module]
    missing = [f"line {place.line}: {text}" for text, place in written_in_functions(tree) if place not in ran]
    assert not missing, "add a case of it to tests/brain/sentences.py or explaining.py"


def test_modules_that_write_sentences_are_all_listed() -> None:
    modules = [
        str(path.relative_to(BRAIN).with_suffix("")) for path in BRAIN.rglob("*.py") if "store" not in path.parts
    ]
    writing = {module for module in modules if any(words(part) > 2 for part in fragments(module))}
    assert writing - set(MODULES) == set(OTHERS), "add it to MODULES, with examples, or to OTHERS"


def test_the_brains_sentences_have_not_changed() -> None:
    """But for numbers, which another processor may round in another way."""
    if masked(FILE.read_text()) != masked(written()):
        pytest.fail(
            "The brain's sentences have changed. Read them: python -m tests.brain.test_sentences; git diff tests/brain/sentences.txt"
        )


def masked(text: str) -> str:
    return re.sub(r"\d[\d.,]*", "#", text)


def faults(text: str) -> Iterator[str]:
    """Give what is wrong with a sentence that people are to read."""
    if re.search(r"saves? (up to )?-", text):
        yield "nothing is saved: it ends later"
    if re.search(r"\b(nan|inf|None)\b", text):
        yield "no value"
    if re.search(r"\b\d{4,} (bytes|B)\b", text):
        yield "MiB"
    if re.search(r"(?<![x.] )(?<![\d.,])1 (cores|intervals|requests|jobs|windows)\b", text):
        yield "1, and a plural"
    if "  " in text or ".." in text or "{" in text:
        yield "spaces, full stops, or a value not filled in"
    if "others need what it had" in text and not re.search(r"more: [\w-]+ (gets|begins with) [\d.]+ core", text):
        yield "say who, and how much"


def test_sentences_are_fit_to_be_read() -> None:
    found = [(text, fault) for text in written().splitlines() if not text.startswith("---") for fault in faults(text)]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "saves up to -3 s",
        "a gain of nan",
        "needs 4096 bytes",
        "gets 1 cores",
        "gets  2 cores",
        "Stop..",
        "gets {} cores",
        "others need what it had more",
    ],
)
def test_a_sentence_that_is_not_fit_to_be_read_is_found(text: str) -> None:
    assert len(list(faults(text))) == 1
    assert not list(faults("others need what it had more: ads gets 1 core, and saves up to 3 s"))


if __name__ == "__main__":
    FILE.write_text(written())
