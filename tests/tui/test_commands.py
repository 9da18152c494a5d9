from __future__ import annotations

import pytest

from dlrover_lite.core.errors import UsageError
from dlrover_lite.tui.commands import ACTING, COMMANDS, OF_REPLAYS, complete, parse

JOBS = ("feed-2", "ads-2", "ads-1")
COLUMNS = ("job", "state")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("jobs", ("jobs", "")),
        (" q ", ("quit", "")),
        ("?", ("help", "")),
        ("job feed", ("job", "feed-2")),
        ("job ads-1", ("job", "ads-1")),
        ("job", ("job", "feed-2")),
        ("j last", ("job", "feed-2")),
        ("feed", ("job", "feed-2")),
        ("sort state", ("sort", "state")),
        ("theme light", ("theme", "light")),
        ("at 1m", ("at", "1m")),
        ("ls", ("jobs", "")),
        ("-", ("before", "")),
        ("skin dark", ("theme", "dark")),
        ("k", ("kill", "")),
    ],
)
def test_commands_are_parsed(text: str, found: tuple[str, str]) -> None:
    assert parse(text, JOBS, COLUMNS) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jbs", "did you mean :jobs?"),
        ("what", "known are jobs, job, overview, pulse, decisions"),
        ("job ads", "2 jobs begin with 'ads'"),
        ("job fed-2", "did you mean feed-2?"),
        ("sort size", "known are job, state"),
        ("theme blue", "known are dark, light"),
        ("quit now", ":quit takes no 'now'"),
        ("at", ":at needs a time"),
    ],
)
def test_impossible_commands_are_refused_with_a_reason(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, JOBS, COLUMNS)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("jo", "jobs"),
        ("s", "sort"),
        ("job a", "job ads-2"),
        ("sort st", "sort state"),
        ("theme l", "theme light"),
        ("", None),
        ("x", None),
        ("job z", None),
        ("j a", "j ads-2"),
        ("so st", "so state"),
    ],
)
def test_commands_are_completed(text: str, found: str | None) -> None:
    assert complete(text, JOBS, COLUMNS) == found


def test_every_command_without_a_choice_is_understood() -> None:
    plain = {parse(one.name, JOBS)[0] for one in COMMANDS if not one.argument}
    assert plain - ACTING == {
        "jobs",
        "overview",
        "pulse",
        "decisions",
        "recipe",
        "before",
        "notices",
        "alias",
        "help",
        "quit",
    }
    assert {"pause", "resume", "accept", "reject", "scale", "checkpoint", "stop"} == plain & ACTING


def test_nodes_are_named_and_completed() -> None:
    nodes = ("ps-0", "worker-0", "worker-1")
    assert parse("kill worker-1", JOBS, COLUMNS, nodes) == ("kill", "worker-1")
    assert parse("drain", JOBS, COLUMNS, nodes) == ("drain", "")
    assert parse("kill anything", JOBS) == ("kill", "anything")  # it isn't known which there are
    assert complete("resize w", JOBS, COLUMNS, nodes) == "resize worker-0"
    with pytest.raises(UsageError, match=r"no node 'worker-7' that runs; did you mean worker-\d"):
        parse("kill worker-7", JOBS, COLUMNS, nodes)


def test_every_short_name_is_of_one_command_and_is_none_itself() -> None:
    names = [name for one in (*COMMANDS, *OF_REPLAYS) for name in (one.name, *one.aliases)]
    assert len(names) == len(set(names))
    for one in COMMANDS:
        assert all(
            parse(name, JOBS, COLUMNS) == parse(one.name, JOBS, COLUMNS) for name in one.aliases if not one.argument
        )
