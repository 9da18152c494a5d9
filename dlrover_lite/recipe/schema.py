"""The recipe as data: one frozen struct per section, defaults included. Parsing and errors live in ``load.py``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dlrover_lite.core.units import LEAST_CORES, LEAST_MEMORY, MOST_CORES, MOST_MEMORY, Resources
from dlrover_lite.recipe.kubernetes import Kubernetes

__all__ = [
    "MOST_NODES",
    "NAME_PATTERN",
    "CensusData",
    "Checkpoint",
    "Cluster",
    "CriteoData",
    "CsvData",
    "Data",
    "Export",
    "Health",
    "Model",
    "Optimizer",
    "ParquetData",
    "Recipe",
    "ResourceLimits",
    "RoleResources",
    "Schedule",
    "SyntheticData",
    "Training",
]

NAME_PATTERN = r"\A[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?\Z"
"""Pattern of the name of a job."""
MOST_NODES = 4096
"""The most nodes of one role: each PS needs a slot of its own."""

# What lies beyond these bounds no machine has, float32 doesn't hold, or no job would live to see.
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
BatchSize = Annotated[int, Meta(ge=1, le=1 << 26)]
Samples = Annotated[int, Meta(ge=1, le=10**12)]
NonNegative = Annotated[int, Meta(ge=0)]
Cores = Annotated[float, Meta(ge=LEAST_CORES, le=MOST_CORES)]
Memory = Annotated[int, Meta(ge=LEAST_MEMORY, le=MOST_MEMORY)]
Rate = Annotated[float, Meta(ge=1e-30, le=1e6)]
Weight = Annotated[float, Meta(ge=0, le=1e6)]
Seconds = Annotated[float, Meta(ge=0.01, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Model(_Section, frozen=True, kw_only=True):
    """The model. ``use`` is a built-in model (wide_deep, dcn, xdeepfm, dlrm; census, to test) or ``file.py:Class``; options go to its
    constructor."""

    use: str
    options: dict[str, Any] = {}


class _FileData(_Section, frozen=True, kw_only=True):
    train: Annotated[list[str], Meta(min_length=1)]
    """Paths or globs; relative ones are taken from the recipe's directory."""
    eval: list[str] = []
    """Files to evaluate on; empty: ``eval_share`` of the training samples, the last ones, are held out."""
    eval_share: Share = 0.1
    max_bad_share: Share = 0.001
    """The most of the lines read, as a share, that may not be parsable; with more the job fails."""


class CriteoData(_FileData, frozen=True, kw_only=True, tag_field="format", tag="criteo"):
    """Criteo's TSV (or .gz of it): label, I1..I13, C1..C26."""


class CsvData(_FileData, frozen=True, kw_only=True, tag_field="format", tag="csv"):
    """Delimited text (or .gz of it) with a header line, or with ``columns`` naming all columns in order."""

    label: str
    dense: list[str] = []
    categorical: list[str] = []
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] = ","
    columns: list[str] = []


class ParquetData(_FileData, frozen=True, kw_only=True, tag_field="format", tag="parquet"):
    label: str
    dense: list[str] = []
    categorical: list[str] = []


class SyntheticData(_Section, frozen=True, kw_only=True, tag_field="format", tag="synthetic"):
    """Generated samples in the Criteo layout: Zipf ids, labels drawn from a teacher model."""

    samples: Samples
    eval_samples: Annotated[int, Meta(ge=0, le=10**12)] = 20_000
    ids_per_field: Samples = 10_000
    zipf_exponent: Annotated[float, Meta(ge=0, le=100)] = 1.2
    seed: NonNegative = 0


class CensusData(_Section, frozen=True, kw_only=True, tag_field="format", tag="census"):
    """Samples to be counted: each has an id of its own, its number, and one that all have. There are none to evaluate on."""

    samples: Samples


Data = CriteoData | CsvData | ParquetData | SyntheticData | CensusData


class Optimizer(_Section, frozen=True, kw_only=True):
    """An optimizer. Fields that the chosen one doesn't have are refused by ``load.py``."""

    use: Literal["sgd", "adagrad", "adam", "ftrl"] = "adagrad"
    learning_rate: Rate = 0.02
    epsilon: Rate | None = None
    """Epsilon of Adagrad (default 1e-10) and Adam (1e-8)."""
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.999
    l1: Weight = 0.0
    l2: Weight = 0.0
    """L2 penalty: FTRL only, as are ``l1`` and ``beta``."""
    beta: Weight = 1.0


class Schedule(_Section, frozen=True, kw_only=True):
    """Factor on the learning rate by the number of samples before a minibatch: a linear rise over ``warmup_samples``,
    then constant, or falling (linearly, or along a cosine) to ``final_factor`` at ``decay_samples`` (default: the end of the job)."""

    use: Literal["constant", "linear", "cosine"] = "constant"
    warmup_samples: NonNegative = 0
    decay_samples: Annotated[int, Meta(ge=1)] | None = None
    final_factor: Share = 0.0


class Training(_Section, frozen=True, kw_only=True):
    batch_size: BatchSize = 1024
    epochs: Count = 1
    seed: NonNegative = 0
    shuffle: bool = True
    optimizer: Optimizer = Optimizer()
    """Optimizer for dense parameters and, unless ``embedding_optimizer`` is given, for embeddings too."""
    embedding_optimizer: Optimizer | None = None
    schedule: Schedule = Schedule()
    pipeline_depth: Annotated[int, Meta(ge=1, le=2)] = 2
    """Number of minibatches that a worker has pulled and not yet pushed. 2: one is pulled while another is computed, so that each gradient
    misses the push of the minibatch before it; 1: none does, and the worker waits for the parameter servers between two minibatches."""
    evaluate_every: NonNegative = 0
    """Consumed samples between evaluations while training; 0: evaluate at the end only."""
    max_skipped_minibatches: NonNegative = 0
    """Number of quarantined minibatches with which the job goes on; one more fails it at once."""


class RoleResources(_Section, frozen=True, kw_only=True):
    """Fixed resources of one role."""

    count: Annotated[int, Meta(ge=1, le=MOST_NODES)]
    cores: Cores
    memory: Memory


class JobCeiling(Resources, frozen=True, forbid_unknown_fields=True):
    """What the nodes of a job may take together."""

    cores: Cores
    memory: Memory


class ResourceLimits(_Section, frozen=True, kw_only=True):
    """Resources of a job. ``total`` is a ceiling for the whole job (default: this machine); None for a role means ``auto``."""

    total: JobCeiling | None = None
    ps: RoleResources | None = None
    worker: RoleResources | None = None


class Checkpoint(_Section, frozen=True, kw_only=True):
    """What a job can go on from when memory is lost. ``checkpoint: off`` takes none."""

    directory: str = ""
    """Directory of the checkpoints: a path (relative ones are taken from the recipe's directory) or an fsspec URL such as
    ``s3://bucket/folder``, in which each job gets a directory of its own; empty: in the job's directory."""
    every_seconds: Seconds = 600.0
    """Seconds between the beginnings of two cuts."""
    keep: Count = 2
    """Number of the newest cuts that are kept, with what they build on."""
    keep_every_hours: Annotated[float, Meta(ge=0.001, le=1e6)] | None = None
    """Hours for each of which one more cut is kept, beside the newest."""
    full_every: Count = 10
    """Number of cuts of which one has all rows; the others have those changed since the cut before."""
    compress: bool = False


class Export(_Section, frozen=True, kw_only=True):
    """Tables as npz or Parquet (needs the ``parquet`` extra); ``none`` writes no model at the end."""

    format: Literal["npz", "parquet", "none"] = "npz"
    optimizer_state: bool = False
    """Write with each row its optimizer's state and the number of its updates, and the same of the dense parameters."""


class Health(_Section, frozen=True, kw_only=True):
    """When a node is given up and replaced."""

    startup_seconds: Seconds = 300.0
    """Seconds from a node's launch until it says hello; the first job on a machine compiles kernels in this time."""
    heartbeat_seconds: Seconds = 30.0
    """Seconds without a sign of life after which a node is replaced: the process is stopped, or stuck in a call that lets nothing else
    run."""
    progress_seconds: Seconds = 900.0
    """Seconds at one and the same minibatch (or at building the model, or at writing a part of it) after which a node is replaced."""


class Cluster(_Section, frozen=True, kw_only=True):
    """A cluster as backend: ``backend: k8s``, or with settings ``backend: {k8s: {image: …}}``."""

    k8s: Kubernetes = Kubernetes()
    """How the job's pods are made."""


class Recipe(_Section, frozen=True, kw_only=True):
    """A recipe with everything filled in. ``directory`` is where relative paths in it start."""

    version: Literal[1]
    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    model: Model
    data: Data
    training: Training = Training()
    resources: ResourceLimits = ResourceLimits()
    autoscale: Literal["auto", "off", "suggest", "on"] = "auto"
    """Whether the brain changes the plan while the job runs; ``auto``: on where ``resources`` leaves a role open, else off."""
    priority: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    """Priority against other jobs, where they share the machine; one of twice another's may take its place."""
    checkpoint: Checkpoint | Literal["off"] = Checkpoint()
    backend: Cluster | Literal["local"] = "local"
    """Where the job runs: on this machine (``local``), or in a cluster (``k8s``, or a section of its settings)."""
    export: Export = Export()
    health: Health = Health()
    directory: str = "."

    @property
    def kubernetes(self) -> Kubernetes | None:
        """The settings of the cluster that the job runs in; None: it runs on this machine."""
        return self.backend.k8s if isinstance(self.backend, Cluster) else None
