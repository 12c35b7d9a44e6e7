"""Monitors the services beside the neighbours: answers of `/livez`, memory, lag of the harness.

In: an environment. Out: `Observations`, filled until the block ends. Every executor's `/livez` is requested
five times a second; memory is read from /proc.
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

from benchmarks.waiting import beside
from tests.proof.chaos.environment import EXECUTORS, Environment
from turnstile.localservers.services import Service

PROBE_EVERY_SECONDS: Final = 0.2
_PROBE_SECONDS: Final = 5.0
_MEMORY_EVERY_SECONDS: Final = 0.5
_LAG_EVERY_SECONDS: Final = 0.05
_COMPOSE: Final = Path(__file__).parents[4] / "compose.yaml"
_UNITS: Final = {"M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One request to `/livez`."""

    service: str
    at: datetime
    seconds: float
    answer: str
    """The status, or the reason why there was none."""


@dataclass(slots=True, kw_only=True)
class Peak:
    """The most memory that a service held."""

    memory_bytes: int = 0
    at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Observations:
    """What the monitor found."""

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
async def monitoring(environment: Environment) -> AsyncIterator[Observations]:
    """Monitor until the block ends."""
    observed = Observations()
    async with httpx.AsyncClient(trust_env=False, timeout=_PROBE_SECONDS) as http:
        probes = [_probe(http, environment.services[name], observed) for name in EXECUTORS]
        async with beside([*probes, _measure(environment, observed), _notice_lag(observed)]):
            yield observed


async def _probe(http: httpx.AsyncClient, service: Service, observed: Observations) -> NoReturn:
    while True:
        at, began = datetime.now(UTC), time.monotonic()
        try:
            answer = str((await http.get(f"{service.url}/livez")).status_code)
        except httpx.HTTPError as error:
            answer = type(error).__name__
        seconds = time.monotonic() - began
        observed.probes.append(Probe(service=service.name, at=at, seconds=seconds, answer=answer))
        await asyncio.sleep(max(0.0, PROBE_EVERY_SECONDS - seconds))


async def _measure(environment: Environment, observed: Observations) -> NoReturn:
    while True:
        for name, service in environment.services.items():
            memory_bytes = _memory_of(service.pid)
            peak = observed.peaks.setdefault(name, Peak())
            if memory_bytes > peak.memory_bytes:
                peak.memory_bytes, peak.at = memory_bytes, datetime.now(UTC)
        await asyncio.sleep(_MEMORY_EVERY_SECONDS)


async def _notice_lag(observed: Observations) -> NoReturn:
    while True:
        began = time.monotonic()
        await asyncio.sleep(_LAG_EVERY_SECONDS)
        observed.worst_lag_seconds = max(
            observed.worst_lag_seconds, time.monotonic() - began - _LAG_EVERY_SECONDS
        )


def _memory_of(pid: int) -> int:
    """Return the peak of the process plus what its children hold now."""
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
