"""A clip as a file that others can look at: asciinema's format, a picture that moves (SVG), a page with a slider (HTML)."""

from __future__ import annotations

import json
from html import escape

from dlrover_lite.tui.recordings.clip import Clip, Run, changes, runs
from dlrover_lite.tui.text import ANSI, Line, Tone, width_of

__all__ = ["cast", "page", "picture"]

_COLOURS: dict[Tone, str] = {
    "plain": "#d8d8d8",
    "dim": "#8a8a8a",
    "good": "#7bc88f",
    "warn": "#e5b567",
    "bad": "#e06c75",
    "accent": "#6fb3d2",
    "title": "#ffffff",
}
"""Colours of the tones that clips have; those of logs and searches aren't in any."""
_GROUND = "#14161a"
_CELL = 8.4, 17.0
"""Width and height of a character, in pixels."""
_FONTS = "'DejaVu Sans Mono', Menlo, Consolas, monospace"


def cast(clip: Clip) -> str:
    """Write a clip as asciinema does (version 2 of its format)."""
    head = {"version": 2, "width": clip.width, "height": clip.height, "title": clip.title}
    lines = [json.dumps(head)]
    before: tuple[Line, ...] | None = None
    for at, frame in clip.frames:
        new = "".join(f"\x1b[{row + 1};1H{_ansi(one)}" for row, one in changes(before, frame))
        lines.append(json.dumps([round(at, 3), "o", new if before is not None else f"\x1b[2J\x1b[?25l{new}"]))
        before = frame
    lines.append(json.dumps([round(clip.seconds, 3), "o", ""]))
    return "\n".join(lines) + "\n"


def _ansi(line: Line) -> str:
    return "".join(f"\x1b[{ANSI[tone]}m{text}\x1b[0m" if ANSI[tone] else text for text, tone in line)


def picture(clip: Clip) -> str:
    """Write a clip as an SVG that plays again and again; one of a single frame, and what shows no motion, shows the last frame."""
    cell, height = _CELL
    size = f'width="{clip.width * cell + 16:g}" height="{clip.height * height + 16:g}"'
    classes = "".join(f".{tone[0]}{{fill:{colour}}}" for tone, colour in _COLOURS.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" {size} font-family="{_FONTS}" font-size="14">',
        f"<title>{escape(clip.title)}</title>",
        f"<style>.t{{font-weight:bold}}{classes}</style>",
        f'<rect width="100%" height="100%" rx="6" fill="{_GROUND}">',
        f'<animate id="clip" attributeName="opacity" from="1" to="1" begin="0s;clip.end" dur="{clip.seconds:g}s"/></rect>',
    ]
    parts += [_moving(clip, run) for run in runs(clip)]
    return "\n".join([*parts, "</svg>\n"])


def _moving(clip: Clip, run: Run) -> str:
    """Write a line that is seen only while it is there."""
    cell, height = _CELL
    text, column = [], 0
    for part, tone in run.line:
        if part.strip():
            weight = ' font-weight="bold"' if tone == "title" else ""
            long = f'textLength="{width_of(part) * cell:g}" lengthAdjust="spacingAndGlyphs"'
            text.append(
                f'<tspan x="{8 + column * cell:g}" fill="{_COLOURS.get(tone, _COLOURS["plain"])}"{weight} {long}>{escape(part)}</tspan>'
            )
        column += width_of(part)
    if not text:
        return ""
    whole, is_last = run.start == 0 and run.stop == clip.seconds, run.stop == clip.seconds
    seen = ""
    if not whole:
        span = f'begin="clip.begin+{run.start:g}s" dur="{run.stop - run.start:g}s"'
        seen = f'<set attributeName="display" to="inline" {span}/>'
        if is_last:
            seen = f'<set attributeName="display" to="none" begin="clip.begin" dur="{run.start:g}s"/>'
    hidden = "" if whole or is_last else ' display="none"'
    return f'<text y="{8 + 13 + run.row * height:g}"{hidden}>{seen}{"".join(text)}</text>'


def page(clip: Clip) -> str:
    """Write a clip as a page that needs nothing else: it plays, and has a slider."""
    lines = [[run.row, round(run.start, 3), round(run.stop, 3), _html(run.line)] for run in runs(clip)]
    data = json.dumps(lines, ensure_ascii=False).replace("</", "<\\/")
    classes = "".join(f".{tone}{{color:{colour}}}" for tone, colour in _COLOURS.items())
    return (
        _PAGE.replace("@TITLE@", escape(clip.title))
        .replace("@CLASSES@", classes)
        .replace("@GROUND@", _GROUND)
        .replace("@FONTS@", _FONTS)
        .replace("@SECONDS@", f"{clip.seconds:g}")
        .replace("@ROWS@", str(clip.height))
        .replace("@LINES@", data)
    )


def _html(line: Line) -> str:
    return "".join(f'<span class="{tone}">{escape(text)}</span>' for text, tone in line)


_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>@TITLE@</title>
<style>
body{background:@GROUND@;margin:1em}
pre{font:14px/17px @FONTS@}
.title{font-weight:bold}
input{width:60em;max-width:80%}
@CLASSES@
</style>
<pre id="screen"></pre>
<button id="play">play or stand</button> <input id="at" type="range" min="0" max="@SECONDS@" step="0.05" value="0">
<script>
const lines = @LINES@, rows = @ROWS@, seconds = @SECONDS@;
const screen_ = document.getElementById("screen"), slider = document.getElementById("at");
let at = 0, plays = true, before = performance.now();
function show() {
  const there = Array(rows).fill("");
  for (const [row, start, stop, text] of lines) if (start <= at && (at < stop || stop === seconds)) there[row] = text;
  screen_.innerHTML = there.join("\\n");
  slider.value = at;
}
slider.oninput = () => { at = Number(slider.value); plays = false; show(); };
document.getElementById("play").onclick = () => { plays = !plays; };
setInterval(() => {
  const now = performance.now();
  if (plays) { at += (now - before) / 1000; if (at > seconds) at = 0; show(); }
  before = now;
}, 100);
show();
</script>
"""
