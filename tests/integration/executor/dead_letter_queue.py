"""Dead letters for tests: rejected requests, the drain that stores them, and the store."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from tests.support.brokers import message, ready_messages, running, take
from tests.support.traffic import until
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTERS,
    EXECUTION_REQUESTED,
    EXECUTIONS,
    EXECUTOR_REQUESTS,
    declare_executor,
)
from turnstile.common.database import Database
from turnstile.common.domain.errors import Code
from turnstile.executor.callers import Caller
from turnstile.executor.dead_letters.drain import Drain
from turnstile.executor.dead_letters.envelope import dead_letter as dead_lettered
from turnstile.executor.dead_letters.message import StoredDeadLetter
from turnstile.executor.dead_letters.store import DeadLetters
from turnstile.executor.retention import Pruner
from turnstile.executor.settings import ExecutorSettings

OPERATOR = Caller("operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterQueue:
    """The broker's queue of dead letters, the store, and a client of both."""

    amqp_url: str
    database: Database
    publisher: Publisher
    consumer: ConsumerConnection
    store: DeadLetters

    async def dead_letter(self, *dead: Outgoing, code: Code = Code.UNKNOWN_ACTION) -> None:
        """Publish requests, dead-letter them with `code`, and wait until they are stored."""
        consumer = ConsumerConnection(self.amqp_url, name="dies")
        requests = consumer.subscribe(EXECUTOR_REQUESTS, prefetch=5000)
        before = len(await self.all())
        await self.publisher.publish([replace(each, exchange=EXECUTIONS) for each in dead])
        async with running(consumer):
            deliveries = await take(requests, len(dead))
            await self.publisher.publish(
                [dead_lettered(each, code, f"it died of {code}") for each in deliveries]
            )
            requests.ack(deliveries)
        await self.stored(before + len(dead))

    async def stored(self, count: int) -> list[StoredDeadLetter]:
        """Wait until there are `count` rows and the broker's queue is empty; return them."""

        async def are_stored() -> bool:
            return await self.ready() == 0 and len(await self.all()) >= count

        await until(are_stored, f"{count} dead letters are stored", deadline_seconds=20)
        found = await self.all()
        assert len(found) == count
        return found

    async def ready(self, queue: str = DEAD_LETTERS) -> int:
        return await ready_messages(self.amqp_url, queue)

    async def all(self) -> list[StoredDeadLetter]:
        return (await self.store.page(code=None, after=None, limit=1000)).letters


@asynccontextmanager
async def draining(database: Database, amqp_url: str, **settings: object) -> AsyncIterator[Drain]:
    """Drain the dead letters into the database."""
    chosen = ExecutorSettings(amqp_url=amqp_url, **settings)  # type: ignore[arg-type]
    drain = Drain(chosen, database, make_room=Pruner(database, chosen).prune_dead_letters)
    stop = asyncio.Event()
    running = asyncio.create_task(drain.run(stop, declare=declare_executor))
    try:
        yield drain
    finally:
        stop.set()
        await running


@asynccontextmanager
async def dead_letter_queue(database_url: str, amqp_url: str) -> AsyncIterator[DeadLetterQueue]:
    """Dead letters without a running drain."""
    publisher = Publisher(amqp_url, name="test publisher", declare=declare_executor)
    consumer = ConsumerConnection(amqp_url, name="test consumer")
    database = Database(database_url, application_name="test", connections_max=6)
    await database.open()
    try:
        async with running(publisher, consumer):
            yield DeadLetterQueue(
                amqp_url=amqp_url,
                database=database,
                publisher=publisher,
                consumer=consumer,
                store=DeadLetters(database, publisher),
            )
    finally:
        await database.close()


def request(body: bytes, **properties: object) -> Outgoing:
    return replace(message(EXECUTION_REQUESTED, body), type=EXECUTION_REQUESTED, **properties)  # type: ignore[arg-type]


def letter_bodies(letters: Sequence[StoredDeadLetter]) -> list[bytes]:
    return [letter.body for letter in letters]


def dead_letter_under(routing_key: str, body: bytes, *, message_id: str | None = None) -> Outgoing:
    letter = message("any", body, exchange=DEAD_LETTER_EXCHANGE)
    headers = {"x-error-code": "unknown_action", "x-error": "why", "x-original-routing-key": routing_key}
    return replace(
        letter, headers=headers, message_id=letter.message_id if message_id is None else message_id
    )
