"""Two executors and two workers under load and under record, while a server behind them is lost for ever.

In: URLs that name several hosts, and the URL of a broker that stays. Out: a `LoadedSystem` that waits until
work continues; at its end everything has drained, and the whole history is held against the promises. The
load is that of chaos: limits, keys, gates, retries, delays, cancels, requests sent twice, over AMQP and HTTP.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import httpx

from tests.proof.chaos.environment import drain
from tests.proof.chaos.history import Window, witnessed
from tests.proof.chaos.judge import Bounds, judged
from tests.proof.chaos.listener import declare_listener
from tests.proof.chaos.load import NUMBERS, Cancel, Change, Step, gates_defined, plan_load
from tests.proof.chaos.submitters import HttpSubmitter, SubmitLog, send_all
from tests.proof.run_log import RUN_LOG, RUN_LOG_VARIABLE, read_runs
from tests.support.history import history_of
from tests.support.processes import System, running
from tests.support.traffic import until

_SETTLING: Final = timedelta(seconds=8.0)
"""After a loss: a takeover, new sessions of the workers, and one lease."""
_WORKERS: Final = 2
_CONCURRENCY: Final = 8
_BOUNDS: Final = Bounds(idle_seconds=3.0, overlap_seconds=3.0, worker_slots=_WORKERS * _CONCURRENCY)
_DRAIN_SECONDS: Final = 60.0
_ENOUGH: Final = 12
_ACTIONS: Final = "tests.proof.chaos.actions"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSystem:
    """The system and its load."""

    system: System
    log: SubmitLog
    windows: list[Window] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def losing(self, what: str) -> AsyncIterator[None]:
        """Lose a server in the block; return when requests are confirmed and runs start again."""
        began_at = datetime.now(UTC)
        started, confirmed = self._started(), self.log.confirmed
        yield

        async def continues() -> bool:
            return self._started() >= started + _ENOUGH and self.log.confirmed >= confirmed + _ENOUGH

        await until(continues, f"work continues without {what}")
        window = Window(began_at=began_at, ended_at=datetime.now(UTC) + _SETTLING)
        self.windows.append(window)
        self.lost.append(f"{what}: {window.began_at:%H:%M:%S.%f} to {window.ended_at:%H:%M:%S.%f}")

    async def until_begun(self) -> None:
        """Wait until requests are confirmed and runs have started."""

        async def has_begun() -> bool:
            return min(self._started(), self.log.confirmed) >= _ENOUGH

        await until(has_begun, "work begins")

    def _started(self) -> int:
        return len(read_runs(self.system.folder / RUN_LOG))


@asynccontextmanager
async def loaded(
    database_url: str, amqp_url: str, *, amqp_url_that_stays: str, seconds: float
) -> AsyncIterator[LoadedSystem]:
    """Load a system for `seconds`; at the end of the block no promise may be broken."""
    await declare_listener(amqp_url_that_stays)
    log = SubmitLog()
    settings = {"TURNSTILE_WORKER_CONCURRENCY": str(_CONCURRENCY)}
    async with (
        running(database_url, amqp_url, executors=0, workers=0, settings=settings) as system,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        system.settings = {**system.settings, RUN_LOG_VARIABLE: str(system.folder / RUN_LOG)}
        await asyncio.gather(*(system.start_executor() for _ in range(2)))
        await asyncio.gather(*(system.start_worker(_ACTIONS) for _ in range(_WORKERS)))
        under_load = LoadedSystem(system=system, log=log)
        urls = [executor.http_url for executor in system.executors]
        await HttpSubmitter(http, urls, log).send(gates_defined(), asyncio.get_running_loop().time())
        steps = [step for step in plan_load(1, seconds) if _is_short(step)]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_all(amqp_url, http, urls, steps, log), name="load")
            yield under_load
        assert await drain(database_url, NUMBERS, None, deadline_seconds=_DRAIN_SECONDS) == {}
        broken = await _broken(database_url, amqp_url_that_stays, under_load)
    assert not broken, "\n".join([*broken, *under_load.lost])


async def _broken(database_url: str, amqp_url: str, load: LoadedSystem) -> list[str]:
    """Return what the whole history breaks."""
    folder, windows = load.system.folder, load.windows
    seen = await witnessed(database_url, amqp_url, folder, load.log)
    broken, _ = judged(seen, replace(_BOUNDS, windows=windows, overlap_windows=windows))
    async with history_of(database_url) as history:
        return [*broken, *load.log.refused, *await history.faults()]


def _is_short(step: Step) -> bool:
    """Leave out changes of actions, and runs that are longer than the load."""
    if isinstance(step, Change):
        return False
    submit = step.of if isinstance(step, Cancel) else step
    return bool(submit.body["action_ref"] != "chaos.long")
