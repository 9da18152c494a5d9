"""What holds on every screen in every size: no cell is cut without an ellipsis, and no part is empty while another is cut."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen

from dlrover_lite.tui.text import plain
from dlrover_lite.tui.widgets.grid import Grid
from dlrover_lite.tui.widgets.panel import Stack


def broken_rules(screen: Screen[Any]) -> list[str]:
    """The rules that the screen breaks, in words."""
    found: list[str] = []
    for grid in screen.query(Grid):
        if not (grid.display and grid.size.width):
            continue
        found += _of_cells(grid)
    for stack in screen.query(Stack):
        found += _of_parts(stack)
    return found


def _of_cells(grid: Grid[Any]) -> list[str]:
    """A cell that says more than there is room for ends with an ellipsis, and no cell is beyond the table's right edge."""
    table, top = grid.table, grid.scroll_offset.y
    placed = table.place(grid.width)
    room = grid.scrollable_content_region.width
    found = [f"{table.columns[one.at].title} ends beyond {room}" for one in placed if one.x + one.width > room]
    for y, name in enumerate(table.shown[top : top + grid.size.height - 1]):
        drawn = grid.render_line(y + 1)
        for one in placed:
            whole = plain(table.columns[one.at].cell(table.rows[name], one.width)).strip()
            shown = drawn.crop(one.x, one.x + one.width).text.strip()
            if shown != whole and not shown.endswith("…"):
                found.append(f"{whole!r} is cut to {shown!r}")
    return found


def _of_parts(stack: Stack) -> list[str]:
    """While one part has fewer lines than it wants, none has more than are enough for it."""
    wants = [(widget, want(stack.size.width)) for widget, want in stack._parts]
    cut = [widget for widget, want in wants if 0 < widget.outer_size.height < want.enough and widget.display]
    roomy = [
        widget for widget, want in wants if widget.display and widget.outer_size.height > max(want.enough, want.least)
    ]
    return [f"{roomy} have lines to spare while {cut} are cut"] if cut and roomy else []
