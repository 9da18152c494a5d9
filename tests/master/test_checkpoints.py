"""A master that takes cuts: of parameter servers that are scripted, at destinations that are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlrover_lite.checkpoint.manifest import Consumed
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import RemoteError
from dlrover_lite.jobs.restore_point import Usable, newest_checkpoint
from dlrover_lite.master.cadence import Cadence
from dlrover_lite.protocol.messages import Ack, Finished, LeaseRequest
from dlrover_lite.protocol.questions import (
    CheckpointPromise,
    CheckpointRequest,
    MoveRequest,
    Scaled,
    Status,
    StatusRequest,
    StopRequest,
    StoryRequest,
)
from tests.checkpoint.cuts import expected, keys, slot_of, state_of
from tests.master.rig import PATIENCE, Rig, done
from tests.master.scripted_ps import ScriptedPs, until, until_ended

PAIR = ("ps-0", "ps-1")
OFTEN = {"every_seconds": 3600.0, "keep": 5}
Servers = list[ScriptedPs]


def begun(make: Any, *, workers: int = 1, **checkpoint: Any) -> tuple[Rig, Servers]:
    """A job of two PS that has trained a little, and has much left to do. Only its first worker is up."""
    rig = make(ps=2, workers=workers, checkpoint={**OFTEN, **checkpoint}, samples=4000)
    rig.up(*PAIR, "worker-0")
    servers = [ScriptedPs(rig, node) for node in PAIR]
    until(rig, servers, lambda status: status.slot_map_version)
    for server in servers:
        server.step()
    rig.lease("worker-0", **done(rig.lease("worker-0")))
    return rig, servers


def newest(status: Status) -> int:
    found = status.checkpoints.newest if status.checkpoints else None
    return found.number if found else 0


def has(number: int) -> Any:
    return lambda status: newest(status) >= number


def taking(servers: Servers, number: int) -> Any:
    return lambda _: all(server.taken and server.taken[-1].cut == number for server in servers)


def ask(rig: Rig) -> int:
    answer = rig.ask("cli", CheckpointRequest())
    assert isinstance(answer, CheckpointPromise)
    return answer.number


def push(servers: Servers, count: int, version: int, start: int = 0) -> dict[Any, int]:
    chosen = keys(count, start=start)
    for server in servers:
        server.push(chosen, version)
    return dict.fromkeys(chosen, version)


def read(rig: Rig, cut: int) -> Any:
    """By key: slot, count, values, state."""
    store = CheckpointStore(str(rig.checkpoints))
    assert store.verify(cut) == []
    return state_of(store.rows(cut))


def told(rig: Rig) -> list[str]:
    return [entry.text for entry in rig.ask("cli", StoryRequest("master")).entries]


def test_a_base_is_followed_by_an_increment_of_changed_rows(make: Any) -> None:
    rig, servers = begun(make)
    state = push(servers, 60, 1)
    assert ask(rig) == 1
    status = until(rig, servers, has(1))
    assert read(rig, 1) == expected(state)
    state |= push(servers, 20, 2, start=50)
    assert ask(rig) == 2
    until(rig, servers, has(2))
    assert read(rig, 2) == expected(state)
    base, increment = [CheckpointStore(str(rig.checkpoints)).manifest(cut) for cut in (1, 2)]
    assert (base.builds_on, increment.builds_on) == (None, 1)
    assert (base.rows, increment.rows) == (60, 20)
    assert (base.job, base.samples, base.consumed) == ("rig-1", status.samples, Consumed(0, [(0, [(0, 2)])]))
    assert base.facts["progress"]["good_lines"] == 8
    found = status.checkpoints.newest if status.checkpoints else None
    assert found is not None
    assert (found.number, found.samples, found.rows, found.bytes) == (1, base.samples, 60, base.stored_bytes)
    assert [text.partition(" in ")[0] for text in told(rig)] == ["checkpoint 1 is complete", "checkpoint 2 is complete"]
    assert {entry.about for entry in rig.ask("cli", StoryRequest("master")).entries} == {"checkpoint"}


def test_a_cut_takes_at_most_half_of_the_memory_that_a_server_has_left(make: Any) -> None:
    rig, servers = begun(make)
    limit = {node.id: node.memory for node in rig.ask("cli", StatusRequest()).nodes}["ps-0"]
    used = rig.backend.used = {"ps-0": limit - (50 << 20), "ps-1": limit}
    until(rig, servers, lambda status: {node.id: node.used_memory for node in status.nodes}.items() >= used.items())
    ask(rig)
    until(rig, servers, lambda _: all(server.taken for server in servers))
    assert [server.taken[-1].spill_bytes for server in servers] == [25 << 20, 1 << 20]


def test_servers_are_told_where_they_reach_what_the_master_sees_elsewhere(make: Any) -> None:
    rig, servers = begun(make)
    state = push(servers, 60, 1)
    (rig.directory / "seen").symlink_to(rig.directory / "checkpoints")
    rig.url_for_nodes = lambda url: url.replace("checkpoints", "seen")
    ask(rig)
    until(rig, servers, has(1))
    assert {server.taken[-1].url for server in servers} == {str(rig.directory / "seen")}
    assert read(rig, 1) == expected(state)


def test_a_cut_waits_for_no_turn_of_the_master_and_for_no_report(make: Any) -> None:
    rig, servers = begun(make)
    state = push(servers, 60, 1)
    usual, rare = rig.master._edge, Cadence(reconcile_seconds=3600.0, calm_seconds=3600.0)
    began = rig.clock.now
    until(rig, servers, lambda _: rig.master._reconciled_at > began)
    rig.master._edge = usual._replace(cadence=rare)
    until(rig, servers, lambda _: rig.master._reconcile_at > rig.clock.now + 1000)
    ask(rig)
    for server in servers:
        reply = rig.client(server.node).receive(PATIENCE)
        assert reply is not None
        assert reply.body.snapshot.cut == 1  # type: ignore[attr-defined]
    until(rig, servers, has(1))
    assert read(rig, 1) == expected(state)
    rig.master._edge = usual
    rig.ask("cli", StatusRequest())  # it turns again


def test_bases_come_again_and_old_cuts_go(make: Any) -> None:
    rig, servers = begun(make, full_every=3, keep=1)
    for cut in range(1, 6):
        push(servers, 60 - cut, cut)
        assert ask(rig) == cut
        until(rig, servers, has(cut))
    push(servers, 60, 7)
    ask(rig)
    until(rig, servers, has(6))
    rig.stopping = True
    rig.ask("cli", StopRequest(now=True))
    rig.ended()
    left = CheckpointStore(str(rig.checkpoints)).checkpoints()
    manifests = [cut.manifest for cut in left if cut.manifest is not None]
    assert [(one.cut, one.builds_on) for one in manifests] == [(6, 5), (5, 4), (4, None)]


def test_old_cuts_go_before_the_job_has_ended(make: Any) -> None:
    """There is nobody afterwards who would remove them."""
    rig, servers = begun(make, keep=1, full_every=1)
    for cut in (1, 2):
        ask(rig)
        until(rig, servers, has(cut))
    rig.ask("cli", StopRequest(now=True))
    rig.ended()
    assert [one.name for one in rig.checkpoints.iterdir()] == ["cut-00000002"]


def test_slots_that_moved_away_and_back_are_written_whole(make: Any) -> None:
    """They come back with clocks of the PS that had them."""
    rig, servers = begun(make)
    push(servers, 60, 1)
    ask(rig)
    until(rig, servers, has(1))
    members = slot_sets.of([slot_of(key) for key in keys(10) if servers[0].owned[slot_of(key)]])
    there = len(np.flatnonzero(members))
    assert there
    at_rest: Any = lambda status: not status.moves  # noqa: E731
    for target in ("ps-1", "ps-0"):
        assert isinstance(rig.ask("cli", MoveRequest(slot_sets.pack(members), target)), Scaled)
        until(rig, servers, at_rest)
    ask(rig)
    until(rig, servers, has(2))
    order = servers[0].taken[-1]
    assert order.since == [1, 1]
    assert (slot_sets.unpack(order.whole) == members).all()
    assert servers[1].taken[-1].since == [1, 1]
    assert not slot_sets.unpack(servers[1].taken[-1].whole).any()
    assert CheckpointStore(str(rig.checkpoints)).manifest(2).rows == sum(
        bool(members[slot_of(key)]) for key in servers[0].rows
    )


def test_a_follower_of_a_ps_continues_its_increments(make: Any) -> None:
    rig, servers = begun(make)
    state = push(servers, 60, 1)
    ask(rig)
    until(rig, servers, has(1))
    rig.backend.ends("ps-0")
    rig.backend.wait_for_launch("ps-2")
    rig.up("ps-2")
    servers[0] = ScriptedPs(rig, "ps-2", servers[0].rows, servers[0].clock)
    until(rig, servers, lambda _: servers[0].owned.any())
    state |= push(servers, 10, 2)
    ask(rig)
    until(rig, servers, has(2))
    assert servers[0].taken[-1].since == [1, 1]
    assert CheckpointStore(str(rig.checkpoints)).manifest(2).rows == 10
    assert read(rig, 2) == expected(state)


def test_a_cut_that_loses_a_ps_is_taken_anew(make: Any) -> None:
    rig, servers = begun(make)
    push(servers, 60, 1)
    servers[0].writes = False
    ask(rig)
    until(rig, servers, lambda _: servers[0].taken)
    rig.backend.ends("ps-0")
    rig.backend.wait_for_launch("ps-2")
    rig.up("ps-2")
    servers[0] = ScriptedPs(rig, "ps-2", servers[0].rows, servers[0].clock)
    status = until(rig, servers, has(2))
    problem = status.checkpoints.problem if status.checkpoints else None
    assert problem is not None
    assert (problem.number, problem.why, problem.failures) == (1, "ps-0 has ended", 0)
    assert "checkpoint 1 is given up: ps-0 has ended; another one is tried as soon as it can be" in told(rig)


def test_no_move_begins_while_a_cut_is_taken(make: Any) -> None:
    rig, servers = begun(make)
    servers[1].writes = False
    ask(rig)
    until(rig, servers, lambda _: servers[1].taken)
    members = slot_sets.of(np.flatnonzero(servers[0].owned)[:3].tolist())
    rig.ask("cli", MoveRequest(slot_sets.pack(members), "ps-1"))
    for _ in range(8):  # some turns of the master
        servers[0].step()
        (move,) = rig.ask("cli", StatusRequest()).moves
        assert move.state == "queued"
    servers[1].writes = True
    servers[1].taken.clear()  # it writes after all
    until(rig, servers, lambda status: newest(status) and not status.moves)
    assert (servers[1].owned & members).sum() == 3


# --- a master that is killed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["opening", "waiting", "taking", "committing"])
def test_a_master_that_is_killed_uses_no_number_again(make: Any, phase: str) -> None:
    rig, servers = begun(make)
    state = push(servers, 30, 1)
    if phase == "opening":
        rig.io.hangs = True
    if phase == "waiting":
        rig.report("ps-1", orders=servers[1].orders, tidy=False)
    if phase == "taking":
        servers[0].writes = False

    def at_it(status: Status) -> bool:
        under_way = status.checkpoints.under_way if status.checkpoints else None
        return under_way is not None and under_way.state == phase

    assert ask(rig) == 1
    if phase == "committing":
        until(rig, servers, lambda _: rig.master.servers.snapshots)
        rig.io.hangs = True
    until(rig, [] if phase == "waiting" else servers, at_it)
    rig.kill()
    rig.io.go_on()
    rig.start()
    rig.up(*PAIR)
    servers[0].writes = True
    for server in servers:
        server.taken.clear()
    until(rig, servers, has(2))
    assert "checkpoint 1 is given up: the master has been restarted" in told(rig)
    assert read(rig, 2) == expected(state)
    assert newest(rig.ask("cli", StatusRequest())) == 2


def test_a_restarted_master_knows_the_newest_checkpoint(make: Any) -> None:
    rig, servers = begun(make)
    push(servers, 30, 1)
    ask(rig)
    before = until(rig, servers, has(1))
    rig.kill()
    rig.start()
    assert rig.ask("cli", StatusRequest()).checkpoints == before.checkpoints
    rig.up(*PAIR)
    push(servers, 3, 2)
    ask(rig)
    until(rig, servers, has(2))
    assert CheckpointStore(str(rig.checkpoints)).manifest(2).builds_on == 1


# --- destinations --------------------------------------------------------------------------------------------------------


def test_training_goes_on_while_the_destination_hangs(make: Any) -> None:
    rig, servers = begun(make)
    rig.io.hangs = True
    push(servers, 30, 1)
    ask(rig)
    until(rig, servers, lambda status: status.checkpoints.under_way)
    for _ in range(5):
        rig.lease("worker-0", **done(rig.lease("worker-0")))
    assert newest(rig.ask("cli", StatusRequest())) == 0
    rig.io.go_on()
    until(rig, servers, has(1))


def test_job_ends_though_the_destination_hangs(make: Any) -> None:
    rig, servers = begun(make)
    rig.io.hangs = True
    ask(rig)
    until(rig, servers, lambda status: status.checkpoints.under_way)
    rig.ask("cli", StopRequest(now=True))
    assert rig.ended().state == "stopped"


def test_checkpoints_go_on_when_the_destination_comes_back(make: Any, tmp_path: Path) -> None:
    rig, servers = begun(make)
    state = push(servers, 30, 1)
    rig.checkpoints.rename(tmp_path / "away")
    ask(rig)
    status = until(rig, servers, lambda status: status.checkpoints.problem)
    assert status.checkpoints is not None
    problem = status.checkpoints.problem
    assert problem is not None
    assert problem.why.startswith("The checkpoint's destination is gone")
    assert (problem.number, problem.failures) == (1, 1)
    assert not rig.checkpoints.exists()  # an empty one in its place would look as if all were lost
    (tmp_path / "away").rename(rig.checkpoints)
    ask(rig)
    until(rig, servers, has(2))
    assert read(rig, 2) == expected(state)


def test_an_unusable_destination_is_reported_from_the_start(make: Any, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    rig, servers = begun(make)
    status = until(rig, servers, lambda status: status.checkpoints.problem)
    assert status.checkpoints is not None
    assert status.checkpoints.problem is not None
    assert status.checkpoints.problem.number == 0
    assert any(text.startswith("can't take checkpoints for now: The checkpoint's destination") for text in told(rig))
    rig.checkpoints.unlink()
    ask(rig)
    until(rig, servers, has(1))


def test_a_full_destination_is_reported_and_used_again(make: Any) -> None:
    rig, servers = begun(make)
    push(servers, 30, 1)
    servers[1].fails = "The checkpoint's destination is full"
    ask(rig)
    status = until(rig, servers, lambda status: status.checkpoints.problem)
    assert status.checkpoints is not None
    problem = status.checkpoints.problem
    assert problem is not None
    assert (problem.why, problem.hint) == ("ps-1: The checkpoint's destination is full", "Make room.")
    servers[1].fails = ""
    ask(rig)
    until(rig, servers, has(2))
    assert [one.name for one in rig.checkpoints.iterdir()] == ["cut-00000002"]


def test_cuts_of_an_earlier_life_are_not_overwritten(make: Any, tmp_path: Path) -> None:
    """As when the ledger is made anew."""
    rig, servers = begun(make)
    push(servers, 30, 1)
    ask(rig)
    until(rig, servers, has(1))
    rig.kill()
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    rig.start()
    rig.up(*PAIR)
    servers = [ScriptedPs(rig, node) for node in PAIR]
    until(rig, servers, lambda status: status.slot_map_version and newest(status) == 1)
    rig.lease("worker-0", **done(rig.lease("worker-0")))
    assert ask(rig) == 2
    until(rig, servers, has(2))


# --- who asks, and the end -----------------------------------------------------------------------------------------------


def test_checkpoint_request_is_refused_if_checkpoints_are_off(make: Any) -> None:
    rig = make()
    assert rig.ask("cli", StatusRequest()).checkpoints is None
    with pytest.raises(RemoteError, match="checkpoint: off"):
        rig.ask("cli", CheckpointRequest())


def test_checkpoints_are_taken_on_schedule(make: Any) -> None:
    rig, servers = begun(make, every_seconds=0.2)
    status = until(rig, servers, has(3))
    assert status.checkpoints is not None
    assert status.checkpoints.problem is None


def test_too_short_an_interval_is_reported_with_one_that_would_do(make: Any) -> None:
    rig, servers = begun(make, every_seconds=5.0)
    checkpoints = rig.master.checkpoints
    assert checkpoints is not None
    now = checkpoints.clock()
    checkpoints.clock = lambda: now
    for server in servers:
        server.writes = False
    assert ask(rig) == 1
    for number in (1, 2):  # the second one is due as soon as the first is complete
        until(rig, servers, taking(servers, number))
        now += 7.0
        for server in servers:
            server.write()
        status = until(rig, servers, has(number))
    problem = status.checkpoints.problem if status.checkpoints else None
    assert problem is not None
    assert problem.too_slow
    assert "took 7 s, longer than the 5 s from one to the next" in problem.why
    assert problem.hint == "It would do to take one every 20 s: checkpoint.every_seconds."
    assert sum("longer than the 5 s" in text for text in told(rig)) == 1, "once"


@pytest.mark.parametrize("how", ["signal", "request"])
def test_a_last_checkpoint_is_taken_before_the_job_stops(make: Any, how: str) -> None:
    rig, servers = begun(make)
    state = push(servers, 30, 1)
    if how == "signal":
        rig.stopping = True
    else:
        assert rig.ask("cli", StopRequest("had enough")) == Ack()
    lease = rig.lease("worker-0")
    assert lease.stop > lease.start  # workers go on meanwhile
    outcome = until_ended(rig, servers)
    assert outcome.state == "stopped"
    assert outcome.message == ("stopped by request" if how == "signal" else "had enough")
    assert read(rig, 1) == expected(state)
    assert sorted(rig.backend.terminated) == ["ps-0", "ps-1", "worker-0"]


def fail_twice(rig: Rig, workers: list[str], *, successes: int) -> int:
    """A minibatch fails on one worker and then, alone, on another one (or again), while the first has so many ``successes``."""
    first = rig.lease(workers[0])
    failed = {"failed": first.start, "error": "ValueError: bad day"}
    rig.ask(workers[0], LeaseRequest(workers[0], first.token, want=False, give_back=True, **failed))
    for _ in range(successes):
        lease = rig.lease(workers[0])
        rig.ask(workers[0], LeaseRequest(workers[0], lease.token, [(lease.start, lease.start + 1)], give_back=True))
    again = rig.lease(workers[-1])
    assert (again.start, again.stop) == (first.start, first.start + 1)  # alone
    answer = rig.ask(workers[-1], LeaseRequest(workers[-1], again.token, want=False, **failed))
    assert answer == Ack()
    return int(first.start)


@pytest.mark.parametrize("then", ["waits", "is stopped at once", "its master is killed"])
def test_a_last_checkpoint_is_taken_before_the_job_fails(make: Any, then: str) -> None:
    """What was trained isn't lost with the minibatch that can't be."""
    rig, servers = begun(make, workers=2)
    rig.up("worker-1")
    state = push(servers, 30, 1)
    if then != "waits":
        servers[0].writes = False
    k = fail_twice(rig, ["worker-0", "worker-1"], successes=2)
    assert isinstance(rig.lease("worker-0"), Finished)  # nothing is trained any more
    if then == "is stopped at once":
        rig.ask("cli", StopRequest("had enough", now=True))
        outcome = rig.ended()
    elif then == "its master is killed":
        until(rig, servers, lambda _: servers[0].taken)
        rig.kill()
        rig.start()
        for server in servers:
            server.writes = True
        outcome = until_ended(rig, servers)
    else:
        outcome = until_ended(rig, servers)
        assert read(rig, 1) == expected(state)
    assert outcome.state == "failed"
    assert f"minibatch {k} of epoch 0 failed twice" in outcome.message
    assert outcome.hint.startswith("Mend what the error says, or allow more with training.max_skipped_minibatches.")
    assert isinstance(newest_checkpoint(rig.job), Usable) == (then != "is stopped at once")


def test_no_checkpoint_is_taken_of_suspected_parameters(make: Any) -> None:
    """The one from before is kept, and no newer one is in its way."""
    rig, servers = begun(make)
    push(servers, 30, 1)
    ask(rig)
    until(rig, servers, has(1))
    push(servers, 30, 2)
    fail_twice(rig, ["worker-0"], successes=0)
    outcome = rig.ended()
    assert outcome.state == "failed"
    point = newest_checkpoint(rig.job)
    assert isinstance(point, Usable) and point.manifest.cut == 1
    assert [path.name for path in rig.checkpoints.iterdir()] == ["cut-00000001"]


def test_stopping_now_takes_no_last_checkpoint(make: Any) -> None:
    rig, _ = begun(make)
    assert rig.ask("cli", StopRequest("had enough", now=True)) == Ack()
    outcome = rig.ended()
    assert (outcome.message, outcome.hint) == ("had enough", "")
    assert list(rig.checkpoints.iterdir()) == []


def test_stopping_ends_though_the_destination_is_gone(make: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("dlrover_lite.master.checkpoints.checkpoint_schedule.FIRST_DELAY_SECONDS", 0.1)
    rig, _ = begun(make)
    rig.checkpoints.rmdir()
    rig.stopping = True
    outcome = rig.ended()
    assert outcome.state == "stopped"
    assert outcome.message.startswith(
        "stopped by request, without a last checkpoint: The checkpoint's destination is gone"
    )


def test_stopping_ends_though_a_ps_is_lost(make: Any) -> None:
    """It isn't followed any more."""
    rig, servers = begun(make)
    servers[0].writes = False
    rig.stopping = True
    until(rig, servers, lambda _: servers[0].taken)
    rig.backend.ends("ps-0")
    outcome = rig.ended()
    assert outcome.message == "stopped by request, without a last checkpoint: ps-0 has ended"


@pytest.mark.parametrize("how", ["by itself", "stopped at once"])
def test_an_ended_job_leaves_no_half_written_checkpoint(make: Any, how: str) -> None:
    rig = make(ps=1, workers=1, checkpoint=OFTEN, samples=8, export="none")
    rig.up("ps-0", "worker-0")
    server = ScriptedPs(rig, "ps-0")
    until(rig, [server], lambda status: status.slot_map_version)
    server.writes = False
    lease = rig.lease("worker-0")
    lease = rig.lease("worker-0", **done(lease))
    ask(rig)
    until(rig, [server], lambda _: server.taken)
    assert rig.checkpoints.joinpath("cut-00000001").exists()
    if how == "by itself":
        assert isinstance(rig.lease("worker-0", **done(lease)), Finished)
    else:
        rig.ask("cli", StopRequest(now=True))
    assert rig.ended().state == ("succeeded" if how == "by itself" else "stopped")
    assert list(rig.checkpoints.iterdir()) == []
