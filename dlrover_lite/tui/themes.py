"""Colour themes as data: those there are, those that a person has written, and which was chosen last."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.files.durable import make_private, write_whole
from dlrover_lite.core.files.regular import read_file

__all__ = ["THEMES", "ColourTheme", "ThemeFiles"]

_MOST_BYTES = 65_536
_NAME = re.compile(r"[\w-]{1,40}")
_COLOUR = re.compile(r"#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})")


class ColourTheme(NamedTuple):
    """A theme whose colours are known here."""

    name: str
    colours: Mapping[str, str]
    """Colours as ``#rrggbb``, by what they are for (``COLOURS``)."""
    dark: bool
    texts: Mapping[str, str]
    """Colours of text, where they aren't to be made of ``colours`` by mixing in the background's contrary."""


COLOURS = (
    *("primary", "secondary", "accent", "success", "warning", "error"),
    *("foreground", "background", "surface", "panel"),
)
_OKABE_ITO = {
    "primary": "#0072b2",
    "secondary": "#cc79a7",
    "accent": "#e69f00",
    "success": "#56b4e9",
    "warning": "#f0e442",
    "error": "#d55e00",
}
"""The palette that Okabe and Ito chose for those who don't tell red from green: sky blue, yellow and vermilion say how well it is."""

OWN = (
    ColourTheme(
        "colour-blind",
        {**_OKABE_ITO, "foreground": "#e6e6e6", "background": "#121212", "surface": "#1e1e1e", "panel": "#262a30"},
        dark=True,
        texts={"text-success": "#56b4e9", "text-warning": "#fff07a", "text-error": "#f06a2a"},
    ),
    ColourTheme(
        "colour-blind-light",
        {**_OKABE_ITO, "foreground": "#1a1a1a", "background": "#fafafa", "surface": "#eeeeee", "panel": "#e9eaee"},
        dark=False,
        texts={"text-success": "#0067a8", "text-warning": "#806600", "text-error": "#5c0000"},
    ),
)
"""Themes of our own."""
THEMES = ("dark", "light", *(one.name for one in OWN), "nord", "gruvbox", "dracula", "solarized-light")
"""Names of all themes that there are for everybody: dark, light, our own, and others that textual has."""


class ThemeFiles:
    """The themes that a person has written, each in a file ``themes/NAME.toml``, and a file with the name of the one that was chosen."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def own(self) -> tuple[list[ColourTheme], list[str]]:
        """Return the person's own themes, and what is wrong with those that can't be used."""
        found, wrong = [], []
        try:
            paths = sorted(path for path in self._themes.iterdir() if path.suffix == ".toml")
        except FileNotFoundError:
            return [], []
        except OSError as error:
            return [], [f"{self._themes} can't be read: {error.strerror}"]
        for path in paths:
            try:
                found.append(parse(path.stem, _text(path)))
            except FileNotFoundError:
                continue  # it was removed just now
            except UsageError as error:
                wrong.append(f"{path}: {error.message}")
        return found, wrong

    @property
    def _themes(self) -> Path:
        return self._directory / "themes"

    @property
    def _chosen(self) -> Path:
        return self._directory / "theme"

    def chosen(self) -> str:
        """Return the name of the theme that was chosen last; empty: none was. Raises UsageError where it can't be read."""
        try:
            name = _text(self._chosen).strip()
        except FileNotFoundError:
            return ""
        except UsageError as error:
            raise UsageError(f"{self._chosen}: {error.message}", hint=":theme NAME writes it anew") from error
        if not _NAME.fullmatch(name):
            raise UsageError(f"{self._chosen} has no name of a theme", hint=":theme NAME writes it anew")
        return name

    def choose(self, name: str) -> None:
        """Remember a theme. Raises UsageError where that can't be done."""
        try:
            make_private(self._directory)
            write_whole(self._chosen, f"{name}\n".encode(), sync=False)
        except OSError as error:
            raise UsageError(
                f"The theme isn't remembered: {self._chosen} can't be written: {error.strerror}"
            ) from error


def _text(path: Path) -> str:
    """Read a text. Raises FileNotFoundError where there is none, and UsageError for all else that is wrong with it."""
    try:
        return read_file(path, _MOST_BYTES).decode()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"it can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError("it isn't text in UTF-8") from error


def parse(name: str, text: str) -> ColourTheme:
    """Read a theme from TOML. Raises UsageError, saying where it is wrong."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} can't be a theme's name: letters, digits, - and _ can")
    if name in THEMES:
        raise UsageError(f"there is a theme {name} already: give the file another name")
    try:
        entries = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"it isn't TOML: {error}") from error
    dark = entries.pop("dark", True)
    if not isinstance(dark, bool):
        raise UsageError("dark is true or false")
    for key, value in entries.items():
        _check(key, value)
    if "primary" not in entries:
        raise UsageError('it has no primary colour: primary = "#0178d4"')
    return ColourTheme(name, entries, dark, {})


def _check(key: str, value: Any) -> None:
    if key not in COLOURS:
        near = get_close_matches(key, COLOURS, n=1)
        raise UsageError(f"there is no {key}" + (f"; did you mean {near[0]}?" if near else f": {_listed(COLOURS)}"))
    if not (isinstance(value, str) and _COLOUR.fullmatch(value)):
        raise UsageError(f'{key} is a colour as "#rrggbb", not {value!r}')


def _listed(names: Sequence[str]) -> str:
    return f"there are {', '.join(names)} and dark"
