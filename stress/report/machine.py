"""The machine that a figure was measured on; a rate without it says nothing.

In: /proc and the interpreter. Out: a few words each.
"""

import os
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Self

_LIBRARIES: Final = ("turnstile", "aio-pika", "asyncpg", "uvloop", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A host, as far as its speed goes."""

    processor: str
    cores: int
    """That this process may use."""
    memory_gib: float
    kernel: str
    python: str

    @classmethod
    def here(cls) -> Self:
        """Return this one."""
        pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return cls(
            processor=_processor() or platform.machine(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            memory_gib=round(pages * page_bytes / 2**30, 1),
            kernel=f"{platform.system()} {platform.release()}",
            python=f"{sys.implementation.name} {platform.python_version()}",
        )

    def __str__(self) -> str:
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.processor}, {cores}, {self.memory_gib:g} GiB, {self.kernel}, {self.python}"


def library_versions() -> dict[str, str]:
    """Return the versions of what is installed here, by distribution."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return None
