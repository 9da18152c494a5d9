"""How fast the hosts are that a job's nodes run on, by what was measured of late."""

from __future__ import annotations

from collections import deque

from dlrover_lite.jobs.profiles import Gap
from dlrover_lite.protocol.profiles import Profile, host_speeds

__all__ = ["HostSpeeds"]

_PROFILES = 64
"""The most profiles that speeds are found by, the newest."""


class HostSpeeds:
    """Keeps what is measured on several hosts; gives the speed of a core of each, 1 being their mean."""

    def __init__(self) -> None:
        self._profiles: deque[Profile] = deque(maxlen=_PROFILES)

    def keep(self, found: Profile | Gap) -> None:
        if isinstance(found, Profile) and len(found.hosts) > 1:
            self._profiles.append(found)

    def by_host(self) -> dict[str, float]:
        """Return the speeds of hosts that nodes have run on."""
        return host_speeds(list(self._profiles))
