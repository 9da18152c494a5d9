"""How many ids of an evaluation had never been trained: when that is more than it should be, and how it is said. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["unknown_text", "unusual_ids", "usual_shares", "warnings_of"]

LEAST_SAMPLES = 100
"""Number of samples below which shares say little."""
LEAST_DIFFERENCE = 0.1
ODDS = 4.0
"""Factor on the usual odds above which a share's odds are far above them. Data of another day has up to twice; ids that are written in
another way are all unknown."""
ALONE = 0.5
"""Share above which it is too large where nothing is known to compare with."""


def unusual_ids(shares: Mapping[str, float], usual: Mapping[str, float], *, samples: int) -> dict[str, float | None]:
    """Find the columns whose share of unknown ids is far above the usual one, and that one (None: it isn't known)."""
    return {
        column: usual.get(column)
        for column, share in shares.items()
        if samples >= LEAST_SAMPLES and _is_far_above(share, usual.get(column))
    }


def _is_far_above(share: float, usual: float | None) -> bool:
    if usual is None:
        return share > ALONE
    return share - usual >= LEAST_DIFFERENCE and share * (1 - usual) > ODDS * usual * (1 - share)


def usual_shares(shares: Mapping[str, float], unusual: Mapping[str, float | None]) -> dict[str, float]:
    """Return what the next evaluation's shares are to be compared with: those of the last one, or where they were unusual what those were
    compared with. Columns that nothing is known of are left out."""
    known = {column: unusual.get(column, share) for column, share in shares.items()}
    return {column: share for column, share in known.items() if share is not None}


def unknown_text(shares: Mapping[str, float], most: int) -> str:
    """Write the columns with the largest shares, ``most`` of them: "user 3.1%, item 0.2%, 24 more at most 0.1%"; "" without any column."""
    ordered = sorted(shares, key=lambda column: -shares[column])
    shown = [f"{column} {_percent(shares[column])}" for column in ordered[:most]]
    if more := ordered[most:]:
        shown.append(f"{len(more)} more at most {_percent(shares[more[0]])}")
    return ", ".join(shown)


def warnings_of(shares: Mapping[str, float], unusual: Mapping[str, float | None]) -> Iterator[str]:
    """Write a sentence for each unusual column."""
    for column, usual in unusual.items():
        before = "" if usual is None else f", where {_percent(usual)} are usual"
        yield (
            f"{_percent(shares[column])} of the ids evaluated in column {column!r} were never trained{before}: "
            "check that they are written as in training"
        )


def _percent(share: float) -> str:
    if 0 < share < 0.0005:
        return "under 0.1%"
    if 0.9995 <= share < 1:
        return "over 99.9%"
    return f"{100 * share:.3g}%"
