"""Actions of the parts: no-ops under the limits that the parts need, and some that take 1 ms to 1 s."""

import asyncio
import os
import time
from typing import Final

from turnstile.worker import action

LIMITED: Final = tuple(f"bench.limited.{number}" for number in range(10))
UNLIMITED: Final = tuple(f"bench.unlimited.{number}" for number in range(10))
LOOSE: Final = tuple(f"bench.loose.{number}" for number in range(10))
"""Under a limit that is never reached."""
IN_A_RUN: Final = "bench.one.run"
ONE_BY_ONE: Final = "bench.one"
"""At limit 1, with and without runs."""
AT_ONCE: Final = "bench.at_once"
KEYED: Final = "bench.keyed"
"""At limit 1 per concurrency key."""
TIMED: Final = tuple(f"bench.timed.{number}" for number in range(10))
"""At limit 4; an execution takes JOB_SECONDS."""

HELD: Final = tuple(f"bench.held.{number}" for number in range(10))
"""At limit 1 per concurrency key; an execution takes HELD_SECONDS, so what waits hardly changes."""
MEASURED: Final = {"bench.measured.1": 0.001, "bench.measured.20": 0.02}
"""Without a limit; an execution takes so many seconds, and returns how many it took."""

BRIEF: Final = "bench.brief"
"""At limit 4; an execution takes 5 ms."""
LASTING: Final = "bench.lasting"
"""Without a limit; an execution takes LASTING_SECONDS."""
BIMODAL: Final = "bench.bimodal"
"""At limit 4; one execution of ten takes 50 times as long as the others."""
UNEVEN: Final = "bench.uneven"
"""Without a limit; an execution takes four times as long on the first worker."""

SHARED: Final = tuple(f"bench.shared.{number}" for number in range(10))
"""Without limits; the part `gates` lets them share a resource of SHARED_UNITS units."""
SPREAD: Final = "bench.spread"
"""At limit 2 per concurrency key."""
TOTALED: Final = "bench.totaled"
"""The same, under the total that the part `gates` sets."""
RATED: Final = "bench.rated"
"""Without a limit, under the rate that the part `gates` sets."""

LIMIT: Final = 4
SHARED_UNITS: Final = 10 * LIMIT
RATE_STARTS: Final = 1000
RATE_SECONDS: Final = 1.0
JOB_SECONDS: Final = 0.02
HELD_SECONDS: Final = 1.0
LASTING_SECONDS: Final = 1.0


def _declare(ref: str, max_concurrent: int | None, *, runs: bool = True) -> None:
    async def nothing(number: int = 0) -> int:
        return number

    action(ref, max_concurrent=max_concurrent, runs=runs)(nothing)


def _declare_keyed(ref: str, max_concurrent: int) -> None:
    async def nothing(number: int = 0, key: str = "") -> int:
        return number

    action(ref, max_concurrent=max_concurrent, concurrency_key="/key")(nothing)


def _declare_held(ref: str) -> None:
    async def wait(number: int = 0, key: str = "", name: str = "") -> int:
        await asyncio.sleep(HELD_SECONDS)
        return number

    action(ref, max_concurrent=1, concurrency_key="/key")(wait)


def _declare_timed(ref: str) -> None:
    async def wait(number: int = 0) -> int:
        await asyncio.sleep(JOB_SECONDS)
        return number

    action(ref, max_concurrent=LIMIT)(wait)


def _declare_measured(ref: str, seconds: float) -> None:
    async def wait(number: int = 0) -> float:
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        return time.perf_counter() - began

    action(ref)(wait)


@action(BRIEF, max_concurrent=LIMIT)
async def brief(number: int = 0) -> None:
    """Take 5 ms."""
    await asyncio.sleep(0.005)


@action(LASTING)
async def lasting(number: int = 0) -> None:
    """Take a second."""
    await asyncio.sleep(LASTING_SECONDS)


@action(BIMODAL, max_concurrent=LIMIT)
async def bimodal(number: int = 0) -> None:
    """Take 2 ms, or 100 ms."""
    await asyncio.sleep(0.1 if number % 10 == 0 else 0.002)


@action(UNEVEN)
async def uneven(number: int = 0) -> None:
    """Take 5 ms, or 20 ms on the slow worker."""
    is_slow = os.environ.get("TURNSTILE_WORKER_NAME") == "bench-0"
    await asyncio.sleep(0.02 if is_slow else 0.005)


for _ref in LIMITED:
    _declare(_ref, LIMIT)
for _ref in LOOSE:
    _declare(_ref, 10_000)
for _ref in (*UNLIMITED, AT_ONCE, *SHARED, RATED):
    _declare(_ref, None)
_declare(IN_A_RUN, 1)
_declare(ONE_BY_ONE, 1, runs=False)
_declare_keyed(KEYED, 1)
for _ref in (SPREAD, TOTALED):
    _declare_keyed(_ref, 2)
for _ref in HELD:
    _declare_held(_ref)
for _ref in TIMED:
    _declare_timed(_ref)
for _ref, _seconds in MEASURED.items():
    _declare_measured(_ref, _seconds)
