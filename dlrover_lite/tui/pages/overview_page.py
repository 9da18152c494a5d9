"""The machine, or the clusters, as a picture: who had how many cores and how much memory, what runs where, who waits, and the brain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import compact, duration, next_look, plural
from dlrover_lite.tui import formats
from dlrover_lite.tui.model import OVER, Given, HostRow, JobRow, JobsView
from dlrover_lite.tui.pages.charts import bar
from dlrover_lite.tui.pages.last_change import in_list
from dlrover_lite.tui.pages.stack_chart import Layer, Look, key_of, look_of, stack_chart
from dlrover_lite.tui.table import Column, Table
from dlrover_lite.tui.text import EMPTY, Line, Span, Tone, cut, length, line, padded, side_by_side

__all__ = ["LEAST_PICTURE", "has_picture", "jobs_in", "overview", "picture", "pulse"]

_HERE = "this machine"
_SHORTEST_SECONDS = 60.0
_LONGEST_SECONDS = 86_400.0
_RECENT_SECONDS = 3600.0
"""Seconds after its end for which a job is still in the picture."""
_MOST_LAYERS = 12
"""Maximum number of jobs that are drawn apart; the others are one layer."""
_OTHERS = Look("·", "dim")
_SIDE_BY_SIDE = 100
"""Width from which on cores and memory are beside each other."""
_LEAST_CHART, _TWO_CHARTS, _MOST_CHART = 5, 12, 22
"""Minimum number of lines of a chart, that in which two are above each other, and the maximum."""
_WITH_BARS = 80
"""Width from which on what is given of each host is drawn, too."""
_LOW = 14
"""Number of lines below which none is left empty."""
LEAST_PICTURE = 8
"""Minimum number of lines of a machine in a picture without its jobs' rows."""
_WAITING = ("queued", "starting")
_LEAST_WITH_BARS = 16
"""Minimum number of lines of a machine for what is used to be drawn, too."""
_USED, _UNUSED = "█", "▒"


class _Place(NamedTuple):
    """A machine, or a cluster, with its jobs."""

    source: str
    hosts: tuple[HostRow, ...]
    jobs: tuple[JobRow, ...]
    """Jobs that run or did a while ago, the oldest first."""

    @property
    def live(self) -> list[JobRow]:
        return [row for row in self.jobs if not row.over]

    def there_is(self, memory: bool) -> float | None:
        """Return how many cores, or bytes, there are; None: it isn't known."""
        return sum(host.memory if memory else host.cores for host in self.hosts) or None


def overview(view: JobsView, width: int, height: int, now: float, chosen: str = "") -> list[Line]:
    """Draw each machine or cluster in an equal share of ``height``, or in more lines, where it has more to tell than fits. ``chosen``: id
    of the job that is pointed to."""
    places = _places(view, now)
    found = [_head(view, now, width)]
    if not places:
        return [*found, EMPTY, line("Nothing runs, nothing has run in the last hour, and no host is known.")]
    gap = [EMPTY] if height >= _LOW else []
    each = max(8, (height - 1) // len(places) - len(gap))
    for place in places:
        found += [*gap, *_drawn(place, width, each, now, chosen)]
    return found


def has_picture(view: JobsView, now: float) -> bool:
    """Say whether there is anything to draw."""
    return any(_steps(row) and _is_recent(row, now) for row in view.jobs.values())


def picture(view: JobsView, width: int, height: int, now: float) -> list[Line]:
    """Draw what jobs were given over time, without telling of each: as many machines and clusters as there is room for in ``height``
    lines, and how many more there are. [] where there is nothing to draw, or no room."""
    places = [place for place in _places(view, now) if any(map(_steps, place.jobs))]
    shown = places if len(places) * LEAST_PICTURE <= height else places[: (height - 1) // LEAST_PICTURE]
    if not shown:
        return []
    more = len(places) - len(shown)
    each = (height - bool(more)) // len(shown)
    found: list[Line] = []
    for place in shown:
        head = [_title(place, width), *([_used(place, width)] if each >= _LEAST_WITH_BARS else [])]
        found += [*head, *_charts(place, _looks(place.jobs), width, each - len(head), now)]
    return [*found, line((f"{plural(more, 'more cluster')}: v", "dim"))] if more else found


def jobs_in(view: JobsView, now: float) -> list[str]:
    """Return the ids of the jobs that can be pointed to, as they follow each other."""
    return [row.id for place in _places(view, now) for row in (*_with_cores(place), *_waiting(place))]


def _head(view: JobsView, now: float, width: int) -> Line:
    live = [row for row in view.jobs.values() if not row.over]
    waiting = sum(row.state == "queued" for row in live)
    parts = [Span(f"{plural(len(live) - waiting, 'job')} running, {waiting} waiting")]
    if view.brain:
        parts += [Span("  brain ", "dim"), Span(view.brain)]
    looks = [(row.look.at, row) for row in live if row.look is not None and row.look.at is not None]
    if looks:
        at, row = min(looks, key=lambda one: one[0])
        parts.append(Span(f", {next_look(at, '', now)} ({row.id})", "dim"))
    return padded(parts, width)


def _is_recent(row: JobRow, now: float) -> bool:
    """Say whether a job is in the picture."""
    return not row.over or (row.ended_at or 0.0) >= now - _RECENT_SECONDS


def _places(view: JobsView, now: float) -> list[_Place]:
    jobs = sorted(
        (row for row in view.jobs.values() if _is_recent(row, now)),
        key=lambda row: (row.created_at, row.id),
    )
    sources = dict.fromkeys([*(host.source for host in view.hosts), *(row.source for row in jobs)])
    return [
        _Place(
            source,
            tuple(host for host in view.hosts if host.source == source),
            tuple(row for row in jobs if row.source == source),
        )
        for source in sorted(sources)
    ]


def _drawn(place: _Place, width: int, height: int, now: float, chosen: str) -> list[Line]:
    looks = _looks(place.jobs)
    rows = [*_jobs(place, looks, width, height // 3, chosen), *_hosts(place, width, max(2, height // 4))]
    rows += _queue(place, width, max(2, height // 5), chosen)
    head = [_title(place, width), *([_used(place, width)] if height >= _LEAST_WITH_BARS else [])]
    charts = _charts(place, looks, width, max(_LEAST_CHART, min(_MOST_CHART, height - len(head) - len(rows))), now)
    return [*head, *charts, *rows]


def _title(place: _Place, width: int) -> Line:
    """Write what there is, what is given of it, and what of that is used."""
    given, used, memory, used_memory = _sums(place)
    cores, there = place.there_is(False), place.there_is(True)
    name = Span(f"{place.source or _HERE}  ", "title")
    hosts = f"; {len(place.hosts)} hosts" if len(place.hosts) > 1 else ""
    of_cores, of_memory = f"{given:g}", format_bytes(memory)
    long = (of_cores if cores is None else f"{of_cores} of {cores:g}") + f" cores given, {used:.3g} used; "
    long += of_memory if there is None else f"{of_memory} of {format_bytes(int(there))}"
    of_cores = of_cores if cores is None else f"{of_cores}/{cores:g}"
    of_memory = of_memory if there is None else _of(memory, int(there))
    texts = (
        f"{long} given, {format_bytes(used_memory)} used{hosts}",
        f"{of_cores} cores given, {used:.3g} used; {of_memory} given, {format_bytes(used_memory)} used{hosts}",
        f"{of_cores} cores, {of_memory} given{hosts}",
    )
    fitting = next((text for text in texts if length([name]) + len(text) <= width), texts[-1])
    return padded([name, Span(fitting)], width)


def _of(part: int, whole: int) -> str:
    """Write bytes of others: ``1.5/8 GiB``, ``420 MiB/8 GiB``."""
    amount, _, unit = format_bytes(part).partition(" ")
    text = format_bytes(whole)
    return f"{amount}/{text}" if text.endswith(f" {unit}") else f"{amount} {unit}/{text}"


def _sums(place: _Place) -> tuple[float, float, int, int]:
    """Return cores given and used, memory given and used."""
    live = place.live
    given, used = (sum(getattr(row, name) or 0.0 for row in live) for name in ("cores", "used_cores"))
    memory, used_memory = (int(sum(getattr(row, name) or 0 for row in live)) for name in ("memory", "used_memory"))
    return given, used, memory, used_memory


def _used(place: _Place, width: int) -> Line:
    """Draw what is used of what is given of what there is: cores, and memory."""
    given, used, memory, used_memory = _sums(place)
    words = [Span("cores ", "title"), Span("  memory ", "title"), Span(f"  {_USED} used {_UNUSED} given", "dim")]
    room = max(8, (width - length(words) - 4) // 2)
    cores = _part(used, given, place.there_is(False), room)
    return padded(
        (words[0], *cores, words[1], *_part(used_memory, memory, place.there_is(True), room), words[2]), width
    )


def _part(used: float, given: float, there: float | None, cells: int) -> Line:
    """Draw what is used as a part of what is given, and that as a part of what there is."""
    top = max(there or given, given, used)
    first, second = (round(value / top * cells) if top else 0 for value in (used, max(given, used)))
    return line("▕", (_USED * first, "good"), (_UNUSED * (second - first), "warn"), " " * (cells - second) + "▏")


# --- over time ------------------------------------------------------------------------------------------------------


def _looks(jobs: Sequence[JobRow]) -> dict[str, Look]:
    """Return the looks of the jobs that are drawn apart: those that had most cores."""
    most = sorted(jobs, key=lambda row: -max((one.cores for one in row.given), default=row.cores or 0.0))
    apart = {row.id for row in most[:_MOST_LAYERS]}
    return {row.id: look_of(at) for at, row in enumerate(row for row in jobs if row.id in apart)}


def _charts(place: _Place, looks: dict[str, Look], width: int, height: int, now: float) -> list[Line]:
    low = min((one.at for row in place.jobs for one in _steps(row)), default=now)
    low = max(min(low, now - _SHORTEST_SECONDS), now - _LONGEST_SECONDS)

    def chart(memory: bool, width: int, height: int) -> list[Line]:
        layers = _layers(place.jobs, looks, memory=memory, now=now)
        head = padded([Span("memory" if memory else "cores", "title"), Span(" given, by job", "dim")], width)
        drawn = stack_chart(
            layers,
            width,
            height - 1,
            span=(low, now),
            ends=formats.span(low, now),
            most=place.there_is(memory),
            written=(lambda value: format_bytes(int(value))) if memory else lambda value: f"{value:.4g}",
        )
        return [head, *drawn]

    if width >= _SIDE_BY_SIDE:
        left = (width - 2) // 2
        return side_by_side(
            ((left, chart(False, left, height)), (width - 2 - left, chart(True, width - 2 - left, height)))
        )
    if height >= _TWO_CHARTS:
        return [*chart(False, width, height - height // 2), *chart(True, width, height // 2)]
    return chart(False, width, height)


def _steps(row: JobRow) -> tuple[Given, ...]:
    """Return what a job was given; of one whose plans aren't known, what it has now, since its beginning."""
    if row.given or row.started_at is None or not row.cores:
        return row.given
    return (Given(row.started_at, row.cores, row.memory or 0),)


def _layers(jobs: Sequence[JobRow], looks: dict[str, Look], *, memory: bool, now: float) -> list[Layer]:
    found: list[Layer] = []
    others: list[Layer] = []
    for row in jobs:
        steps = tuple((one.at, float(one.memory) if memory else one.cores) for one in _steps(row))
        until = now + 1.0 if not row.over else row.ended_at or now
        (found if row.id in looks else others).append(Layer(row.id, looks.get(row.id, _OTHERS), steps, until))
    if others:
        found.append(_together(others))
    return found


def _together(layers: Sequence[Layer]) -> Layer:
    """Make one layer of many."""
    changes: list[tuple[float, float]] = []
    for layer in layers:
        before = 0.0
        for at, value in (*layer.steps, (layer.until, 0.0)):
            changes.append((at, value - before))
            before = value
    changes.sort()
    totals = accumulate(change for _, change in changes)
    steps = tuple((at, max(0.0, total)) for (at, _), total in zip(changes, totals, strict=True))
    return Layer(f"{len(layers)} others", _OTHERS, steps, max(layer.until for layer in layers))


# --- now ------------------------------------------------------------------------------------------------------------


def _with_cores(place: _Place) -> list[JobRow]:
    """Return the jobs that have something, those with most cores first."""
    return sorted((row for row in place.live if row.cores), key=lambda row: -(row.cores or 0.0))


def _waiting(place: _Place) -> list[JobRow]:
    return [row for row in place.live if row.state in _WAITING and not row.cores]


def _pointer(row: JobRow, chosen: str) -> Span:
    return Span("▸ " if row.id == chosen else "  ", "accent")


def _in_sight(rows: Sequence[JobRow], most: int, chosen: str) -> list[JobRow]:
    """Put the chosen job among those that are told of one by one, where there are at most ``most`` lines."""
    at = next((at for at, row in enumerate(rows) if row.id == chosen), 0)
    if at < most - 1 or len(rows) <= most:
        return list(rows)
    kept = max(0, most - 2)
    return [*rows[:kept], rows[at], *rows[kept:at], *rows[at + 1 :]]


def _jobs(place: _Place, looks: dict[str, Look], width: int, most: int, chosen: str) -> list[Line]:
    """Write the jobs that have something."""
    there = _in_sight(_with_cores(place), max(2, most), chosen)
    if not there:
        return []
    table: Table[JobRow] = Table((_key_column(looks, chosen), *_COLUMNS), lambda row: row.id)
    table.put({row.id: row for row in there})
    head, *lines = table.text(width)
    return [head, *_at_most(lines, max(2, most), width, "job")]


def _key_column(looks: dict[str, Look], chosen: str) -> Column[JobRow]:
    def key(row: JobRow, _width: int) -> Line:
        return (_pointer(row, chosen), key_of(looks.get(row.id, _OTHERS)))

    return Column("key", "", key, least=4)


_COLUMNS: tuple[Column[JobRow], ...] = (
    Column("job", "JOB", lambda row, _: line(row.id), least=14, wanted=18, most=30),
    Column("state", "STATE", lambda row, _: formats.state(row.state, silent_since=row.silent_since), least=12, rank=3),
    Column("nodes", "NODES", lambda row, _: line(f"{row.workers or 0}w {row.servers or 0}p"), least=6, rank=2),
    Column("cpu", "CORES", lambda row, _: formats.cores_of(row.used_cores, row.cores), least=9, right=True),
    Column(
        "memory", "MEMORY", lambda row, _: formats.memory_of(row.used_memory, row.memory), least=13, right=True, rank=1
    ),
    Column("rate", "SAMPLES/S", lambda row, _: formats.number(row.rate), least=9, right=True, rank=4),
    Column("ends", "ENDS", formats.ends, least=12, most=17, rank=5),
)


def _hosts(place: _Place, width: int, most: int) -> list[Line]:
    """Write what runs on each host, where there are several."""
    if len(place.hosts) < 2:
        return []
    on: dict[str, list[tuple[JobRow, int, int, float]]] = {}
    for row in place.live:
        for share in row.hosts:
            on.setdefault(share.host, []).append((row, share.workers, share.servers, share.cores))
    lines = []
    for host in sorted(place.hosts, key=lambda host: (-sum(one[3] for one in on.get(host.name, ())), host.name)):
        shares = on.get(host.name, [])
        given = sum(share[3] for share in shares)
        what = ", ".join(f"{row.id} {workers}w {servers}p" for row, workers, servers, _ in shares) or "nothing"
        lines.append(
            line(
                (f"{cut(host.name, 20):<20} ", "plain"),
                *(bar(given, host.cores, 16, full=2, high=2) if width >= _WITH_BARS else ()),
                (f" {given:g} of {host.cores:g} cores, {format_bytes(host.memory)}: ", "dim"),
                what,
            )
        )
    return _at_most(lines, most, width, "host")


def _queue(place: _Place, width: int, most: int, chosen: str) -> list[Line]:
    lines = [
        line(
            _pointer(row, chosen),
            ("waits ", "warn"),
            f"{row.id}  ",
            (row.message.partition("\n")[0] or row.state, "dim"),
        )
        for row in _in_sight(_waiting(place), most, chosen)
    ]
    return _at_most(lines, most, width, "job")


def _at_most(lines: Iterable[Line], most: int, width: int, what: str) -> list[Line]:
    """Keep so many lines; the last one of too many says how many more there are."""
    found = list(lines)
    if len(found) > most:
        more = len(found) - most + 1
        found = [*found[: most - 1], line((f"   and {plural(more, f'more {what}')}", "dim"))]
    return [padded(one, width) for one in found]


# --- the pulse --------------------------------------------------------------------------------------------------------

_NAME = 10
"""Width of the names of what is told."""
_BAR, _SHORT_BAR = 24, 6
"""Maximum and minimum width of bars."""
_IN_ORDER = ("training", "evaluating", "exporting", "running", "starting", "queued", "silent", *OVER)
"""States, those that matter now first."""


def pulse(view: JobsView, width: int, height: int, now: float) -> list[Line]:
    """Write how all is, in a line each: jobs by state, cores and memory of each machine or cluster, speed, the brain, what can't be asked,
    the newest failure; and what was changed last, as many as there is room for."""
    rows = list(view.jobs.values())
    found = _states(rows, width)
    places = _places(view, now)
    for place in places:
        found += [line(_named(place.source or _HERE))] if len(places) > 1 else []
        found += _use(place, width)
    live = [row for row in rows if not row.over]
    rates = [row.rate for row in live if row.rate is not None]
    if rates:
        found.append(line(_named("samples/s"), compact(sum(rates)), (f" in {plural(len(rates), 'job')}", "dim")))
    found.append(_brain(view, live, now))
    if (problem := view.problem) is not None:
        told = f"✗ what {problem.what} says is as of {formats.clock(problem.since)}: {problem.why}"
        found.append(line(_named("problem"), (told, "bad")))
    failed = [row for row in rows if row.state in ("failed", "lost") and row.ended_at is not None]
    if failed:
        found.append(_failed(max(failed, key=lambda row: row.ended_at or 0.0), now))
    changed = sorted((row for row in rows if _changed_at(row)), key=_changed_at, reverse=True)
    lines = [
        line(_named("" if at else "changed"), (f"{row.id}  ", "title"), *in_list(row)) for at, row in enumerate(changed)
    ]
    return [padded(one, width) for one in [*found, *_at_most(lines, max(1, height - len(found)), width, "job")]]


def _named(text: str) -> Span:
    return Span(text.ljust(_NAME), "title")


def _states(rows: Sequence[JobRow], width: int) -> list[Line]:
    """Write how many jobs are in each state, in as many lines as that takes."""
    counts = Counter("silent" if row.silent_since is not None else row.state for row in rows)
    order = sorted(counts, key=lambda state: (_IN_ORDER.index(state) if state in _IN_ORDER else len(_IN_ORDER), state))
    lines: list[Line] = [line(_named("jobs"))]
    for state in order:
        symbol, tone = formats.symbol_of(state)
        part = Span(f"{symbol} {counts[state]:,} {state}  ", tone)
        if length(lines[-1]) + length([part]) > width and length(lines[-1]) > _NAME:
            lines.append(line(_named("")))
        lines[-1] = (*lines[-1], part)
    return lines if rows else [line(_named("jobs"), ("none so far", "dim"))]


def _use(place: _Place, width: int) -> list[Line]:
    """Write what is used of what was given, and what was given of what there is; with bars where there is room."""
    given, used, memory, used_memory = _sums(place)
    cores, there = place.there_is(False), place.there_is(True)
    of_cores = "" if cores is None else f" of {cores:g}"
    of_memory = "" if there is None else f" of {format_bytes(int(there))}"
    texts = (
        ("cores", used, given, f" {used:.3g} used, {given:g}{of_cores} given"),
        ("memory", used_memory, memory, f" {format_bytes(used_memory)} used, {format_bytes(memory)}{of_memory} given"),
    )
    room = min(_BAR, *(width - _NAME - len(text) for *_, text in texts))
    if room < _SHORT_BAR:
        return [line(_named(name), text[1:]) for name, _, _, text in texts]
    return [line(_named(name), *bar(part, of, room, full=2, high=2), text) for name, part, of, text in texts]


def _brain(view: JobsView, live: Sequence[JobRow], now: float) -> Line:
    looks = [(row.look.at, row.id) for row in live if row.look is not None and row.look.at is not None]
    at, job = min(looks, default=(None, ""))
    next_one = "" if at is None else f", {next_look(at, '', now)} ({job})"
    tone: Tone = "plain" if view.brain in ("listens", "") else "warn"
    return line(_named("brain"), (view.brain or "not needed: no job runs", tone), (next_one, "dim"))


def _failed(row: JobRow, now: float) -> Line:
    symbol, tone = formats.symbol_of(row.state)
    ago = duration(max(0.0, now - (row.ended_at or now)))
    why = row.message.partition("\n")[0]
    return line(_named(row.state), (f"{symbol} {row.id} {ago} ago", tone), f": {why}" if why else "")


def _changed_at(row: JobRow) -> float:
    if row.change is not None:
        return row.change.at
    return row.decision.at if row.decision is not None else 0.0
