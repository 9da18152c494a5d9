"""Stories: their file, also after a writer was killed, and finding what is about a subject."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.errors import DiskFull, JobError, UsageError
from dlrover_lite.jobs.events import FILE, Minibatches, append, find, known_subjects, parse_subject, read, select
from dlrover_lite.protocol.questions import Story, StoryEntry

ENTRIES = [
    StoryEntry(100.0, "worker-0", "launched"),
    StoryEntry(100.5, "ps-0", "launched"),
    StoryEntry(101.0, "0/16-31", "given back", "worker-0"),
    StoryEntry(102.0, "0/17", "raised\nValueError: no", "worker-1"),
    StoryEntry(103.0, "eval 0/5", "raised", "worker-0"),
    StoryEntry(104.0, "worker-0", "ended (Killed)"),
]
STORY = Story(ENTRIES)
NUMBERS = st.integers(0, 10**18 - 1)
RANGES = st.tuples(NUMBERS, NUMBERS).map(sorted)
ANY_MINIBATCHES = st.builds(
    lambda kind, index, ends: Minibatches(kind, index, *ends), st.sampled_from(["train", "eval"]), NUMBERS, RANGES
)


def texts(story: Story) -> list[str]:
    return [entry.text.splitlines()[0] for entry in story.entries]


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("worker-1", "worker-1"),
        ("master", "master"),
        ("", ""),
        ("0/17", Minibatches("train", 0, 17, 17)),
        ("2/100-200", Minibatches("train", 2, 100, 200)),
        ("eval:0/5", Minibatches("eval", 0, 5, 5)),
        (" eval  0/5-6 ", Minibatches("eval", 0, 5, 6)),
    ],
)
def test_subjects_are_parsed(text: str, subject: str | Minibatches) -> None:
    assert parse_subject(text) == subject


@pytest.mark.parametrize(
    "text", ["17", "0/", "/3", "0/1-", "0/-1", "eval", "eval:", "worker 1", "-1", "a/1", "0/" + "9" * 19]
)
def test_texts_that_are_no_subjects_are_refused(text: str) -> None:
    if text == "eval":  # a node may be called so
        assert parse_subject(text) == "eval"
        return
    with pytest.raises(UsageError, match=r"write .* EPOCH/NUMBER"):
        parse_subject(text)


def test_a_range_of_minibatches_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(UsageError, match=r"write eval:3/2-9$"):
        parse_subject("eval:3/9-2")


@given(ANY_MINIBATCHES)
def test_minibatches_as_text_and_back(minibatches: Minibatches) -> None:
    assert parse_subject(str(minibatches)) == minibatches
    assert parse_subject(str(minibatches).replace(" ", ":")) == minibatches


@given(ANY_MINIBATCHES, ANY_MINIBATCHES)
def test_overlap_and_distance_of_minibatches_agree(one: Minibatches, two: Minibatches) -> None:
    assert one.overlaps(two) == two.overlaps(one) == (one.distance(two) == (0, 0, 0))


@pytest.mark.parametrize(
    ("subject", "found"),
    [
        ("", ["launched", "launched", "given back", "raised", "raised", "ended (Killed)"]),
        ("worker-0", ["launched", "given back", "raised", "ended (Killed)"]),
        ("worker-1", ["raised"]),
        ("0/17", ["given back", "raised"]),
        ("0/18-100", ["given back"]),
        ("1/17", []),
        ("eval:0/0-9", ["raised"]),
        ("worker", []),
    ],
)
def test_entries_are_selected_by_subject(subject: str, found: list[str]) -> None:
    assert texts(select(STORY, parse_subject(subject))) == found


def test_known_subjects_are_listed_once() -> None:
    assert [str(subject) for subject in known_subjects(STORY, ["ps-0"])] == [
        "ps-0",
        "worker-0",
        "worker-1",
        "0/16-31",
        "0/17",
        "eval 0/5",
    ]


@pytest.mark.parametrize(
    ("subject", "nearest"),
    [
        ("worker-7", "worker-1, worker-0"),
        ("wrker-0", "worker-0, worker-1"),
        ("zzz", "master, worker-0, ps-0, worker-1"),
        ("0/40", "0/16-31, 0/17, eval:0/5"),
        ("eval:3/0", "eval:0/5, 0/16-31, 0/17"),
    ],
)
def test_an_unknown_subject_is_answered_with_the_nearest(subject: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=f"{nearest}$"):
        find(STORY, subject)


def test_known_nodes_without_entries_have_an_empty_story() -> None:
    assert find(STORY, "worker-9", nodes=["worker-9"]) == find(Story(), "master") == Story()
    with pytest.raises(UsageError, match="nothing is kept of any"):
        find(Story(), "0/1")


def test_appended_story_entries_are_read(tmp_path: Path) -> None:
    assert read(tmp_path) == Story()
    append(tmp_path, [])
    assert not (tmp_path / FILE).exists()
    append(tmp_path, ENTRIES[:2])
    append(tmp_path, ENTRIES[2:])
    assert read(tmp_path, pytest.fail) == STORY
    assert len((tmp_path / FILE).read_text().splitlines()) == len(ENTRIES)


@given(cut=st.integers(1, 10_000))
def test_a_story_file_cut_off_anywhere_is_read(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whole lines stay, the torn one is told, and what comes later doesn't suffer from it."""
    directory = tmp_path_factory.mktemp("cut")
    append(directory, ENTRIES)
    path = directory / FILE
    data = path.read_bytes()[: -min(cut, path.stat().st_size)]
    path.write_bytes(data)
    said: list[str] = []
    whole = read(directory, said.append).entries
    assert whole == ENTRIES[: len(whole)]
    assert len(whole) in (data.count(b"\n"), data.count(b"\n") + 1)  # the last newline alone may be missing
    torn = len(whole) == data.count(b"\n") and bool(data) and not data.endswith(b"\n")
    assert bool(said) == torn
    append(directory, ENTRIES[:1])
    assert read(directory).entries == [*whole, ENTRIES[0]]


def test_damaged_story_lines_are_told_by_number(tmp_path: Path) -> None:
    append(tmp_path, ENTRIES[:1])
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"at": "soon"}\n\xff\n{"at": 1, "subject": "ps-0", "text": "later fields are fine", "new": 1}\n')
    said: list[str] = []
    assert texts(read(tmp_path, said.append)) == ["launched", "later fields are fine"]
    assert len(said) == 1 and said[0].endswith("lines 2, 3")


def test_an_unwritable_or_unreadable_story_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"Can't write .*story\.jsonl"):
        append(tmp_path / "nowhere", ENTRIES)
    (tmp_path / FILE).mkdir()
    with pytest.raises(JobError, match=r"Can't read .*story\.jsonl"):
        read(tmp_path)


def test_story_entries_cut_off_by_a_full_disk_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all of them can be written again."""
    append(tmp_path, [StoryEntry(1.0, "worker-0", "is up")])
    before = (tmp_path / FILE).read_bytes()
    write, room = os.write, [7]

    def full(descriptor: int, data: Any) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, bytes(data)[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFull) as raised:
        append(tmp_path, [StoryEntry(2.0, "worker-1", "is up")])
    monkeypatch.undo()
    assert raised.value.directory == tmp_path
    assert (tmp_path / FILE).read_bytes() == before
