"""The lines of a recording: what was shown of jobs, each line with what was new then only.

A recording is a text file of JSON lines: first a ``Head``, then ``Frame``s in order of their times. It is whole up to any line, so one that
was cut off, or is still being written, can be shown as far as it goes. Now and then a line is a key: it has everything, so that who begins
there needs nothing of what was before. ``packed`` has how it is compressed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from dlrover_lite.core.decoding import convert
from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui.model import Explanation, HostRow, JobDetail, JobRow, NodeRow, Problem, Rate

__all__ = [
    "EXPLANATIONS",
    "FORMAT",
    "ROWS",
    "Change",
    "Decided",
    "Explained",
    "Frame",
    "Head",
    "Look",
    "applied",
    "encoded",
    "look",
]

FORMAT = 2

S = TypeVar("S", bound=msgspec.Struct)
Change = dict[str, Any]
"""Fields of a struct that differ from those before, by the name that they have in recordings."""


class Head(msgspec.Struct, frozen=True):
    recording: int
    """Format of the recording: ``FORMAT``."""
    version: str
    """Version of dlrover-lite that wrote it."""
    at: float


class Look(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is new of a job that is looked at: a ``JobDetail`` against the one before."""

    job: str
    anew: bool = False
    """Whether nothing of the job that was told before holds."""
    row: Change = {}
    fields: Change = {}
    """Changes of all other fields, which aren't here by name."""
    rates: tuple[Rate, ...] = ()
    """Rates that have come."""
    decisions: tuple[Chosen, ...] = ()
    """Decisions that are new, and those of which more is known."""
    nodes: dict[str, Change] = {}
    order: tuple[str, ...] | None = None
    """Ids of all nodes, in order; None: as before."""


class Decided(msgspec.Struct, frozen=True, array_like=True):
    """A decision that changed something, for a mark on the time axis."""

    job: str
    number: int
    symbol: str


class Explained(msgspec.Struct, frozen=True):
    """An explanation, against the one of the same decision before."""

    job: str
    number: int
    change: Change = {}


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    """Time of the frame, in seconds since the epoch."""
    key: bool = False
    """Whether the frame has everything: whatever isn't here isn't there."""
    jobs: dict[str, Change] = {}
    """Changes of the jobs that are new or have changed."""
    gone: tuple[str, ...] = ()
    brain: str | None = None
    """Words about the brain; None: it, and the problem, are as before."""
    problem: Problem | None = None
    hosts: tuple[HostRow, ...] | None = None
    """Hosts that there are; None: as before."""
    looks: tuple[Look, ...] = ()
    left: tuple[str, ...] = ()
    """Ids of jobs that aren't looked at any more."""
    decided: tuple[Decided, ...] = ()
    explained: Explained | None = None


_LARGE = 1e5
"""From here on, as for times, numbers have three digits after the point."""


def encoded(line: Head | Frame) -> bytes:
    """Encode a line, with no more digits of its numbers than are ever shown: six, or a thousandth, as for times."""
    return msgspec.json.encode(_short(msgspec.to_builtins(line)))


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3) if abs(value) >= _LARGE or not math.isfinite(value) else float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    return value


class Differences(Generic[S]):
    """Structs of a kind, as what differs between two of them."""

    def __init__(self, kind: type[S], *, but: Iterable[str] = ()) -> None:
        """Compare structs of ``kind``. ``but``: fields that aren't compared."""
        self._kind = kind
        self._fields = {
            field.encode_name: field for field in msgspec.structs.fields(kind) if field.name not in set(but)
        }

    def between(self, before: S | None, after: S) -> Change:
        """Return what ``after`` has that ``before`` hasn't; before None: all that isn't as by default."""
        if before is after:
            return {}
        return {
            name: value
            for name, field in self._fields.items()
            if (value := getattr(after, field.name))
            != (field.default if before is None else getattr(before, field.name))
        }

    def after(self, before: S | None, change: Mapping[str, Any]) -> S:
        """Return ``before`` with a change that was read from a file. Raises msgspec.ValidationError for one that doesn't fit."""
        if before is None:
            return convert(change, self._kind)
        if not change:
            return before
        known = {
            field.name: convert(change[name], field.type) for name, field in self._fields.items() if name in change
        }
        return msgspec.structs.replace(before, **known)


ROWS = Differences(JobRow, but=("directory",))
"""Differences of rows, without the directory: where a job's files are is nothing to others."""
EXPLANATIONS = Differences(Explanation, but=("job", "number"))
_NODES = Differences(NodeRow)
_OTHERS = Differences(JobDetail, but=("row", "rates", "decisions", "nodes"))


# --- a job that is looked at --------------------------------------------------------------------------------------------


def look(before: JobDetail | None, after: JobDetail) -> Look | None:
    """Return what is new of a job; None: nothing."""
    if before is None or not _goes_on(before, after):
        return Look(
            after.row.id,
            anew=True,
            row=ROWS.between(None, after.row),
            fields=_OTHERS.between(None, after),
            rates=after.rates,
            decisions=after.decisions,
            nodes={node.id: _NODES.between(None, node) for node in after.nodes},
            order=tuple(node.id for node in after.nodes),
        )
    known = set(after.decisions if before.decisions == after.decisions else before.decisions)
    nodes = {node.id: node for node in before.nodes}
    order = tuple(node.id for node in after.nodes)
    found = Look(
        after.row.id,
        row=ROWS.between(before.row, after.row),
        fields=_OTHERS.between(before, after),
        rates=after.rates[len(before.rates) :],
        decisions=tuple(one for one in after.decisions if one not in known),
        nodes={node.id: change for node in after.nodes if (change := _NODES.between(nodes.get(node.id), node))},
        order=None if order == tuple(nodes) else order,
    )
    return found if found != Look(after.row.id) else None


def _goes_on(before: JobDetail, after: JobDetail) -> bool:
    """Say whether rates and decisions have only come, and none has gone."""
    rates, numbers = len(before.rates), [one.number for one in before.decisions]
    return after.rates[:rates] == before.rates and [one.number for one in after.decisions[: len(numbers)]] == numbers


def applied(before: JobDetail | None, new: Look) -> JobDetail:
    """Return the detail that ``look`` was made of. Raises msgspec.ValidationError for one that doesn't fit what was before."""
    if before is None or new.anew:
        whole = convert({**new.fields, "row": new.row}, JobDetail)
        nodes = _with_changes((), new)
        return msgspec.structs.replace(whole, rates=new.rates, decisions=new.decisions, nodes=nodes)
    decisions = {one.number: one for one in (*before.decisions, *new.decisions)} if new.decisions else None
    return msgspec.structs.replace(
        _OTHERS.after(before, new.fields),
        row=ROWS.after(before.row, new.row),
        rates=(*before.rates, *new.rates),
        decisions=before.decisions if decisions is None else tuple(decisions.values()),
        nodes=_with_changes(before.nodes, new),
    )


def _with_changes(before: tuple[NodeRow, ...], new: Look) -> tuple[NodeRow, ...]:
    if not new.nodes and new.order is None:
        return before
    known = {node.id: node for node in before}
    for name, change in new.nodes.items():
        known[name] = _NODES.after(known.get(name), change)
    order = tuple(known) if new.order is None else new.order
    return tuple(known[name] for name in order if name in known)
