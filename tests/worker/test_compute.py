"""The computing thread: order, errors, and what it leaves behind."""

from __future__ import annotations

import select
import threading

import psutil

from dlrover_lite.worker.compute import ComputeThread, Done


def results(compute: ComputeThread[int, float], count: int) -> list[Done[int, float]]:
    found: list[Done[int, float]] = []
    while len(found) < count:
        assert select.select([compute.fileno()], [], [], 30)[0]
        found += compute.finished()
    return found


def test_results_come_in_the_order_of_the_tasks_and_errors_are_results() -> None:
    with ComputeThread(lambda task: 12 / task) as compute:
        for task in (1, 0, 3, 4):
            compute.submit(task)
        found = results(compute, 4)
        assert [done.task for done in found] == [1, 0, 3, 4]
        assert [done.result for done in found] == [12, None, 4, 3]
        assert [type(done.error) for done in found] == [type(None), ZeroDivisionError, type(None), type(None)]
        assert not select.select([compute.fileno()], [], [], 0)[0]
        assert compute.finished() == []


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


def test_nothing_is_left_when_it_ends() -> None:
    descriptors = psutil.Process().num_fds()
    threads = threading.active_count()
    with ComputeThread(float) as compute:
        compute.submit(1)
    assert threading.active_count() == threads
    assert psutil.Process().num_fds() == descriptors
