"""Themes: a person's own, the one that is remembered, and those for who sees not all colours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from dlrover_lite.core.errors import UsageError
from dlrover_lite.tui.app import DARK, TuiApp
from dlrover_lite.tui.themes import COLOURS, OWN, THEMES, ColourTheme, ThemeFiles, parse
from tests.tui.colour_vision import contrast, least_difference
from tests.tui.driving import drive, taken, the_app, told, type_at_once

MINE = 'primary = "#268bd2"\nerror = "#dc322f"\n'


@pytest.fixture
def files(tmp_path: Path) -> ThemeFiles:
    (tmp_path / "tui" / "themes").mkdir(parents=True)
    (tmp_path / "tui" / "themes" / "mine.toml").write_text(MINE)
    return ThemeFiles(tmp_path / "tui")


def _app(files: ThemeFiles, *keys: str) -> TuiApp:
    """An application that is begun, and left after these keys."""

    async def steps(pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app, TuiApp)
        type_at_once(pilot.app, *keys)
        await taken(pilot)

    return drive(steps, the_app(themes=files))


@pytest.mark.parametrize("theme", [*THEMES, "mine"])
def test_a_theme_is_remembered(files: ThemeFiles, theme: str) -> None:
    chosen = _app(files, *f":theme {theme}", "enter")
    assert told(chosen) == []
    assert the_app(themes=files).theme == chosen.theme
    assert (chosen.theme == DARK) == (theme == "dark")


def test_a_theme_of_ones_own_is_completed_and_used(files: ThemeFiles) -> None:
    app = _app(files, *":skin mi", "tab", "enter")
    assert (app.theme, app.current_theme.error) == ("mine", "#dc322f")


def _binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


def _directory(path: Path) -> None:
    path.mkdir()


def _long(path: Path) -> None:
    path.write_text("a" * 70_000)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _two_words(path: Path) -> None:
    path.write_text("two words")


def _unknown(path: Path) -> None:
    path.write_text("gone\n")


@pytest.mark.parametrize("damage", [_binary, _directory, _long, _loop, _two_words, _unknown])
def test_what_was_remembered_and_cannot_be_used_is_told(
    files: ThemeFiles, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(tmp_path / "tui" / "theme")
    app = _app(files)
    assert app.theme == DARK
    (said,) = told(app)
    assert "theme" in said


def test_a_file_that_is_no_theme_is_told_with_its_place_and_the_others_are_there(
    files: ThemeFiles, tmp_path: Path
) -> None:
    themes = tmp_path / "tui" / "themes"
    (themes / "bad.toml").write_text('primary = "#268bd2"\nerror = red\n')
    (themes / "dark.toml").write_text(MINE)
    _binary(themes / "binary.toml")
    app = _app(files)
    assert [said.partition(": ")[0] for said in told(app)] == [
        f"{themes}/{name}.toml" for name in ("bad", "binary", "dark")
    ]
    assert "line 2" in told(app)[0]
    assert app.theme_names == (*THEMES, "mine")


def test_a_directory_of_themes_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "themes").touch()
    assert "themes can't be read" in told(_app(ThemeFiles(tmp_path)))[0]


def test_a_theme_that_cannot_be_remembered_is_used_and_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    app = _app(ThemeFiles(tmp_path / "file" / "tui"), *":theme nord", "enter")
    assert app.theme == "nord"
    assert "isn't remembered" in told(app)[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('primary = "blue"', "primary is a colour as \"#rrggbb\", not 'blue'"),
        ("primary = 7", "not 7"),
        ('sucess = "#123456"', "did you mean success?"),
        ('error = "#123456"', "no primary colour"),
        ('primary = "#123"\ndark = "yes"', "dark is true or false"),
        ("[primary]", "not {}"),
    ],
)
def test_what_is_wrong_with_a_theme_is_told(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse("mine", text)
    assert said in caught.value.message


@given(
    st.text(max_size=40)
    | st.dictionaries(
        st.sampled_from([*COLOURS, "dark", "x"]), st.sampled_from(['"#123"', "true", "1", '"#1234567"'])
    ).map(lambda entries: "\n".join(f"{key} = {value}" for key, value in entries.items()))
)
def test_any_text_is_a_theme_that_can_be_used_or_is_refused(text: str) -> None:
    from dlrover_lite.tui.app import _theme_of

    try:
        theme = parse("mine", text)
    except UsageError:
        return
    assert _theme_of(theme).to_color_system().generate()


@pytest.mark.parametrize("theme", OWN, ids=lambda one: one.name)
def test_colours_of_states_differ_for_whoever_sees_not_all_colours(theme: ColourTheme) -> None:
    colours = list(theme.texts.values())
    difference, between = least_difference(colours)
    assert difference > 25, between
    for colour in colours:
        for ground in ("background", "surface", "panel"):
            assert contrast(colour, theme.colours[ground]) >= 4.5, (colour, ground)
