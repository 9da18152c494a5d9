"""The screen of one job as text: its headline, the curve of its throughput with the decisions on its axis, its nodes, and the facts beside
them: shards, slots, checkpoints, and what was decided last."""

from __future__ import annotations

from dlrover_lite.brain.explain import explanation_text
from dlrover_lite.brain.explain.explanation_data import MemoryCurve
from dlrover_lite.brain.store.decision_news import CHANGING
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import compact, count, duration, metric, plural
from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui import formats
from dlrover_lite.tui.model import Checkpoints, Evaluated, JobDetail, NodeRow, PsStrip, Shards
from dlrover_lite.tui.pages.charts import bar, sparkline, strip
from dlrover_lite.tui.pages.last_change import is_made, mark_of, tone_of_miss
from dlrover_lite.tui.pages.memory_chart import is_near_its_limit, memory_chart
from dlrover_lite.tui.table import Column, Table, numbers
from dlrover_lite.tui.text import Line, Span, Tone, cut, length, line, padded, wrapped

__all__ = ["describe_node", "facts", "headline", "memory", "nodes_table"]

_LABEL = 8
"""Width of a name before a bar or strip, in characters."""


# --- the headline -----------------------------------------------------------------------------------------------------


def headline(detail: JobDetail, width: int, *, left_out: int = 0) -> list[Line]:
    """Write two lines: what the job is doing, and how far and how good it is; the second is cut where it is too long. ``left_out``: nodes
    that have ended and aren't shown."""
    row = detail.row
    first = [Span(row.id, "title"), Span("  "), *formats.state(row.state, silent_since=row.silent_since)]
    if left_out:
        first.append(Span(f"  {plural(left_out, 'ended node')} left out (e)", "dim"))
    if row.message:
        first.append(
            Span(f"  {row.message.partition(chr(10))[0]}", "bad" if row.state in ("failed", "lost") else "warn")
        )
    elif detail.autoscale:
        first += [Span("  autoscale ", "dim"), Span(detail.autoscale)]
    return [padded(first, width), padded(_progress(detail, width), width)]


def _progress(detail: JobDetail, width: int) -> Line:
    row = detail.row
    parts: list[Line] = []
    if row.share is not None:
        drawn = bar(row.share, 1.0, 12 if width < 110 else 24, full=2, high=2)
        parts.append((*drawn, Span(f" {int(row.share * 100)}%")))
    if row.total_samples:
        parts.append(line(f"{compact(row.samples)} of {compact(row.total_samples)}"))
    if detail.epochs > 1:
        parts.append(line(("epoch ", "dim"), f"{detail.epoch + 1}/{detail.epochs}"))
    if row.rate is not None:
        parts.append(line(f"{compact(row.rate)}/s"))
    parts.append(line(("ended " if row.over else "ends ", "dim"), *formats.ends(row)))
    if detail.auc is not None:
        parts.append(line(("AUC ", "dim"), metric(detail.auc)))
    if detail.loss is not None:
        parts.append(line(("loss ", "dim"), metric(detail.loss)))
    if row.cost is not None:
        parts.append(formats.cost_of(row))
    if detail.master_restarts:
        parts.append(line((f"master restarted {plural(detail.master_restarts, 'time')}", "warn")))
    found: list[Span] = []
    for part in parts:
        if found and length(found) + 2 + length(part) > width:
            break
        found += [Span("  "), *part] if found else [*part]
    return tuple(found)


# --- the facts --------------------------------------------------------------------------------------------------------


def facts(detail: JobDetail, width: int, height: int, now: float, *, look_first: bool = False) -> list[Line]:
    """Write as many of these as there is room for: warnings, shards, checkpoints, the newest evaluation, memory, decisions, slots; and what
    isn't known. ``look_first``: the next look matters more than the last decision, which is told elsewhere."""
    blocks = [_warnings(detail, width, max(1, height - 5)), _shards(detail.shards, width)]
    if not detail.heard:
        blocks.append([line(("asking its master…", "dim"))])
    elif detail.checkpoints is not None or not detail.missing:
        blocks.append(_checkpoints(detail.checkpoints, width))
    if detail.missing:
        blocks.append(wrapped(f"! {detail.missing}", width, "dim", indent="  "))
    for more in (_evaluated(detail.evaluated), _ahead(detail.memory, width)):
        if sum(map(len, blocks)) + len(more) < height:  # what was decided comes first
            blocks.append(more)
    room = height - sum(len(block) for block in blocks)
    slots = _slots(detail, width)
    if len(slots) >= room:
        slots = []
    decided = _decisions(detail, width, max(1, room - len(slots)), now, look_first=look_first)
    found = [one for block in (*blocks, decided, slots) for one in block]
    return [padded(one, width) for one in found[:height]]


def _name(text: str) -> Span:
    return Span(text.ljust(_LABEL), "title")


def _shards(shards: Shards | None, width: int) -> list[Line]:
    if shards is None:
        return []
    total = shards.done + shards.leased + shards.left + shards.quarantined
    text = f" {count(shards.done)} done, {count(shards.leased)} leased, {count(shards.left)} left"
    room = width - _LABEL - len(text)
    drawn = bar(shards.done, total, min(room, 30), full=2, high=2) if room >= 8 else ()
    found = [line(_name("shards"), *drawn, text if drawn else text[1:])]
    if shards.quarantined:
        found.append(line(_name(""), (f"{count(shards.quarantined)} failed twice, left out", "bad")))
    return found


def _warnings(detail: JobDetail, width: int, most: int) -> list[Line]:
    """Write about columns whose ids are mostly unknown: the first in a sentence, and how many more there are; a line of that where ``most``
    lines are too few."""
    found = () if detail.evaluated is None else detail.evaluated.warnings
    if not found:
        return []
    lines = wrapped(f"! {found[0]}", width, "warn", indent="  ")
    if len(found) > 1:
        more = f"! the same in {plural(len(found) - 1, 'more column')}: dlrover-lite status {detail.row.id}"
        lines += wrapped(more, width, "warn", indent="  ")
    return lines if len(lines) <= most else [line((cut(f"! {found[0]}", width), "warn"))]


def _evaluated(one: Evaluated | None) -> list[Line]:
    if one is None:
        return []
    at = f"  after {compact(one.at_samples)} samples"
    found = [line(_name("quality"), f"AUC {metric(one.auc)}, loss {metric(one.loss)}", (at, "dim"))]
    if one.unknown:
        found.append(line(_name("unknown"), one.unknown, (" (ids evaluated)", "dim")))
    return found


def _checkpoints(checkpoints: Checkpoints | None, width: int) -> list[Line]:
    if checkpoints is None:
        return [line(_name("saved"), ("no checkpoints are taken", "dim"))]
    found = []
    if (one := checkpoints.newest) is not None:
        text = f"{one.number} at {formats.clock(one.at)}, {format_bytes(one.bytes)} in {one.seconds:.1f} s"
        room = width - _LABEL - len(text)
        word = "checkpoint "
        held = formats.held_up(one, room - len(word)) or formats.held_up(one, room)
        found.append(line(_name("saved"), word if len(word) + len(held) <= room else "", text, (held, "dim")))
    if checkpoints.under_way:
        found.append(line(_name("" if found else "saved"), (checkpoints.under_way, "accent")))
    if checkpoints.problem:
        found.append(line(_name("" if found else "saved"), (f"✗ {checkpoints.problem}", "bad")))
    return [padded(one, width) for one in found] or [line(_name("saved"), ("no checkpoint so far", "dim"))]


def _ahead(curve: MemoryCurve | None, width: int) -> list[Line]:
    """Write about the memory of the parameter server that comes nearest to its limit, now and at the end."""
    if curve is None:
        return []
    tone: Tone = "warn" if curve.full_at is not None else "plain"
    text, room = explanation_text.memory(curve), width - _LABEL
    if len(text) > room:
        text = explanation_text.memory(curve, short=True)
    return [line(_name("memory"), (cut(text, room), tone))]


def memory(detail: JobDetail, width: int, height: int) -> list[Line]:
    """Draw the memory of that parameter server as a curve over time, where there is room; [] where its limit is far away."""
    curve = detail.memory
    if curve is None or not is_near_its_limit(curve):
        return []
    head = padded((Span(f"memory of {curve.node}", "title"),), width)
    return [head, *memory_chart(curve, width, height - 1)]


def _decisions(detail: JobDetail, width: int, most: int, now: float, *, look_first: bool) -> list[Line]:
    """Write when the brain looks next; then the newest decisions first, a line each."""
    acting = [one for one in detail.decisions if one.action in CHANGING] or list(detail.decisions)
    look = formats.look(detail.row.look, now)
    found = [padded((_name("decided"), *look), width)] if look and (most > 1 or look_first) else []
    if detail.missing and not acting and (last := detail.row.decision) is not None:
        told = line(
            _name("" if found else "decided"), (f"{formats.clock(last.at)} ", "dim"), f"{last.action}: {last.reason}"
        )
        return [*found, padded(told, width)]
    if not acting:
        none = "nothing so far" if detail.heard else "asking…"
        return [*found, line(_name("" if found else "decided"), (none, "dim"))]
    for one in acting[::-1][: most - len(found)]:
        symbol, tone = mark_of(one, is_made=is_made(one, detail))
        what = f"{one.action} {one.choice}" if one.choice else one.action
        parts = [_name("" if found else "decided"), Span(f"{symbol} ", tone), Span(f"{formats.clock(one.at)} ", "dim")]
        parts += [Span(one.difference or what), *_outcome(one)]
        found.append(padded(parts, width))
    return found


def _outcome(one: Chosen) -> Line:
    """Write what a decision was to bring and brought: ``54.6 k/s foreseen, +4% came``."""
    parts: list[Span] = []
    if one.predicted is not None:
        parts.append(Span(f"  {compact(one.predicted)}/s foreseen", "dim"))
    if one.error is not None:
        parts.append(Span(f", {one.error:+.0%} came", tone_of_miss(one.error)))
    if one.done and one.done != "done":
        parts.append(Span(f"  {one.done}", "warn"))
    return tuple(parts)


def _slots(detail: JobDetail, width: int) -> list[Line]:
    """Draw a strip for each parameter server: where its slots are, and how busy."""
    if not detail.slots:
        return []
    end = "" if detail.moves_end_in is None else f", {duration(detail.moves_end_in)} left"
    moving = f", {plural(detail.moving_slots, 'slot')} moving{end}" if detail.moving_slots else ""
    found = [padded(line(_name("slots"), (f"map {detail.slot_map_version}{moving}; shade: busy slots", "dim")), width)]
    limits = {node.id: node.cores for node in detail.nodes}
    return [*found, *(_strip(one, width, limits.get(one.node)) for one in detail.slots)]


def _strip(one: PsStrip, width: int, cores: float | None) -> Line:
    """Draw a server's slots. How hot they are tells its slots apart; only of one that has little time left are they in colours of alarm."""
    share = 1.0 if one.busy is None or not cores else one.busy / cores
    busy = "" if one.busy is None else f" {one.busy:.0%}"
    text = f" {count(one.slots)}{busy}"
    room = max(4, width - _LABEL - 13)
    name = Span(f"{cut(one.node, _LABEL - 1):<{_LABEL}}")
    return padded((name, *strip(one.heat, room, top=1.0, busy=share), Span(text, "dim")), width)


# --- nodes ------------------------------------------------------------------------------------------------------------


def nodes_table() -> Table[NodeRow]:
    return Table(_COLUMNS, lambda row: f"{row.id} {row.role} {row.state} {row.note}")


def _state(row: NodeRow, _width: int) -> Line:
    return formats.state(row.state)


def _bar_of(used: float | None, limit: float, text: Line, width: int) -> Line:
    """Put a bar before a text where there is room."""
    size = length(text)
    if used is None or width < size + 7:
        return text
    return (*bar(used, limit, width - size - 1), Span(" "), *text)


def _cpu(row: NodeRow, width: int) -> Line:
    return _bar_of(row.used_cores, row.cores, padded(formats.cores_of(row.used_cores, row.cores), 9, right=True), width)


def _memory(row: NodeRow, width: int) -> Line:
    text = padded(formats.memory_of(row.used_memory, row.memory), 13, right=True)
    return _bar_of(row.used_memory, row.memory, text, width)


def _work(row: NodeRow, width: int) -> Line:
    """Write what a node does: samples/s of a worker, slots of a parameter server. Width 0: there is room."""
    if not row.alive:
        return ()
    if row.role == "ps":
        if row.slots is None:
            return formats.DASH
        texts = (f"{row.slots:,} slots", f"{row.slots} slots", f"{row.slots:,}")
        return line(next((text for text in texts if not width or len(text) <= width), texts[-1]))
    return line(f"{compact(row.rate)}/s")


def _leased(row: NodeRow, _width: int) -> Line:
    return formats.number(row.leased)


def _share(row: NodeRow, width: int) -> Line:
    if row.share is None:
        return ()
    text = f"{row.share:.0%}"
    return line(sparkline((row.share, 1.0), 2)[:1] + text.rjust(5)) if width >= 6 else line(text)


def _restarts(row: NodeRow, _width: int) -> Line:
    return line((str(row.restarts), "warn")) if row.restarts else line(("0", "dim"))


def _throttled(row: NodeRow, _width: int) -> Line:
    if row.throttled is None:
        return formats.DASH
    return line((f"{row.throttled:.0%}", "warn" if row.throttled > 0.2 else "plain"))


_COLUMNS: tuple[Column[NodeRow], ...] = (
    Column("node", "NODE", lambda row, _: line(row.id), None, least=9, most=16),
    Column("state", "STATE", _state, lambda row: row.state, least=10, wanted=11, most=28, rank=1),
    numbers("cpu", "CPU", _cpu, lambda row: row.used_cores, least=9, wanted=16, most=30, rank=2),
    numbers("memory", "MEMORY", _memory, lambda row: row.used_memory, least=13, wanted=20, most=36, rank=2),
    numbers("work", "WORK", _work, lambda row: row.rate or row.slots, least=8, wanted=11, rank=1),
    Column("share", "SHARE", _share, lambda row: row.share, least=5, wanted=6, right=True, rank=4),
    Column("leased", "LEASED", _leased, lambda row: row.leased, least=6, right=True, rank=6),
    Column("throttled", "HELD", _throttled, lambda row: row.throttled, least=4, wanted=5, right=True, rank=7),
    numbers("restarts", "RESTARTS", _restarts, lambda row: row.restarts, least=8, rank=5),
    Column(
        "host",
        "HOST",
        lambda row, _: line(row.host),
        lambda row: row.host,
        least=8,
        wanted=12,
        most=24,
        rank=9,
        has=lambda row: bool(row.host),
    ),
    Column("note", "", lambda row, _: line((row.note, "warn")), None, least=10, most=60, rank=8),
)


def _given(row: NodeRow) -> str:
    beyond = row.shared_cores and row.used_cores is not None and row.used_cores > row.cores
    return " cores used of those given, and of what others leave" if beyond else " cores used of those given"


def _limit_of(row: NodeRow) -> str:
    return "the CPU limit of all nodes" if row.shared_cores else "its CPU limit"


def describe_node(row: NodeRow, width: int) -> list[Line]:
    """Write all that is known of a node."""
    pairs: list[tuple[str, Line]] = [
        *([("host", line(row.host))] if row.host else []),
        ("role", line({"ps": "parameter server"}.get(row.role, row.role))),
        ("state", formats.state(row.state)),
        ("cpu", (*formats.cores_of(row.used_cores, row.cores), Span(_given(row), "dim"))),
        ("held back", (*_throttled(row, 0), Span(f" of the time by {_limit_of(row)}", "dim"))),
        ("memory", (*formats.memory_of(row.used_memory, row.memory), Span(" used of what is given", "dim"))),
        ("peak", line(format_bytes(row.peak_memory) if row.peak_memory else "-")),
        ("work", _work(row, 0) or formats.DASH),
        ("leased", (*formats.number(row.leased), Span(" minibatches", "dim"))),
        ("restarts", line(str(row.restarts))),
    ]
    found = [line((f"{name:<10} ", "dim"), *value) for name, value in pairs]
    return [*found, (), *wrapped(row.note, width, "warn")] if row.note else found
