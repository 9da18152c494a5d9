"""Finding where lines start."""

from __future__ import annotations

import numpy as np

from dlrover_lite.core.kernels.compile import kernel

__all__ = ["find_starts", "mark_lines"]


@kernel
def find_starts(buffer, words, offset, starts):  # type: ignore[no-untyped-def]
    """Find where lines start. ``words`` is the buffer eight bytes at a time. Indices are unsigned: numba checks signed ones for being
    negative."""
    one = np.uint64(1)
    newlines = np.uint64(0x0A0A0A0A0A0A0A0A)
    low_bits = np.uint64(0x7F7F7F7F7F7F7F7F)
    starts[0] = offset
    found = 1
    wanted = starts.shape[0]
    length = np.uint64(buffer.shape[0])
    position = offset
    while position < length and position & np.uint64(7) and found < wanted:
        if buffer[position] == 10:
            starts[found] = position + one
            found += 1
        position += one
    word = position >> np.uint64(3)
    while word < np.uint64(words.shape[0]) and found < wanted:
        # The high bit of each byte of ``hits`` is set where the text has a newline.
        difference = words[word] ^ newlines
        hits = ~((((difference & low_bits) + low_bits) | difference) | low_bits)
        if hits:
            for i in range(8):
                if (hits >> np.uint64(8 * i + 7)) & one and found < wanted:
                    starts[found] = (word << np.uint64(3)) + np.uint64(i + 1)
                    found += 1
        word += one
        position = word << np.uint64(3)
    while position < length and found < wanted:
        if buffer[position] == 10:
            starts[found] = position + one
            found += 1
        position += one
    if found == wanted - 1 and starts[found - 1] < buffer.shape[0]:
        starts[found] = buffer.shape[0] + 1
        found += 1
    return found == wanted


@kernel
def mark_lines(piece, newlines, base, marks):  # type: ignore[no-untyped-def]
    """Add the piece's newlines to ``newlines``; where it reaches a multiple of 1,024 the next line's offset goes to
    ``marks``. ``base`` is the offset of the piece. Returns (newlines, marks found)."""
    found = 0
    length = piece.shape[0]
    start = 0
    while start < length:
        part = piece[start : start + 128]
        count = np.uint8(0)  # a byte-wide sum over at most 128 bytes: compiles to vector instructions
        for byte in part:
            count = np.uint8(count + np.uint8(byte == 10))
        if (newlines + count) >> 10 != newlines >> 10:
            for i in range(part.shape[0]):
                if part[i] == 10:
                    newlines += 1
                    if newlines & 1023 == 0:
                        marks[found] = base + start + i + 1
                        found += 1
        else:
            newlines += np.int64(count)
        start += 128
    return newlines, found
