"""Two executors and two workers under load and under record, while a server behind them is lost for ever.

In: URLs that name several hosts, and the URL of a broker that stays. Out: a `Loaded` that tells when work
goes on; at its end all has drained, and the whole history is held against the promises. The load is that of
chaos: limits, keys, retries, delays, cancels, requests sent twice, over AMQP and HTTP.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg
import httpx

from tests.proof.chaos.draining import drained
from tests.proof.chaos.http_submitter import HttpSubmitter
from tests.proof.chaos.load import LIMITS, SUBMITTERS, Cancel, Change, Submit, plan_load
from tests.proof.chaos.message_submitter import send_messages
from tests.proof.chaos.record import RECORD, RECORD_VARIABLE
from tests.proof.chaos.recorder import begin, read
from tests.proof.chaos.sent import Log
from tests.proof.history.runs import read_runs
from tests.proof.history.tolerances import Tolerances, Window
from tests.proof.history.verdict import violations
from tests.support.history import history_of
from tests.support.processes import System, running
from tests.support.traffic import until

_SETTLING: Final = timedelta(seconds=8.0)
"""After a loss: what the broker delivers again, one settle timeout and its tick."""
_BOUNDS: Final = Tolerances(idle_seconds=3.0, leak_seconds=6.0, reclaim_seconds=15.0, overlap_seconds=3.0)
_DRAIN_SECONDS: Final = 60.0
_ENOUGH: Final = 12
_MODULE: Final = "tests.proof.chaos.actions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The system and what is asked of it."""

    system: System
    database_url: str
    log: Log
    windows: list[Window] = field(default_factory=list)

    @asynccontextmanager
    async def losing(self, what: str) -> AsyncIterator[None]:
        """Lose a server in the block; return when requests are confirmed and runs start again."""
        began_at = datetime.now(UTC)
        started, confirmed = self._started(), self._confirmed()
        yield

        async def goes_on() -> bool:
            return self._started() >= started + _ENOUGH and self._confirmed() >= confirmed + _ENOUGH

        await until(goes_on, f"work goes on without {what}")
        self.windows.append(Window(began_at=began_at, ended_at=datetime.now(UTC) + _SETTLING, what=what))

    async def has_begun(self) -> None:
        """Wait until requests are confirmed and runs have started."""

        async def has() -> bool:
            return min(self._started(), self._confirmed()) >= _ENOUGH

        await until(has, "work begins")

    def _started(self) -> int:
        return len(read_runs(self.system.folder / RECORD))

    def _confirmed(self) -> int:
        return sum(sent.confirmed_at is not None for sent in self.log.sent.values())


@asynccontextmanager
async def loaded(
    database_url: str, amqp_url: str, *, amqp_url_that_stays: str, seconds: float
) -> AsyncIterator[Loaded]:
    """Load a system for `seconds`; at the end of the block no promise may be broken."""
    await begin(database_url, amqp_url_that_stays)
    log = Log()
    async with (
        running(database_url, amqp_url, executors=0, workers=0) as system,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        system.settings = {**system.settings, RECORD_VARIABLE: str(system.folder / RECORD)}
        await asyncio.gather(*(system.start_executor() for _ in range(2)))
        await asyncio.gather(*(system.start_worker(_MODULE) for _ in range(2)))
        under_load = Loaded(system=system, database_url=database_url, log=log)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_send_all(system, http, amqp_url, log, seconds), name="load")
            yield under_load
        await _has_drained(database_url)
        recording = await read(database_url, amqp_url_that_stays, system.folder, log)
    bounds = replace(_BOUNDS, windows=under_load.windows)
    broken = [str(violation) for violation in violations(recording, tolerances=bounds)]
    async with history_of(database_url) as history:
        broken += [*log.refused, *await history.faults()]
    lost = [f"{w.what}: {w.began_at:%H:%M:%S.%f} to {w.ended_at:%H:%M:%S.%f}" for w in under_load.windows]
    assert not broken, "\n".join([*broken, *lost])


async def _send_all(system: System, http: httpx.AsyncClient, amqp_url: str, log: Log, seconds: float) -> None:
    began = asyncio.get_running_loop().time()
    steps = [step for step in plan_load(1, seconds) if not isinstance(step, Change) and _is_short(step)]
    urls = [executor.http_url for executor in system.executors]
    async with asyncio.TaskGroup() as tasks:
        for name, way in SUBMITTERS.items():
            own: list[Submit | Cancel] = [step for step in steps if step.submitter == name]
            if way == "amqp":
                sending = send_messages(amqp_url, own, log, began)
            else:
                sending = HttpSubmitter(http, urls, log).send(own, began)
            tasks.create_task(sending, name=f"submitter-{name}")


def _is_short(step: Submit | Cancel) -> bool:
    submit = step.of if isinstance(step, Cancel) else step
    return bool(submit.body["action_ref"] != "chaos.long")


async def _has_drained(database_url: str) -> None:
    async def nothing_to_restore() -> None:
        raise AssertionError("nobody changes an action here")

    connection = await asyncpg.connect(database_url)
    try:
        left = await drained(connection, LIMITS, nothing_to_restore, patience_seconds=_DRAIN_SECONDS)
    finally:
        await connection.close()
    assert left == {}
