"""Looks at the services while the neighbours disturb: do they answer, how much memory do they hold?

In: a ground. Out: a `Watch`, filled until its block ends. `/livez` is asked of every executor five times a
second; memory is read from /proc. How late the harness itself is stands beside it, being no service's fault.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import httpx
import yaml

from tests.proof.chaos.ground import EXECUTORS, Ground
from turnstile.localservers.services import Service

PROBE_EVERY_SECONDS: Final = 0.2
_PROBE_SECONDS: Final = 5.0
_MEMORY_EVERY_SECONDS: Final = 0.5
_LAG_EVERY_SECONDS: Final = 0.05
_COMPOSE: Final = Path(__file__).parents[4] / "compose.yaml"
_UNITS: Final = {"M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question to `/livez`."""

    service: str
    at: datetime
    seconds: float
    said: str
    """The status, or why there was no answer."""


@dataclass(slots=True, kw_only=True)
class Peak:
    """The most memory that a service ever held."""

    memory_bytes: int = 0
    at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Watch:
    """What was seen."""

    probes: list[Probe] = field(default_factory=list)
    peaks: dict[str, Peak] = field(default_factory=dict)
    worst_lag_seconds: float = 0.0
    """How late the harness itself was at most."""


def memory_limits() -> Mapping[str, int]:
    """Return what the deployment allows an executor and a worker, in bytes."""
    services = yaml.safe_load(_COMPOSE.read_text())["services"]
    written = {
        name: services[name]["deploy"]["resources"]["limits"]["memory"] for name in ("executor", "worker")
    }
    return {name: int(size[:-1]) * _UNITS[size[-1]] for name, size in written.items()}


@asynccontextmanager
async def watching(ground: Ground) -> AsyncIterator[Watch]:
    """Look until the block ends."""
    watch = Watch()
    async with httpx.AsyncClient(trust_env=False, timeout=_PROBE_SECONDS) as http:
        looking = [
            *(asyncio.create_task(_probe(http, ground.services[name], watch)) for name in EXECUTORS),
            asyncio.create_task(_measure(ground, watch)),
            asyncio.create_task(_notice_lag(watch)),
        ]
        try:
            yield watch
        finally:
            for task in looking:
                task.cancel()
            ended = await asyncio.gather(*looking, return_exceptions=True)
    for each in ended:
        if isinstance(each, Exception):
            raise each


async def _probe(http: httpx.AsyncClient, service: Service, watch: Watch) -> NoReturn:
    while True:
        at, began = datetime.now(UTC), time.monotonic()
        try:
            said = str((await http.get(f"{service.url}/livez")).status_code)
        except httpx.HTTPError as error:
            said = type(error).__name__
        seconds = time.monotonic() - began
        watch.probes.append(Probe(service=service.name, at=at, seconds=seconds, said=said))
        await asyncio.sleep(max(0.0, PROBE_EVERY_SECONDS - seconds))


async def _measure(ground: Ground, watch: Watch) -> NoReturn:
    while True:
        for name, service in ground.services.items():
            memory_bytes = _memory_of(service.pid)
            peak = watch.peaks.setdefault(name, Peak())
            if memory_bytes > peak.memory_bytes:
                peak.memory_bytes, peak.at = memory_bytes, datetime.now(UTC)
        await asyncio.sleep(_MEMORY_EVERY_SECONDS)


async def _notice_lag(watch: Watch) -> NoReturn:
    while True:
        began = time.monotonic()
        await asyncio.sleep(_LAG_EVERY_SECONDS)
        watch.worst_lag_seconds = max(watch.worst_lag_seconds, time.monotonic() - began - _LAG_EVERY_SECONDS)


def _memory_of(pid: int) -> int:
    """Return what it held at most, so that no peak falls between two looks, and what its children hold."""
    return _status_bytes(pid, "VmHWM") + sum(_status_bytes(child, "VmRSS") for child in _offspring(pid))


def _offspring(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _offspring(child)


def _status_bytes(pid: int, name: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
