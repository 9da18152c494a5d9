"""URLs of files that aren't on this machine, as fsspec spells them: ``s3://bucket/key``, ``https://host/path``."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

__all__ = ["credentials_problem", "is_url", "local_part", "scheme_of", "shown", "url_problem"]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HTTP = ("http", "https")
_ACCOUNTS = ("abfs", "abfss", "az", "wasb", "wasbs")
"""Schemes in which ``container@account`` names a place, and no user."""
_SECRETS = re.compile(
    r"signature|credential|token|secret|password|passwd|api[-_]?key|access[-_]?key|auth|\bsig\b|\bkey\b", re.IGNORECASE
)
"""Names of parameters of an ``https://`` URL that give whoever knows it a right: presigned URLs, SAS tokens."""
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "'dlrover-lite[s3]'"),
    **dict.fromkeys(("gs", "gcs"), "'dlrover-lite[gcs]'"),
    **dict.fromkeys(_ACCOUNTS, "'dlrover-lite[azure]'"),
    **dict.fromkeys(_HTTP, "aiohttp"),
}
"""What to install for the URLs of a scheme."""


def is_url(text: str) -> bool:
    """Return whether this is a URL, ``file://`` among them, and no path."""
    return _URL.match(text) is not None


def scheme_of(url: str) -> str:
    return url.partition("://")[0].lower()


def local_part(text: str) -> str | None:
    """Return the path that a path or a ``file://`` URL names; None for any other URL."""
    if not is_url(text):
        return text
    return text.partition("://")[2] if scheme_of(text) == "file" else None


def url_problem(url: str) -> str:
    """Say why data can't be under this URL, whoever asks for it; "" when they may be. Never tells what is secret in it."""
    scheme = scheme_of(url)
    if "::" in url.partition("?")[0]:
        return f"{shown(url)}: URLs in URLs can't be read; name the files themselves"
    if problem := credentials_problem(url):
        return problem
    from fsspec.registry import get_filesystem_class, known_implementations, registry

    if scheme not in known_implementations and scheme not in registry:
        return f"{shown(url)}: {scheme}:// is nothing that fsspec knows; write a path, or a URL as s3://bucket/folder/*.tsv"
    try:
        get_filesystem_class(scheme)
    except ImportError as error:
        package = _PACKAGES.get(scheme)
        return f"{shown(url)} needs a package: " + (f"pip install {package}" if package else str(error))
    if not url.partition("://")[2].strip("/"):
        return f"{shown(url)} names no file"
    return ""


def credentials_problem(written: str) -> str:
    """Say why this path or URL may not stand in a recipe: it tells secrets; else ""."""
    if not is_url(written) or not _secrets(written):
        return ""
    return (
        f"{shown(written)} has credentials in it. They don't belong in recipes: leave them out, and give them by the environment "
        "(for s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile), by a Secret, or by the pod's service account"
    )


def shown(url: str) -> str:
    """Return the URL without what may be secret in it."""
    if not _secrets(url):
        return url
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{'…@' if '@' in parts.netloc else ''}{place}{parts.path}{'?…' if parts.query else ''}"


def _secrets(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "@" in url
    user, at, _ = parts.netloc.rpartition("@")
    if at and (":" in user or parts.scheme.lower() not in _ACCOUNTS):
        return True
    return any(_SECRETS.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True))
