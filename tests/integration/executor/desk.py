"""Messages that die as they do with us, the drain that stores them, and the desk that deals with them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from tests.support.brokers import bare_channel, message, running, take, until_ready
from tests.support.traffic import until
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTERS,
    EXECUTIONS,
    EXECUTOR_REQUESTS,
    declare_executor,
)
from turnstile.common.database import Database
from turnstile.common.domain.errors import Code
from turnstile.common.envelopes import dead_letter
from turnstile.executor.dead_letters import DeadLetters, Drain, StoredLetter
from turnstile.executor.retention.pruner import Pruner
from turnstile.executor.settings import ExecutorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    amqp_url: str
    database: Database
    publisher: Publisher
    consumer: ConsumerConnection
    letters: DeadLetters

    async def bury(self, *dead: Outgoing, code: Code = Code.UNKNOWN_ACTION) -> None:
        """Let them arrive as requests, die of `code` as a service of ours would have it, and be stored."""
        requests = self.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=5000)
        before = len(await self.all())
        await self.publisher.publish([replace(each, exchange=EXECUTIONS) for each in dead])
        taken = await take(requests, len(dead))
        await self.publisher.publish(
            [dead_letter(each, code, f"it died of {code}", app_id="executor") for each in taken]
        )
        requests.ack(taken)
        await requests.pause()
        await self.stored(before + len(dead))

    async def stored(self, count: int) -> list[StoredLetter]:
        """Wait until there are so many rows and the broker's queue is empty; return them."""

        async def are_there() -> bool:
            return await self.ready() == 0 and len(await self.all()) >= count

        await until(are_there, f"{count} dead letters are stored", deadline_seconds=20)
        # What is acknowledged is neither ready nor under way any more.
        await until_ready(self.amqp_url, DEAD_LETTERS, 0)
        found = await self.all()
        assert len(found) == count
        return found

    async def ready(self, queue: str = DEAD_LETTERS) -> int:
        async with bare_channel(self.amqp_url) as channel:
            return (await channel.queue_declare(queue, passive=True)).message_count or 0

    async def all(self) -> list[StoredLetter]:
        return (await self.letters.page(code=None, after=None, limit=1000)).letters


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
async def desk_at(database_url: str, amqp_url: str) -> AsyncIterator[Desk]:
    """A desk whose dead letters nobody drains, unless somebody does."""
    publisher = Publisher(amqp_url, name="test publisher", declare=declare_executor)
    consumer = ConsumerConnection(amqp_url, name="test consumer")
    database = Database(database_url, application_name="test", connections_max=6)
    await database.open()
    try:
        async with running(publisher, consumer):
            yield Desk(
                amqp_url=amqp_url,
                database=database,
                publisher=publisher,
                consumer=consumer,
                letters=DeadLetters(database, publisher),
            )
    finally:
        await database.close()


def asked(body: bytes, **properties: object) -> Outgoing:
    request = message("execution.requested", body)
    return replace(request, type="execution.requested", **properties)  # type: ignore[arg-type]


def names(letters: Sequence[StoredLetter]) -> list[bytes]:
    return [letter.body for letter in letters]


def dead_letter_under(routing_key: str, body: bytes, *, message_id: str | None = None) -> Outgoing:
    buried = message("any", body, exchange=DEAD_LETTER_EXCHANGE)
    headers = {"x-error-code": "unknown_action", "x-error": "why", "x-original-routing-key": routing_key}
    return replace(
        buried, headers=headers, message_id=buried.message_id if message_id is None else message_id
    )
