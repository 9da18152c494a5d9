"""Inputs of a decision in words: few lines, with units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dlrover_lite.brain.explain.explanation_data import Fact
from dlrover_lite.brain.healing.mitigation import HealInputs, NodeNow
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.job_view import JobView, RoundInputs
from dlrover_lite.brain.planning.plan_grid import Bounds
from dlrover_lite.brain.planning.work_shift import shift_words
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.core.words import at_time, count, duration, plural
from dlrover_lite.protocol.profiles import Profile

__all__ = ["facts_of_round", "facts_of_treatment"]

_MOST_NAMED = 3
"""The most other jobs that are named."""


# --- of stages 1 and 2 ----------------------------------------------------------------------------------------------


def facts_of_round(inputs: RoundInputs, view: JobView, last: Profile | None) -> tuple[Fact, ...]:
    """List what was known for a round. ``last``: the newest interval that was measured by then."""
    pairs = [
        ("plan", view.now.describe() if view.now else "none: it doesn't run"),
        ("measured", _measured(view)),
        ("work", _shifted(view)),
        ("a try", _tried(view)),
        ("left", _left(view)),
        *_of_interval(last),
        ("memory", _memory(view)),
        ("a change", f"costs {duration(view.scale_seconds)} of training" if view.now else ""),
        ("capacity", _capacity(inputs, view)),
        ("free CPU", _free(view)),
        ("other jobs", _others(inputs, view.job)),
        ("may have", _bounds(view.bounds)),
        ("trust", _trust(view)),
        ("held", _held(view)),
    ]
    return tuple(Fact(name, text) for name, text in pairs if text)


def _measured(view: JobView) -> str:
    if view.now is None:
        return ""
    if (band := view.measured) is None:
        return "nothing yet with this plan: the model's word was taken"
    intervals = ""
    if view.last_change is not None:
        windows = plural(view.last_change.fresh_windows, "interval")
        intervals = f", in {windows} since it had {view.last_change.left.describe()}"
    return f"{count(band.expected)} samples/s (80% band {count(band.lower)} to {count(band.upper)}){intervals}"


def _shifted(view: JobView) -> str:
    if (shift := view.shift) is None:
        return ""
    since = plural(shift.windows, "interval")
    return f"has changed since {at_time(shift.at)}: {shift_words(shift)}; only what was measured since counts: {since}"


def _tried(view: JobView) -> str:
    if (exploration := view.exploration) is None:
        return ""
    measured = duration(min(exploration.seconds, view.tried_seconds))
    return (
        f"the present plan was to be tried for {duration(exploration.seconds)}, of which {measured} are measured; "
        f"the job had {exploration.back.describe()} before"
    )


def _left(view: JobView) -> str:
    if view.remaining_samples is None:
        return "nobody knows how many samples: an hour was reckoned with"
    waited = f"; it has waited for {duration(view.waited_seconds)}" if view.waited_seconds else ""
    ran = f"; it has run for {duration(view.ran_seconds)}" if view.ran_seconds else ""
    promised = "; others make room for it already" if view.room_promised else ""
    return f"{count(view.remaining_samples)} samples{ran}{waited}{promised}"


def _of_interval(last: Profile | None) -> Iterator[tuple[str, str]]:
    if last is None:
        return
    rows, of_rows = sum(use.rows for use in last.ps), sum(use.row_bytes for use in last.ps)
    if rows:
        tables = f" in {plural(len(last.tables), 'table')}" if last.tables else ""
        yield "rows", f"{count(rows)}{tables}, {format_bytes(of_rows)}"
    nodes = (sum(use.cpu_seconds for use in last.workers) + sum(use.cpu_seconds for use in last.ps)) / last.seconds
    others = sum(host.other_cores for host in last.hosts)
    there = sum(host.cores for host in last.hosts)
    yield "CPU", f"its nodes used {nodes:.2f} cores, others {others:.2f}, of {there:g}"
    yield from _of_reading(last)


def _of_reading(last: Profile) -> Iterator[tuple[str, str]]:
    read, cpu = (
        sum(phases.get("read", 0.0) for phases in of)
        for of in ([use.phase_seconds for use in last.workers], [use.phase_cpu_seconds for use in last.workers])
    )
    if not read or not last.minibatches:
        return
    held = sum(use.read_delay_seconds for use in last.workers)
    each, of_cpu, without = (1000 * seconds / last.minibatches for seconds in (read, cpu, held))
    yield (
        "reading",
        f"a minibatch took {each:.3g} ms to be read, {of_cpu:.3g} ms of CPU and {without:.3g} ms without a core",
    )


def _memory(view: JobView) -> str:
    need = view.need
    if not (need.worker or need.ps or need.tables):
        return ""
    text = f"{format_bytes(need.worker)} for each worker, {format_bytes(need.ps)} for each parameter server"
    if need.tables_band is None:
        text += f", and {format_bytes(need.tables)} for all tables (a guess)"
    else:
        lower, expected, upper = map(format_bytes, need.tables_band)
        text += f", and {expected} (80% band {lower} to {upper}) for all tables"
    fixed = need.fixed_ps
    return text if fixed is None else f"{text}; the recipe gives each parameter server {format_bytes(fixed)}"


def _capacity(inputs: RoundInputs, view: JobView) -> str:
    most = view.most
    own = ""
    if most is not None and (most.cores < inputs.capacity.cores or most.memory < inputs.capacity.memory):
        own = f"; this one may have {_amount(most)} at most"
    hosts = f" on {len(inputs.hosts)} hosts" if len(inputs.hosts) > 1 else ""
    return f"{_amount(inputs.capacity)}{hosts} for all jobs{own}"


def _free(view: JobView) -> str:
    free = view.model.parameters.get("free_cores")
    if not isinstance(free, int | float):
        return ""
    return f"{_cores(free)} that its nodes could use on each machine"


def _others(inputs: RoundInputs, job: str) -> str:
    others = [one for one in inputs.jobs if one.job != job]
    if not others:
        return "none"
    named = sorted(others, key=lambda one: (-(one.now.cores if one.now else 0.0), one.job))[:_MOST_NAMED]
    words = [f"{one.job} {_has(one)}{_priority(one)}" for one in named]
    more = f", and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    return "; ".join(words) + more


def _has(view: JobView) -> str:
    if view.now is None:
        return "waits"
    if view.changes_from is not None:
        return f"changes from {_cores(view.changes_from.cores)} to {_cores(view.now.cores)}"
    return f"has {_cores(view.now.cores)}"


def _priority(view: JobView) -> str:
    return f" (priority {view.priority:g})" if view.priority != 1 else ""


def _bounds(bounds: Bounds) -> str:
    def role(least: int, most: int, name: str, sizes: Sequence[float]) -> str:
        number = f"{least}" if least == most else f"{least} to {most}"
        each = f"{min(sizes):g}" if min(sizes) == max(sizes) else f"{min(sizes):g} to {max(sizes):g}"
        return f"{number} {name} x {each}"

    workers = role(bounds.min_workers, bounds.max_workers, "worker", bounds.worker_sizes)
    return f"{workers}, {role(bounds.min_servers, bounds.max_servers, 'ps', bounds.ps_sizes)} cores"


def _trust(view: JobView) -> str:
    parts = []
    if view.doubt > 1.005:
        parts.append(f"predictions for it have missed: bands are {view.doubt:.2g} times as wide")
    if view.explored_seconds:
        parts.append(f"{duration(view.explored_seconds)} were spent on trying plans")
    return "; ".join(parts)


def _held(view: JobView) -> str:
    parts = []
    if (view.fixed or view.unmeasured) and view.now is not None:
        parts.append(f"its plan couldn't be changed just then{view.held and f': {view.held}'}")
    if view.declined:
        parts.append(f"refused a short while ago: {', '.join(plan.describe() for plan in view.declined[-2:])}")
    if view.priority != 1:
        parts.append(f"its priority is {view.priority:g}")
    return "; ".join(parts)


# --- of stage 3 -----------------------------------------------------------------------------------------------------


def facts_of_treatment(inputs: HealInputs, decision: Decision) -> tuple[Fact, ...]:
    treatment = decision.treatment
    name = treatment.node if treatment is not None else ""
    node = next((one for one in inputs.nodes if one.node == name), None)
    pairs = [
        ("node", _node(node)),
        ("seen in", _seen(inputs)),
        ("left", _left_of_treated(inputs)),
        ("to act", _to_act(inputs)),
        ("room", _room(inputs)),
        ("before", _before(inputs, name)),
    ]
    return tuple(Fact(name, text) for name, text in pairs if text)


def _node(node: NodeNow | None) -> str:
    if node is None:
        return ""
    used = f"; it has used {format_bytes(node.used_bytes)} at most" if node.used_bytes else ""
    where = f" on {node.host}" if node.host else ""
    return f"{node.node}{where}: {_amount(node.resources)}{used}"


def _seen(inputs: HealInputs) -> str:
    parts = []
    if inputs.profiles:
        parts.append(f"{plural(len(inputs.profiles), 'interval')} of the nodes that ran")
    if inputs.levels:
        parts.append(f"{plural(len(inputs.levels), 'look')} at what parameter servers hold")
    return ", ".join(parts)


def _left_of_treated(inputs: HealInputs) -> str:
    if inputs.total_samples is None or not inputs.held:
        return ""
    last = inputs.held[-1]
    left = max(0.0, inputs.total_samples - last.samples_so_far)
    rate = last.samples_per_second
    return f"{count(left)} samples" + (f", {duration(left / rate)} at {count(rate)} samples/s" if rate > 0 else "")


def _to_act(inputs: HealInputs) -> str:
    return (
        f"memory given takes {duration(inputs.seconds_to_act)} to arrive, another node "
        f"{duration(inputs.start_seconds)} to take over"
    )


def _room(inputs: HealInputs) -> str:
    if inputs.shared:
        return f"{_amount(next(iter(inputs.free.values())))} could still be given, on whichever host has it"
    parts = [f"{_amount(free)}{f' on {host}' if host else ''}" for host, free in inputs.free.items()]
    return f"{'; '.join(parts)} could still be given" if parts else ""


def _before(inputs: HealInputs, node: str) -> str:
    past = [one for one in inputs.past if one.node == node]
    if not past:
        return ""
    ago = duration(max(0.0, inputs.at - past[-1].at))
    if len(past) == 1:
        return f"it was treated {ago} before ({past[-1].cause})"
    return f"it was treated {len(past)} times, the last time {ago} before ({past[-1].cause})"


def _amount(there: Resources) -> str:
    return f"{_cores(there.cores)} and {format_bytes(there.memory)}"


def _cores(count: float) -> str:
    return f"{count:.4g} core{'' if count == 1 else 's'}"
