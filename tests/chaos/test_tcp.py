"""A job whose processes talk over TCP, with a key: disturbed like any other, and closed to whoever hasn't got the key."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import psutil
import pytest

from dlrover_lite.core.errors import DeadlineExceeded, JobError, UsageError, WireError
from dlrover_lite.protocol.messages import MasterReplies
from dlrover_lite.protocol.questions import Status, StatusRequest
from dlrover_lite.transport.connector import Connector, read_key
from dlrover_lite.transport.curve import JobKey
from tests.chaos.disturbance import Disturbance
from tests.chaos.extent import SECONDS, SEEDS
from tests.chaos.support import BATCH_SIZE, processes, recipe, start
from tests.chaos.test_random import assert_harmed
from tests.end_to_end.support import until_trained


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_census_over_tcp_is_exact_after_faults(tmp_path: Path, seed: int, faults: Counter[str]) -> None:
    print(f"CHAOS_SEED={seed}")
    plain = recipe(
        ps=2,
        workers=2,
        epochs=max(8, round(SECONDS * 2)),
        health={"heartbeat_seconds": 3},
        checkpoint={"every_seconds": 1},
    )
    job = start(tmp_path, plain, slow_seconds=0.02, transport="tcp")
    until_trained(job.handle, BATCH_SIZE)
    sockets = {path.name for path in Path(job.handle.job.record().runtime_directory).glob("*.sock")}
    assert sockets == {"keeper.sock", "memory.sock"}, "those of the keeper, which this machine alone knows"
    disturbance = Disturbance(job, random.Random(seed), faults)
    disturbance.go_on(SECONDS)
    assert_harmed(disturbance, job.finish(300))


def test_only_clients_with_the_jobs_key_are_answered(tmp_path: Path) -> None:
    job = start(tmp_path, recipe(ps=1, workers=1, epochs=4), slow_seconds=0.02, transport="tcp")
    until_trained(job.handle, BATCH_SIZE)
    record, key_file = job.handle.job.record(), job.handle.job.key_file
    assert key_file.stat().st_mode & 0o777 == 0o600
    key = read_key(key_file)
    for process in (psutil.Process(record.keeper.pid if record.keeper else 0), *processes(job.handle).values()):
        assert key.text() not in "\0".join([*process.cmdline(), *process.environ().values()])

    with pytest.raises(WireError, match="without the job's key"), Connector() as connector:
        connector.client(record.master_endpoint, MasterReplies)
    for made, answered in ((JobKey.generate(), False), (key, True)):
        with Connector(made) as connector:
            client = connector.client(record.master_endpoint, MasterReplies, peer="the master")
            if answered:
                assert isinstance(client.call(StatusRequest(), deadline_seconds=60.0).body, Status)
            else:
                with pytest.raises(DeadlineExceeded, match="the master") as refused:
                    client.call(StatusRequest(), deadline_seconds=1.0)
                assert "same job's key" in refused.value.hint
            client.close()

    kept = key_file.read_text()
    key_file.write_text("not a key")
    with pytest.raises(UsageError, match="hexadecimal"):
        job.handle.story()
    key_file.unlink()
    with pytest.raises((UsageError, JobError), match="can't be read"):
        job.handle.story()
    key_file.write_text(kept)
    assert job.handle.story().entries
    job.finish()
