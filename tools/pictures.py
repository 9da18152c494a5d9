"""Makes the pictures of README.md and docs/tui.md: what the screens show at one moment of a recorded job. ``make pictures`` runs it.

The recording is a real one (docs/pictures/README.md says of what); time, size and theme are fixed, so the same code makes the same files.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from dlrover_lite.tui.app import TuiApp
from dlrover_lite.tui.recordings.clip import film
from dlrover_lite.tui.recordings.clip_files import picture
from dlrover_lite.tui.recordings.recorded import RecordedSource, read
from dlrover_lite.tui.replay_app import ReplayApp
from dlrover_lite.tui.screens.decisions import DecisionsScreen
from dlrover_lite.tui.screens.job import JobScreen
from dlrover_lite.tui.screens.reading import ReadingScreen

HERE = Path(__file__).resolve().parent.parent / "docs" / "pictures"
RECORDING = HERE / "ads.jsonl.gz"
MOMENT = "91s"
SIZE = (120, 34)
BEGIN, CLIP_SPEED, CLIP_SIZE = "5s", 8.0, (96, 26)
"""Beginning, speed and size of the moving picture."""
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""From another server: pictures in a page aren't let there, and others shouldn't be."""


def pictures() -> dict[str, str]:
    """SVG by name. Local time must be UTC."""
    return asyncio.run(_pictures())


async def _pictures() -> dict[str, str]:
    source = RecordedSource(read(RECORDING))
    player = source.player
    player.stand(player.time_of(MOMENT))
    found: dict[str, str] = {}
    app = TuiApp(source, clock=lambda: player.at)
    async with app.run_test(size=SIZE) as pilot:
        await _until(pilot, lambda: bool(app.view and app.view.jobs))
        found["jobs"] = _taken(app)
        await pilot.press("enter")
        await _until(pilot, lambda: isinstance(app.screen, JobScreen) and bool(app.screen.grid.table.rows))
        found["job"] = _taken(app)
        await pilot.press("v")
        await _until(pilot, lambda: isinstance(app.screen, DecisionsScreen) and app.screen.grid.row is not None)
        found["decisions"] = _taken(app)
        while app.screen.grid.row is not None and app.screen.grid.row.newest.action != "change":
            await pilot.press("down")
        await pilot.press("enter")
        await _until(pilot, lambda: isinstance(app.screen, ReadingScreen))
        found["explanation"] = _taken(app)
    replay = ReplayApp(source, job=next(iter(source.jobs().jobs)))
    async with replay.run_test(size=SIZE) as pilot:
        await _until(pilot, lambda: isinstance(replay.screen, JobScreen) and bool(replay.screen.grid.table.rows))
        found["replay"] = _taken(replay)
    found["clip"] = _clip(source, next(iter(source.jobs().jobs)))
    return found


def _clip(source: RecordedSource, job: str) -> str:
    """Make a moving picture of a job's life."""
    start = source.player.time_of(BEGIN)
    return picture(film(source, job, start=start, stop=source.player.end, speed=CLIP_SPEED, size=CLIP_SIZE))


async def _until(pilot: Pilot[None], shown: Callable[[], bool]) -> None:
    while not shown():
        await pilot.pause(0.01)
    await pilot.pause()


def _taken(app: TuiApp) -> str:
    return _FONTS.sub("", app.export_screenshot(title="dlrover-lite tui", simplify=True)) + "\n"


def main() -> None:
    os.environ["TZ"] = "UTC"
    os.environ.pop("NO_COLOR", None)
    time.tzset()
    for name, svg in pictures().items():
        path = HERE / f"{name}.svg"
        path.write_text(svg, encoding="utf-8")
        print(path.relative_to(HERE.parent.parent))


if __name__ == "__main__":
    main()
