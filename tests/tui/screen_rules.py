"""What holds on every screen in every size: nothing is cut without an ellipsis, and no part is empty while another is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.screen import Screen
from textual.widget import Widget

from dlrover_lite.tui.pages.heights import Want
from dlrover_lite.tui.text import plain
from dlrover_lite.tui.widgets.grid import Grid
from dlrover_lite.tui.widgets.pager import Pager
from dlrover_lite.tui.widgets.panel import Columns, Stack
from dlrover_lite.tui.widgets.toned import Lines


def broken_rules(screen: Screen[Any]) -> list[str]:
    """The rules that the screen breaks, in words."""
    found: list[str] = []
    for grid in screen.query(Grid):
        if grid.display and grid.size.width:
            found += _of_cells(grid)
    for lines in screen.query(Lines):
        if lines.is_on_screen and lines.size.width:
            found += _of_lines(lines)
    for pager in screen.query(Pager):
        found += _of_text(pager, pager.in_sight)
    for stack in screen.query(Stack):
        found += _of_parts([(widget, want(stack.size.width)) for widget, want in stack._parts], stack.size.height)
    for columns in screen.query(Columns):
        for group in columns.groups(columns.size.width) if columns.display else ():
            found += _of_parts(group, columns.size.height)
    return found + _of_places(screen)


def _of_cells(grid: Grid[Any]) -> list[str]:
    """A cell that says more than there is room for ends with an ellipsis, which no number does, and none is beyond the right edge."""
    table, top = grid.table, grid.scroll_offset.y
    placed = table.place(grid.width)
    room = grid.scrollable_content_region.width
    found = [f"{table.columns[one.at].title} ends beyond {room}" for one in placed if one.x + one.width > room]
    for y, name in enumerate(table.shown[top : top + grid.size.height - 1]):
        drawn = grid.render_line(y + 1)
        for one in placed:
            whole = plain(table.columns[one.at].cell(table.rows[name], one.width)).strip()
            shown = drawn.crop(one.x, one.x + one.width).text.strip()
            is_number = table.columns[one.at].right
            if shown != whole and (is_number or not shown.endswith("…")):
                found.append(f"{whole!r} is cut to {shown!r}")
    if table.shown and grid.size.height < 2:
        found.append(f"{len(table.shown)} rows, of which none is seen")
    return found


def _of_lines(lines: Lines) -> list[str]:
    """A line that is too long ends with an ellipsis, and none is missing at the bottom."""
    found = _of_text(lines, lines._lines)
    if len(lines._lines) > lines.size.height:
        found.append(f"{lines}: {len(lines._lines)} lines in {lines.size.height}")
    return found


def _of_text(widget: Pager | Lines, lines: Sequence[Any]) -> list[str]:
    found = []
    for y, one in enumerate(lines):
        whole, shown = plain(one).rstrip(), widget.render_line(y).text.rstrip()
        if shown != whole and not shown.endswith("…"):
            found.append(f"{widget}: {whole!r} is cut to {shown!r}")
    return found


def _of_parts(wants: Sequence[tuple[Widget, Want]], height: int) -> list[str]:
    """While one part has fewer lines than it wants, none has more than are enough for it, and no line of the ``height`` that they share
    is empty; and none that never gives way is left out."""
    cut = [widget for widget, want in wants if widget.outer_size.height < want.enough and widget.display]
    cut += [widget for widget, want in wants if want.enough and not want.rank and not want.spare and not widget.display]
    roomy = [
        widget for widget, want in wants if widget.display and widget.outer_size.height > max(want.enough, want.least)
    ]
    found = [f"{roomy} have lines to spare while {cut} are cut"] if cut and roomy else []
    taken = sum(widget.outer_size.height for widget, _ in wants if widget.display)
    return [*found, f"{height - taken} lines are empty while {cut} are cut"] if cut and taken < height else found


def _of_places(screen: Screen[Any]) -> list[str]:
    """Nothing is beyond the edges of the screen."""
    whole = screen.region
    return [
        f"{widget} is at {widget.region} of {whole}"
        for widget in screen.query(Lines)
        if widget.display and widget.is_on_screen and widget.region.area and not whole.contains_region(widget.region)
    ]
