"""Messages that die as they do with us, and the desk where they are seen, sent again and thrown away."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from common.broker.consumer import ConsumerConnection
from common.broker.delivery import Outgoing
from common.broker.publisher import Publisher
from common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTERS,
    EXECUTIONS,
    EXECUTOR_REQUESTS,
    declare_executor,
)
from common.domain.errors import Code
from common.envelopes import dead_letter
from executor.dead_letters import DeadLetters, Letter
from tests.contract.brokers import bare_channel, message, running, take, until_ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    amqp_url: str
    publisher: Publisher
    consumer: ConsumerConnection
    letters: DeadLetters

    async def bury(self, *dead: Outgoing, code: Code = Code.UNKNOWN_ACTION) -> None:
        """Let them arrive as requests and die of `code`, as a service of ours would have it."""
        requests = self.consumer.subscribe(EXECUTOR_REQUESTS, prefetch=5000)
        before = await self.ready()
        await self.publisher.publish([replace(each, exchange=EXECUTIONS) for each in dead])
        taken = await take(requests, len(dead))
        await self.publisher.publish(
            [dead_letter(each, code, f"it died of {code}", app_id="executor") for each in taken]
        )
        requests.ack(taken)
        await requests.pause()
        await until_ready(self.amqp_url, DEAD_LETTERS, before + len(dead))

    async def ready(self, queue: str = DEAD_LETTERS) -> int:
        async with bare_channel(self.amqp_url) as channel:
            return (await channel.queue_declare(queue, passive=True)).message_count or 0

    async def all(self) -> list[Letter]:
        page = await self.letters.page(code=None, after=None, limit=1000)
        assert page is not None
        return page.letters


@asynccontextmanager
async def desk_at(amqp_url: str) -> AsyncIterator[Desk]:
    publisher = Publisher(amqp_url, name="test publisher", declare=declare_executor)
    consumer = ConsumerConnection(amqp_url, name="test consumer")
    async with running(publisher, consumer):
        yield Desk(
            amqp_url=amqp_url,
            publisher=publisher,
            consumer=consumer,
            letters=DeadLetters(amqp_url, publisher),
        )


def asked(body: bytes, **properties: object) -> Outgoing:
    return replace(message("execution.requested", body), type="execution.requested", **properties)  # type: ignore[arg-type]


def names(letters: Sequence[Letter]) -> list[bytes]:
    return [letter.body for letter in letters]


def dead_letter_under(routing_key: str, body: bytes, *, message_id: str | None = None) -> Outgoing:
    buried = message("any", body, exchange=DEAD_LETTER_EXCHANGE)
    headers = {"x-error-code": "unknown_action", "x-error": "why", "x-original-routing-key": routing_key}
    return replace(
        buried, headers=headers, message_id=buried.message_id if message_id is None else message_id
    )
