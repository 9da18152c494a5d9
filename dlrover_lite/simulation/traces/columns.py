"""The columns of a trace's file: their names and units, and what it means if one is missing."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from dlrover_lite.simulation.traces.trace import TraceJob

__all__ = ["ANY_OF", "BY_NAME", "COLUMNS", "DURATION", "Column"]


class Column(NamedTuple):
    """A column."""

    name: str
    unit: str
    missing: Literal["refused", "drawn", "default"]
    """What a missing value means: the file is refused, or the value is drawn as a generated job's is, or it is the usual one."""


DURATION = "duration_seconds"
"""Column of files that say how long a job has taken, with what its user asked for, and not how many samples it has: beside those of
``TraceJob``, and never written."""
ANY_OF = ("samples", DURATION)
"""Columns of which each job needs one, and no more than one."""

COLUMNS = (
    Column("name", "", "refused"),
    Column("arrives_at", "s", "refused"),
    Column("owner", "", "default"),
    Column("model", "", "drawn"),
    Column("priority", "", "default"),
    Column("suspendable", "yes or no", "default"),
    Column("workers", "", "refused"),
    Column("worker_cores", "cores", "refused"),
    Column("worker_memory", "bytes", "drawn"),
    Column("servers", "", "refused"),
    Column("server_cores", "cores", "refused"),
    Column("server_memory", "bytes", "drawn"),
    Column("most_cores", "cores", "default"),
    Column("samples", "", "drawn"),
    Column("epoch_samples", "", "drawn"),
    Column("batch_size", "samples", "drawn"),
    Column("depth", "minibatches", "default"),
    Column("worker_seconds", "CPU s", "drawn"),
    Column("worker_request_seconds", "CPU s", "drawn"),
    Column("parallel_share", "0 to 1", "drawn"),
    Column("all_servers_seconds", "CPU s", "drawn"),
    Column("server_request_seconds", "CPU s", "drawn"),
    Column("latency_seconds", "s", "drawn"),
    Column("variation", "", "drawn"),
    Column("read_samples_per_second", "1/s", "default"),
    Column("sample_bytes", "bytes", "drawn"),
    Column("tables", "", "drawn"),
    Column("state_parts", "", "drawn"),
    Column("server_base_memory", "bytes", "drawn"),
    Column("worker_base_memory", "bytes", "drawn"),
    Column("minibatch_memory", "bytes", "drawn"),
    Column("checkpoint_seconds", "s", "default"),
)
"""Columns in the order in which they are written."""
BY_NAME = {column.name: column for column in (*COLUMNS, Column(DURATION, "s", "drawn"))}

assert {column.name for column in COLUMNS} == {field.name for field in msgspec.structs.fields(TraceJob)}
