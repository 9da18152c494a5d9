"""Traces as CSV files: what is written is read, and whatever is wrong with a file is named by line and column."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import TraceError
from dlrover_lite.core.units import MOST_CORES
from dlrover_lite.simulation.traces.columns import BY_NAME, COLUMNS
from dlrover_lite.simulation.traces.files import parse_trace, read_trace, write_trace
from dlrover_lite.simulation.traces.generator import generate
from dlrover_lite.simulation.traces.parameters import Arrivals, Parameters
from dlrover_lite.simulation.traces.trace import Trace, TraceJob, TraceTable

FEW = Parameters(arrivals=Arrivals(jobs=3))
HEAD = "name,arrives_at,workers,worker_cores,servers,server_cores,samples"
LINE = "ads,0,4,1,1,1,1e7"

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20).filter(
    lambda text: not text or text.strip()
)
TABLES = st.builds(
    TraceTable,
    st.integers(1, 100_000),
    st.floats(1, 1e12),
    st.integers(1, 65_536),
    st.floats(0, 100),
    st.floats(0.001, 1e6),
)
JOBS = st.builds(
    msgspec.structs.replace,
    st.sampled_from(generate(1, FEW).jobs),
    arrives_at=st.floats(0, 1e9),
    owner=TEXTS,
    model=TEXTS.filter(str.strip),
    priority=st.floats(0.001, 1000),
    suspendable=st.booleans(),
    workers=st.integers(1, 4096),
    worker_cores=st.floats(0.01, 1e5),
    most_cores=st.just(MOST_CORES),
    server_memory=st.integers(16 << 20, 1 << 50),
    samples=st.floats(1, 1e15),
    worker_seconds=st.floats(1e-9, 1e6),
    parallel_share=st.floats(0, 1),
    sample_bytes=st.floats(0, 1e12),
    tables=st.lists(TABLES, min_size=1, max_size=3).map(tuple),
)


def problems(text: str) -> list[str]:
    with pytest.raises(TraceError) as caught:
        parse_trace(text, source="t.csv")
    assert caught.value.exit_code == 2
    lines = caught.value.message.splitlines()
    assert len(lines) == len(caught.value.problems)
    return lines


def only_problem(text: str) -> str:
    (line,) = problems(text)
    return line


def line_with(column: str, value: str) -> str:
    """A trace of one job, with this in this column."""
    names, cells = HEAD.split(","), LINE.split(",")
    if column in names:
        cells[names.index(column)] = value
        return f"{HEAD}\n{','.join(cells)}\n"
    return f"{HEAD},{column}\n{LINE},{value}\n"


@settings(max_examples=60, deadline=None)
@given(st.lists(JOBS, max_size=4))
def test_what_is_written_is_read(jobs: list[TraceJob]) -> None:
    """Names with blanks aside, which no trace has."""
    trace = Trace.of([msgspec.structs.replace(job, name=f"j,{at}\"'é") for at, job in enumerate(jobs)])
    text = write_trace(trace)
    if jobs:
        again = parse_trace(text)
        assert again == trace
        assert write_trace(again) == text
    assert text.splitlines()[0] == ",".join(column.name for column in COLUMNS)


def test_files_are_read_whatever_the_system_that_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xef\xbb\xbf" + write_trace(generate(2, FEW)).replace("\n", "\r\n").encode())
    assert read_trace(path) == generate(2, FEW)


def test_columns_may_be_in_any_order_and_amounts_of_memory_as_people_write_them() -> None:
    text = "server_memory,samples,server_cores,servers,worker_cores,workers,arrives_at,name\n1.5GiB,5,1,2,1,3,0.5,a\n"
    (job,) = parse_trace(text).jobs
    assert (job.name, job.arrives_at, job.workers, job.servers, job.samples) == ("a", 0.5, 3, 2, 5.0)
    assert job.server_memory == 3 << 29


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "t.csv: the file is empty"),
        (HEAD, "t.csv: there are no jobs below the header"),
        (f"{HEAD},wokers\n{LINE},1", "t.csv:1: wokers: unknown column; did you mean workers?"),
        (f"{HEAD},zzzz\n{LINE},1", "t.csv:1: zzzz: unknown column; leave it out, or rename it"),
        (f"{HEAD},workers\n{LINE},1", "t.csv:1: workers: given twice"),
        (
            f"{HEAD},most_cores\n{LINE},4",
            "t.csv:2: most_cores: expected at least the 5 cores that the job's user asks for, found 4",
        ),
        (f"{HEAD}\n\n{LINE},7\n", "t.csv:3: expected 7 cells, as in the header, found 8; a text that contains a comma needs quotes"),
        (f"{HEAD}\n{LINE}\n\n{LINE}\n", "t.csv:4: name: ads is the name of the job in line 2, too"),
        (f'{HEAD}\n{LINE}\n"x', "t.csv:3: not CSV: unexpected end of data; a cell that contains a comma or a quote needs quotes around it"),
        (line_with("name", "a b"), "t.csv:2: name: expected up to 200 characters without control characters and blanks, found 'a b'"),
        (line_with("name", ""), "t.csv:2: name: missing; each job needs it"),
        (line_with("workers", "0"), "t.csv:2: workers: expected a whole number from 1 to 4,096, found '0'"),
        (line_with("workers", "1.5"), "t.csv:2: workers: expected a whole number from 1 to 4,096, found '1.5'"),
        (line_with("arrives_at", "nan"), "t.csv:2: arrives_at: expected a number from 0 to 1,000,000,000, found 'nan'"),
        (line_with("arrives_at", "-1"), "t.csv:2: arrives_at: expected a number from 0 to 1,000,000,000, found '-1'"),
        (line_with("arrives_at", "1e999"), "t.csv:2: arrives_at: expected a number from 0 to 1,000,000,000, found '1e999'"),
        (line_with("suspendable", "maybe"), "t.csv:2: suspendable: expected yes or no, found 'maybe'"),
        (line_with("samples", ""), "t.csv:2: samples: each job needs samples or duration_seconds"),
        (line_with("duration_seconds", "5"), "t.csv:2: samples: each job needs samples or duration_seconds, not both"),
        (
            line_with("worker_memory", "4 XiB"),
            "t.csv:2: worker_memory: '4 XiB' is not an amount of memory (write 512MiB, 1.5GiB or a number of bytes)",
        ),
        (
            line_with("worker_memory", "4"),
            "t.csv:2: worker_memory: expected an amount of memory from 16 MiB to 1024 TiB, found '4'; 0.5GiB is 536870912 bytes",
        ),
        (
            line_with("tables", "26:1e6"),
            "t.csv:2: tables: expected tables as in 26x1000000:16, that is COUNTxIDS:DIM, with :EXPONENT:IDS_PER_SAMPLE behind it "
            "if need be; found '26:1e6'",
        ),
        (line_with("tables", "2x1e6:0"), "t.csv:2: tables: dim of '2x1e6:0': expected a whole number from 1 to 65,536, found '0'"),
    ],
)  # fmt: skip
def test_each_mistake_is_named_by_line_and_column(text: str, expected: str) -> None:
    assert only_problem(text) == expected


def test_a_header_without_what_each_job_needs_names_all_of_it() -> None:
    assert problems("name,workers\na,1\n") == [
        "t.csv:1: arrives_at: missing; each trace needs this column",
        "t.csv:1: worker_cores: missing; each trace needs this column",
        "t.csv:1: servers: missing; each trace needs this column",
        "t.csv:1: server_cores: missing; each trace needs this column",
        "t.csv:1: samples: missing; each trace needs samples or duration_seconds",
    ]


def test_of_many_mistakes_the_first_are_told_and_the_others_counted() -> None:
    found = problems(HEAD + "\n" + "".join(f"j{at},0,0,1,1,1,1\n" for at in range(50)))
    assert found[0] == "t.csv: 50 problems; these are the first ones"
    assert [line.split(":")[1] for line in found[1:]] == [str(at) for at in range(2, 22)]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"name\n\xe9\n")
    for path, expected in (
        (tmp_path / "none.csv", "no such file"),
        (tmp_path, "this is a directory; name the file in it"),
        (latin, "not a trace: this isn't UTF-8 text"),
    ):
        with pytest.raises(TraceError, match=expected):
            read_trace(path)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet='x1,.e-"\n:', max_size=60).map(lambda body: f"{HEAD},tables\n{body}"))
def test_any_text_is_a_trace_or_a_named_mistake(text: str) -> None:
    try:
        parse_trace(text)
    except TraceError as error:
        assert error.problems


def test_what_a_trace_does_not_say_is_drawn_by_the_seed_and_the_name_alone() -> None:
    text = f"{HEAD}\n{LINE}\nfeed,10,2,2,1,1,1e6\n"
    first = parse_trace(text, seed=3)
    assert parse_trace(text, seed=3) == first
    assert parse_trace(text, seed=4) != first
    assert parse_trace(f"{HEAD}\n{LINE}\n", seed=3).jobs[0] == first.jobs[0]
    given_too = parse_trace(line_with("tables", "2x1000:4"), seed=3).jobs[0]
    assert given_too.tables == (TraceTable(2, 1000.0, 4),)
    assert given_too.worker_seconds == first.jobs[0].worker_seconds


def test_a_job_that_took_twice_as_long_has_twice_the_samples() -> None:
    head = HEAD.replace("samples", "duration_seconds")
    short, long = (parse_trace(f"{head}\nads,0,4,1,1,1,{seconds}\n").jobs[0] for seconds in (600, 1200))
    assert long.samples == pytest.approx(2 * short.samples, rel=1e-6)
    assert long.worker_seconds == short.worker_seconds


def test_the_docs_have_every_column_with_its_unit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    rows = dict.fromkeys(BY_NAME, "")
    for line in page.splitlines():
        if line.startswith("| `") and (name := line.split("`")[1]) in BY_NAME:
            rows[name] = line
    wrong = [
        name
        for name, line in rows.items()
        if not line
        or line.split("|")[2].strip() != BY_NAME[name].unit
        or BY_NAME[name].missing not in line.split("|")[3]
    ]
    assert not wrong
