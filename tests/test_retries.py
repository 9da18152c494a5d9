from __future__ import annotations

from collections.abc import Callable

import pytest
from aiohttp import ServerDisconnectedError
from aiohttp.http_exceptions import ContentLengthError

from dlrover_lite.core.files.retries import Kind, Refused, Retries, kind_of, retrying


class Told(Exception):
    """An error of a client, which keeps HTTP's status somewhere."""

    def __init__(self, **attributes: object) -> None:
        super().__init__("told")
        self.__dict__.update(attributes)


class NoCredentialsError(Exception):
    pass


def s3_error(status: int) -> OSError:
    error = OSError(5, "as s3fs says it")
    error.__cause__ = Told(response={"ResponseMetadata": {"HTTPStatusCode": status}})
    return error


def missing_for(cause: Exception) -> FileNotFoundError:
    error = FileNotFoundError("as fsspec says it")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(), "missing"),
        (Told(status=404), "missing"),
        (missing_for(KeyError()), "missing"),
        (missing_for(Told(status=404)), "missing"),
        (missing_for(Told(status=503)), "passing"),
        (missing_for(Told(status=403)), "forbidden"),
        (missing_for(ServerDisconnectedError()), "passing"),
        (PermissionError(), "forbidden"),
        (Told(status_code=401), "forbidden"),
        (NoCredentialsError(), "forbidden"),
        (Told(code=412), "changed"),
        (s3_error(416), "changed"),
        (ImportError("no s3fs"), "package"),
        (s3_error(400), "unusable"),
        (TypeError(), "unusable"),
        (s3_error(503), "passing"),
        (s3_error(429), "passing"),
        (Told(status=500), "passing"),
        (ConnectionResetError(), "passing"),
        (ContentLengthError("cut off"), "passing"),
        (Told(code=400), "unusable"),
        (TimeoutError(), "passing"),
    ],
)
def test_errors_are_told_apart(error: Exception, kind: Kind) -> None:
    assert kind_of(error) == kind


def policy(pauses: list[float], attempts: int = 6, most_seconds: float = 1e9) -> Retries:
    now = [0.0]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    return Retries(attempts, 1.0, 5.0, clock=lambda: now[0], sleep=sleep, chance=lambda: 1.0, most_seconds=most_seconds)


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [times]

    def call() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "done"

    return call


def test_pauses_grow_up_to_the_longest() -> None:
    pauses: list[float] = []
    assert retrying(failing(5, s3_error(503)), policy(pauses)) == "done"
    assert pauses == [1, 2, 4, 5, 5]


def test_attempts_are_limited() -> None:
    pauses: list[float] = []
    with pytest.raises(Refused) as caught:
        retrying(failing(6, s3_error(503)), policy(pauses))
    assert (caught.value.kind, caught.value.attempts, len(pauses)) == ("passing", 6, 5)


def test_time_is_limited() -> None:
    pauses: list[float] = []
    with pytest.raises(Refused) as caught:
        retrying(failing(6, TimeoutError()), policy(pauses, most_seconds=4))
    assert (caught.value.attempts, pauses) == (3, [1, 2])


def test_what_stays_is_not_tried_again() -> None:
    pauses: list[float] = []
    with pytest.raises(Refused):
        retrying(failing(1, PermissionError()), policy(pauses))
    assert not pauses
