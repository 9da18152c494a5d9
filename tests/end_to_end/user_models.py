"""Models as a user would write them, each with a trait that a test needs. Loaded by the jobs, from this file."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import torch
from torch import nn

from dlrover_lite.models.fields import EmbeddingField

BRISK = 100
"""Minibatches that a process trains at full speed while the gate is closed."""
SLOW_SECONDS = 0.5
"""What each further one takes."""
EATS_AT_ONCE = 1 << 20


def first_time(directory: str, name: str) -> bool:
    """True for the first process that asks, which leaves its name there."""
    try:
        with (Path(directory) / name).open("x") as file:
            file.write(Path("/proc/self/comm").read_text().strip().removeprefix("dl:"))
    except FileExistsError:
        return False
    return True


class Census(nn.Module):
    """Every gradient is 1: a row counts the samples that were applied to it, and each dense value the minibatches.

    ``deaths`` of its processes kill themselves in their ``at``-th forward, ``leaves`` end as if they had been asked to; the first one to
    come there takes ``eats`` bytes of memory, or (``stuck``) never comes back. A job doesn't come to its end before there is the file
    ``gate``: after a while its workers are very slow until then. It raises on the sample whose first dense value is ``fails_on`` until
    there is the file ``mended``.
    """

    def __init__(
        self,
        directory: str = "",
        deaths: int = 0,
        leaves: int = 0,
        eats: int = 0,
        stuck: bool = False,
        at: int = 30,
        gate: str = "",
        fails_on: float = -1.0,
    ) -> None:
        super().__init__()
        self.embedding_fields = [
            EmbeddingField("number", 1, init_scale=0.0),
            EmbeddingField("everywhere", 3, init_scale=0.0),
        ]
        self.counts = nn.Parameter(torch.zeros(20_000))
        self.directory, self.deaths, self.leaves, self.at, self.forwards = directory, deaths, leaves, at, 0
        self.eats, self.stuck = eats, stuck
        self.gate = Path(gate) if gate else None
        self.fails_on = fails_on

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        if self.forwards == self.at:
            if any(first_time(self.directory, f"death-{i}") for i in range(self.deaths)):
                os.kill(os.getpid(), signal.SIGKILL)
            if any(first_time(self.directory, f"leave-{i}") for i in range(self.leaves)):
                os.kill(os.getpid(), signal.SIGTERM)
            if self.eats and first_time(self.directory, "eaten"):
                eaten = [bytearray(b"x") * EATS_AT_ONCE for _ in range(0, self.eats, EATS_AT_ONCE)]  # its heart goes on
                assert eaten
            if self.stuck and first_time(self.directory, "stuck"):
                threading.Event().wait()
        if self.training and (dense == self.fails_on).any() and not Path(self.directory, "mended").exists():
            raise ValueError("not mended yet")
        if self.gate is not None and self.forwards > BRISK and not self.gate.exists():
            threading.Event().wait(SLOW_SECONDS)
        return embedded.sum(1)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.sum() + self.counts.sum()


class Moody(nn.Module):
    """A linear model that fails on the samples whose first dense value is ``on``: ``how`` is raise, once (raise the first time
    only), nan, or evaluation (raise when evaluating)."""

    def __init__(self, how: str, on: float, directory: str = "") -> None:
        super().__init__()
        self.embedding_fields = [EmbeddingField("number", 2)]
        self.linear = nn.Linear(3, 1)
        self.how, self.on, self.directory = how, on, directory

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        logits = self.linear(torch.cat([dense, embedded], 1))
        if bool((dense[:, 0] == self.on).any()):
            wanted = self.training or self.how == "evaluation"
            if self.how == "nan":
                return logits * float("nan")
            if wanted and (self.how != "once" or first_time(self.directory, "raised")):
                raise ValueError("no such mood")
        return logits


class Leaver(nn.Module):
    """Ends its process from its forward, once it has been tried: ``how`` is exit, interrupt or os_exit."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.embedding_fields = [EmbeddingField("number", 2)]
        self.how = how

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        if len(dense) > 2:
            self.leave()
        return embedded.sum(1)

    def leave(self) -> None:
        if self.how == "exit":
            raise SystemExit("had enough")
        if self.how == "interrupt":
            raise KeyboardInterrupt
        os._exit(0)


class NotANumber(nn.Module):
    """Its loss is NaN for all data but the two small samples it is tried with."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_fields = [EmbeddingField("number", 2)]

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return embedded.sum(1) * (float("nan") if len(dense) > 2 else 1.0)


class Normalised(nn.Module):
    """BatchNorm with averaged statistics, and dropout."""

    averaged_buffers = True

    def __init__(self, schema: object) -> None:
        super().__init__()
        columns = schema.categorical  # type: ignore[attr-defined]
        self.embedding_fields = [EmbeddingField(column, 4) for column in columns]
        inputs = 4 * len(columns) + len(schema.dense)  # type: ignore[attr-defined]
        self.layers = nn.Sequential(
            nn.BatchNorm1d(inputs), nn.Linear(inputs, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
        )

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([dense, embedded], 1))
