"""The screens in a browser: who gets to see them, that they are those of the terminal, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from dlrover_lite.cli.commands import tui
from dlrover_lite.cli.main import main
from dlrover_lite.tui.web_server import served_command
from tests.cli.conftest import PATIENCE_SECONDS, start


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_screens_are_served_to_those_who_know_the_address_and_end_with_the_server(ended_by: signal.Signals) -> None:
    server = start(["tui", "--serve", "--port", "0"])
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        asyncio.run(asyncio.wait_for(_look(address, server, ended_by), PATIENCE_SECONDS))
    finally:
        server.kill()
        server.communicate()


async def _look(address: str, server: subprocess.Popen[str], ended_by: signal.Signals) -> None:
    root = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)[\w-]{20,}/", address)
    assert root, address
    async with aiohttp.ClientSession() as session:
        for path, status in (("", 404), ("ws", 404), ("static/js/textual.js", 404)):
            async with session.get(root[1] + path) as answer:
                assert answer.status == status, path
        async with session.get(address) as answer:
            page = await answer.text()
            assert "style-src 'self'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert root[1] not in page  # it works behind a proxy
        (script,) = re.findall(r'script src="([^"]+)"', page)
        async with session.get(address + script) as answer:
            assert answer.status == 200
        async with session.ws_connect(f"{address}ws?width=100&height=30") as screen:
            await _until_shown(screen)
            await screen.send_json(["stdin", "q"])
            while (await screen.receive()).type not in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED):
                pass
        async with session.ws_connect(f"{address}ws?width=100&height=30") as screen:
            await _until_shown(screen)
            shown = psutil.Process(server.pid).children(recursive=True)
            assert any("--readonly" in child.cmdline() for child in shown)
            server.send_signal(ended_by)
            _, alive = await asyncio.to_thread(psutil.wait_procs, shown, PATIENCE_SECONDS)
            assert not alive
    assert await asyncio.to_thread(server.wait, PATIENCE_SECONDS) == (
        0 if ended_by == signal.SIGTERM else -signal.SIGKILL
    )


async def _until_shown(screen: aiohttp.ClientWebSocketResponse) -> None:
    shown = b""
    while b"There are no jobs yet" not in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown):
        message = await screen.receive()
        assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), (message, shown)
        shown += message.data if isinstance(message.data, bytes) else b""


def test_what_is_served_changes_nothing_unless_that_is_asked_for() -> None:
    assert served_command(["--job", "ads"], writable=False)[-3:] == ["--readonly", "--job", "ads"]
    assert "--readonly" not in served_command([], writable=True)


@pytest.mark.parametrize("also", [["--readonly"], []])
def test_readonly_counts_more_than_writable(also: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("dlrover_lite.tui.web_server.serve", lambda command, port, tell: served.append((command, port)))
    assert main(["tui", "--serve", "--writable", "--replay", "a file", "--speed", "2", *also]) == 0
    ((command, port),) = served
    assert ("--readonly" in command) == bool(also) and port == 8000
    assert command[-4:] == ["--replay", "a file", "--speed", "2.0"]


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["tui", "--serve", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"Port {port}" in said and "is taken" in said and "--port 0" in said


@pytest.mark.parametrize("wrong", [["--serve", "--once"], ["--port", "1"], ["--writable"]])
def test_options_that_do_not_go_together(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", *wrong]) == 2
    assert "--serve" in capsys.readouterr().err


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tui, "find_spec", lambda name: None if name == "textual_serve" else object())
    assert main(["tui", "--serve"]) == 2
    assert "pip install 'dlrover-lite[web]'" in capsys.readouterr().err
