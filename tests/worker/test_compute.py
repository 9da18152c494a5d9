"""The computing thread: order, errors, and what it leaves behind."""

from __future__ import annotations

import select
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from dlrover_lite.worker.compute import ComputeThread, FinishedTask


def readable(compute: ComputeThread[int, float], timeout_seconds: float) -> bool:
    return bool(select.select([compute.fileno()], [], [], timeout_seconds)[0])


def results(compute: ComputeThread[int, float], count: int) -> list[FinishedTask[int, float]]:
    """Of the first ``count`` tasks, within as many wake-ups: one may find what an earlier one has taken already."""
    found: list[FinishedTask[int, float]] = []
    for _ in range(count):
        assert readable(compute, 30)
        found += compute.finished()
        if len(found) >= count:
            break
    assert len(found) == count
    return found


def test_results_come_in_the_order_of_the_tasks_and_errors_are_results() -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    def work(task: int) -> float:
        if task == 5:
            has_begun.set()
            assert may_go_on.wait(30)
        return 12 / task

    with ComputeThread(work) as compute:
        for task in (1, 0, 3, 4):
            compute.submit(task)
        found = results(compute, 4)
        assert [done.task for done in found] == [1, 0, 3, 4]
        assert [done.result for done in found] == [12, None, 4, 3]
        assert [type(done.error) for done in found] == [type(None), ZeroDivisionError, type(None), type(None)]
        compute.submit(5)
        assert has_begun.wait(30)  # so the thread is through with all that was before
        assert compute.finished() == []
        assert not readable(compute, 0)
        may_go_on.set()
        assert [done.result for done in results(compute, 1)] == [12 / 5]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_exits_and_interrupts_of_a_task_are_results_too(error: BaseException) -> None:
    """Else the thread would be gone, and whoever waits for its result would seem to hang."""

    def work(task: int) -> float:
        if task == 0:
            raise error
        return 12 / task

    with ComputeThread(work) as compute:
        for task in (0, 3):
            compute.submit(task)
        assert [done.error or done.result for done in results(compute, 2)] == [error, 4]


def test_tasks_run_beside_the_caller() -> None:
    may_go_on = threading.Event()
    threads = []

    def work(task: int) -> float:
        threads.append(threading.current_thread())
        assert may_go_on.wait(30)
        return task

    with ComputeThread(work) as compute:
        compute.submit(1)
        assert compute.finished() == []
        may_go_on.set()
        assert [done.result for done in results(compute, 1)] == [1]
    assert threads[0] is not threading.current_thread()


def pipes() -> set[str]:
    """That this process has open: numbers of descriptors are used again, these aren't."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that which the directory was read by
            found.add(str(path.readlink()))
    return {name for name in found if name.startswith("pipe:")}


def test_compute_thread_leaves_no_pipe_or_thread() -> None:
    before, threads = pipes(), set(threading.enumerate())
    with ComputeThread(float) as compute:
        compute.submit(1)
        assert pipes() - before
        assert set(threading.enumerate()) - threads
    assert not pipes() - before
    assert not set(threading.enumerate()) - threads
