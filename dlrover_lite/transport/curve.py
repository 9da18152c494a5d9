"""CURVE over TCP: both ends of a connection prove that they hold the job's key, and nobody else can read along or change anything.

A job has one key, which all its processes hold (on Kubernetes in a Secret). Two key pairs follow from it, one for each end: a client
knows which public key its server must prove to have, and a server, through its ``Gate``, which one its clients must.

One pair wouldn't do. CURVE by itself lets in whoever knows the server's public key, and takes no care to keep that one unknown: with a
libzmq built on tweetnacl, a client that names a point of small order as its key is let in without. So each client is asked for proof.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils import z85

from dlrover_lite.core.errors import UsageError, WireError

__all__ = ["Gate", "JobKey", "is_guarded", "present_key"]

_BYTES = 32
_DOMAIN = b"dlrover-lite"
_AUTHENTICATION = "inproc://zeromq.zap.01"
"""Address at which ZeroMQ asks whether a peer may come in (its RFC 27): one place in a context."""
_MOST_AT_ONCE = 64


@dataclass(frozen=True)
class JobKey:
    """What the processes of a job have in common, and nobody else. It doesn't show in a repr."""

    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> JobKey:
        return cls(secrets.token_bytes(_BYTES))

    @classmethod
    def parse(cls, text: str, where: str = "the job's key") -> JobKey:
        """Parse a key that was written as ``text``; ``where`` says in errors what was read. Raises UsageError, which doesn't show the
        text."""
        digits = text.strip()
        if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * _BYTES}}}", digits):
            found = f"has {len(digits)} characters" if digits else "is empty"
            if len(digits) == 2 * _BYTES:
                found = "has other characters"
            raise UsageError(
                f"{where} can't be used: it must have {2 * _BYTES} hexadecimal digits, and it {found}",
                hint="Give every process of the job the same text, whole, as it was generated.",
            )
        return cls(bytes.fromhex(digits))

    def text(self) -> str:
        """Write the key for a Secret or an environment variable: 64 hexadecimal digits. Never for a command line or a log."""
        return self.secret.hex()

    def pair(self, role: bytes) -> tuple[bytes, bytes]:
        """Return the public and the secret key of this end, 32 bytes each. Raises WireError where libzmq has no CURVE."""
        if not zmq.has("curve"):
            raise WireError(
                "this libzmq was built without CURVE, so that nothing can be encrypted over TCP",
                hint="Install pyzmq from its wheel: pip install --force-reinstall --only-binary pyzmq pyzmq",
            )
        secret = hashlib.blake2b(self.secret, digest_size=_BYTES, person=role).digest()
        return z85.decode(zmq.curve_public(z85.encode(secret))), secret


_SERVER, _CLIENT = b"server", b"client"


def is_guarded(endpoint: str) -> bool:
    """Say whether connections to ``endpoint`` need a key: TCP. A unix socket is guarded by its directory."""
    return endpoint.startswith("tcp://")


def present_key(socket: zmq.Socket[Any], key: JobKey) -> None:
    """Make this socket, before it connects, a client that talks to servers with ``key`` only."""
    socket.curve_serverkey, _ = key.pair(_SERVER)
    socket.curve_publickey, socket.curve_secretkey = key.pair(_CLIENT)


class Gate:
    """Lets those into a server that have proved to hold ``key``, and nobody else.

    ZeroMQ's I/O thread has checked the proof when it asks, so that all that is left is to compare public keys. The server's own loop does
    it, when ``socket`` is readable; a peer waits in its handshake till then. For use in one thread, one in a context.
    """

    def __init__(self, guarded: zmq.Socket[Any], key: JobKey, context: zmq.Context[Any]) -> None:
        """``guarded`` mustn't be bound yet. Raises WireError where libzmq has no CURVE, or the context has a gate already."""
        _, guarded.curve_secretkey = key.pair(_SERVER)
        self._admitted, _ = key.pair(_CLIENT)
        guarded.curve_server = True
        guarded.zap_domain = _DOMAIN
        guarded.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody comes in while there is no gate
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        try:
            self.socket.bind(_AUTHENTICATION)
        except zmq.ZMQError as error:
            self.socket.close()
            raise WireError("a second server with a key needs a ZeroMQ context of its own") from error

    def answer(self) -> None:
        """Let in or turn away those who wait, up to 64 of them."""
        for _ in range(_MOST_AT_ONCE):
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, number, *_, mechanism, credentials = request
            admitted = mechanism == b"CURVE" and credentials == self._admitted
            status = (b"200", b"OK") if admitted else (b"400", b"another key")
            self.socket.send_multipart([version, number, *status, b"", b""])

    def close(self) -> None:
        self.socket.unbind(_AUTHENTICATION)  # at once, unlike close: the next gate may be here soon
        self.socket.close()
