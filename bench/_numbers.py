"""The numbers that the brain goes by, with their reasons and the ranges in which plans don't depend on them; and the page made of them,
docs/numbers.md.

    python bench/sensitivity.py --write-ranges    # measures the ranges, on all cores, for an hour and more
    python bench/_numbers.py                      # makes the page
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

import dlrover_lite
from dlrover_lite.brain.planning.job_view import Policy
from dlrover_lite.brain.policies import Policies

__all__ = [
    "PAGE",
    "USUAL",
    "Number",
    "Ranges",
    "module_numbers",
    "page",
    "policy_fields",
    "read_ranges",
    "write_ranges",
]

HERE = Path(__file__).resolve().parent
RANGES = HERE / "number_ranges.json"
PAGE = HERE.parent / "docs" / "numbers.md"
USUAL = Policies(planning=Policy())
BRAIN = Path(dlrover_lite.__file__).parent / "brain"
FOLDERS = ("", "planning", "planning/paper", "models", "healing")
NOT_NUMBERS = {
    *("FORMAT", "MILLI", "_UNKNOWN", "_OF_80_PERCENT", "_HALF_WIDTH_OF_80_PERCENT"),
    *("_CPU_TIMES", "_CPU_COEFFICIENTS", "_ALWAYS", "_SOURCE"),
}
"""Versions, units, marks, what mathematics says, and how many terms a model has."""

HEAD = """\
# The brain's numbers

What the brain goes by is in typed policies (`brain/policies.py`, `brain/planning/job_view.py`, `brain/healing/policies.py`), and each
number says there why it is what it is. The last column was measured by `bench/sensitivity.py` at {commit}: simulated jobs on one host of
4 cores, one of 16, two of 8, and two unlike ones reach the same, within 2%, at their end and on their way, with any value in this range;
it ends where something changes, or at half and twice the value. What these jobs don't meet, as memory that runs out or a slow node, says
nothing: such ranges are wide, and mean no more than that plans don't depend on the number.

## Of policies
"""


MODELS = """
## Of models and arithmetic

What stands at the top of the modules of `dlrover_lite/brain`: what is known of machines and of measurement, and what arithmetic needs.
"""


class Number(NamedTuple):
    path: str
    """Fields of ``Policies`` that lead to it, or the module at the top of which it stands; its own name last, joined by dots."""
    value: float
    doc: str


def policy_fields(policy: msgspec.Struct = USUAL, at: Sequence[str] = ()) -> Iterator[Number]:
    """Find the numbers among a policy's fields, and those of the policies in it. ``at``: the fields that lead to it."""
    docs = _docs(type(policy))
    for name in policy.__struct_fields__:
        value = getattr(policy, name)
        if isinstance(value, msgspec.Struct):
            yield from policy_fields(value, [*at, name])
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield Number(".".join([*at, name]), value, docs.get(name, ""))


def _docs(policy: type[msgspec.Struct]) -> dict[str, str]:
    """Read what stands below each field of a policy."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(policy))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def module_numbers() -> Iterator[Number]:
    """Find the numbers that stand at the top of the brain's modules: what models take for granted, and what arithmetic needs."""
    for path in (path for folder in FOLDERS for path in sorted((BRAIN / folder).glob("*.py"))):
        module = ".".join(path.relative_to(BRAIN).with_suffix("").parts)
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for at, node in enumerate(body):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                    pairs = list(zip(names, values, strict=True))
                case ast.Assign(targets=[name], value=value):
                    pairs = [(name, value)]
                case _:
                    continue
            for name, value in pairs:
                number = value.value if isinstance(value, ast.Constant) else None
                if not isinstance(name, ast.Name) or name.id in NOT_NUMBERS:
                    continue
                if isinstance(number, int | float) and not isinstance(number, bool):
                    yield Number(f"{module}.{name.id}", number, _doc_below(body, at))


def _doc_below(body: Sequence[ast.stmt], at: int) -> str:
    match body[at + 1 : at + 2]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return " ".join(text.split())
    return ""


class Ranges(NamedTuple):
    """The least value, the value and the greatest value of each number, by its path; and the commit at which they were measured."""

    commit: str
    of: dict[str, tuple[float, float, float]]


def read_ranges(path: Path = RANGES) -> Ranges:
    """Read the ranges; none, if nothing was measured yet."""
    if not path.exists():
        return Ranges("", {})
    kept = json.loads(path.read_text("utf-8"))
    return Ranges(kept["commit"], {name: (low, value, high) for name, (low, value, high) in kept["ranges"].items()})


def write_ranges(ranges: Ranges, path: Path = RANGES) -> None:
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in sorted(ranges.of.items()))
    path.write_text(f'{{"commit": {json.dumps(ranges.commit)}, "ranges": {{\n{lines}\n}}}}\n', encoding="utf-8")


def page(ranges: Ranges) -> str:
    """Make the page. A range of a number that was another one then isn't told."""
    head = HEAD.format(commit=f"`{ranges.commit}`" if ranges.commit else "no commit yet")
    return "".join([head, *_tables(policy_fields(), ranges.of), MODELS, *_tables(module_numbers(), ranges.of)])


def _tables(numbers: Iterable[Number], ranges: Mapping[str, tuple[float, float, float]]) -> Iterator[str]:
    for group, each in itertools.groupby(numbers, key=lambda one: one.path.rpartition(".")[0]):
        yield f"\n### {group}\n\n| number | value | what it is, and why | range |\n| --- | --- | --- | --- |\n"
        for one in each:
            low, value, high = ranges.get(one.path, (0.0, -1.0, 0.0))
            is_same = math.isclose(value, one.value, rel_tol=1e-4)
            told = f"{_shown(low)} to {_shown(high)}" if is_same else "not measured"
            yield f"| `{one.path.rpartition('.')[2]}` | {_shown(one.value)} | {one.doc} | {told} |\n"


def _shown(value: float) -> str:
    """Say a number; one of many digits with a comma for each thousand."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:g}"


if __name__ == "__main__":
    PAGE.write_text(page(read_ranges()), encoding="utf-8")
    print(f"Written: {PAGE}", file=sys.stderr)
