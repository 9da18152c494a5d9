"""What generated jobs are drawn from: each number with its unit, and where it comes from.

Sources. *Paper*: DLRover-RM, VLDB 2024. Its full text isn't kept here, so that what is marked *from memory* is unverified. *Upstream*:
what the DLRover project tells of thousands of jobs at AntGroup (its page docs/blogs/deeprec_autoscale_cn.md, "Background"). *Philly*: Jeon
et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019. *Pollux*: Qiao et al., OSDI 2021, whose
workload is sampled from Philly's. *PAI*: Weng et al., "MLaaS in the Wild", NSDI 2022, of Alibaba's clusters; their published trace has a
column that groups repeated instances by what is run, with what parameters, on what data. *Measured*: of this project's own jobs.
*Assumption*: nobody says it; the sweeps of ``bench/paper.py`` are to show what depends on it.
"""

from __future__ import annotations

import msgspec

__all__ = ["Arrivals", "Habits", "ModelKind", "Parameters", "Recurrence", "SizeClass", "Spread"]


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """When jobs come."""

    jobs: int = 160
    """Number of jobs. Source: Pollux (its simulated workload: 160 jobs in 8 hours), from memory."""
    seconds: float = 8 * 3600.0
    """Seconds in which they arrive. Source: as of ``jobs``."""
    peak: float = 3.0
    """Arrivals a second at the busiest moment, in the middle, over those at the beginning and at the end. Source: Pollux (the busiest hour
    of its workload has three times the arrivals of the first one), from memory."""


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that are run again and again: the same model, on the data of another day or hour. Their users ask for the same each time."""

    share: float = 0.65
    """Share of jobs that are runs of such a job, the first ones included. Source: PAI (some 65% of tasks are of groups that were run five
    times or more in two months), from memory."""
    runs: float = 3.0
    """Mean number of runs of such a job in one trace, so that a third of them have no run before them. Source: assumption (fewer than
    PAI's five: a trace is of hours, and should have many different jobs)."""
    samples_factor: tuple[float, float] = (0.9, 1.1)
    """Least and most samples of a run over those of the first one, evenly distributed. Source: assumption (days differ by a tenth)."""


class ModelKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of model, with the costs of a minibatch of 1,024 samples at the median."""

    name: str
    weight: float
    """Share of jobs with such a model, among the weights of all. Source: the paper evaluates Wide&Deep, xDeepFM and DCN; that each is as
    frequent, and DLRM less so, is an assumption."""
    worker_seconds: float
    """CPU seconds in a worker. Source: measured of a Wide&Deep (0.020); what others take in proportion is an assumption."""
    server_seconds: float
    """CPU seconds in all servers together. Source: measured of a Wide&Deep (0.008); others have as many rows: an assumption."""
    dims: tuple[int, ...]
    """Values of an embedding, each as frequent. Source: assumption, around the 16 that is this project's usual one."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How far jobs of one kind of model differ."""

    worker_log_sd: float = 0.5
    """Standard deviation of the logarithm of a worker's CPU seconds. Source: assumption (layers of half to twice the width)."""
    server_log_sd: float = 0.5
    """The same of the servers' CPU seconds. Source: assumption."""
    batch_sizes: tuple[int, ...] = (512, 1024, 2048, 4096)
    """Samples of a minibatch, each as frequent. Source: assumption, around this project's 1,024."""
    parallel_share: tuple[float, float] = (0.6, 0.9)
    """Least and most share of a worker's work that its cores divide, evenly distributed. Source: measured (0.8) of a Wide&Deep; the range
    is an assumption."""
    request_share: float = 0.04
    """CPU seconds for each server that is asked, over those of the worker. Source: measured of a Wide&Deep (0.8 of 20 ms)."""
    answer_share: float = 0.15
    """CPU seconds of a server for each request, over those of all servers for the rows. Source: measured of a Wide&Deep (1.2 of 8 ms)."""
    latency_seconds: float = 0.003
    """Seconds that a minibatch waits on its way. Source: measured."""
    variation: float = 0.15
    """Relative standard deviation of each piece of work. Source: measured."""
    tables: int = 26
    """Number of embedding tables. Source: the 26 categorical columns of Criteo's data, which the paper trains on."""
    ids: tuple[float, float] = (1e5, 5e6)
    """Least and most ids of a table, evenly distributed by their logarithm. Source: assumption; Criteo's largest columns have 10
    million."""
    zipf_exponent: float = 1.2
    """Exponent of the frequencies of ids. Source: this project's generated data; an assumption for any other."""
    epochs: int = 1
    """Number of epochs. Source: recommendation models overfit from the second epoch on (Zhang et al., "Towards Understanding the
    Overfitting Phenomenon of Deep Click-Through Rate Models", CIKM 2022), so that one is the rule."""


class SizeClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class of jobs by the plan that suits them."""

    name: str
    share: float
    """Share of jobs. Source: most jobs are small and few are large in Philly, and in Pollux's sample of it; the numbers are an
    assumption."""
    cores: tuple[float, float]
    """Least and most cores of the plan that suits them, evenly distributed by their logarithm. Source: assumption."""
    seconds: tuple[float, float]
    """Least and most seconds that they take with it, likewise. Source: Philly has jobs of minutes to days; cut here to what fits a
    simulated day, an assumption."""


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """What users ask for, in the place of the plan that suits their job. The kinds of mistakes are those that upstream tells of; how
    frequent each is, is an assumption, chosen so that most jobs use less than half of the CPU that they were given, as the paper's section
    2 says."""

    well: float = 0.22
    """Share of jobs whose users ask for what suits them, but for a tenth more or less. Source: assumption."""
    too_much: float = 0.48
    """Share that asks for far more cores in each node than it can use. Source: upstream names it; the share is an assumption."""
    too_little: float = 0.12
    """Share whose nodes have too few cores. Source: upstream names it; the share is an assumption."""
    few_servers: float = 0.10
    """Share with few servers for many workers. Source: upstream names it; the share is an assumption."""
    little_memory: float = 0.08
    """Share whose servers have too little memory, and run out of it. Source: upstream names it; the share is an assumption, with which
    jobs that don't end well without help are about as many as the paper's completion rates leave (67 to 93%, by size)."""
    too_much_factor: tuple[float, float] = (2.0, 4.0)
    """Least and most times as many cores as suit. Source: assumption (half of the CPU unused is a factor of 2)."""
    too_little_factor: tuple[float, float] = (0.3, 0.7)
    """Least and most share of the cores that suit. Source: assumption."""
    few_servers_factor: tuple[float, float] = (2.0, 4.0)
    """Least and most times as few servers as suit. Source: assumption."""
    memory_factor: tuple[float, float] = (1.3, 4.0)
    """Least and most times as much memory as a node comes to need, evenly distributed by its logarithm, of those that have enough. Source:
    assumption; the paper gains 15 to 30 percentage points of memory use."""
    little_memory_factor: tuple[float, float] = (0.4, 0.95)
    """The same of servers that have too little. Source: assumption."""
    over_asking: float = 1.0
    """Factor on the cores of every node that anybody asks for: 1 as above. Source: the range of a sweep, 0.5 to 4."""


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """All that a trace is drawn from."""

    arrivals: Arrivals = Arrivals()
    """When jobs come. Source: see its fields."""
    recurrence: Recurrence = Recurrence()
    """Which jobs come again. Source: see its fields."""
    models: tuple[ModelKind, ...] = (
        ModelKind(name="wide_deep", weight=0.3, worker_seconds=0.020, server_seconds=0.008, dims=(8, 16)),
        ModelKind(name="xdeepfm", weight=0.3, worker_seconds=0.080, server_seconds=0.008, dims=(8, 16)),
        ModelKind(name="dcn", weight=0.3, worker_seconds=0.030, server_seconds=0.008, dims=(8, 16)),
        ModelKind(name="dlrm", weight=0.1, worker_seconds=0.030, server_seconds=0.012, dims=(16, 32)),
    )
    """Kinds of models. Source: see the fields of ``ModelKind``."""
    spread: Spread = Spread()
    """How far jobs differ. Source: see its fields."""
    sizes: tuple[SizeClass, ...] = (
        SizeClass(name="small", share=0.70, cores=(2.0, 16.0), seconds=(300.0, 3600.0)),
        SizeClass(name="medium", share=0.24, cores=(16.0, 64.0), seconds=(1200.0, 3 * 3600.0)),
        SizeClass(name="large", share=0.06, cores=(64.0, 192.0), seconds=(3600.0, 6 * 3600.0)),
    )
    """Classes of jobs by size. Source: see the fields of ``SizeClass``."""
    worker_cores: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Cores of a worker of the plan that suits a job, each as frequent where the job is large enough. Source: assumption."""
    habits: Habits = Habits()
    """What users ask for. Source: see its fields."""
    most_cores: float = 192.0
    """The most cores that a job may have, or as many as its user asks for if that is more: the quota that an organisation gives each job.
    Source: assumption (the most that suit any job, so that it keeps none from what it needs)."""
    largest_cores: float = 16.0
    """The most cores of a node: those of a machine of the usual cluster. Source: assumption."""
    largest_memory: int = 60 << 30
    """The most bytes of a node: those of such a machine, a little aside. Source: assumption."""
    urgent_share: float = 0.1
    """Share of jobs of a higher priority. Source: assumption."""
    urgent_priority: float = 4.0
    """Their priority, where that of others is 1. Source: assumption."""
    fixed_share: float = 0.1
    """Share of jobs that may not give way to others. Source: assumption."""
    owners: int = 40
    """Number of users. The n-th of them has a number of jobs in proportion to 1/n. Source: assumption; in Alibaba's trace (Weng et al.,
    "MLaaS in the Wild", NSDI 2022) few users have most of the jobs."""
    checkpoint_seconds: float = 600.0
    """Seconds between checkpoints. Source: this project's usual one."""
