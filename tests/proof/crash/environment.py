"""The system of all trials of a round: one database and one vhost under record, one worker, no executor yet.

In: URLs of a migrated database and a vhost. Out: an `Environment`, in which trials start executors and
workers, with a `Client` that submits, and which knows whether everything has drained and what is wrong with
the history.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import aio_pika
import httpx

from tests.proof.crash.actions import DEFAULT, DESKS, LICENCES, UNSERVED
from tests.proof.history.checker import violations
from tests.proof.history.recorder import read_recording, start_recording
from tests.proof.history.recording import Bounds, Submitted, Window
from tests.proof.history.run_log import RUN_LOG, RUN_LOG_VARIABLE
from tests.support.brokers import ready_messages
from tests.support.history import History, history_of
from tests.support.processes import Service, System, running
from tests.support.traffic import cancel_request, publishing, request, until
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import DEAD_LETTER_EXCHANGE, DEAD_LETTERS
from turnstile.common.domain.errors import Code
from turnstile.common.envelopes import DIED_AT_HEADER, ERROR_CODE_HEADER, ORIGINAL_KEY_HEADER

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
    "TURNSTILE_WORKER_POOLS": DEFAULT,
}
_BOUNDS: Final = Bounds(
    # Each a multiple of what the settings promise: the machine may be busy.
    idle_seconds=3.0,
    leak_seconds=5.0,
    reclaim_seconds=2 * LEASE_SECONDS + 3.0,
    overlap_seconds=2.0,
)
_DEADLINE_SECONDS: Final = 30.0
_DRAINED: Final = """
SELECT (SELECT count(*) FROM execution) >= $1
   AND NOT EXISTS (SELECT FROM execution WHERE completed_at IS NULL)
   AND NOT EXISTS (SELECT FROM slot) AND NOT EXISTS (SELECT FROM waiting)
   AND NOT EXISTS (SELECT FROM submission)
   AND NOT EXISTS (SELECT FROM delayed) AND NOT EXISTS (SELECT FROM unpublished_completion)
   AND NOT EXISTS (
       SELECT FROM turnstile.current_gate WHERE held > 0 OR depth > 0 OR returning_from IS NOT NULL)
"""
_RESOURCE: Final = """
SELECT turnstile.put_resource(jsonb_build_object(
    'name', $1::text, 'capacity', $2::integer, 'rank', $3::integer, 'fair', $4::boolean, 'paused', false))
"""
Body = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Client:
    """One submitter over AMQP, one over HTTP, and the log of what they sent: the witness of P5.

    Each request has a tag in its metadata, which means nothing to the services. Requests over HTTP have an
    idempotency key: without an answer they are sent again.
    """

    publisher: Publisher
    http: httpx.AsyncClient
    submitted: list[Submitted] = field(default_factory=list)
    _keys_to_cancel: list[str] = field(default_factory=list)
    _unanswered: list[tuple[int, Body]] = field(default_factory=list)

    async def publish(self, *bodies: Body) -> str:
        """Submit over AMQP, in this order, confirmed; returns the tag of the last."""
        await self._confirmed([request(self._tagged("amqp", body, confirmed=True)) for body in bodies])
        return self.submitted[-1].tag

    async def submit_in_transaction(self, history: History, body: Body) -> None:
        """Submit in a session of the database."""
        tagged = self._tagged("transaction", body, confirmed=True)
        await history.value(
            "SELECT turnstile.submit($1, metadata => $2::text::jsonb)",
            tagged["action_ref"],
            json.dumps(tagged["metadata"]),
        )

    async def publish_dead_letter(self, body: Body) -> None:
        """Publish a request to the dead letters, as if it had been refused for a reason that is gone."""
        message = request(self._tagged("dead letter", body, confirmed=True))
        died = {
            ERROR_CODE_HEADER: str(Code.UNAVAILABLE),
            ORIGINAL_KEY_HEADER: message.routing_key,
            DIED_AT_HEADER: datetime.now(UTC).isoformat(),
        }
        await self._confirmed(
            [replace(message, exchange=DEAD_LETTER_EXCHANGE, headers={**(message.headers or {}), **died})]
        )

    async def replay_dead_letters(self, url: str) -> None:
        """Replay all dead letters."""
        answer = await self.http.post(f"{url}/api/v1/dead-letters/replay", json={"all": True})
        assert answer.status_code == httpx.codes.OK, answer.text

    async def publish_cancels(self, *keys: str) -> None:
        """Cancel by idempotency keys."""
        await self._confirmed([cancel_request({"idempotency_key": key}) for key in keys])

    async def publish_to_cancel(self, ref: str, **fields: object) -> str:
        """Submit over AMQP what does not end by itself; returns its tag."""
        self._keys_to_cancel.append(key := f"to cancel {len(self.submitted)}")
        return await self.publish({"action_ref": ref, "idempotency_key": key, **fields})

    async def post_to_cancel(self, url: str, body: Body) -> int | None:
        """Submit over HTTP what does not end by itself; returns its id, if there was an answer."""
        self._keys_to_cancel.append(f"http {len(self.submitted)}")
        await self.post(url, body)
        return self.submitted[-1].execution_id

    async def cancel_what_is_left(self) -> None:
        """Cancel everything that does not end by itself."""
        keys, self._keys_to_cancel = self._keys_to_cancel, []
        await self.publish_cancels(*keys)

    async def post(self, url: str, body: Body) -> None:
        """Submit over HTTP; without an answer it is left for `post_again`."""
        key = f"http {len(self.submitted)}"
        tagged = self._tagged("http", {**body, "idempotency_key": key}, confirmed=False)
        self._unanswered.append((len(self.submitted) - 1, tagged))
        await self.post_again(url)

    async def post_again(self, url: str) -> None:
        """Send in order what has no answer yet, until one is missing again."""
        while self._unanswered:
            index, body = self._unanswered[0]
            try:
                answer = await self.http.post(f"{url}/api/v1/executions", json=body)
            except httpx.HTTPError:
                return
            assert answer.status_code in (httpx.codes.OK, httpx.codes.ACCEPTED), answer.text
            execution_id = answer.json()["id"]
            self.submitted[index] = replace(self.submitted[index], confirmed=True, execution_id=execution_id)
            del self._unanswered[0]

    async def _confirmed(self, messages: Sequence[Any]) -> None:
        outcomes = await self.publisher.publish(messages)
        assert all(outcome is Publication.CONFIRMED for outcome in outcomes)

    def _tagged(self, submitter: str, body: Body, *, confirmed: bool) -> Body:
        number = len(self.submitted)
        tag = f"{submitter} {number}"
        self.submitted.append(Submitted(submitter=submitter, number=number, tag=tag, confirmed=confirmed))
        return {**body, "metadata": {"tag": tag}}


async def submit_everything(client: Client, url: str) -> None:
    """Submit one of each action; one is cancelled at once."""
    key = f"key {len(client.submitted)}"
    soon = (datetime.now(UTC) + timedelta(milliseconds=300)).isoformat()
    await client.publish(
        {"action_ref": "crash.one"},
        {"action_ref": "crash.one", "idempotency_key": key},
        {"action_ref": "crash.two"},
        {"action_ref": "crash.free"},
        {"action_ref": "crash.keyed", "parameters": {"customer": "first"}},
        {"action_ref": "crash.keyed", "parameters": {"customer": "second"}, "idempotency_key": f"{key} b"},
        {"action_ref": "crash.retried"},
        {"action_ref": "crash.licensed"},
        {"action_ref": "crash.seated"},
        {"action_ref": "crash.free", "run_at": soon},
    )
    await client.publish_cancels(key)
    await client.post(url, {"action_ref": "crash.two"})


@dataclass(slots=True, kw_only=True)
class Environment:
    """The system of the round, its client, and its history so far."""

    system: System
    client: Client
    history: History
    executor: Service | None = None
    """The one that stays, if there is one."""
    armed: list[Service] = field(default_factory=list)
    """The processes that will kill themselves."""
    windows: list[Window] = field(default_factory=list)

    async def replace_executor(self) -> Service:
        """Start the executor that stays, and send it again what the dead one did not answer."""
        assert self.executor is None
        self.executor = await self.system.start_executor()
        await self.client.post_again(self.executor.http_url)
        await self.client.replay_dead_letters(self.executor.http_url)
        return self.executor

    async def kill_executor(self) -> None:
        """Kill the executor that stays, if there is one."""
        if self.executor is not None:
            executor, self.executor = self.executor, None
            await executor.kill()

    async def until_while_armed(self, query: str, *arguments: Any) -> bool:
        """Wait until the query's value is true, while armed processes live; return whether it is."""
        deadline = asyncio.get_running_loop().time() + _DEADLINE_SECONDS
        while any(armed.process.returncode is None for armed in self.armed):
            if await self.history.value(query, *arguments):
                return True
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.02)
        return False

    async def until_all_admitted(self) -> None:
        """Wait, while armed processes live, until everything submitted is an execution."""
        await self.until_while_armed("SELECT count(*) >= $1 FROM execution", len(self.client.submitted))

    async def pause(self, *, paused: bool) -> None:
        """Pause `crash.one`, or end that, in the database only: nothing is granted by it."""
        await self.history.rows(
            "WITH changed AS (UPDATE action SET paused = $1 WHERE ref = 'crash.one' RETURNING id)"
            " UPDATE action_queue q SET paused = $1 FROM changed c WHERE q.action_id = c.id",
            paused,
        )

    async def pause_pool(self, *, paused: bool) -> None:
        """Pause the pool of the workers, or end that, in the database only: nothing is granted by it."""
        await self.history.rows(
            "SELECT turnstile.put_pool(jsonb_build_object('name', $1::text, 'fair', true,"
            " 'weights', '{}'::jsonb, 'paused', $2::boolean))",
            DEFAULT,
            paused,
        )

    async def put_desks(self, capacity: int = 2) -> None:
        """Give the shared resource so many units, in the database only: nothing is granted by it."""
        await self.history.rows(_RESOURCE, DESKS, capacity, 2, True)

    async def drain(self) -> list[str]:
        """Cancel what does not end by itself and wait until everything has ended; return what is wrong."""
        if self.executor is not None:
            # An executor that died beside this one may have left requests without an answer.
            await self.client.post_again(self.executor.http_url)
        await self.client.cancel_what_is_left()
        count = len(self.client.submitted)

        async def has_drained() -> bool:
            admitted = await self.history.value("SELECT count(*) FROM execution")
            if self.executor is not None and admitted < count:
                # A dead letter may have been stored only after the last replay.
                await self.client.replay_dead_letters(self.executor.http_url)
            return bool(await self.history.value(_DRAINED, count))

        try:
            await until(has_drained, "everything has drained", deadline_seconds=_DEADLINE_SECONDS)
        except AssertionError as late:
            return [str(late)]
        return []

    async def faults(self) -> list[str]:
        """Return what is wrong with the history, by a recount of the rows, and the count of dead letters."""
        system = self.system
        recording = await read_recording(
            system.database_url, system.amqp_url, system.folder, self.client.submitted
        )
        bounds = replace(_BOUNDS, windows=self.windows)
        broken = [str(violation) for violation in violations(recording, bounds=bounds)]
        letters = await ready_messages(system.amqp_url, DEAD_LETTERS)
        letters += await self.history.value("SELECT count(*) FROM dead_letter")
        return [*broken, *await self.history.faults(), *([f"{letters} dead letters"] if letters else [])]

    @asynccontextmanager
    async def window(self, what: str) -> AsyncIterator[None]:
        """Exclude the time of the block, and of the recovery after it, from the bounds."""
        began_at = datetime.now(UTC)
        try:
            yield
        finally:
            self.windows.append(Window(began_at=began_at, ended_at=datetime.now(UTC), what=what))


@asynccontextmanager
async def running_environment(database_url: str, amqp_url: str) -> AsyncIterator[Environment]:
    """Start the recording and the worker; at the end no process is left."""
    await start_recording(database_url, amqp_url)
    async with (
        running(database_url, amqp_url, executors=0, workers=0, settings=SETTINGS) as system,
        publishing(amqp_url) as publisher,
        httpx.AsyncClient(trust_env=False, timeout=10) as http,
        history_of(database_url) as history,
    ):
        # The worker registers actions that use them.
        env = Environment(system=system, client=Client(publisher=publisher, http=http), history=history)
        await history.rows(_RESOURCE, LICENCES, 4, 1, False)
        await env.put_desks()
        # It takes no offers: with its capacity, executions of the pool are granted, and stay `scheduled`.
        await history.rows(
            "SELECT turnstile.register_worker('silent', 'silent', 'nowhere', 1, ARRAY[$1], 100000, 3600)",
            UNSERVED,
        )
        system.settings = {**system.settings, RUN_LOG_VARIABLE: str(system.folder / RUN_LOG)}
        await system.start_worker(ACTIONS)
        yield env


async def purge(amqp_url: str, name: str) -> int:
    """Purge a queue; return the number of its messages."""
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        try:
            queue = await channel.get_queue(name)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            return 0
        return (await queue.purge()).message_count or 0
