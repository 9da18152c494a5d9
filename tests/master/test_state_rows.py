"""A large fact is kept part by part: together its rows say what the whole says, and only those that have changed are written."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from dlrover_lite.master.state_rows import FactRows, whole


class Member(msgspec.Struct, frozen=True):
    id: int
    text: str = ""


class Large(msgspec.Struct, frozen=True):
    version: int = 0
    names: dict[str, Member] = {}
    content: bytes = b""
    members: list[Member] = []
    rest: str = ""


SPLIT = ("names", "content", "members")
texts = st.text(max_size=3)
members = st.builds(Member, st.integers(0, 5), texts)
larges = st.builds(
    Large,
    st.integers(0, 3),
    st.dictionaries(texts, members, max_size=3),
    st.binary(max_size=5)
    | st.integers(0, 2000).map(lambda size: bytes(range(256)) * (size // 256) + bytes(size % 256)),
    st.lists(members, max_size=3, unique_by=lambda member: member.id),
    texts,
)


def written(rows: FactRows, kept: dict[str, str], value: Large) -> list[str]:
    """Write what has changed, and return the names of rows that were written."""
    found = list(rows.changed(value))
    for name, text in found:
        if text is None:
            del kept[name]
        else:
            kept[name] = text
    return [name for name, _ in found]


def read(kept: dict[str, str]) -> str | None:
    return whole(
        "large",
        kept.get("large"),
        lambda prefix: {name: text for name, text in kept.items() if name.startswith(prefix)},
    )


@given(st.lists(larges, min_size=1, max_size=5))
def test_rows_say_together_what_the_whole_says(values: list[Large]) -> None:
    rows, kept = FactRows("large", SPLIT), dict[str, str]()
    for value in values:
        written(rows, kept, value)
        assert read(kept) == msgspec.json.encode(value).decode()
        assert not written(rows, kept, msgspec.structs.replace(value)), "what is as it was isn't written"


@given(larges)
@example(Large(0, {"/": Member(0, "")}, b"", [], ""))
def test_a_fact_that_was_written_whole_is_read(value: Large) -> None:
    text = msgspec.json.encode(value).decode()
    assert read({"large": text}) == text
    assert read({}) is None


def test_only_parts_that_have_changed_are_written() -> None:
    rows, kept = FactRows("large", SPLIT), dict[str, str]()
    value = Large(1, {"a": Member(1), "b": Member(2)}, bytes(4000), [Member(3), Member(4)])
    written(rows, kept, value)
    content = bytes(2000) + b"x" + bytes(1999)
    after = msgspec.structs.replace(
        value, names={**value.names, "b": Member(2, "other")}, content=content, members=[Member(4), Member(5)]
    )
    assert written(rows, kept, after) == [
        "large/names/b",
        "large/content/1536",
        "large/members/5",
        "large/members/3",
        "large",
    ]
    assert written(rows, kept, msgspec.structs.replace(after, version=2)) == ["large"]
