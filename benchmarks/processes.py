"""What processes have used, from /proc: CPU seconds of process trees, memory of one process."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.waiting import DidNotHappen
from turnstile.localservers.processes import all_stat_fields, family_of

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of these processes and their descendants, including those that have ended."""
    stats = all_stat_fields()
    return (
        sum(int(ticks) for pid in family_of(pids, stats) & stats.keys() for ticks in stats[pid][11:15])
        / _TICKS_PER_SECOND
    )


def leader_of(executor_pid: int) -> int:
    """Return the process of an executor's leader: a child process."""
    for pid, fields in all_stat_fields().items():
        if int(fields[1]) == executor_pid and "leader_process" in _command_line(pid):
            return pid
    raise DidNotHappen(f"executor {executor_pid} has no leader process")


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def memory_mb(pid: int, name: str = "VmRSS") -> float:
    """Return the resident memory of one process in MB (10^6 bytes); `VmHWM`: at its peak."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} has no memory of its own")
