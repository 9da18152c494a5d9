"""When a master starts a brain in place of one that has died, and when it doesn't."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlrover_lite.brain_server.files import BrainFiles, BrainRecord
from dlrover_lite.core.errors import BrainError
from dlrover_lite.core.processes.identity import ProcessIdentity
from dlrover_lite.master_process.brain_restart import LIVED_SECONDS, LONGEST_PAUSE_SECONDS, BrainRestart

DEAD = BrainRecord(ProcessIdentity(os.getpid(), "long ago"), "1.0", "ipc:///nowhere", "/nowhere", 1.0)


class Starting:
    def __init__(self) -> None:
        self.end: tuple[bool, str] | None = None

    def ended(self) -> tuple[bool, str] | None:
        return self.end


class Machine:
    """A brain that lives or not, a clock, and what was started when."""

    def __init__(self, directory: Path) -> None:
        self.now = 100.0
        self.lives = False
        self.started: list[float] = []
        self.last = Starting()
        self.said: list[str] = []
        self.files = BrainFiles(directory)
        self.files.make()
        self.restart = BrainRestart(
            self.files, self._look, start=self._start, say=self.said.append, clock=lambda: self.now
        )

    def _look(self, _: BrainFiles) -> str:
        if not self.lives:
            raise BrainError("none runs")
        return "inproc://brain"

    def _start(self) -> Starting:
        self.started.append(self.now)
        self.last = Starting()
        return self.last

    def passes(self, seconds: float) -> None:
        """Looked at every second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            try:
                assert self.restart.find() == "inproc://brain"
                assert self.lives
            except BrainError:
                assert not self.lives


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_brain_that_has_died_is_started_again(machine: Machine) -> None:
    machine.lives = True
    machine.passes(10)
    machine.files.write_record(DEAD)
    machine.lives = False
    machine.passes(2)
    assert machine.started == []  # who kills it by request removes its record in that time
    machine.passes(20)
    assert machine.started == [113.0]  # and no second one while that is being started
    machine.lives, machine.last.end = True, (True, "started the brain (pid 7)")
    machine.passes(5)
    assert machine.said == ["the brain had died: started the brain (pid 7)"]
    assert len(machine.started) == 1


def test_a_brain_that_was_stopped_or_never_ran_is_not_started(machine: Machine) -> None:
    machine.passes(100)
    machine.files.write_record(DEAD)
    machine.passes(2)
    machine.files.remove_record()  # brain stop --kill
    machine.passes(100)
    assert machine.started == []


def test_a_brain_that_dies_at_once_is_started_ever_less_often(machine: Machine) -> None:
    machine.files.write_record(DEAD)
    for _ in range(4000):
        machine.last.end = (True, "")
        machine.passes(1)
    pauses = [after - before for before, after in zip(machine.started, machine.started[1:], strict=False)]
    assert pauses[:3] == [5.0, 9.0, 17.0]
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_SECONDS, abs=2)
    assert pauses == sorted(pauses) and len(pauses) < 14
    machine.lives = True
    machine.passes(LIVED_SECONDS + 2)
    machine.lives, before = False, len(machine.started)
    machine.passes(4)
    assert len(machine.started) == before + 1  # that was a sound one: its end is news


def test_a_brain_that_can_not_be_started_is_reported(machine: Machine) -> None:
    machine.files.write_record(DEAD)
    machine.passes(4)
    machine.last.end = (False, "the disk is full")
    machine.passes(1)
    assert machine.said == ["no brain could be started in place of the one that died: the disk is full"]
    machine.passes(10)
    assert len(machine.started) == 2
