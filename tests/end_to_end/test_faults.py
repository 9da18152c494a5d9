"""Jobs with deaths, errors, bad data and people who change their mind."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import dlrover_lite
from dlrover_lite.client.handle import JobHandle
from tests.end_to_end.support import SMALL_WIDE_DEEP, SYNTHETIC, end, start, succeeded, write_csv

SGD = {"use": "sgd", "learning_rate": 1.0}
CENSUS = "user_models.py:Census"
MOODY = "user_models.py:Moody"


def assert_exactly_once(handle: JobHandle, *, samples: int, batch_size: int, epochs: int) -> None:
    """All gradients were 1 and the rate is 1, so that every value is minus the number of times it was changed, exactly."""
    result = handle.result()
    assert result is not None
    assert result.export is not None
    model = dlrover_lite.load_model(result.export)
    rows = model.tables["number"].vectors
    assert rows.shape == (samples, 1)
    values, times = np.unique(rows, return_counts=True)
    assert dict(zip(values.tolist(), times.tolist(), strict=True)) == {-float(epochs): samples}
    assert model.tables["everywhere"].vectors.tolist() == [[-float(samples * epochs)] * 3]
    minibatches = -(-samples // batch_size)
    counts = load_file(f"{result.export}/dense.safetensors")["counts"]
    assert np.unique(counts).tolist() == [-float(minibatches * epochs)]


def test_every_sample_is_applied_once_whatever_dies(tmp_path: Path) -> None:
    """Each of the first three workers; then one of those that took their places is stuck in the model, and given up."""
    model = {"use": CENSUS, "options": {"directory": str(tmp_path), "deaths": 3, "stuck": True}}
    data = write_csv(tmp_path / "numbers.csv", 5_003)
    health = {"progress_seconds": 6}
    handle = start(model, data, ps=2, workers=3, epochs=2, batch_size=16, optimizer=SGD, health=health)
    status = succeeded(handle)
    states = {node["id"]: node["state"] for node in status["nodes"] if node["role"] == "worker"}
    for death in range(3):
        assert "Killed" in states[(tmp_path / f"death-{death}").read_text()]
    assert "no progress for 6 s, in minibatch " in states[(tmp_path / "stuck").read_text()]
    assert sum(state == "ended (Succeeded)" for state in states.values()) == 3
    assert_exactly_once(handle, samples=5_003, batch_size=16, epochs=2)


def test_job_finishes_after_its_only_worker_dies_and_the_next_is_preempted(tmp_path: Path) -> None:
    model = {"use": CENSUS, "options": {"directory": str(tmp_path), "deaths": 1, "leaves": 1}}
    handle = start(model, write_csv(tmp_path / "numbers.csv", 2_500), batch_size=16, optimizer=SGD)
    states = [node["state"] for node in succeeded(handle)["nodes"] if node["role"] == "worker"]
    assert len(states) == 3
    assert "Killed" in states[0] and states[1].startswith("ended (Preempted") and states[2] == "ended (Succeeded)"
    assert_exactly_once(handle, samples=2_500, batch_size=16, epochs=1)


def test_a_failing_minibatch_is_retried_or_skipped_or_fails_the_job(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "numbers.csv", 2_000)
    always, once = (
        {"use": MOODY, "options": {"how": how, "on": 777.0, "directory": str(tmp_path)}} for how in ("raise", "once")
    )
    failing = start(always, data, workers=2, batch_size=16, shuffle=False, epochs=2)
    skipping = start(always, data, workers=2, batch_size=16, shuffle=False, max_skipped_minibatches=1)
    mending = start(once, data, workers=2, batch_size=16, shuffle=False)

    result = end(failing)
    assert result.state == "failed"
    assert re.search(r"minibatch 48 of epoch [01] failed twice", result.message)
    assert "ValueError: no such mood" in result.message
    assert "max_skipped_minibatches" in result.hint
    assert "no such mood" in result.traceback
    assert result.status is not None
    # The same sample of the next epoch may have been under way on the other worker by then.
    assert 1 <= result.status["quarantined"] <= 2
    assert result.status["samples"] < 4_000 - 16

    result = end(skipping)
    assert result.ok, result.message
    assert result.status is not None
    assert (result.status["quarantined"], result.status["samples"]) == (1, 2_000 - 16)

    assert succeeded(mending)["quarantined"] == 0


def test_a_job_that_has_failed_goes_on_once_the_model_is_mended(tmp_path: Path) -> None:
    """With all that it had trained, and with the minibatch that failed it."""
    model = {"use": CENSUS, "options": {"directory": str(tmp_path), "fails_on": 777.0}}
    data = write_csv(tmp_path / "numbers.csv", 5_003)
    handle = start(model, data, ps=2, workers=2, epochs=2, batch_size=16, optimizer=SGD)
    failed = end(handle)
    assert failed.state == "failed"
    assert "not mended yet" in failed.message
    assert failed.status is not None
    assert 0 < failed.status["checkpoints"]["newest"]["samples"] <= failed.status["samples"]
    assert f": dlrover-lite run --resume {handle.id}\n" in failed.hint, failed.hint
    (tmp_path / "mended").touch()
    assert succeeded(dlrover_lite.resume(handle.id))["quarantined"] == 0
    assert_exactly_once(handle, samples=5_003, batch_size=16, epochs=2)


def test_a_learning_rate_that_spoils_the_parameters_fails_the_job() -> None:
    """All minibatches but the first fail from then on: the job does, as soon as one has failed twice, and says each thing once."""
    data = {**SYNTHETIC, "samples": 62_464, "eval_samples": 0}
    handle = start(SMALL_WIDE_DEEP, data, workers=2, optimizer={"use": "sgd", "learning_rate": 1e6})
    result = end(handle)
    assert result.state == "failed"
    assert "failed twice" in result.message and "learning_rate" in result.message
    assert "--resume" not in result.hint  # there is nothing worth going on from
    assert result.status is not None
    assert result.status["samples"] < 64 * 100
    logs = [path.read_text() for name, path in handle.logs().items() if name.startswith("worker")]
    assert all(log.count("Traceback") <= 2 for log in logs), logs


@pytest.mark.parametrize(
    ("how", "told", "line"),
    [
        ("exit", "SystemExit: had enough", "raise SystemExit"),
        ("interrupt", "KeyboardInterrupt", "raise KeyboardInterrupt"),
    ],
)
def test_a_model_that_raises_systemexit_or_interrupt_fails_the_job(
    tmp_path: Path, how: str, told: str, line: str
) -> None:
    data = write_csv(tmp_path / "numbers.csv", 2_000)
    handle = start({"use": "user_models.py:Leaver", "options": {"how": how}}, data, shuffle=False)
    result = end(handle)
    assert result.state == "failed"
    assert f"the model's code has asked for the end of the process ({told}) in minibatch 0 of epoch 0" in result.message
    assert result.traceback.startswith("Traceback") and line in result.traceback
    assert result.status is not None
    assert [node["id"] for node in result.status["nodes"] if node["role"] == "worker"] == ["worker-0"]


def test_a_model_that_calls_os_exit_fails_the_job(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "numbers.csv", 2_000)
    handle = start({"use": "user_models.py:Leaver", "options": {"how": "os_exit"}}, data)
    result = end(handle)
    assert result.state == "failed"
    assert "worker-0 ended in the middle of its work, without an error message (exit code 0" in result.message
    assert "os._exit" in result.hint
    assert result.status is not None
    assert [node["id"] for node in result.status["nodes"] if node["role"] == "worker"] == ["worker-0"]


def test_a_failing_evaluation_fails_the_job(tmp_path: Path) -> None:
    data = {**write_csv(tmp_path / "numbers.csv", 2_000), "eval_share": 0.5}
    model = {"use": MOODY, "options": {"how": "evaluation", "on": 1_777.0}}
    result = end(start(model, data, workers=2, batch_size=16))
    assert result.state == "failed"
    assert "minibatch 48 of evaluation 0 failed twice" in result.message


def test_a_loss_that_is_not_a_number_fails_the_job(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "numbers.csv", 2_000)
    everywhere = start("user_models.py:NotANumber", data)
    somewhere = start({"use": MOODY, "options": {"how": "nan", "on": 777.0}}, data, shuffle=False)
    for handle, told in ((everywhere, "before any succeeded"), (somewhere, "minibatch 12 of epoch 0 failed twice")):
        result = end(handle)
        assert result.state == "failed"
        assert told in result.message
        assert "the loss is nan in minibatch" in result.message
        assert "learning_rate" in result.message


def test_too_many_bad_lines_fail_the_job(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    data = write_csv(path, 4_000)
    lines = path.read_text().splitlines()
    for number in range(100, 4_000, 100):
        lines[number] = "2,what,is,this"
    path.write_text("\n".join(lines) + "\n")
    strict = start(CENSUS, data, batch_size=16, shuffle=False)
    lenient = start(CENSUS, {**data, "max_bad_share": 0.02}, batch_size=16, optimizer=SGD)

    result = end(strict)
    assert result.state == "failed"
    assert "bad, more than the share of 0.001 allowed" in result.message
    assert f"{path}:101: " in result.message
    assert "max_bad_share" in result.hint

    assert succeeded(lenient)["bad_lines"] == 39
    assert_exactly_once_but(lenient, samples=4_000 - 39)


def assert_exactly_once_but(handle: JobHandle, *, samples: int) -> None:
    model = dlrover_lite.load_model(handle.result().export)  # type: ignore[union-attr,arg-type]
    assert np.array_equal(model.tables["number"].vectors, np.full((samples, 1), -1.0, np.float32))


def test_a_model_that_does_not_build_fails_the_job() -> None:
    result = end(start({"use": CENSUS, "options": {"depth": 3}}, SYNTHETIC, workers=2))
    assert result.state == "failed"
    assert "no option 'depth'" in result.message
    assert result.hint


def test_stop_before_training_has_begun(tmp_path: Path) -> None:
    handle = start(CENSUS, write_csv(tmp_path / "numbers.csv", 100))
    handle.stop()
    assert end(handle).state in ("stopped", "succeeded")
