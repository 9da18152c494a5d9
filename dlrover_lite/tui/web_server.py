"""The TUI in a browser: textual-serve runs the command anew for each page that is open, and carries its screen there.

Whoever can open the address can read every job of this user, so it isn't to be guessed: all paths begin with a token, as other users of
the machine, and pages of other sites in the same browser, reach loopback as well. All addresses in the page are relative, so that it
works behind a proxy that puts a path before it (jupyter-server-proxy) or takes it off.
"""

from __future__ import annotations

import errno
import logging
import secrets
import shlex
import socket
import sys
from collections.abc import Callable, Sequence

import aiohttp_jinja2
from aiohttp import web
from textual_serve.server import Server, to_int

from dlrover_lite.backends.host.linux import tied
from dlrover_lite.core.errors import UsageError

__all__ = ["serve", "served_command"]

LOOPBACK = "127.0.0.1"
_TOKEN_BYTES = 16
_END_SECONDS = 5.0
"""How long pages that are open have to end at the end."""


def served_command(options: Sequence[str], *, writable: bool) -> list[str]:
    """Make the command that a page shows, which can change something only where that was asked for."""
    return [sys.executable, "-m", "dlrover_lite", "tui", *([] if writable else ["--readonly"]), *options]


def serve(command: Sequence[str], port: int, tell: Callable[[str], None]) -> None:
    """Serve a Textual application on loopback until SIGINT or SIGTERM. Tells its address once that is open; port 0 is any that is free.

    Raises UsageError where the port can't be had.
    """
    logging.getLogger("textual-serve").setLevel(logging.ERROR)  # what the application's own screen says already
    with _listening(port) as listener:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        tell(f"http://{LOOPBACK}:{listener.getsockname()[1]}/{token}/")
        web.run_app(
            _application(command, token),
            sock=listener,
            print=lambda _: None,
            shutdown_timeout=_END_SECONDS,
            access_log=None,
        )


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise UsageError(
            f"Port {port} of {LOOPBACK} {'is taken' if taken else 'cannot be had'}: {error.strerror}",
            hint="Another one: --port 8001. Any that is free: --port 0",
        ) from error


class _Pages(Server):
    """textual-serve's pages with relative addresses, quiet, and with our name."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(f"exec {shlex.join(tied(list(command)))}", host=LOOPBACK, title="dlrover-lite")

    async def on_startup(self, app: web.Application) -> None:
        pass

    @aiohttp_jinja2.template("app_index.html")
    async def handle_index(self, request: web.Request) -> dict[str, object]:
        return {
            "font_size": to_int(request.query.get("fontsize", ""), 16),
            "app_websocket_url": "ws",
            "config": {"static": {"url": "static/"}},
            "application": {"name": self.title},
        }


async def _keep_to_itself(_request: web.Request, response: web.StreamResponse) -> None:
    """Have a page take nothing from other machines, whose absence would hold it up, and tell its address to none."""
    response.headers["Content-Security-Policy"] = "style-src 'self' 'unsafe-inline'; font-src 'self' data:"
    response.headers["Referrer-Policy"] = "no-referrer"


async def _application(command: Sequence[str], token: str) -> web.Application:
    whole = web.Application()
    whole.on_response_prepare.append(_keep_to_itself)
    whole.add_subapp(f"/{token}", await _Pages(command)._make_app())
    return whole
