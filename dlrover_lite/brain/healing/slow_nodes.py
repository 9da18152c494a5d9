"""Nodes that hold a job up: workers slower than their peers, parameter servers (PS) that are asked more than they can answer.

A worker's minibatches per second say how fast it is: work is leased as it asks for it. A PS has to answer for all, so what tells is how
long it works on a minibatch: against its peers, and against what it used to take itself. Whatever it is, it has to be seen in several
windows; or, where it came all at once, as long as makes it sure (``slowing``): the job is slow meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from dlrover_lite.brain.healing.host_capacity import HostCapacity
from dlrover_lite.brain.healing.mitigation import HealInputs, NodeNow, Treatment
from dlrover_lite.brain.healing.slowdown import NewestPaces, Slowing, slowing, work_times
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.acts import MoveSlots, Replace, Resize, SmallerShards, Tell
from dlrover_lite.protocol.profiles import Profile, PsUse, WorkerUse

__all__ = ["against_peers", "remaining_seconds", "treat_servers", "treat_workers"]

_PS_CORES = 1.0
"""The most cores that a PS can use: one thread does all the work on rows."""


class _Seen(NamedTuple):
    """Trouble that was seen of a node."""

    windows: Sequence[Profile]
    """Windows in which the trouble was seen, the newest last."""
    before: Sequence[Profile]
    times: float = 1.0
    """How many times as long as before the node takes for the same work, where that is why it was looked at."""


def remaining_seconds(inputs: HealInputs) -> float:
    """Estimate the seconds that the job still takes at the present rate."""
    if inputs.total_samples is None or not inputs.profiles:
        return inputs.policy.horizon_seconds
    last = inputs.profiles[-1]
    return max(0.0, inputs.total_samples - last.samples_so_far) / max(last.samples_per_second, 1e-9)


def _since_treated(inputs: HealInputs, node: str) -> Sequence[Profile]:
    """List the profiles that began after the last treatment of ``node`` for being slow had taken effect."""
    since = max(
        (t.done_at for t in inputs.past if t.node == node and t.done_at is not None and _about_time(t)), default=0.0
    )
    return (
        [profile for profile in inputs.profiles if profile.at - profile.seconds >= since] if since else inputs.profiles
    )


def _about_time(treatment: Treatment) -> bool:
    return treatment.cause in ("slow worker", "hot ps")


def _in_a_row(inputs: HealInputs, profiles: Sequence[Profile]) -> Sequence[Profile]:
    """Return the newest windows, as many as trouble has to be seen in that didn't come all at once; none if there aren't so many."""
    seconds = 0.0
    for count, profile in enumerate(reversed(profiles), 1):
        seconds += profile.seconds
        if count >= inputs.policy.windows and seconds >= inputs.policy.nodes.in_a_row_seconds:
            return profiles[-count:]
    return ()


# --- workers --------------------------------------------------------------------------------------------------------


def treat_workers(
    inputs: HealInputs, nodes: Sequence[NodeNow], room: HostCapacity, newest: NewestPaces
) -> list[Treatment]:
    """Treat the workers among ``nodes`` that are slow: more cores where a limit holds one back, another worker where that pays, or else
    smaller shards. Takes from ``room`` what it gives. ``newest``: paces in the job's profiles."""
    return [
        _slow_worker(inputs, node, windows, room)
        for node in nodes
        if node.role == "worker" and (windows := _slow_windows(inputs, node.node, newest))
    ]


def _slow_windows(inputs: HealInputs, node: str, newest: NewestPaces) -> Sequence[Profile]:
    """Return the windows in which a worker is slow; none if it isn't, or not surely."""
    profiles, policy = _since_treated(inputs, node), inputs.policy
    found = slowing(
        profiles,
        node,
        least=1 / policy.slow_below,
        evidence=policy.evidence,
        policy=policy.slowdown,
        newest=newest,
    )
    if found is not None and all(_is_slow(inputs, profile, node, newest) for profile in found.windows):
        return found.windows
    windows = _in_a_row(inputs, profiles)
    if windows and all(_is_slow(inputs, profile, node, newest) for profile in windows):
        return windows
    return ()


def _is_slow(inputs: HealInputs, profile: Profile, node: str, newest: NewestPaces) -> bool:
    rate = newest.against_peers(profile, node)
    return rate is not None and rate < inputs.policy.slow_below


def against_peers(profile: Profile, node: str) -> float | None:
    """Compute a worker's rate over what its peers' let expect of one with its cores; None if it has none, or none of them does anything."""
    own = next((use for use in profile.workers if use.node == node), None)
    peers = [use for use in profile.workers if use.node != node]
    if own is None or not peers:
        return None
    expected = median(peer.minibatches * min(1.0, own.cores / peer.cores) for peer in peers)
    return own.minibatches / expected if expected > 0 else None


def _slow_worker(inputs: HealInputs, node: NodeNow, windows: Sequence[Profile], room: HostCapacity) -> Treatment:
    uses = [use for profile in windows for use in profile.workers if use.node == node.node]
    rate = float(median(against_peers(profile, node.node) or 0.0 for profile in windows))
    seen = f"{node.node} does {rate:.0%} of the minibatches that its peers' rates let expect, for {_seconds(windows):.0f} s"
    treatment = Treatment(at=inputs.at, node=node.node, host=node.host, cause="slow worker", act=Tell(), reason=seen)
    more = min(node.resources.cores / max(rate, 1e-3), node.resources.cores + room.cores(node.host))
    if _is_held_back(inputs, uses, windows) and more >= node.resources.cores * inputs.policy.nodes.least_more_cores:
        room.take(node.host, Resources(more - node.resources.cores, 0))
        text = f"{seen}; its limit holds it back {_held_back(uses, windows):.0%} of the time: it gets {_cores(more)}"
        return _with(treatment, Resize(Resources(more, node.resources.memory)), text)
    # the others' rate is what all could have: one of n that is slow costs its part of that
    lost = (1 - rate) / len(windows[-1].workers)
    gain = max(0.0, remaining_seconds(inputs) - inputs.start_seconds) * lost
    problem, host = _not_replaced(inputs, "slow worker", gain), _place(inputs, node, windows, room)
    if not problem and host is None:
        problem = "no host has room for another one"
    if not problem and host is not None:
        text = f"{seen}: another one takes its place{_taken(node, host, room)}"
        return _with(treatment, Replace(node.resources, host), text, gain)
    if not _done(inputs, node.node, SmallerShards):
        text = f"{seen}: smaller shards, so that nobody waits for its last ones; it stays, as {problem}"
        return _with(treatment, SmallerShards(rate), text)
    return _with(treatment, Tell(), f"{seen}; it stays: {problem}")


# --- parameter servers ----------------------------------------------------------------------------------------------


def treat_servers(
    inputs: HealInputs, nodes: Sequence[NodeNow], room: HostCapacity, newest: NewestPaces
) -> list[Treatment]:
    """Treat the PS among ``nodes`` that are hot; of several the hottest alone, as the others' load follows from its. Takes from ``room``
    what it gives. ``newest``: paces in the job's profiles."""
    hot = []
    for node in nodes:
        if node.role == "ps" and (seen := _hot(inputs, node.node, newest)) is not None:
            busy = sum(_use(p, node.node).busy_seconds for p in seen.windows) / _seconds(seen.windows)
            hot.append((-busy, node.node, node, seen))
    if not hot:
        return []
    _, _, node, seen = min(hot, key=lambda one: one[:2])
    return [_hot_server(inputs, node, seen, room, newest)]


def _use(profile: Profile, node: str) -> PsUse:
    return next(use for use in profile.ps if use.node == node)


def _hot(inputs: HealInputs, node: str, newest: NewestPaces) -> _Seen | None:
    """Return what is seen of a hot PS; None: it isn't hot. One that has got slower is seen in the windows since then alone: what held it
    back before doesn't any more."""
    profiles, policy = _since_treated(inputs, node), inputs.policy
    alone = bool(profiles) and len(profiles[-1].ps) == 1
    evidence = policy.evidence * (inputs.policy.nodes.evidence_alone if alone else 1.0)
    found = slowing(
        profiles, node, least=policy.hot_over_peers, evidence=evidence, policy=policy.slowdown, newest=newest
    )
    if found is not None and _holds_up(inputs, found, node, alone=alone):
        return _Seen(found.windows, found.before, found.times)
    windows = _in_a_row(inputs, profiles)
    before = profiles[: len(profiles) - len(windows)][-inputs.policy.nodes.most_usual_windows :]
    if windows and all(_is_hot(inputs, profile, node, before, newest) for profile in windows):
        return _Seen(windows, before)
    return None


def _holds_up(inputs: HealInputs, found: Slowing, node: str, *, alone: bool) -> bool:
    """Say whether the job waits for a PS that has got slower: in each window; or in all together, where the job has got slower and that
    isn't what workers do themselves. Peers say so, or, where the PS has none, the time that workers work on a minibatch."""
    if all(
        _is_waited_for(inputs, profile, node, busy=inputs.policy.nodes.busy_if_slow * inputs.policy.hot_busy)
        for profile in found.windows
    ):
        return True
    paces = [
        _seconds(profiles) / max(1, sum(_use(profile, node).minibatches for profile in profiles))
        for profiles in (found.before, found.windows)
    ]
    times_slower = paces[1] / paces[0]
    asked = _is_asked(inputs, found.windows, node) or (
        times_slower >= inputs.policy.hot_over_peers and _is_asked_most(inputs, found.windows, node)
    )
    if times_slower < inputs.policy.nodes.slower_job or not asked:
        return False
    times = work_times(found.before, found.windows) if alone else 1.0
    return times is not None and times < inputs.policy.nodes.slower_job


def _is_waited_for(inputs: HealInputs, profile: Profile, node: str, *, busy: float) -> bool:
    if not any(use.node == node for use in profile.ps):
        return False
    policy, own = inputs.policy, _use(profile, node)
    works = _wanted_to_work(profile, own) >= busy * profile.seconds
    return works and own.queue_seconds >= policy.hot_queue * profile.seconds


def _is_asked(inputs: HealInputs, windows: Sequence[Profile], node: str, *, part: float = 1.0) -> bool:
    """Say whether requests are there, in work or waiting, for as long as they would be with half of what makes a PS hot, or ``part`` of
    that. One on a slow host isn't at work for much of the time in which everyone waits for it: it takes as much longer to receive what it
    is asked, and to send."""
    there = _requests_there(windows, node)
    return there >= part * inputs.policy.nodes.busy_if_slow * (
        inputs.policy.hot_busy + inputs.policy.hot_queue
    ) * _seconds(windows)


def _is_asked_most(inputs: HealInputs, windows: Sequence[Profile], node: str) -> bool:
    """Say whether most of what is asked of PS is asked of this one, and not much less than ``_is_asked`` wants."""
    peers = [_requests_there(windows, use.node) for use in windows[-1].ps if use.node != node]
    if not peers or not _is_asked(inputs, windows, node, part=inputs.policy.nodes.busy_if_slow):
        return False
    return _requests_there(windows, node) >= inputs.policy.nodes.mostly_here * median(peers)


def _requests_there(windows: Sequence[Profile], node: str) -> float:
    """Sum up the seconds that a PS's requests were in work, or could have been, or waited, each by itself."""
    with_it = [profile for profile in windows if any(use.node == node for use in profile.ps)]
    uses = [(profile, _use(profile, node)) for profile in with_it]
    return sum(_wanted_to_work(profile, use) + use.queue_seconds for profile, use in uses)


def _is_hot(inputs: HealInputs, profile: Profile, node: str, before: Sequence[Profile], newest: NewestPaces) -> bool:
    most = inputs.policy.hot_over_peers
    waited_for = _is_waited_for(inputs, profile, node, busy=inputs.policy.hot_busy)
    if not waited_for and not (_is_asked(inputs, [profile], node) and _stretched_times([profile], node) >= most):
        return False
    if _excess([profile], node) >= inputs.policy.least_excess:
        return True
    times = _times_as_long(before, [profile], node, newest, least=inputs.policy.nodes.least_usual_windows)
    return times is not None and times >= most


def _wanted_to_work(profile: Profile, use: PsUse) -> float:
    """Return the seconds in which the PS worked on requests, or its own limit kept it from working."""
    return max(use.busy_seconds, use.cpu_seconds + _throttled(profile, use))


def _throttled(profile: Profile, use: PsUse) -> float:
    """Return the seconds in which the PS's own limit kept it from working. Nodes that share their cores have none, and are stopped
    together, whichever of them wanted to work."""
    return 0.0 if profile.shared_cores else use.throttled_seconds


def _times_as_long(
    before: Sequence[Profile], windows: Sequence[Profile], node: str, newest: NewestPaces, *, least: int
) -> float | None:
    """Compute how many times as long as usual a PS works on a minibatch, over how many times its peers do meanwhile; None where fewer than
    ``least`` windows, with the same PS beside it and the same cores, say what is usual."""
    now = newest.servers(windows[-1])
    alike = [p for p in before if (its := newest.servers(p)).keys() == now.keys() and its[node] == now[node]]
    usual = newest.server_costs(alike)
    if len(alike) < least or usual[node] <= 0:
        return None
    return newest.slower_than_peers(usual, newest.server_costs(windows), node)


def _hot_server(inputs: HealInputs, node: NodeNow, seen: _Seen, room: HostCapacity, newest: NewestPaces) -> Treatment:
    windows = seen.windows
    uses = [_use(profile, node.node) for profile in windows]
    busy = sum(use.busy_seconds for use in uses) / _seconds(windows)
    queue = sum(use.queue_seconds for use in uses) / _seconds(windows)
    text = (
        f"{node.node} works {busy:.0%} of the time for {_seconds(windows):.0f} s, and {queue:.1f} requests wait for it"
    )
    treatment = Treatment(at=inputs.at, node=node.node, host=node.host, cause="hot ps", act=Tell(), reason=text)
    more = min(_PS_CORES, node.resources.cores * 2, node.resources.cores + room.cores(node.host))
    if _is_held_back(inputs, uses, windows) and more >= node.resources.cores * inputs.policy.nodes.least_more_cores:
        room.take(node.host, Resources(more - node.resources.cores, 0))
        text = f"{text}; its limit holds it back {_held_back(uses, windows):.0%} of the time: it gets {_cores(more)}"
        return _with(treatment, Resize(Resources(more, node.resources.memory)), text)
    speed = _speed(seen, node.node, newest)
    if speed < 1 / inputs.policy.hot_over_peers:
        return _slow_host(inputs, node, treatment, windows, speed, room)
    beside = [profile for profile in windows if len(profile.ps) > 1]
    excess = _excess(beside, node.node)
    if excess < inputs.policy.least_excess:
        return _with(treatment, Tell(), f"{text}, but no other one has much less to do")
    peers = _work_of_peers(beside, node.node) / _seconds(beside)
    return _move(treatment, windows, node.node, excess, f"{text}; its peers work {peers:.0%} of the time")


def _excess(windows: Sequence[Profile], node: str) -> float:
    """Compute the part of a PS's work that its peers would have if all worked for as long; not above 0 where it doesn't work longer than
    they do, or has none. Of a PS on a slower host it is a little less than would be even."""
    if not windows or any(len(profile.ps) < 2 for profile in windows):
        return 0.0
    own = sum(_use(profile, node).busy_seconds for profile in windows)
    count = len(windows[-1].ps)
    return (1 - _work_of_peers(windows, node) / own) * (count - 1) / count if own > 0 else 0.0


def _work_of_peers(windows: Sequence[Profile], node: str) -> float:
    """Compute the mean of the seconds that a PS's peers worked on requests. ``windows``: in which it has some."""
    return sum(fmean(use.busy_seconds for use in profile.ps if use.node != node) for profile in windows)


def _speed(seen: _Seen, node: str, newest: NewestPaces) -> float:
    """Estimate the speed of a PS's host: 1 as usual. Judge it by what the PS took before, and by what its peers take for a CPU second's
    work: the host may have been slow for so long that this is usual."""
    usual = _times_as_long(seen.before, seen.windows, node, newest, least=1) or 1.0
    return 1 / max(seen.times, usual, _stretched_times(seen.windows, node))


def _stretched_times(windows: Sequence[Profile], node: str) -> float:
    """Compute how many times as long as its peers a PS takes for a CPU second's work; 1 where that can't be told."""
    stretched: list[float] = []
    others: list[float] = []
    for profile in windows:
        for use in (use for use in profile.ps if use.cpu_seconds > 0):
            (stretched if use.node == node else others).append(_stretched(profile, use))
    return max(1.0, median(stretched) / median(others)) if stretched and others else 1.0


def _stretched(profile: Profile, use: PsUse) -> float:
    """Compute the seconds at work per CPU second, without those in which the PS's own limit held it back."""
    return max(1.0, (use.busy_seconds - _throttled(profile, use)) / use.cpu_seconds)


def _slow_host(
    inputs: HealInputs,
    node: NodeNow,
    treatment: Treatment,
    windows: Sequence[Profile],
    speed: float,
    room: HostCapacity,
) -> Treatment:
    """Treat a PS on a slow host. Another PS in its place is as fast as it was, and takes a while to come. Its peers are there, and have
    more to do for good: for the rest of the job its part of all PS is missing, but for what it still can."""
    seen = (
        f"{treatment.reason}; it takes {1 / speed:.1f} times as long for the same work as it should: its host is slow"
    )
    remaining, servers = remaining_seconds(inputs), len(windows[-1].ps)
    gain = max(0.0, remaining - inputs.start_seconds) * (1 - speed)
    share = 1 - servers * speed / (servers - 1 + speed)
    peers_can = servers > 1 and share >= inputs.policy.nodes.least_share_moved
    problem, host = _not_replaced(inputs, "hot ps", gain), _place(inputs, node, windows, room)
    if not problem and host is None:
        problem = "no host has room for another one"
    if not problem and host is not None and not (peers_can and remaining * speed / servers < inputs.start_seconds):
        text = f"{seen}: all its slots go to another one{_taken(node, host, room)}"
        return _with(treatment, Replace(node.resources, host), text, gain)
    if peers_can:
        return _move(treatment, windows, node.node, share, seen)
    return _with(treatment, Tell(), f"{seen}; it stays: {problem}")


def _move(treatment: Treatment, windows: Sequence[Profile], node: str, share: float, seen: str) -> Treatment:
    """Move slots to the PS's peers, in proportion to the time that each has left."""
    last = windows[-1]
    spare = {use.node: max(0.0, last.seconds - use.busy_seconds) for use in last.ps if use.node != node}
    total = sum(spare.values())
    if total <= 0:
        return _with(treatment, Tell(), f"{seen}, and the others have no time left for more")
    to = {peer: round(seconds / total, 4) for peer, seconds in spare.items() if seconds > 0}
    return _with(
        treatment,
        MoveSlots(round(share, 4), to),
        f"{seen}: slots with {share:.0%} of its work go to others, the hottest first",
    )


# --- both -----------------------------------------------------------------------------------------------------------


def _seconds(windows: Sequence[Profile]) -> float:
    return sum(profile.seconds for profile in windows)


def _cores(count: float) -> str:
    return f"{count:.3g} core{'' if abs(count - 1) < 5e-4 else 's'}"


def _held_back(uses: Sequence[WorkerUse] | Sequence[PsUse], windows: Sequence[Profile]) -> float:
    """Return the part of the time in which the limit kept the node from running."""
    return sum(use.throttled_seconds for use in uses) / _seconds(windows)


def _is_held_back(inputs: HealInputs, uses: Sequence[WorkerUse] | Sequence[PsUse], windows: Sequence[Profile]) -> bool:
    """Say whether more cores would make a node faster: it is throttled, and uses what it has. Where nodes share their cores, its own don't
    limit it."""
    if windows[-1].shared_cores:
        return False
    used = sum(use.cpu_seconds for use in uses) / max(1e-9, uses[-1].cores * _seconds(windows))
    return (
        inputs.resizable
        and _held_back(uses, windows) >= inputs.policy.throttled
        and used >= inputs.policy.nodes.uses_its_limit
    )


def _done(inputs: HealInputs, node: str, kind: type) -> bool:
    return any(t.node == node and isinstance(t.act, kind) for t in inputs.past)


def _place(inputs: HealInputs, node: NodeNow, windows: Sequence[Profile], room: HostCapacity) -> str | None:
    """Find the host for another node in a node's place, which runs beside it for a while; "": wherever the backend finds room for it; None:
    there is none. Its own host will do, if it isn't that which makes it slow: the cores are free once the other has gone."""
    if host := room.elsewhere(node.host, node.resources):
        return host
    if _is_crowded(windows[-1], node):
        return None
    if not inputs.free:  # nothing is known of hosts
        return "" if node.role == "worker" else None
    return node.host if room.memory(node.host) >= node.resources.memory else None


def _is_crowded(profile: Profile, node: NodeNow) -> bool:
    """Say whether the CPU of a node's host may be what it lacks: strangers take it, and no peer beside it does better."""
    uses: list[WorkerUse | PsUse] = [*profile.workers, *profile.ps]
    peers: Sequence[WorkerUse | PsUse] = profile.workers if node.role == "worker" else profile.ps
    if any(use.host == node.host and use.node != node.node for use in peers):
        return False
    host = next((one for one in profile.hosts if one.host == node.host), None)
    if host is None:
        return True
    used = sum(use.cpu_seconds for use in uses if use.host == node.host) / profile.seconds
    return host.cores - host.other_cores - used < node.resources.cores / 2


def _taken(node: NodeNow, host: str, room: HostCapacity) -> str:
    """Say in words where the other node goes, and take what it needs there, so that it isn't left for others any more."""
    if host:
        room.take(host, Resources(min(node.resources.cores, room.cores(host)), node.resources.memory))
    return f", on {host}" if host not in ("", node.host) else ", where it is, as no other host has room"


def _not_replaced(inputs: HealInputs, cause: str, gain: float) -> str:
    """Say why a node isn't replaced; "" if it pays and is allowed."""
    before = sum(t.cause == cause and isinstance(t.act, Replace) for t in inputs.past)
    if before >= inputs.policy.most_replacements:
        return f"{before} have been replaced for that already"
    if gain < inputs.policy.nodes.replacement_worth * inputs.start_seconds:
        return f"another one takes {inputs.start_seconds:.0f} s to come and would save {gain:.0f} s of what is left of the job"
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
