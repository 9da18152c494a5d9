"""What a healthy worker writes to its log."""

from __future__ import annotations

from dlrover_lite.worker.log_lines import Journal


def test_journal_tells_start_each_minute_and_the_end() -> None:
    now, lines = [100.0], []
    journal = Journal("worker-1", lines.append, clock=lambda: now[0])
    journal.up(cores=0.5, threads=1, tables=26, parameters=12_345)
    for second in range(1, 121):
        now[0] = 100.0 + second
        if second <= 60:
            journal.computed(1024, seconds=0.75, waited_seconds=0.25)
        journal.tick()
    journal.resized(cores=2.5, threads=2)
    journal.leaves("nothing is left to do")
    assert lines == [
        "worker-1 is up with 0.5 cores, 1 thread: 26 tables, 12,345 dense parameters",
        "60 minibatches, 1,024 samples/s, waiting 25% of the time",
        "0 minibatches, 0 samples/s",
        "worker-1 has 2.5 cores now and computes with 2 threads",
        "worker-1 leaves: nothing is left to do; 60 minibatches (61,440 samples) in 120 s",
    ]


def test_a_repeated_traceback_is_written_once() -> None:
    lines: list[str] = []
    journal = Journal("worker-0", lines.append, clock=lambda: 0.0)

    def trace(k: int, what: str = "ValueError") -> str:
        return f"Traceback (most recent call last):\n  File my_model.py, line 3\n{what}: the loss is nan in minibatch {k}\n"

    for k in range(976):
        journal.failed(f"minibatch {k} of epoch 0", trace(k))
    journal.failed("minibatch 5 of epoch 1", trace(5, "KeyError"))
    journal.leaves("told to")
    assert lines[0] == f"minibatch 0 of epoch 0 failed:\n{trace(0).rstrip()}"
    assert lines[1] == (
        "minibatch 1 of epoch 0 failed as others before, 2 in all: ValueError: the loss is nan in minibatch 1"
    )
    assert "512 in all" in lines[9]
    assert lines[10] == f"minibatch 5 of epoch 1 failed:\n{trace(5, 'KeyError').rstrip()}"
    assert "977 of them failed" in lines[11]
    assert len(lines) == 12


def test_journal_uses_the_singular_for_one() -> None:
    lines: list[str] = []
    journal = Journal("worker-0", lines.append, clock=lambda: 0.0)
    journal.up(cores=1.0, threads=1, tables=1, parameters=1)
    journal.computed(1, seconds=1.0, waited_seconds=0.0)
    journal.leaves("asked to")
    assert lines == [
        "worker-0 is up with 1 core, 1 thread: 1 table, 1 dense parameter",
        "worker-0 leaves: asked to; 1 minibatch (1 sample) in 0 s",
    ]
