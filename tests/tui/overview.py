"""A machine and a cluster with jobs, as the overview has them."""

from __future__ import annotations

from dlrover_lite.core.units import GIB
from dlrover_lite.tui.model import Given, HostRow, HostShare, JobRow, JobsView, Look
from tests.tui.fixed import NOW


def job(
    name: str, *given: tuple[float, float, float], source: str = "", state: str = "training", **more: object
) -> JobRow:
    """Make a job of steps: seconds before now, cores, GiB."""
    steps = tuple(Given(NOW - ago, cores, int(memory * GIB)) for ago, cores, memory in given)
    last = steps[-1] if steps else None
    plain: dict[str, object] = {
        "created_at": steps[0].at - 5 if steps else NOW - 30,
        "cores": last.cores if last else None,
        "used_cores": 0.8 * last.cores if last else None,
        "memory": last.memory if last else None,
        "used_memory": last.memory // 2 if last else None,
        "workers": 3,
        "servers": 1,
        "rate": 52_000.0,
    }
    return JobRow(id=name, state=state, source=source, given=steps, **(plain | more))  # type: ignore[arg-type]


ADS = job("ads-7f3k2m1p", (3000, 1.0, 1.0), (2000, 2.5, 1.5), (700, 1.5, 2.0), look=Look(NOW + 7.0))
FEED = job("feed-7f3k2q8d", (1500, 1.0, 3.0), (600, 2.0, 3.0))
GONE = job("gone-7f3k2aaa", (2500, 1.0, 0.5), state="succeeded", ended_at=NOW - 1600, cores=None)
WAITS = job(
    "rank-7f3k2zzz",
    state="queued",
    message="it waits, number 1 in the queue: its smallest plan (1.5 cores) doesn't fit",
)
LONG_GONE = job("old-7f3jxx90", (90_000, 4.0, 4.0), state="succeeded", ended_at=NOW - 80_000)
FAR = job(
    "wide-7f3k2bbb",
    (2800, 8.0, 20.0),
    (900, 14.0, 30.0),
    source="gke/ml",
    hosts=(HostShare("gke-pool-1", 2, 1, 8.0, 16 * GIB), HostShare("gke-pool-2", 1, 0, 6.0, 14 * GIB)),
)
HERE = HostRow("", "", 4.0, 8 * GIB)
HOSTS = tuple(HostRow("gke/ml", f"gke-pool-{at}", 8.0, 32 * GIB) for at in range(1, 4))
OVERVIEW = JobsView({one.id: one for one in (WAITS, FEED, ADS, GONE, FAR, LONG_GONE)}, "listens", None, (HERE, *HOSTS))
