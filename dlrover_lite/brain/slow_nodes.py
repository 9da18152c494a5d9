"""Nodes that hold a job up: workers slower than their peers, parameter servers (PS) that are asked more than they can answer.

A worker's minibatches per second say how fast it is: work is leased as it asks for it. A PS has to answer for all, so what tells is how
long it works on a minibatch: against its peers, and against what it used to take itself. Whatever it is, it has to be seen in several
windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from dlrover_lite.brain.profiles import Profile, PsUse, WorkerUse
from dlrover_lite.brain.room import Room
from dlrover_lite.brain.treatment import (
    HealInputs,
    MoveSlots,
    NodeNow,
    Replace,
    Resize,
    SmallerShards,
    Tell,
    Treatment,
)
from dlrover_lite.units import Resources

__all__ = ["remaining_seconds", "treat_servers", "treat_workers"]

_PS_CORES = 1.0
"""A PS can use: one thread does all the work on rows."""
_LEAST_SHARE = 0.05
"""Of a PS's load that is worth moving."""
_USUAL_WINDOWS = 3
"""Before the present trouble, that say what a PS takes usually."""
_WORTH = 2.0
"""A replacement has to gain so many times what it costs."""


def remaining_seconds(inputs: HealInputs) -> float:
    """At the present rate."""
    if inputs.total_samples is None or not inputs.profiles:
        return inputs.policy.horizon_seconds
    last = inputs.profiles[-1]
    return max(0.0, inputs.total_samples - last.samples_so_far) / max(last.samples_per_second, 1e-9)


def _since_treated(inputs: HealInputs, node: str) -> list[Profile]:
    """Profiles that began after the last treatment of ``node`` for being slow had taken effect."""
    since = max(
        (t.done_at for t in inputs.past if t.node == node and t.done_at is not None and _about_time(t)), default=0.0
    )
    return [profile for profile in inputs.profiles if profile.at - profile.seconds >= since]


def _about_time(treatment: Treatment) -> bool:
    return treatment.cause in ("slow worker", "hot ps")


# --- workers --------------------------------------------------------------------------------------------------------


def treat_workers(inputs: HealInputs, nodes: Sequence[NodeNow], room: Room) -> list[Treatment]:
    """Of those among ``nodes`` that are workers and slow: smaller shards first, then more cores where a limit holds it back, or another
    worker where that pays. Takes from ``room`` what it gives."""
    found = []
    for node in nodes:
        if node.role != "worker":
            continue
        windows = _since_treated(inputs, node.node)[-inputs.policy.windows :]
        rates = [rate for profile in windows if (rate := _against_peers(profile, node.node)) is not None]
        if len(rates) < inputs.policy.windows or max(rates) >= inputs.policy.slow_below:
            continue
        found.append(_slow_worker(inputs, node, windows, float(median(rates)), room))
    return found


def _against_peers(profile: Profile, node: str) -> float | None:
    """A worker's rate over what its peers' let expect of one with its cores; None if it has none, or none of them does anything."""
    own = next((use for use in profile.workers if use.node == node), None)
    peers = [use for use in profile.workers if use.node != node]
    if own is None or not peers:
        return None
    expected = median(peer.minibatches * min(1.0, own.cores / peer.cores) for peer in peers)
    return own.minibatches / expected if expected > 0 else None


def _slow_worker(inputs: HealInputs, node: NodeNow, windows: Sequence[Profile], rate: float, room: Room) -> Treatment:
    uses = [use for profile in windows for use in profile.workers if use.node == node.node]
    seen = f"it does {rate:.0%} of the minibatches that its peers' rates let expect, for {len(windows)} windows"
    treatment = Treatment(at=inputs.at, node=node.node, host=node.host, cause="slow worker", act=Tell(), reason=seen)
    if not _done(inputs, node.node, SmallerShards):
        return _with(treatment, SmallerShards(rate), f"{seen}: smaller shards, so that nobody waits for its last ones")
    held_back = _held_back(uses, windows)
    more = min(node.resources.cores / rate, node.resources.cores + room.cores(node.host))
    if inputs.resizable and held_back >= inputs.policy.throttled and more >= node.resources.cores * 1.2:
        room.take(node.host, Resources(more - node.resources.cores, 0))
        return _with(
            treatment,
            Resize(Resources(more, node.resources.memory)),
            f"{seen}; its limit holds it back {held_back:.0%} of the time: it gets {more:.3g} cores",
        )
    # the others' rate is what all could have: one of n that is slow costs its part of that
    workers = len(windows[-1].workers)
    lost = (1 - rate) / workers
    gain = remaining_seconds(inputs) * lost - inputs.start_seconds
    if problem := _not_replaced(inputs, "slow worker", gain):
        return _with(treatment, Tell(), f"{seen}; it stays: {problem}")
    host = room.elsewhere(node.host, node.resources)
    if host:
        room.take(host, node.resources)
    where = f"on {host}" if host else "where it is, as no other host has room"
    text = f"{seen}, with smaller shards too: another one takes its place, {where}"
    return _with(treatment, Replace(node.resources, host), text, gain)


# --- parameter servers ----------------------------------------------------------------------------------------------


def treat_servers(inputs: HealInputs, nodes: Sequence[NodeNow], room: Room) -> list[Treatment]:
    """Of those among ``nodes`` that are PS and hot; of several the hottest alone, as the others' load follows from its. Takes from
    ``room`` what it gives."""
    hot = []
    for node in nodes:
        if node.role != "ps":
            continue
        profiles = _since_treated(inputs, node.node)
        windows = profiles[-inputs.policy.windows :]
        if len(windows) == inputs.policy.windows and all(_is_hot(inputs, p, node.node, profiles) for p in windows):
            busy = sum(_use(p, node.node).busy_seconds for p in windows) / sum(p.seconds for p in windows)
            hot.append((-busy, node.node, node, windows, profiles))
    if not hot:
        return []
    _, _, node, windows, profiles = min(hot, key=lambda one: one[:2])
    return [_hot_server(inputs, node, windows, profiles, room)]


def _use(profile: Profile, node: str) -> PsUse:
    return next(use for use in profile.ps if use.node == node)


def _is_hot(inputs: HealInputs, profile: Profile, node: str, profiles: Sequence[Profile]) -> bool:
    if not any(use.node == node for use in profile.ps):
        return False
    policy, own = inputs.policy, _use(profile, node)
    if (
        _wanted_to_work(own) < policy.hot_busy * profile.seconds
        or own.queue_seconds < policy.hot_queue * profile.seconds
    ):
        return False
    peers = [use.busy_seconds for use in profile.ps if use.node != node]
    if peers and own.busy_seconds >= policy.hot_over_peers * median(peers):
        return True
    usual = _usual(profiles, node, policy.windows)
    return usual is not None and _cost(own) >= policy.hot_over_peers * usual


def _wanted_to_work(use: PsUse) -> float:
    """Seconds in which it worked on requests, or its limit kept it from working."""
    return max(use.busy_seconds, use.cpu_seconds + use.throttled_seconds)


def _cost(use: PsUse) -> float:
    return use.busy_seconds / max(1, use.minibatches)


def _usual(profiles: Sequence[Profile], node: str, windows: int) -> float | None:
    """Seconds that a PS worked on a minibatch before the last ``windows``, with the same PS beside it and the same cores; None where that
    isn't known."""
    now = profiles[-1]
    names, cores = {use.node for use in now.ps}, _use(now, node).cores
    before = [
        _cost(_use(profile, node))
        for profile in profiles[:-windows]
        if {use.node for use in profile.ps} == names and _use(profile, node).cores == cores
    ]
    return median(before) if len(before) >= _USUAL_WINDOWS else None


def _hot_server(
    inputs: HealInputs, node: NodeNow, windows: Sequence[Profile], profiles: Sequence[Profile], room: Room
) -> Treatment:
    uses = [_use(profile, node.node) for profile in windows]
    seconds = sum(profile.seconds for profile in windows)
    busy = sum(use.busy_seconds for use in uses) / seconds
    queue = sum(use.queue_seconds for use in uses) / seconds
    seen = f"it works {busy:.0%} of the time, and {queue:.1f} requests wait for it"
    treatment = Treatment(at=inputs.at, node=node.node, host=node.host, cause="hot ps", act=Tell(), reason=seen)
    held_back = _held_back(uses, windows)
    more = min(_PS_CORES, node.resources.cores * 2, node.resources.cores + room.cores(node.host))
    if inputs.resizable and held_back >= inputs.policy.throttled and more >= node.resources.cores * 1.2:
        room.take(node.host, Resources(more - node.resources.cores, 0))
        text = f"{seen}; its limit holds it back {held_back:.0%} of the time: it gets {more:.3g} cores"
        return _with(treatment, Resize(Resources(more, node.resources.memory)), text)
    speed = _speed(inputs, windows, profiles, node.node)
    if speed < 1 / inputs.policy.hot_over_peers:
        return _slow_host(inputs, node, treatment, windows, speed, room)
    share, due = _share(windows, node.node), _due(windows, node.node)
    if share <= due * inputs.policy.uneven:
        return _with(treatment, Tell(), f"{seen}, but it does {share:.0%} of the work, and {due:.0%} is its due")
    return _move(treatment, windows, node.node, 1 - due / share, f"{seen}: it does {share:.0%} of the work")


def _share(windows: Sequence[Profile], node: str) -> float:
    """Of the CPU seconds of all PS."""
    total = sum(use.cpu_seconds for profile in windows for use in profile.ps)
    return sum(_use(profile, node).cpu_seconds for profile in windows) / total if total > 0 else 0.0


def _due(windows: Sequence[Profile], node: str) -> float:
    """By its cores."""
    last = windows[-1]
    return _use(last, node).cores / sum(use.cores for use in last.ps)


def _speed(inputs: HealInputs, windows: Sequence[Profile], profiles: Sequence[Profile], node: str) -> float:
    """Of its host: 1 as usual. By what it took before; without that, by what its peers take for a CPU second's work."""
    now = median(_cost(_use(profile, node)) for profile in windows)
    usual = _usual(profiles, node, inputs.policy.windows)
    if usual is not None:
        return usual / now
    stretched: list[float] = []
    others: list[float] = []
    for use in (use for profile in windows for use in profile.ps):
        if use.cpu_seconds > 0:
            (stretched if use.node == node else others).append(use.busy_seconds / use.cpu_seconds)
    return min(1.0, median(others) / median(stretched)) if stretched and others else 1.0


def _slow_host(
    inputs: HealInputs, node: NodeNow, treatment: Treatment, windows: Sequence[Profile], speed: float, room: Room
) -> Treatment:
    seen = (
        f"{treatment.reason}; it takes {1 / speed:.1f} times as long for the same work as it should: its host is slow"
    )
    gain = remaining_seconds(inputs) * (1 - speed) - inputs.start_seconds
    host = room.elsewhere(node.host, node.resources)
    problem = _not_replaced(inputs, "hot ps", gain)
    if host and not problem:
        room.take(host, node.resources)
        text = f"{seen}, and {host} has room: all its slots go to another one there"
        return _with(treatment, Replace(node.resources, host), text, gain)
    peers = len(windows[-1].ps) - 1
    share = 1 - (peers + 1) * speed / (peers + speed)
    if peers and share >= _LEAST_SHARE:
        return _move(treatment, windows, node.node, share, seen)
    return _with(treatment, Tell(), f"{seen}; {problem or 'no other host has room for another one'}")


def _move(treatment: Treatment, windows: Sequence[Profile], node: str, share: float, seen: str) -> Treatment:
    """To its peers, by the time that each has left."""
    last = windows[-1]
    spare = {use.node: max(0.0, last.seconds - use.busy_seconds) for use in last.ps if use.node != node}
    total = sum(spare.values())
    if total <= 0:
        return _with(treatment, Tell(), f"{seen}, and the others have no time left for more")
    to = {peer: round(seconds / total, 4) for peer, seconds in spare.items() if seconds > 0}
    return _with(
        treatment,
        MoveSlots(round(share, 4), to),
        f"{seen}: slots with {share:.0%} of that go to others, the hottest first",
    )


# --- both -----------------------------------------------------------------------------------------------------------


def _held_back(uses: Sequence[WorkerUse] | Sequence[PsUse], windows: Sequence[Profile]) -> float:
    """Part of the time in which the limit kept it from running."""
    return sum(use.throttled_seconds for use in uses) / sum(profile.seconds for profile in windows)


def _done(inputs: HealInputs, node: str, kind: type) -> bool:
    return any(t.node == node and isinstance(t.act, kind) for t in inputs.past)


def _not_replaced(inputs: HealInputs, cause: str, gain: float) -> str:
    """Why not; "" if it pays and is allowed."""
    before = sum(t.cause == cause and isinstance(t.act, Replace) for t in inputs.past)
    if before >= inputs.policy.most_replacements:
        return f"{before} have been replaced for that already"
    if gain < (_WORTH - 1) * inputs.start_seconds:
        return f"another one would cost {inputs.start_seconds:.0f} s and save too little in what is left of the job"
    return ""


def _with(
    treatment: Treatment,
    act: SmallerShards | Replace | Resize | MoveSlots | Tell,
    reason: str,
    gain: float | None = None,
) -> Treatment:
    return Treatment(
        at=treatment.at,
        node=treatment.node,
        host=treatment.host,
        cause=treatment.cause,
        act=act,
        reason=reason,
        gain_seconds=gain,
    )
