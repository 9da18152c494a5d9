"""Trying again what a busy store or a network has refused: after growing pauses, for a limited time, and nothing that can't change."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeVar

__all__ = ["PATIENT", "QUICK", "Refused", "Retries", "kind_of", "retrying"]

T = TypeVar("T")
Kind = Literal["missing", "forbidden", "changed", "package", "unusable", "passing"]

_PASSING_STATUSES = (408, 425, 429)
"""Statuses of HTTP below 500 that are worth another try."""
_NO_CREDENTIALS = (
    "Credential",
    "TokenRetrieval",
    "ProfileNotFound",
    "RefreshError",
    "TokenProvider",
    "UnauthorizedSSO",
)
"""Parts of names of errors by which clients say that they have nothing to show."""
_LAST_STATUS = 600


class Retries(NamedTuple):
    """How often, and how long, something is tried. Clock, sleep and chance are handed in."""

    attempts: int
    first_pause_seconds: float
    longest_pause_seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    most_seconds: float = 180.0
    """Time after which there is no further try."""


PATIENT = Retries(attempts=10, first_pause_seconds=0.3, longest_pause_seconds=20.0)
"""While training: 60 s of pauses on average. A store that throttles wants to be asked less, by all workers together."""
QUICK = Retries(attempts=4, first_pause_seconds=0.3, longest_pause_seconds=2.0, most_seconds=30.0)
"""While a person waits."""


class Refused(Exception):
    """The last error, of which kind it is, and how often it was tried."""

    def __init__(self, kind: Kind, error: Exception, attempts: int) -> None:
        super().__init__(str(error))
        self.kind, self.error, self.attempts = kind, error, attempts


def retrying(call: Callable[[], T], retries: Retries) -> T:
    """Return what ``call`` returns. Raises Refused when it fails in a way that stays, or too often."""
    began = retries.clock()
    attempt = 0
    while True:
        attempt += 1
        try:
            return call()
        except Exception as error:
            kind = kind_of(error)
            # Half of a pause is by chance: those who were refused together shouldn't come back together.
            pause = min(retries.longest_pause_seconds, retries.first_pause_seconds * 2 ** (attempt - 1))
            pause *= 0.5 + retries.chance() / 2
            late = retries.clock() - began + pause > retries.most_seconds
            if kind != "passing" or attempt >= retries.attempts or late:
                raise Refused(kind, error, attempt) from error
            retries.sleep(pause)


def kind_of(error: BaseException) -> Kind:
    """Judge by an error of a file system whether another try may help."""
    status = next(_statuses(error), None)
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None and (status is not None or _is_of_network(cause)):
        return kind_of(cause)  # fsspec says so of whatever a web server answers but its file
    if isinstance(error, FileNotFoundError) or status == 404:
        return "missing"
    name = type(error).__name__
    if isinstance(error, PermissionError) or status in (401, 403) or any(part in name for part in _NO_CREDENTIALS):
        return "forbidden"
    if status in (412, 416) or name == "FileExpired":
        return "changed"
    if isinstance(error, ImportError):
        return "package"
    if status is not None and 400 <= status < 500 and status not in _PASSING_STATUSES:
        return "unusable"
    if isinstance(error, TypeError | AttributeError | NotImplementedError | IsADirectoryError):
        return "unusable"
    return "passing"


def _is_of_network(error: BaseException) -> bool:
    return isinstance(error, OSError | TimeoutError) or type(error).__module__.startswith("aiohttp")


def _statuses(error: BaseException | None) -> Iterator[int]:
    """Give the statuses of HTTP that an error, or what caused it, was made of: each client keeps it in a place of its own."""
    for _ in range(5):
        if error is None:
            return
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            yield from _status(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
        # aiohttp calls it "code" 400, too, when the answer was cut off.
        for name in ("status", "status_code", *(() if type(error).__module__.startswith("aiohttp") else ("code",))):
            yield from _status(getattr(error, name, None))
        error = error.__cause__


def _status(value: object) -> Iterator[int]:
    try:
        number = int(value) if isinstance(value, int | str) else 0
    except ValueError:
        return
    if 400 <= number < _LAST_STATUS:
        yield number
