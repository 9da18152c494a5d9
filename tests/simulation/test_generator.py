"""Generated traces: a seed is a trace, bounds are kept, each number says where it comes from, and users ask as they are said to."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.simulation.traces import parameters as module
from dlrover_lite.simulation.traces.files import write_trace
from dlrover_lite.simulation.traces.generator import generate
from dlrover_lite.simulation.traces.parameters import Arrivals, Habits, Parameters, Recurrence
from dlrover_lite.simulation.traces.seeds import REPORTED_SEEDS, TUNING_SEEDS
from dlrover_lite.simulation.traces.trace import TraceJob, limit_rate

MANY = Parameters(arrivals=Arrivals(jobs=400), recurrence=Recurrence(share=0.0))


def only(habit: str, **more: float) -> Parameters:
    """Parameters with which all users have this habit."""
    shares = dict.fromkeys(("well", "too_much", "too_little", "few_servers", "little_memory"), 0.0)
    return Parameters(arrivals=Arrivals(jobs=40), habits=Habits(**{**shares, habit: 1.0, **more}))


def test_a_seed_is_a_trace() -> None:
    text = write_trace(generate(7))
    assert write_trace(generate(7)) == text
    assert write_trace(generate(8)) != text
    assert len(generate(7).jobs) == 160


def test_the_trace_of_a_seed_stays_what_it_was() -> None:
    """Figures that were told came from it: whoever changes it, measures them anew, and then changes this."""
    digest = hashlib.sha256(write_trace(generate(TUNING_SEEDS[0])).encode()).hexdigest()
    assert digest[:16] == "535702807dd19494"


def test_more_jobs_leave_the_earlier_numbers_what_they_are() -> None:
    few, more = (generate(5, Parameters(arrivals=Arrivals(jobs=jobs))) for jobs in (10, 20))
    tables = [{job.name.split("-")[1].lstrip("0"): job.tables for job in trace.jobs} for trace in (few, more)]
    assert tables[0].items() <= tables[1].items()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from([0.5, 1.0, 4.0]))
def test_jobs_are_within_the_bounds_of_a_trace(seed: int, over_asking: float) -> None:
    its = Parameters(arrivals=Arrivals(jobs=12), habits=Habits(over_asking=over_asking))
    trace = generate(seed, its)
    assert [job.arrives_at for job in trace.jobs] == sorted(job.arrives_at for job in trace.jobs)
    for job in trace.jobs:
        assert msgspec.convert(msgspec.to_builtins(job), TraceJob) == job
        assert job.arrives_at <= its.arrivals.seconds
        assert max(job.worker_cores, job.server_cores) <= its.largest_cores
        assert max(job.worker_memory, job.server_memory) <= its.largest_memory


def needs(job: TraceJob) -> float:
    """Bytes that a server of a job comes to need, over what its user asks for."""
    return job.memory.server(job.samples, 1 / job.servers) / job.server_memory


def test_only_who_asks_for_little_memory_runs_out_of_it() -> None:
    assert all(needs(job) > 1.0 for job in generate(1, only("little_memory")).jobs)
    for habit in ("well", "too_much", "too_little", "few_servers"):
        assert all(needs(job) < 1.0 for job in generate(1, only(habit)).jobs), habit


def used(job: TraceJob) -> float:
    """Share of the cores that a job was given that it uses, at the most."""
    costs = job.costs
    rate = limit_rate(costs, job.workers, job.worker_cores, job.servers, job.server_cores) / costs.batch_size
    each = costs.worker + costs.ps + job.servers * (costs.worker_request + costs.ps_request)
    return rate * each / (job.workers * job.worker_cores + job.servers * job.server_cores)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def test_most_jobs_use_less_than_half_of_the_cpu_they_are_given() -> None:
    shares = [used(job) for job in generate(TUNING_SEEDS[0], MANY).jobs]
    assert all(share <= 1.0 + 1e-9 for share in shares)
    assert 0.3 < median(shares) < 0.5


def test_asking_for_twice_as_much_is_that() -> None:
    once, twice = (generate(3, only("well", over_asking=factor)).jobs for factor in (1.0, 2.0))
    assert all(b.worker_cores == 2 * a.worker_cores for a, b in zip(once, twice, strict=True))
    assert all(b.samples == a.samples and b.tables == a.tables for a, b in zip(once, twice, strict=True))


def test_a_quota_keeps_no_user_from_what_is_asked_for() -> None:
    for job in generate(TUNING_SEEDS[0]).jobs:
        assert job.most_cores == max(Parameters().most_cores, job.asked_cores) < 1024


def test_jobs_come_again_with_about_as_many_new_samples() -> None:
    first: dict[tuple[object, ...], float] = {}
    again = 0
    for job in generate(4, Parameters(arrivals=Arrivals(jobs=400))).jobs:
        same = job.owner, job.worker_seconds, job.tables, job.plan
        again += same in first
        assert 0.8 < job.samples / first.setdefault(same, job.samples) < 1.25
        assert job.epoch_samples == job.samples
    assert 0.36 < again / 400 < 0.51  # two thirds of 65%


def test_jobs_come_most_often_in_the_middle() -> None:
    its = MANY.arrivals
    thirds = [int(3 * job.arrives_at / its.seconds) for job in generate(2, MANY).jobs]
    assert thirds.count(1) > 1.2 * max(thirds.count(0), thirds.count(2))


def test_seeds_for_tuning_are_not_those_that_are_told() -> None:
    assert not set(TUNING_SEEDS) & set(REPORTED_SEEDS)
    assert len(set(REPORTED_SEEDS)) >= 20


def test_each_number_says_where_it_comes_from() -> None:
    silent = []
    for its in ast.parse(inspect.getsource(module)).body:
        if not isinstance(its, ast.ClassDef):
            continue
        for field, after in zip(its.body, [*its.body[1:], ast.Pass()], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = ast.get_docstring(ast.Module([after], [])) or ""
                if not re.search(r"Source:\s", text) and (its.name, field.target.id) not in {
                    ("ModelKind", "name"),
                    ("SizeClass", "name"),
                }:
                    silent.append(f"{its.name}.{field.target.id}")
    assert not silent
