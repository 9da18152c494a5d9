"""A disk that is full: the job waits with its parameters in memory, says so, goes on by itself, and can be stopped meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite.core import failpoints
from dlrover_lite.core.errors import DiskFull, RemoteError
from dlrover_lite.jobs import events as stories
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.full_disk import LONGEST_DELAY_SECONDS, FullDisk
from dlrover_lite.protocol.messages import Ack, Export, Exported, ExportFailed, Heartbeat, Lease, LeaseRequest, Wait
from dlrover_lite.protocol.questions import ScaleRequest, StatusRequest, StopRequest, StoryRequest
from dlrover_lite.transport.frames import Later
from dlrover_lite.transport.memory import VirtualClock
from tests.master.rig import Rig, done
from tests.master.scripted_ps import ScriptedPs, until, until_ended

WHY = "The disk is full: the model can't be exported to /x."


class Disk(FullDisk):
    """Waits on a virtual clock; ``ends_at``: the job is to end from then on."""

    def __init__(self, clock: VirtualClock, told: list[str]) -> None:
        super().__init__(clock=clock, free=lambda _: 2048, tell=told.append)
        self.clock = clock
        self.ends_at = float("inf")
        self.said: list[str] = []
        """What was waited for, each time that somebody could ask."""

    def wait_for(self, write: Writer) -> bool:
        """Return whether it is done in the end."""
        phase = self.insist(write, lambda _: self.clock.now >= self.ends_at)
        try:
            self.clock.advance_to(next(phase))
            while True:
                self.said.append(self.waits)
                self.clock.advance_to(phase.send([]))
        except StopIteration as over:
            return bool(over.value)


class Writer:
    """Fails for want of room until ``room_at``."""

    def __init__(self, clock: VirtualClock, room_at: float) -> None:
        self.clock, self.room_at = clock, room_at
        self.tried: list[float] = []

    def __call__(self) -> None:
        self.tried.append(self.clock.now)
        if self.clock.now < self.room_at:
            raise DiskFull("The disk is full: can't write /jobs/x/y", directory=Path("/jobs/x"))


def test_writing_is_retried_ever_more_seldom_until_there_is_room() -> None:
    clock, told = VirtualClock(), list[str]()
    disk, write = Disk(clock, told), Writer(clock, room_at=100.0)
    assert disk.wait_for(write)
    gaps = [later - before for before, later in zip(write.tried, write.tried[1:], strict=False)]
    assert gaps == sorted(gaps) and max(gaps) == pytest.approx(LONGEST_DELAY_SECONDS)
    assert clock.now < 100.0 + LONGEST_DELAY_SECONDS + 0.01
    assert (disk.waits, disk.interrupted, disk.given_up) == ("", True, False)
    assert [line.partition(":")[0] for line in told] == [
        "The disk is full",
        "there is room on the disk again, after 1 min 45 s",
    ]
    again = Writer(clock, room_at=clock.now + 5.0)  # it is full again at once: not tried four times a second
    assert disk.wait_for(again)
    assert len(again.tried) == 2


def test_waiting_for_room_names_the_directory_and_free_space() -> None:
    clock = VirtualClock()
    disk = Disk(clock, [])
    disk.wait_for(Writer(clock, room_at=1.0))
    assert set(disk.said) == {"the disk of /jobs/x is full (2 KiB free): training waits for room there"}


def test_an_ending_job_does_not_wait_for_room() -> None:
    clock = VirtualClock()
    disk, write = Disk(clock, []), Writer(clock, room_at=100.0)
    disk.ends_at = 3.0
    assert not disk.wait_for(write)
    assert clock.now < 3.0 + LONGEST_DELAY_SECONDS
    assert not disk.wait_for(write)
    assert len(write.tried) == len(set(write.tried)) + 1  # once more, without waiting


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """``with full():``, or ``full()(…)``: as long as it lasts nothing can be written to a job's directory."""
    flag = tmp_path / "full"
    points = ",".join(f"{name}=full@{flag}" for name in ("job.ledger", "job.file"))

    @contextmanager
    def lasts() -> Iterator[None]:
        flag.touch()
        try:
            yield
        finally:
            flag.unlink(missing_ok=True)

    with failpoints.armed(points):
        yield lasts


def until_it_waits(rig: Rig) -> str:
    return next(str(status.waits) for status in rig.statuses() if status.waits)


def answers(rig: Rig, node: str) -> list[Any]:
    """What has come by now."""
    found = []
    while (reply := rig.client(node).receive(0.05)) is not None:
        found.append(reply.body)
    return found


def test_no_lease_is_granted_or_acknowledged_until_there_is_room(make: Any, full: Any) -> None:
    rig = make(workers=2, samples=4000)
    rig.up("ps-0", "worker-0", "worker-1")
    held = rig.lease("worker-0")
    report = LeaseRequest("worker-0", holding=[held.token], **done(held))
    client = rig.client("worker-0")
    with full():
        sequence = client.send(report)
        waits = until_it_waits(rig)
        assert waits == f"the disk of {rig.directory} is full (4 KiB free): training waits for room there"
        status = rig.ask("cli", StatusRequest())
        assert status.message == waits
        client.send(report, sequence=sequence)  # as it does when nobody answers
        rig.client("worker-1").send(LeaseRequest("worker-1"))
        assert {type(body) for body in [*answers(rig, "worker-0"), *answers(rig, "worker-1")]} == {Later}
        with pytest.raises(RemoteError, match="training waits for room"):
            rig.ask("cli", ScaleRequest(workers=3))
        told = [entry.text for entry in rig.ask("cli", StoryRequest("master")).entries]
        assert sum("training waits until there is room" in line for line in told) == 1
    answer = rig.ask(
        "worker-0", LeaseRequest("worker-0", want=False)
    )  # another request: what came before is answered by then
    assert isinstance(answer, Ack)
    status = rig.ask("cli", StatusRequest())
    assert (status.waits, status.samples) == ("", 4 * (held.stop - held.start))
    written = [(entry.at, entry.subject, entry.text) for entry in stories.read(rig.directory).entries]
    assert len(written) == len(set(written))  # nothing twice of what came to nothing at first
    rig.kill()
    rig.start()
    assert rig.ask("cli", StatusRequest()).samples == status.samples


def test_job_can_be_stopped_while_its_disk_is_full(make: Any, full: Any) -> None:
    rig = make(workers=1, samples=4000)
    rig.up("ps-0", "worker-0")
    held = rig.lease("worker-0")
    with full():
        rig.client("worker-0").send(LeaseRequest("worker-0", **done(held)))
        until_it_waits(rig)
        assert rig.ask("cli", StopRequest("had enough")) == Ack()
        outcome = rig.ended()
    assert (outcome.state, outcome.message) == ("stopped", "had enough")


def test_a_last_checkpoint_is_taken_though_the_jobs_disk_is_full(make: Any, full: Any) -> None:
    rig = make(workers=1, samples=4000, checkpoint={"every_seconds": 3600.0})
    rig.up("ps-0", "worker-0")
    servers = [ScriptedPs(rig, "ps-0")]
    until(rig, servers, lambda status: status.slot_map_version)
    held = rig.lease("worker-0")
    with full():
        rig.client("worker-0").send(LeaseRequest("worker-0", **done(held)))
        until_it_waits(rig)
        rig.stopping = True
        outcome = until_ended(rig, servers)
    assert (outcome.state, outcome.message) == ("stopped", "stopped by request")
    assert [path.name for path in rig.checkpoints.iterdir()] == ["cut-00000001"]


def test_nothing_is_leased_or_acknowledged_by_a_master_that_ends_on_a_full_disk(make: Any, full: Any) -> None:
    """Found by seed 40865 of `make fuzz-sim`: the master that followed it knew nothing of what it had told."""
    rig = make(workers=1, samples=4000, checkpoint={"every_seconds": 3600.0})
    rig.up("ps-0", "worker-0")
    held = rig.lease("worker-0")
    with full():
        client = rig.client("worker-0")
        sequence = client.send(LeaseRequest("worker-0", **done(held)))
        until_it_waits(rig)
        rig.ask("cli", StopRequest())
        client.send(LeaseRequest("worker-0", **done(held)), sequence=sequence)
        rig.ask("cli", StatusRequest())
        assert {type(body) for body in answers(rig, "worker-0")} == {Later}
        rig.kill()
    rig.start()
    samples = rig.ask("cli", StatusRequest()).samples
    assert isinstance(rig.ask("worker-0", LeaseRequest("worker-0", **done(held))), Lease)
    assert rig.ask("cli", StatusRequest()).samples > samples


def test_no_server_hears_of_consumption_that_is_not_durable(make: Any, full: Any) -> None:
    """Found by seeds 510537 and 620133 of `make fuzz-sim`: it forgot what it had applied, and the next master had it applied again."""
    rig = make(workers=1, samples=4000, checkpoint={"every_seconds": 3600.0})
    rig.up("ps-0", "worker-0")
    until(rig, [ScriptedPs(rig, "ps-0")], lambda status: status.slot_map_version)
    first = rig.lease("worker-0")
    second = rig.lease("worker-0", **done(first))
    orders = rig.report("ps-0", orders=rig.report("ps-0"))
    assert orders.consumed == [(0, [(first.start, first.stop)])]
    with full():
        rig.client("worker-0").send(LeaseRequest("worker-0", **done(second)))
        until_it_waits(rig)
        rig.ask("cli", StopRequest())
        assert rig.ask("cli", StatusRequest()).samples == 4 * second.stop
        told = [*answers(rig, "ps-0"), rig.report("ps-0", orders=orders)]
        assert [body.snapshot is not None for body in told] == [True, True]
        assert [body.consumed for body in told] == [orders.consumed] * 2


# --- the export -------------------------------------------------------------------------------------------------------


def exports(rig: Rig) -> Export:
    """Once it is to be tried again."""
    answer = rig.lease("worker-0")
    assert isinstance(answer, Export)
    return answer


def test_a_failed_export_is_retried_with_parameters_kept_in_memory(make: Any) -> None:
    rig = make(workers=1)
    rig.up("ps-0", "worker-0")
    first = rig.work("worker-0", until=Export)
    assert rig.ask("worker-0", ExportFailed("worker-0", WHY, "Make room under /.", True)) == Ack()
    assert isinstance(rig.ask("worker-0", LeaseRequest("worker-0")), Wait)
    status = rig.ask("cli", StatusRequest())
    assert status.state == "exporting"
    assert status.waits == f"{WHY[:-1]} (4 KiB free): it is tried again, with all parameters in memory"
    assert exports(rig) == first
    assert rig.backend.terminated == []
    rig.ask("worker-0", Exported("worker-0", 10, 1000))
    assert rig.ended().state == "succeeded"


def test_status_tells_how_far_an_export_is(make: Any) -> None:
    rig = make(workers=1)
    rig.up("ps-0", "worker-0")
    rig.report("ps-0", rows=2000)
    rig.work("worker-0", until=Export)
    begun = rig.ask("cli", StatusRequest())
    assert (begun.exporting.rows, begun.exporting.total_rows, begun.exporting.rows_per_second) == (0, 2000, None)
    rig.client("worker-0").send(Heartbeat("worker-0", "the export", 0.1, 500))
    status = until_exported(rig, 500)
    known = status.exporting
    assert (known.rows, known.total_rows) == (500, 2000)
    assert known.rows_per_second > 0
    assert known.seconds_left == pytest.approx(1500 / known.rows_per_second)
    assert status.message == f"writing the model: {known.text}"
    assert known.text.startswith("25%, 500 of 2.00 k rows, ")
    rig.client("worker-0").send(Heartbeat("worker-0", "the export", 0.1, 2000))
    assert until_exported(rig, 2000).exporting.text == "100%, 2.00 k of 2.00 k rows, its files are finished"
    rig.ask("worker-0", ExportFailed("worker-0", WHY, "Make room under /.", True))
    assert rig.ask("cli", StatusRequest()).exporting is None
    exports(rig)
    assert rig.ask("cli", StatusRequest()).exporting.rows == 0, "from the beginning"
    rig.ask("worker-0", Exported("worker-0", 2000, 1000))
    assert rig.ended().state == "succeeded"


def until_exported(rig: Rig, rows: int) -> Any:
    return next(status for status in rig.statuses() if status.exporting.rows == rows)


def test_a_failing_export_is_retried_without_end_if_no_checkpoint_is_taken(make: Any) -> None:
    rig = make(workers=1)
    rig.up("ps-0", "worker-0")
    rig.work("worker-0", until=Export)
    for _ in range(2):
        rig.ask("worker-0", ExportFailed("worker-0", "It may not be written.", "chmod", False))
        exports(rig)
    assert rig.ask("cli", StopRequest("had enough")) == Ack()
    assert rig.ended().state == "stopped"


@pytest.mark.parametrize("full", [False, True])
def test_a_failing_export_is_saved_as_a_checkpoint(make: Any, full: bool) -> None:
    """Then the job fails, with nothing lost; but a disk that is full is waited for all the same."""
    rig = make(workers=1, checkpoint={"every_seconds": 3600.0})
    rig.up("ps-0", "worker-0")
    servers = [ScriptedPs(rig, "ps-0")]
    until(rig, servers, lambda status: status.slot_map_version)
    rig.work("worker-0", until=Export)
    failed = ExportFailed("worker-0", "It may not be written.", "Make it writable.", full)
    rig.ask("worker-0", failed)
    until(rig, servers, lambda status: status.checkpoints.newest is not None)
    exports(rig)
    rig.ask("worker-0", failed)
    if full:
        exports(rig)
        rig.ask("worker-0", Exported("worker-0", 10, 1000))
        assert until_ended(rig, servers).state == "succeeded"
    else:
        outcome = until_ended(rig, servers)
        assert (outcome.state, outcome.message, outcome.hint) == (
            "failed",
            "It may not be written.",
            "Make it writable.",
        )
    assert [path.name for path in rig.checkpoints.iterdir()] == ["cut-00000001"]


def test_story_entries_are_written_later_if_the_disk_is_full() -> None:
    written: list[Any] = []
    room = [False]

    def write(entries: list[Any]) -> None:
        if not room[0]:
            raise DiskFull("The disk is full", directory=Path("/jobs/x"))
        written.extend(entries)

    story = EventLog(write, lambda: 1.0)
    story.node("worker-0", "is up")
    with pytest.raises(DiskFull):
        story.flush()
    story.node("worker-1", "is up")
    room[0] = True
    story.flush()
    story.flush()
    assert [entry.subject for entry in written] == ["worker-0", "worker-1"]
