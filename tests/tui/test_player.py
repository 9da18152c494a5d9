"""Where a replay is, and how it gets elsewhere."""

from __future__ import annotations

import pytest

from dlrover_lite.core.errors import UsageError
from dlrover_lite.tui.pages.replay_page import at_column, replay_line
from dlrover_lite.tui.recordings.player import Mark, Now, Player, span_of
from dlrover_lite.tui.text import length, plain
from tests.tui.fixed import NOW

MARKS = (Mark(NOW + 10, "ads", 1, "●"), Mark(NOW + 40, "feed", 1, "▲"), Mark(NOW + 60, "ads", 2, "▼"))


class Clock:
    def __init__(self) -> None:
        self.now = 7.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def player(clock: Clock) -> Player:
    """100 s, with something new every 10 s and a little later."""
    times = [NOW + at + more for at in range(0, 101, 10) for more in (0.0, 0.02)]
    return Player(times[:-1], MARKS, clock=clock)


def _at(player: Player) -> float:
    return round(player.at - NOW, 3)


def test_player_plays_until_its_end(player: Player, clock: Clock) -> None:
    clock.now += 30
    assert (_at(player), player.now.playing) == (30, True)
    clock.now += 1000
    assert _at(player) == 100
    assert (player.now.playing, player.now.over) == (False, True)
    player.toggle()
    clock.now += 1
    assert (_at(player), player.now.playing) == (1, True)


def test_player_pauses_and_goes_on(player: Player, clock: Clock) -> None:
    clock.now += 30
    player.toggle()
    clock.now += 30
    assert (_at(player), player.now.playing) == (30, False)
    player.toggle()
    clock.now += 5
    assert _at(player) == 35


def test_a_new_speed_counts_from_the_present_moment(player: Player, clock: Clock) -> None:
    clock.now += 10
    for _ in range(3):
        player.faster()
    assert player.now.speed == 8
    clock.now += 5
    assert _at(player) == 50
    for _ in range(20):
        player.slower()
    assert player.now.speed == 0.25
    clock.now += 40
    assert _at(player) == 60
    for _ in range(20):
        player.faster()
    assert player.now.speed == 64


def test_faster_from_a_speed_between_two_takes_the_next(clock: Clock) -> None:
    player = Player([NOW, NOW + 9], speed=3.0, clock=clock)
    player.faster()
    assert player.now.speed == 4
    still = Player([NOW, NOW + 9], speed=0.0, clock=clock)
    assert (still.now.playing, still.now.speed) == (False, 1.0)
    still.faster()
    clock.now += 1
    assert (still.at, still.now.speed) == (NOW, 2.0)


def test_a_step_goes_to_the_next_change_and_pauses(player: Player, clock: Clock) -> None:
    clock.now += 34
    player.step()
    assert _at(player) == 40.02
    clock.now += 30
    player.step()
    assert _at(player) == 50.02
    player.step(-1)
    player.step(-1)
    assert _at(player) == 30.02
    player.go(player.begin)
    player.step(-1)
    assert _at(player) == 0.02
    player.go(player.end)
    player.step()
    assert _at(player) == 100


def test_player_goes_to_decisions_of_all_jobs_or_one(player: Player) -> None:
    assert player.decision(1) == MARKS[0]
    assert _at(player) == 10
    assert player.decision(1) == MARKS[1]
    assert player.decision(1) == MARKS[2]
    assert player.decision(1) is None
    assert _at(player) == 60
    assert player.decision(-1, job="ads") == MARKS[0]
    assert player.decision(-1) is None


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("14:01", 60),
        ("14:00:05", 5),
        ("0:45", 45),
        ("01:05", 65),
        ("0:01:05", 65),
        ("90s", 90),
        ("1m", 60),
        ("1m30.5s", 90.5),
        ("0h1m", 60),
        ("start", 0),
        ("end", 100),
    ],
)
def test_times_are_parsed(player: Player, text: str, at: float) -> None:
    assert player.time_of(text) - NOW == pytest.approx(at)


def test_the_first_minute_means_the_beginning() -> None:
    assert Player([NOW + 20, NOW + 90]).time_of("14:00") == NOW + 20
    assert Player([NOW - 60, NOW + 90_000]).time_of("13:00") == NOW + 23 * 3600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no time"),
        ("soon", "no time"),
        ("24:60", "no time"),
        ("24:00", "1:40 long"),
        ("9h", "1:40 long"),
        ("13:59", "14:01:40"),
    ],
)
def test_senseless_times_are_refused(player: Player, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        player.time_of(text)


# --- the line -----------------------------------------------------------------------------------------------------------


def test_replay_line_shows_the_moment_and_decisions(player: Player, clock: Clock) -> None:
    clock.now += 30
    text = plain(replay_line(player.now, player.marks, 80))
    assert text.startswith("▸ plays  1x    0:30 of 1:40  14:00:30  ━")
    assert len(text) == 80
    assert text.index("●") < text.index("┃") < text.index("▲") < text.index("▼")
    player.stand()
    assert "■ stands" in plain(replay_line(player.now, (), 80))
    player.stand(player.end)
    assert "■ ended" in plain(replay_line(player.now, (), 80))


@pytest.mark.parametrize("width", [20, 38, 45, 60, 200])
def test_replay_line_fits_any_width(player: Player, width: int) -> None:
    found = replay_line(player.now, player.marks, width)
    assert length(found) == width or "━" not in plain(found)


def test_a_column_of_the_replay_bar_is_a_time(player: Player) -> None:
    bar = plain(replay_line(player.now, (), 80)).index("┃")
    assert at_column(player.now, 80, bar) == player.begin
    assert at_column(player.now, 80, 79) == player.end
    assert at_column(player.now, 80, bar - 1) is None
    assert at_column(player.now, 80, 80) is None
    assert at_column(player.now, 20, 10) is None


def test_replay_line_of_a_single_moment_has_a_bar() -> None:
    assert "┃" in plain(replay_line(Now(NOW, NOW, NOW, 1.0, False), (), 80))


def test_lengths_of_time_are_formatted_shortly() -> None:
    assert [span_of(seconds) for seconds in (5, 65.9, 3725, 90_000)] == ["0:05", "1:05", "1:02:05", "1 day 1:00:00"]
