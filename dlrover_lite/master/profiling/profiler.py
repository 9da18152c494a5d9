"""What a job's nodes do, in intervals in which its plan doesn't change: from totals, told now and then by each, to profiles for the brain.

Nobody tells its totals at the moment an interval ends. So an interval is closed once all have told something later, and each total is
taken as if it had risen evenly in between: all of a profile is of one and the same window, and what intervals in a row hold adds up.

As pure as the fleet: times are those of the caller's steady clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

import msgspec

from dlrover_lite.jobs.profiles import Gap
from dlrover_lite.master.profiling.counter_interpolation import Series, Values
from dlrover_lite.master.profiling.host_transfers import HostTransfers, PsTraffic, received_by_host
from dlrover_lite.master.profiling.slowdown_detector import RECENT_SECONDS, Paces, has_turned
from dlrover_lite.protocol.messages import PsReport, WorkReport
from dlrover_lite.protocol.nodes import Readings, Role
from dlrover_lite.protocol.profiles import HostUse, Level, Profile, PsLevel, PsUse, TableUse, WorkerUse

__all__ = ["Pace", "Part", "Profiler", "Situation"]

_WALL, _CPU, _TABLE = "wall ", "cpu ", "table "
_SENT, _RECEIVED, _FASTEST = "sent to ", "received from ", "fastest to "
_READ_DELAY = "read delay"
_PART_SECONDS, _LEAST_PARTS = 2.0, 2
"""Length in seconds of the parts of an interval that say how evenly it went; and how many there are at least, of one that isn't tiny."""
_LOOKS = 4
"""Number of short intervals after a node got much slower."""
_LOOK_AGAIN_SECONDS = 0.5
"""Seconds between two checks whether a node got much slower."""
_SILENT_SECONDS = 1.5
"""Seconds after which a worker that has told nothing has done nothing."""
_RATE_SECONDS, _LEAST_RATE_SECONDS = 4.0, 0.5
"""Seconds that a rate for levels is measured over, and the least."""
_FORGET_PART = 0.5
"""Part of an interval after which is looked again for what needn't be known any more."""
_LEVEL_SECONDS = 0.9
"""Seconds from one level to the next: nodes tell what they hold once a second."""


class Pace(msgspec.Struct, frozen=True):
    """How long intervals are."""

    seconds: float = 10.0
    first_seconds: float = 4.0
    """Length of the first interval since things have been as they are: until it is over nothing is known of a job that is new, nor is a
    plan that was changed decided about."""
    least_seconds: float = 4.0
    """Least length in seconds of an interval that a change of the plan ends; a shorter one is dropped."""
    warm_up_seconds: float = 3.0
    """Seconds after a change before the next interval begins."""
    patience_seconds: float = 3.0
    """Seconds to wait for nodes that haven't told anything since the end of an interval: then they have done nothing since they did."""
    look_seconds: float = 2.5
    """Length in seconds of the intervals that follow when a node got much slower; none do where intervals are as short anyway."""

    @property
    def looks(self) -> bool:
        """Whether short intervals follow when a node got much slower."""
        return self.look_seconds < self.seconds

    @classmethod
    def of(cls, seconds: float) -> Pace:
        """Return a pace with intervals of ``seconds``, with all else in the same proportion; patience stays, since nobody tells anything
        sooner."""
        usual = cls()
        factor = seconds / usual.seconds
        return cls(
            seconds,
            usual.first_seconds * factor,
            usual.least_seconds * factor,
            usual.warm_up_seconds * factor,
            usual.patience_seconds,
            min(seconds, usual.look_seconds),
        )


class Part(msgspec.Struct, frozen=True):
    """A node as the plan has it."""

    node: str
    role: Role
    cores: float


class Situation(msgspec.Struct, frozen=True):
    """What must stay the same within an interval."""

    parts: tuple[Part, ...] = ()
    """Workers and parameter servers (PS) that run."""
    disturbed: str = ""
    """Why what is measured now would say nothing of the plan, in words: something starts, moves or ends. Empty: nothing does."""


class Profiler:
    """Measures intervals. It is told of everything as it comes; ``situation`` and ``tick`` give what has been measured."""

    def __init__(
        self, job: str, *, batch_size: int, samples_so_far: int, pace: Pace | None = None, shared_cores: bool = False
    ) -> None:
        """Create it. ``shared_cores`` of the job's nodes are as of ``Profile``."""
        self._job = job
        self._shared_cores = shared_cores
        self._batch_size = batch_size
        self._pace = pace or Pace()
        self._samples_before = float(samples_so_far)
        """Number of samples of workers that there is no series of."""
        self._situation = Situation(disturbed="nothing is known yet")
        self._began: float | None = None
        """The interval under way, or about to be once things have settled."""
        self._at_beginning: dict[tuple[str, str], Values] | None = None
        """Totals at the end of the interval before; None: the interval under way is the first one."""
        self._series: dict[tuple[str, str], Series] = {}
        """Series by what it is of (usage, worker, ps, host), and its name."""
        self._cores: dict[str, float] = {}
        self._on: dict[str, str] = {}
        self._dims: dict[str, int] = {}
        self._transfers = HostTransfers()
        self._level_until = -math.inf
        """Time of the last level."""
        self._calm_since = math.inf
        """Time when the first interval began that things have been for as they are."""
        self._usual: Paces | None = None
        """Paces in the last interval of full length, or the last short one."""
        self._looks = 0
        """Number of short intervals that are still to come."""
        self._looked_until = self._forget_at = -math.inf
        self._has_heard = False
        """Something was told of PS since levels were looked at."""
        self._awaited: tuple[str, str] | None = None
        """One that hadn't told yet what it has done until the end of an interval, when it was looked last."""

    @property
    def disturbed(self) -> str:
        return self._situation.disturbed

    @property
    def ends(self) -> float | None:
        """Time when the interval under way, or about to begin, is to be over; None: nothing can be measured."""
        return None if self._began is None else self._end(self._began)

    @property
    def has_measured(self) -> bool:
        """An interval was measured since things have been as they are."""
        return self._at_beginning is not None

    # --- what is told ---------------------------------------------------------------------------------------------------

    def readings(self, now: float, readings: Readings) -> None:
        for node, usage in readings.nodes.items():
            self._of("usage", node).tell(
                now,
                {
                    "cpu": usage.cpu_seconds,
                    "throttled": usage.throttled_seconds,
                    "used": usage.memory,
                    "peak": usage.peak_memory,
                },
            )
        for host in readings.hosts:
            self._of("host", host.host).tell(now, {"cpu": host.cpu_seconds})
            self._cores[host.host] = host.cores
        self._on = readings.on
        self._has_heard = True
        self._transfers.located({at: readings.on[node] for node, at in readings.addresses.items()})

    def worked(self, now: float, node: str, *, samples: int, minibatches: int, report: WorkReport | None) -> None:
        """Handle a worker's report: so many have been consumed since it last did."""
        series = self._of("worker", node)
        totals = dict(series.last)
        _add(totals, "samples", samples)
        _add(totals, "minibatches", minibatches)
        for phase, seconds in report.seconds.items() if report else ():
            _add(totals, _WALL + phase, seconds)
        for phase, seconds in report.cpu_seconds.items() if report else ():
            _add(totals, _CPU + phase, seconds)
        _add(totals, _READ_DELAY, report.read_delay_seconds if report else 0.0)
        series.tell(now, totals)

    def served(self, now: float, report: PsReport) -> None:
        """Handle a report of a PS."""
        counters = report.counters
        if counters is None:
            return
        self._has_heard = True
        totals: dict[str, float] = {
            "minibatches": report.pushes,
            "rows": report.rows,
            "busy": counters.busy_seconds,
            "queue": counters.queue_seconds,
            "requests": counters.requests,
            "row_bytes": counters.row_bytes,
        }
        for table in counters.tables:
            totals[_TABLE + table.name] = table.rows
            self._dims[table.name] = table.dim
        for host, (sent, received, fastest) in self._transfers.told(report.node, counters.transfers).items():
            totals |= {_SENT + host: sent, _RECEIVED + host: received, _FASTEST + host: fastest}
        self._of("ps", report.node).tell(now, totals)

    # --- intervals ------------------------------------------------------------------------------------------------------

    def situation(self, now: float, at: float, situation: Situation) -> Profile | Gap | None:
        """Record what is the case from ``now`` on (``at``: the same in seconds since the epoch). If it is something else than before, the
        interval under way ends with the last that all have told before."""
        if situation == self._situation:
            return None
        found = None
        if self._began is not None:
            end = min(now, self._told_until())
            if end - self._began >= self._pace.least_seconds:
                found = self._close(end, at - (now - end))
        self._situation = situation
        self._at_beginning = None
        self._began = None if situation.disturbed else now + self._pace.warm_up_seconds
        self._calm_since = math.inf if self._began is None else self._began
        self._usual, self._looks = None, 0
        self._awaited = None
        self._forget_others()
        return found

    def tick(self, now: float, at: float) -> Profile | Gap | None:
        """Return the interval that is over now, if one is."""
        if now >= self._forget_at:  # else series would grow while nothing is measured
            self._forget_at = now + _FORGET_PART * self._pace.seconds
            least = now - _RATE_SECONDS - self._pace.patience_seconds
            for series in self._series.values():
                series.forget(least if self._began is None else min(least, self._began))
        if self._began is None:
            return None
        if (turn := self._turn(now)) is not None:
            self._usual, self._looks = None, _LOOKS
            if turn - self._began >= self._pace.least_seconds:
                return self._close(turn, at - (now - turn))
            self._began, self._at_beginning = turn, None
        began, end = self._began, self._end(self._began)
        if now < end or (now < end + self._pace.patience_seconds and not self._has_told(end)):
            return None
        if self._looks <= 1 and self._pace.looks:
            self._usual = self._paces(began, end)
        self._looks = max(0, self._looks - 1)
        return self._close(end, at - (now - end))

    def waits_for_readings(self, now: float) -> bool:
        """Return whether the interval is over, but for what the backend knows of its end."""
        if self._began is None or now < (end := self._end(self._began)):
            return False
        return any(self._of(*source).until < end for source in self._sources() if source[0] in ("usage", "host"))

    def _end(self, began: float) -> float:
        if self._looks:
            return began + self._pace.look_seconds
        return began + (self._pace.seconds if self.has_measured else self._pace.first_seconds)

    def level(
        self, now: float, at: float, is_news: Callable[[Mapping[str, int]], bool] = lambda _: True
    ) -> Level | None:
        """Return what the PS hold, as of the last moment that all have told of; None when that isn't a new one, or no rate is known yet, or
        it ``is_news`` to nobody, who is given the bytes that each uses."""
        if not self._has_heard:  # of PS
            return None
        self._has_heard = False
        servers = [part.node for part in self._situation.parts if part.role == "ps"]
        workers = [series for source in self._workers() if (series := self._of(*source)).last]
        if not servers or not workers:
            return None
        told = [self._of(kind, node).until for kind in ("usage", "ps") for node in servers]
        # a worker that has not told anything for a while has done nothing
        moment = min(*told, max(min(series.until for series in workers), now - self._pace.patience_seconds))
        since = max(moment - _RATE_SECONDS, min(series.since for series in workers))
        if moment < self._level_until + _LEVEL_SECONDS or moment < since + _LEAST_RATE_SECONDS:
            return None
        self._level_until = moment
        if not is_news({node: round(self._of("usage", node).one_at(moment, "used")) for node in servers}):
            return None
        worked = [series for (kind, _), series in self._series.items() if kind == "worker"]
        samples = round(self._samples_before + sum(series.one_at(moment, "samples") for series in worked))
        risen = sum(
            max(0.0, series.one_at(moment, "samples") - series.one_at(since, "samples"))
            for series in (self._of(*source) for source in self._workers())
        )
        held = {(kind, node): self._of(kind, node).at(moment) for kind in ("ps", "usage") for node in servers}
        window = _Window(held, held)
        return Level(
            at=at - (now - moment),
            samples_so_far=samples,
            samples_per_second=risen / (moment - since),
            ps=tuple(self._held(node, window) for node in servers),
            tables=self._tables(window),
        )

    def _turn(self, now: float) -> float | None:
        """Return since when a node has been much slower than before, if one has that wasn't yet."""
        assert self._began is not None
        if self._looks or not self._pace.looks:
            return None
        until = self._told_of_late(now)
        since = until - RECENT_SECONDS
        if since < self._calm_since or until < self._looked_until + _LOOK_AGAIN_SECONDS:
            return None
        self._looked_until = until
        usual = self._usual
        if usual is None and since - self._began >= self._pace.least_seconds:
            usual = self._paces(self._began, since)
        if usual is None or not has_turned(usual, self._paces(since, until)):
            return None
        return max(self._began, until - RECENT_SECONDS / 2)

    def _told_of_late(self, now: float) -> float:
        """Return the time up to which it is known what nodes have done; a slow worker tells that late."""
        told: dict[str, list[float]] = {"ps": [now], "worker": [now]}
        for part in self._situation.parts:
            told[part.role].append(self._of(part.role, part.node).until)
        return min(*told["ps"], max(min(told["worker"]), now - _SILENT_SECONDS))

    def _paces(self, since: float, until: float) -> Paces:
        """Return the paces of nodes between ``since`` and ``until``."""
        of: dict[str, dict[str, float]] = {"worker": {}, "ps": {}}
        rates = {}
        for part in self._situation.parts:
            series = self._of(part.role, part.node)
            done, busy = (series.one_at(until, name) - series.one_at(since, name) for name in ("minibatches", "busy"))
            if done > 0:
                rates[part.node] = done / (until - since)
                of[part.role][part.node] = (busy if part.role == "ps" else until - since) / done
        return Paces(of["worker"], of["ps"], rates)

    def _has_told(self, end: float) -> bool:
        """Return whether all have told what they have done until then."""
        if self._awaited is not None and self._of(*self._awaited).until < end:
            return False
        self._awaited = next((source for source in self._sources() if self._of(*source).until < end), None)
        return self._awaited is None

    def _told_until(self) -> float:
        """Return the time up to which all have told what they have done."""
        return min((self._of(*source).until for source in self._sources()), default=-math.inf)

    def _sources(self) -> Iterable[tuple[str, str]]:
        yield from (("host", host) for host in self._hosts())
        for part in self._situation.parts:
            yield "usage", part.node
            yield part.role, part.node

    def _hosts(self) -> list[str]:
        return sorted({self._on[part.node] for part in self._situation.parts if part.node in self._on})

    def _of(self, kind: str, name: str) -> Series:
        if (found := self._series.get((kind, name))) is None:
            found = self._series[kind, name] = Series()
        return found

    def _forget_others(self) -> None:
        """Forget those that don't take part any more; what workers among them have done stays counted."""
        present = set(self._sources())
        for source in [source for source in self._series if source not in present and source[0] != "host"]:
            self._samples_before += self._series.pop(source).last.get("samples", 0.0)
        self._transfers.keep_only(name for kind, name in present if kind == "ps")

    def _close(self, end: float, at: float) -> Profile | Gap:
        assert self._began is not None
        began, seconds = self._began, end - self._began
        silent = [p.node for p in self._situation.parts if self._of("usage", p.node).until <= began]
        before = self._at_beginning or self._all_at(began)
        after = self._all_at(end)
        relative_sd = self._relative_sd(began, end)
        self._began, self._at_beginning = end, after
        if silent or not self._hosts():
            return Gap(at, seconds, f"nothing is known of the CPU seconds of {', '.join(silent) or 'any node'}")
        return self._profile(seconds, at, _Window(before, after), relative_sd)

    def _all_at(self, time: float) -> dict[tuple[str, str], Values]:
        return {source: series.at(time) for source, series in self._series.items()}

    def _samples_so_far(self, values: Mapping[tuple[str, str], Values]) -> int:
        """Return the number of samples trained since the job began, by all workers."""
        told = sum(of.get("samples", 0.0) for (kind, _), of in values.items() if kind == "worker")
        return round(self._samples_before + told)

    def _workers(self) -> list[tuple[str, str]]:
        return [("worker", part.node) for part in self._situation.parts if part.role == "worker"]

    def _relative_sd(self, began: float, end: float) -> float:
        """Return the standard error of the mean over the mean, of the samples in parts of equal length."""
        parts = max(int((end - began) / _PART_SECONDS), _LEAST_PARTS)
        if end - began < _PART_SECONDS:
            return 0.0
        workers = [self._of(*source) for source in self._workers()]
        edges = [began + (end - began) * i / parts for i in range(parts + 1)]
        totals = [sum(series.one_at(edge, "samples") for series in workers) for edge in edges]
        rates = [after - before for before, after in pairwise(totals)]
        mean = sum(rates) / parts
        if mean <= 0:
            return 0.0
        return math.sqrt(sum((rate - mean) ** 2 for rate in rates) / (parts - 1) / parts) / mean

    # --- a profile ------------------------------------------------------------------------------------------------------

    def _profile(self, seconds: float, at: float, window: _Window, relative_sd: float) -> Profile:
        parts = self._situation.parts
        return Profile(
            job=self._job,
            at=at,
            seconds=seconds,
            batch_size=self._batch_size,
            samples=sum(window.whole(source, "samples") for source in self._workers()),
            samples_so_far=self._samples_so_far(window.after),
            workers=tuple(self._worker(part, window) for part in parts if part.role == "worker"),
            ps=tuple(self._ps(part, window) for part in parts if part.role == "ps"),
            hosts=self._host_uses(seconds, window),
            relative_sd=relative_sd,
            tables=self._tables(window),
            shared_cores=self._shared_cores,
        )

    def _worker(self, part: Part, window: _Window) -> WorkerUse:
        source, usage = ("worker", part.node), ("usage", part.node)
        return WorkerUse(
            node=part.node,
            host=self._on.get(part.node, ""),
            cores=part.cores,
            minibatches=window.whole(source, "minibatches"),
            cpu_seconds=window.risen(usage, "cpu"),
            throttled_seconds=window.risen(usage, "throttled"),
            phase_seconds=window.by_name(source, _WALL),
            phase_cpu_seconds=window.by_name(source, _CPU),
            read_delay_seconds=window.risen(source, _READ_DELAY),
        )

    def _ps(self, part: Part, window: _Window) -> PsUse:
        source, usage = ("ps", part.node), ("usage", part.node)
        return PsUse(
            node=part.node,
            host=self._on.get(part.node, ""),
            cores=part.cores,
            minibatches=window.whole(source, "minibatches"),
            cpu_seconds=window.risen(usage, "cpu"),
            busy_seconds=window.risen(source, "busy"),
            queue_seconds=window.risen(source, "queue"),
            throttled_seconds=window.risen(usage, "throttled"),
            rows=window.now(source, "rows"),
            row_bytes=window.now(source, "row_bytes"),
            used_bytes=window.now(usage, "used"),
            peak_bytes=window.now(usage, "peak"),
            requests=window.whole(source, "requests"),
        )

    @staticmethod
    def _held(node: str, window: _Window) -> PsLevel:
        source = ("ps", node)
        return PsLevel(
            node, window.now(source, "rows"), window.now(source, "row_bytes"), window.now(("usage", node), "used")
        )

    def _host_uses(self, seconds: float, window: _Window) -> tuple[HostUse, ...]:
        received, own = received_by_host(self._traffic(window), seconds), dict.fromkeys(self._hosts(), 0.0)
        for part in self._situation.parts:
            if (host := self._on.get(part.node)) is not None:
                own[host] += window.risen(("usage", part.node), "cpu")
        return tuple(
            HostUse(
                host,
                self._cores[host],
                max(0.0, (window.risen(("host", host), "cpu") - its) / seconds),
                *received.get(host, (0, 0.0)),
            )
            for host, its in own.items()
        )

    def _traffic(self, window: _Window) -> list[PsTraffic]:
        """List what went between PS and workers, by their hosts."""
        servers = {part.node: ("ps", part.node) for part in self._situation.parts if part.role == "ps"}
        return [
            PsTraffic(
                self._on[node],
                host,
                sent,
                window.risen(source, _RECEIVED + host),
                float(window.now(source, _FASTEST + host)),
            )
            for node, source in servers.items()
            if node in self._on
            for host, sent in window.by_name(source, _SENT).items()
        ]

    def _tables(self, window: _Window) -> tuple[TableUse, ...]:
        servers = [part.node for part in self._situation.parts if part.role == "ps"]
        held = {node: window.after.get(("ps", node), {}) for node in servers}
        named = [(table, dim, _TABLE + table) for table, dim in self._dims.items()]
        return tuple(
            TableUse(table, dim, {node: round(of.get(name, 0.0)) for node, of in held.items()})
            for table, dim, name in named
        )


class _Window(msgspec.Struct, frozen=True):
    """Totals at the two ends of an interval."""

    before: Mapping[tuple[str, str], Values]
    after: Mapping[tuple[str, str], Values]

    def risen(self, source: tuple[str, str], name: str) -> float:
        """Return by how much a total has risen, which never falls."""
        if source not in self.after:
            return 0.0
        return max(0.0, self.after[source].get(name, 0.0) - self.before.get(source, {}).get(name, 0.0))

    def whole(self, source: tuple[str, str], name: str) -> int:
        """Return by how much a count has risen: each end is rounded, so that windows in a row add up."""
        if source not in self.after:
            return 0
        ends = (of.get(source, {}).get(name, 0.0) for of in (self.after, self.before))
        return round(next(ends)) - round(next(ends))

    def now(self, source: tuple[str, str], name: str) -> int:
        return round(self.after.get(source, {}).get(name, 0.0))

    def by_name(self, source: tuple[str, str], prefix: str) -> dict[str, float]:
        before = self.before.get(source, {})
        return {
            name.removeprefix(prefix): max(0.0, value - before.get(name, 0.0))
            for name, value in self.after.get(source, {}).items()
            if name.startswith(prefix)
        }


def _add(totals: dict[str, float], name: str, more: float) -> None:
    totals[name] = totals.get(name, 0.0) + more
