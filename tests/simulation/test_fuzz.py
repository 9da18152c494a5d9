"""Simulated jobs with faults that a seed draws: nothing that mustn't be ever is, and the same seed does the same again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server.service import SILENT_SECONDS
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.outcome import Outcome
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.questions import ScaleRequest
from dlrover_lite.simulation.fuzz import run
from dlrover_lite.simulation.fuzz.__main__ import main
from dlrover_lite.simulation.fuzz.case import Case
from dlrover_lite.simulation.fuzz.faults import KINDS, MASTER_POINTS, Fault
from dlrover_lite.simulation.fuzz.injection import Injection
from dlrover_lite.simulation.fuzz.invariants import Invariants
from dlrover_lite.simulation.fuzz.person import Person
from dlrover_lite.simulation.fuzz.run import LEAST_FAULTS, LEAST_STEPS, run_seed
from dlrover_lite.simulation.fuzz.schedule import LEAST, MOST, draw
from dlrover_lite.simulation.fuzz.seeds import Tally


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_breaks_under_faults(tmp_path: Path, seed: int) -> None:
    ran = run_seed(seed, directory=tmp_path)
    assert not ran.problems, ran.report()
    assert ran.steps >= LEAST_STEPS and len(ran.faults) >= LEAST_FAULTS


def test_the_same_seed_does_the_same_again(tmp_path: Path) -> None:
    first, second = (run_seed(3, directory=_made(tmp_path / name)) for name in ("first", "second"))
    assert first.log == second.log
    assert first.schedule == second.schedule


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_schedules_follow_from_the_seed_and_meet_all_kinds() -> None:
    schedules = [draw(seed, checkpoints=True, autoscales=True) for seed in range(300)]
    assert schedules == [draw(seed, checkpoints=True, autoscales=True) for seed in range(300)]
    assert {fault.kind for schedule in schedules for fault in schedule} == set(KINDS)
    assert min(map(len, schedules)) >= LEAST and max(map(len, schedules)) <= MOST
    assert not {"machine fails"} & {fault.kind for fault in draw(1, checkpoints=False, autoscales=True)}


def test_groups_of_faults_are_drawn_that_make_sense_for_the_job() -> None:
    def with_point(point: str, **case: bool) -> int:
        schedules = [draw(seed, **{"checkpoints": True, "autoscales": True, **case}) for seed in range(300)]  # type: ignore[arg-type]
        return sum(point in [fault.kind for fault in schedule] for schedule in schedules)

    assert with_point("kill brain amid a change") > 5
    assert with_point("kill brain amid a change", autoscales=False) == 0
    assert with_point("stopped and resumed") > with_point("stopped and resumed", checkpoints=False) == 0


def test_a_seed_is_run_again_by_its_number(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--seed", "1", "--keep", str(tmp_path)])
    assert result.exit_code == 0, result.output
    for line in Case(1).describe():
        assert line in result.output
    assert "again: python -m dlrover_lite.simulation.fuzz --seed 1" in result.output


def test_seeds_that_are_terminated_leave_no_process() -> None:
    script = """if True:
        import os, signal
        from dlrover_lite.simulation.fuzz import __main__ as command

        def run_seeds(*given, run=command.run_seeds):
            for ran in run(*given):
                yield ran
                os.kill(os.getpid(), signal.SIGTERM)

        command.run_seeds = run_seeds
        command.main(["--processes", "2"])
    """
    runs = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = runs.communicate(timeout=120)
        assert said.startswith("stopped\n1 seeds in")
        assert runs.returncode == 0
        with pytest.raises(ProcessLookupError):
            os.killpg(runs.pid, 0)
    finally:
        with suppress(ProcessLookupError):  # as it should be
            os.killpg(runs.pid, signal.SIGKILL)


def test_a_seed_whose_job_ends_early_goes_on_with_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = [Fault(at, "kill worker", 0.5, 0.0, 0.5) for at in (30.0, 30.5, 31.0, 31.5)]
    schedule.insert(0, Fault(2.0, "workers crash", 0.5, 0.0, 0.5))
    monkeypatch.setattr(run, "draw", lambda *_, **__: schedule)
    ran = run_seed(4, directory=tmp_path)
    assert not ran.problems, ran.report()
    assert len(ran.faults) == LEAST_FAULTS and b"ads-2" in ran.log


def test_a_seed_that_is_too_short_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "draw", lambda *_, **__: [])
    monkeypatch.setattr(run, "_MOST_JOBS", 1)
    ran, tally = run_seed(4, directory=tmp_path), Tally()
    assert ran.problems == [f"{ran.steps} steps and 0 faults are too few to count"]
    tally.add(ran)
    assert "1 failing" in tally.describe(1.0) and "(at least 0) of 0 kinds" in tally.describe(1.0)


def test_a_fault_that_lies_in_wait_counts_when_it_strikes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = MASTER_POINTS.index("master.move.decided")  # nobody moves slots
    schedule = [
        Fault(2.0, "kill master at a failpoint", (point + 0.5) / len(MASTER_POINTS), 0.0, 0.5),
        Fault(2.0, "minibatch fails", 0.5, 0.0, 0.0),
    ]
    monkeypatch.setattr(run, "draw", lambda *_, **__: schedule)
    monkeypatch.setattr(run, "_MOST_JOBS", 1)
    assert [fault.kind for fault in run_seed(4, directory=tmp_path).faults] == ["minibatch fails"]


def test_the_brain_changes_plans_and_is_killed_in_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = [Fault(2.0, "kill brain amid a change", 0.5, 0.0, 0.5)]
    monkeypatch.setattr(run, "draw", lambda *_, **__: schedule)
    monkeypatch.setattr(run, "LEAST_FAULTS", 1)
    ran = run_seed(5, directory=tmp_path)
    assert not ran.problems, ran.report()
    assert ran.faults == schedule


def _stopped_on_a_full_disk(at: float, *beside: Fault) -> list[Fault]:
    """Return a checkpoint, a disk that is full, a stop, and a master that is killed, with other faults."""
    schedule = [
        Fault(at, "checkpoint wanted", 0.5, 0.0, 0.5),
        Fault(at + 3.0, "disk full", 0.5, 3.0, 0.5),
        Fault(at + 3.6, "stopped and resumed", 0.5, 0.0, 0.5),
        *beside,
    ]
    return sorted(schedule, key=lambda fault: fault.at)


@pytest.mark.parametrize(
    ("seed", "schedule"),
    [
        (2, _stopped_on_a_full_disk(5.0, Fault(8.3, "kill master", 0.5, 0.0, 0.5))),
        (
            115,
            _stopped_on_a_full_disk(
                5.584,
                Fault(7.972, "kill server", 0.112, 0.0, 0.754),
                Fault(8.909, "slots moved", 0.868, 0.0, 0.802),
                Fault(9.749, "kill master", 0.5, 0.0, 0.5),
            ),
        ),
        (
            8,
            _stopped_on_a_full_disk(
                2.5,
                Fault(4.97, "kill server", 0.044, 0.0, 0.137),
                Fault(5.312, "kill server", 0.209, 0.0, 0.642),
                Fault(6.286, "kill master", 0.234, 0.0, 0.5),
            ),
        ),
    ],
)
def test_a_job_is_stopped_on_a_full_disk_while_its_master_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, schedule: list[Fault]
) -> None:
    """What its last master had done and couldn't write, its next one knows nothing of: nobody may have heard of it."""
    monkeypatch.setattr(run, "draw", lambda *_, **__: schedule)
    monkeypatch.setattr(run, "LEAST_FAULTS", len(schedule))
    monkeypatch.setattr(run, "_MOST_JOBS", 1)
    ran = run_seed(seed, directory=tmp_path)
    assert not ran.problems, ran.report()


def test_memory_is_given_though_the_only_machine_was_away_when_the_master_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by seed 200261: the generation that the master began had no memory by its account for good."""
    schedule = [
        Fault(5.2, "machine fails", 0.5, 8.75, 0.5),
        Fault(9.3, "kill master", 0.5, 0.0, 0.5),
        Fault(9.3, "worker out of memory", 0.16, 0.0, 0.7),
    ]
    monkeypatch.setattr(run, "draw", lambda *_, **__: schedule)
    monkeypatch.setattr(run, "LEAST_FAULTS", len(schedule))
    ran = run_seed(200261, directory=tmp_path)
    assert not ran.problems, ran.report()
    assert len(ran.faults) == len(schedule)


def test_what_a_killed_master_knew_is_not_looked_at_while_the_next_one_waits_for_room(tmp_path: Path) -> None:
    """Found by seed 401178: the one that was killed had counted a minibatch that wasn't durable."""
    world = Case(4).world(tmp_path)
    world.run(until=lambda: bool(world.jobs), most_seconds=1)
    job = world.jobs["ads-1"]
    world.run(until=lambda: job.minibatches > 20, most_seconds=60)
    assert job.master.run is not None
    job.is_disk_full = True
    job.master.kill()
    world.run(until=lambda: job.master.lives, most_seconds=60)
    assert job.master.run is None
    world.close()


def test_workers_that_crash_together_are_not_held_against_a_master_that_has_not_looked_yet(tmp_path: Path) -> None:
    """Found by seed 500797: a message had called the master in the same moment."""
    world = Case(500797).world(tmp_path)
    world.run(until=lambda: bool(world.jobs), most_seconds=1)
    job = world.jobs["ads-1"]
    world.run(until=lambda: len(job.workers()) == 3, most_seconds=60)
    Person(job, ScaleRequest(workers=10))
    world.run(until=lambda: len(job.workers()) == 10, most_seconds=60)
    for worker in job.workers():
        worker.process.end(1)
    Invariants(world).look(job.master)
    world.close()
    assert not world.problems


@pytest.mark.parametrize(("memory", "strikes"), [(4 * GIB, 1), (5 * GIB // 4, 0)])
def test_no_node_runs_out_of_memory_where_there_is_no_room_for_more(tmp_path: Path, memory: int, strikes: int) -> None:
    """Found by seed 510165: the job failed, as it says that it does."""
    case = Case(18)  # two nodes of half a GiB
    case.hosts = (Host("host-0", Resources(8.0, memory)),)
    world = case.world(tmp_path)
    injection = Injection(world, [Fault(3.0, "server out of memory", 0.5, 0.0, 0.99)])
    world.run(until=lambda: world.clock.now > 4.0, most_seconds=60)
    world.close()
    assert len(injection.done) == strikes


@pytest.mark.parametrize("brain_lives", [False, True])
def test_what_a_job_had_that_ended_without_a_word_is_kept_for_nobody(tmp_path: Path, brain_lives: bool) -> None:
    """Found by seed 931272: a brain that was started again took it to run for good, and the next job waited for ever."""
    case = Case(5)
    world = case.world(tmp_path)
    brain = world.brain
    assert brain is not None
    world.run(until=lambda: "ads-1" in brain.registered, most_seconds=60)
    job = world.jobs["ads-1"]
    if not brain_lives:
        brain.kill()
    job.master.close()
    job.master.outcome = Outcome("failed", "it is killed")
    world.run(until=lambda: brain.lives, most_seconds=60)
    ended = world.clock.now
    world.run(until=lambda: world.clock.now > ended + SILENT_SECONDS + 2.0, most_seconds=200)
    assert not brain.registered
    world.close()
    with ConfigStore(world.database) as store:
        assert [(entry.id, entry.state) for entry in queries.jobs(store)] == [("ads-1", "failed")]
