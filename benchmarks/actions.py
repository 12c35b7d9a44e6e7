"""Actions of the parts: no-ops under the limits that the parts need, and some that take 1 ms to 1 s."""

import asyncio
import os
import time
from typing import Final

from turnstile.worker import action

LIMIT: Final = 4
SHARED_UNITS: Final = 10 * LIMIT
RATE_STARTS: Final = 1000
RATE_SECONDS: Final = 1.0
JOB_SECONDS: Final = 0.02
LASTING_SECONDS: Final = 1.0


def _ten(name: str) -> tuple[str, ...]:
    return tuple(f"bench.{name}.{number}" for number in range(10))


LIMITED: Final = _ten("limited")
LOOSE: Final = _ten("loose")
"""Under a limit that is never reached."""
UNLIMITED: Final = _ten("unlimited")
SHARED: Final = _ten("shared")
"""Without limits; the part `gates` lets them share a resource of SHARED_UNITS units."""
TIMED: Final = _ten("timed")
"""At limit 4; an execution takes JOB_SECONDS."""
HELD: Final = _ten("held")
"""At limit 1 per concurrency key; an execution takes LASTING_SECONDS, so what waits hardly changes."""
KEYED: Final = "bench.keyed"
"""At limit 1 per concurrency key."""
SPREAD: Final = "bench.spread"
"""At limit 2 per concurrency key."""
TOTALED: Final = "bench.totaled"
"""The same, under the total that the part `gates` sets."""
RATED: Final = "bench.rated"
"""Without a limit, under the rate that the part `gates` sets."""
IN_A_RUN: Final = "bench.one.run"
ONE_BY_ONE: Final = "bench.one"
"""At limit 1, with and without runs."""
AT_ONCE: Final = "bench.at_once"
"""Without a limit."""
LASTING: Final = "bench.lasting"
"""Without a limit; an execution takes LASTING_SECONDS."""
BRIEF: Final = "bench.brief"
"""At limit 4; an execution takes 5 ms."""
BIMODAL: Final = "bench.bimodal"
"""At limit 4; one execution of ten takes 50 times as long as the others."""
UNEVEN: Final = "bench.uneven"
"""Without a limit; an execution takes four times as long on the first worker."""
MEASURED: Final = {"bench.measured.1": 0.001, "bench.measured.20": 0.02}
"""Without a limit; an execution takes so many seconds, and returns how many it took."""


def _declare(ref: str, max_concurrent: int | None, *, runs: bool = True) -> None:
    async def nothing(number: int = 0) -> int:
        return number

    action(ref, max_concurrent=max_concurrent, runs=runs)(nothing)


def _declare_keyed(ref: str, max_concurrent: int, seconds: float = 0.0) -> None:
    async def wait(number: int = 0, key: str = "", name: str = "") -> int:
        if seconds:
            await asyncio.sleep(seconds)
        return number

    action(ref, max_concurrent=max_concurrent, concurrency_key="/key")(wait)


def _declare_timed(ref: str, max_concurrent: int | None, seconds: float) -> None:
    async def wait(number: int = 0) -> float:
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        return time.perf_counter() - began

    action(ref, max_concurrent=max_concurrent)(wait)


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
for _ref in (*UNLIMITED, *SHARED, RATED, AT_ONCE):
    _declare(_ref, None)
_declare(IN_A_RUN, 1)
_declare(ONE_BY_ONE, 1, runs=False)
for _ref, _limit in ((KEYED, 1), (SPREAD, 2), (TOTALED, 2)):
    _declare_keyed(_ref, _limit)
for _ref in HELD:
    _declare_keyed(_ref, 1, LASTING_SECONDS)
for _ref in TIMED:
    _declare_timed(_ref, LIMIT, JOB_SECONDS)
_declare_timed(BRIEF, LIMIT, 0.005)
_declare_timed(LASTING, None, LASTING_SECONDS)
for _ref, _seconds in MEASURED.items():
    _declare_timed(_ref, None, _seconds)
