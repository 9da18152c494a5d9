"""A brain on a thread of a job's master: the same answers, and a database that others use too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.core.errors import BrainError
from dlrover_lite.master_process.embedded_brain import EmbeddedBrain
from dlrover_lite.protocol.brain_messages import BrainAck, BrainReplies, BrainStatus, BrainStatusRequest, Report
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from tests.backends.support import until
from tests.brain.service_rig import profile, registration


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


def test_jobs_with_embedded_brains_share_the_history(tmp_path: Path) -> None:
    files = BrainFiles(tmp_path / "brain")
    for job in ("ads-1", "ads-2"):
        with zmq.Context() as context:
            brain = EmbeddedBrain(Connector(context=context), say=lambda _: None, files=files)
            client = Client(brain.find(), BrainReplies, context=context)
            try:
                assert client.call(registration(job)).body == BrainAck()
                assert client.call(Report(job, 5, [profile(1.0, job)])).body == BrainAck()
                status = client.call(BrainStatusRequest()).body
                assert isinstance(status, BrainStatus)
                assert (status.embedded, [one.job for one in status.jobs]) == (True, [job])
            finally:
                client.close()
                brain.close()
            with pytest.raises(BrainError, match="the job has ended"):
                brain.find()
    with ConfigStore(files.database) as store:
        assert {job.id for job in queries.jobs(store)} == {"ads-1", "ads-2"}
        assert len(queries.profiles(store, "ads-2")) == 1
    assert not files.lives()


def test_an_embedded_brain_that_can_not_begin_says_why(tmp_path: Path, context: zmq.Context[Any]) -> None:
    files = BrainFiles(tmp_path / "brain")
    files.make()
    files.database.write_bytes(b"no database at all" * 100)
    said: list[str] = []
    brain = EmbeddedBrain(Connector(context=context), say=said.append, files=files)
    until(lambda: said, "why it ended")
    brain.close()
    with pytest.raises(BrainError, match="damaged or no database"):
        brain.find()
