"""TCP connections of this process, with what the kernel says of each: bytes so far, and how fast they arrive."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["TcpConnection", "own_tcp_connections"]

_DESCRIPTORS = Path("/proc/self/fd")
_INFO_BYTES = 256
_BYTES_ACKED, _BYTES_RECEIVED, _DELIVERY_RATE = 120, 128, 160
"""Places of three uint64 in ``struct tcp_info`` (linux/tcp.h): since Linux 4.9 all are there, and none has ever moved."""
_END = _DELIVERY_RATE + 8


class TcpConnection(NamedTuple):
    """``bytes_per_second``: rate at which the peer acknowledged what was sent last, over about a round trip (``tcpi_delivery_rate``). It is
    the network's, as long as enough was sent at once; what the sender has to wait for otherwise isn't in it."""

    port: int
    peer: str
    """IP address."""
    peer_port: int
    sent_bytes: int
    """Bytes that the peer has acknowledged; of who connects one more, for its SYN."""
    received_bytes: int
    bytes_per_second: int


def own_tcp_connections() -> Iterator[TcpConnection]:
    """Look at all connections of this process. There are none where the system isn't Linux."""
    if not sys.platform.startswith("linux"):
        return
    for entry in _DESCRIPTORS.iterdir():
        try:
            if str(entry.readlink()).startswith("socket:") and (found := _connection(int(entry.name))) is not None:
                yield found
        except OSError:  # closed meanwhile
            continue


def _connection(descriptor: int) -> TcpConnection | None:
    with socket.socket(fileno=os.dup(descriptor)) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return None
        peer, port = one.getpeername(), one.getsockname()[1]  # OSError: it listens
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _END:
        return None
    sent, received, rate = (
        struct.unpack_from("Q", info, at)[0] for at in (_BYTES_ACKED, _BYTES_RECEIVED, _DELIVERY_RATE)
    )
    return TcpConnection(port, peer[0].removeprefix("::ffff:"), peer[1], sent, received, rate)
