"""Control groups of a pod, for what stands in for a kubelet: version 1, as root."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 100_000
_UNLIMITED = -1


def available() -> bool:
    return all((_ROOT / controller / "cgroup.procs").exists() for controller in ("cpu", "memory"))


class PodGroups:
    """A group for CPU and one for memory."""

    def __init__(self, name: str) -> None:
        self.paths = [str(_ROOT / controller / f"pods-{name}") for controller in ("cpu", "memory", "cpuacct")]
        for path in self.paths:
            Path(path).mkdir(exist_ok=True)
        self._cpu, self._memory, _ = map(Path, self.paths)

    def limit(self, cores: float, memory: int) -> None:
        """Limit them; 0: no limit."""
        quota = int(cores * _PERIOD_MICROSECONDS) if cores else _UNLIMITED
        (self._cpu / "cpu.cfs_quota_us").write_text(str(quota))
        (self._memory / "memory.limit_in_bytes").write_text(str(memory or _UNLIMITED))

    def killed(self) -> bool:
        """Say whether the kernel has killed anything here for want of memory."""
        lines = (self._memory / "memory.oom_control").read_text().splitlines()
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)

    def remove(self) -> None:
        for path in self.paths:
            with suppress(OSError):  # a process of it is just ending
                Path(path).rmdir()
