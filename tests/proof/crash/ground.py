"""What all trials of a round stand on: one database and one vhost under record, one worker, no executor yet.

In: URLs of a migrated database and a vhost. Out: a `Ground` on which trials start executors and workers, and
which tells whether all has drained and what the history says. Next: `trial`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import aio_pika
import asyncpg
import httpx

from tests.proof.crash.actions import RECORD
from tests.proof.crash.client import Client
from tests.proof.history.log import Connection, install
from tests.proof.history.recording import Recording
from tests.proof.history.tap import declare_tap
from tests.proof.history.tolerances import Tolerances, Window
from tests.proof.history.verdict import violations
from tests.proof.history.witnesses import gather
from tests.support.history import History, history_of
from tests.support.processes import Service, System, running
from tests.support.traffic import publishing, until
from turnstile.common.broker.topology import DEAD_LETTERS

ACTIONS: Final = "tests.proof.crash.actions"
LEASE_SECONDS: Final = 3.0
SETTINGS: Final = {
    "TURNSTILE_LEASE_DURATION": f"{LEASE_SECONDS}s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
    "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    "TURNSTILE_DISPATCH_TIMEOUT": "1s",
    "TURNSTILE_SETTLE_TIMEOUT": "1s",
    "TURNSTILE_STOP_TIMEOUT": "300ms",
    "TURNSTILE_WEBHOOK_TIMEOUT": "1s",
    "TURNSTILE_STOP_GRACE": "300ms",
    "TURNSTILE_WORKER_POOLS": "default",
}
_BOUNDS: Final = Tolerances(
    # Each a multiple of what the settings promise: the machine may be busy.
    idle_seconds=3.0,
    leak_seconds=5.0,
    reclaim_seconds=2 * LEASE_SECONDS + 3.0,
    overlap_seconds=2.0,
)
_PATIENCE_SECONDS: Final = 30.0
_LEFT: Final = """
SELECT (SELECT count(*) FROM execution) >= $1
   AND NOT EXISTS (SELECT FROM execution WHERE completed_at IS NULL)
   AND NOT EXISTS (SELECT FROM slot) AND NOT EXISTS (SELECT FROM waiting)
   AND NOT EXISTS (SELECT FROM delayed) AND NOT EXISTS (SELECT FROM untold_end)
"""


@dataclass(slots=True, kw_only=True)
class Ground:
    """The round's system, its client, and its history so far."""

    system: System
    client: Client
    connection: Connection
    history: History
    executor: Service | None = None
    """The one that is to stay, if there is one."""
    armed: list[Service] = field(default_factory=list)
    """The processes that are to die."""
    windows: list[Window] = field(default_factory=list)

    async def replace_executor(self) -> Service:
        """Start the executor that is to stay, and ask it again what the dead one did not answer."""
        assert self.executor is None
        self.executor = await self.system.start_executor()
        await self.client.post_again(self.executor.http_url)
        await self.client.replay_dead_letters(self.executor.http_url)
        return self.executor

    async def without_executor(self) -> None:
        """Kill the executor that stays, if there is one."""
        if self.executor is not None:
            executor, self.executor = self.executor, None
            await executor.kill()

    async def purge(self, name: str) -> int:
        """Throw away what waits in a queue; return how many messages that were."""
        async with await aio_pika.connect(self.system.amqp_url) as connection:
            channel = await connection.channel()
            try:
                queue = await channel.get_queue(name)
            except aio_pika.exceptions.ChannelNotFoundEntity:
                return 0
            return (await queue.purge()).message_count or 0

    async def while_armed(self, condition: Callable[[], Awaitable[bool]]) -> bool:
        """Wait until the condition holds, but not for ever, and not for the dead; tell whether it held."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while any(armed.process.returncode is None for armed in self.armed):
            if asyncio.get_running_loop().time() > deadline:
                return False
            if await condition():
                return True
            await asyncio.sleep(0.02)
        return False

    async def pause(self, *, paused: bool) -> None:
        """Pause `crash.one`, or end that, behind everybody's back: nothing is granted by it."""
        async with self.connection.transaction():
            action_id = await self.connection.fetchval(
                "UPDATE action SET paused = $1 WHERE ref = 'crash.one' RETURNING id", paused
            )
            await self.connection.execute(
                "UPDATE action_queue SET paused = $1 WHERE action_id = $2", paused, action_id
            )

    async def drained(self) -> list[str]:
        """Cancel what has to be, wait until all that was asked for has ended and been told; say if not."""
        await self.client.cancel_what_is_left()

        async def nothing_is_left() -> bool:
            if self.executor is not None and not await self.has_taken_all():
                # A letter may have come to its row only after the last replay.
                await self.client.replay_dead_letters(self.executor.http_url)
            return bool(await self.connection.fetchval(_LEFT, len(self.client.submitted)))

        try:
            await until(nothing_is_left, "all has drained", deadline_seconds=_PATIENCE_SECONDS)
        except AssertionError as late:
            return [str(late)]
        return []

    async def has_taken_all(self) -> bool:
        """Tell whether all that was asked for is in the record."""
        return bool(
            await self.connection.fetchval("SELECT count(*) >= $1 FROM execution", len(self.client.submitted))
        )

    async def recording(self) -> Recording:
        """Return the history so far."""
        return await gather(
            self.connection,
            self.system.amqp_url,
            runs=self.system.folder / RECORD,
            submitted=self.client.submitted,
        )

    async def faults(self) -> list[str]:
        """Return what is wrong by the history, by a recount of the rows, and among the dead letters."""
        bounds = replace(_BOUNDS, windows=self.windows)
        broken = [str(v) for v in violations(await self.recording(), tolerances=bounds)]
        return [*broken, *await self.history.faults(), *await self._dead_letters()]

    @asynccontextmanager
    async def window(self, what: str) -> AsyncIterator[None]:
        """Hold no time against the bounds in this block, and none that healing takes after it."""
        began_at = datetime.now(UTC)
        try:
            yield
        finally:
            self.windows.append(Window(began_at=began_at, ended_at=datetime.now(UTC), what=what))

    async def _dead_letters(self) -> list[str]:
        async with await aio_pika.connect(self.system.amqp_url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(DEAD_LETTERS, passive=True)
            count = queue.declaration_result.message_count or 0
        count += await self.connection.fetchval("SELECT count(*) FROM dead_letter")
        return [f"{count} dead letters"] if count else []


@asynccontextmanager
async def standing_ground(database_url: str, amqp_url: str) -> AsyncIterator[Ground]:
    """Start the record and the worker; at the end no process is left."""
    connection = await asyncpg.connect(database_url)
    try:
        await install(connection)
        await declare_tap(amqp_url)
        async with (
            running(database_url, amqp_url, executors=0, workers=0, settings=SETTINGS) as system,
            publishing(amqp_url) as publisher,
            httpx.AsyncClient(trust_env=False, timeout=10) as http,
            history_of(database_url) as history,
        ):
            system.settings = {**system.settings, RECORD: str(system.folder / RECORD)}
            await system.start_worker(ACTIONS)
            yield Ground(
                system=system,
                client=Client(publisher=publisher, http=http),
                connection=connection,
                history=history,
            )
    finally:
        await connection.close()
