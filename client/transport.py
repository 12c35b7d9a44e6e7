"""How one client reaches Turnstile: over the broker, with the API for what is read, or over HTTP alone.

In: requests, cancels, and ids to wait for. Out: answers and completions; `run` keeps it going.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final, NoReturn, Protocol
from uuid import uuid4

from aio_pika.abc import AbstractChannel

from turnstile.client.api import Api
from turnstile.client.completions import Completions
from turnstile.client.errors import Rejected
from turnstile.client.http_submission import HttpSubmissions
from turnstile.client.requests import Request, cancel_request_message
from turnstile.client.submission import Replies, RequestSender, Submissions, Submitted
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTIONS
from turnstile.common.domain.errors import Code

_LIBRARY_LOGGERS: Final = ("aiormq.connection", "aiormq.channel", "aio_pika.connection", "aio_pika.channel")
_in_client: Final[ContextVar[bool]] = ContextVar("in_client", default=False)
"""Set in the task of a client; the tasks that the libraries start for it inherit it."""


def _not_in_client(_: logging.LogRecord) -> bool:
    # The client reconnects, and raises Unavailable: what the libraries log about an outage is no news. Their
    # use by the application itself logs as before.
    return not _in_client.get()


for _name in _LIBRARY_LOGGERS:
    logging.getLogger(_name).addFilter(_not_in_client)


class Transport(Protocol):
    """What a client needs to submit, cancel and wait."""

    completions: Completions

    async def run(self) -> None:
        """Keep the connections until cancelled."""

    async def submit_all(self, requests: Iterable[Request]) -> list[Submitted | Rejected]:
        """Return an answer for each, in order; raises Unavailable if one is missing in time."""

    async def cancel(self, execution_id: int | None, idempotency_key: str | None, reason: str | None) -> None:
        """Request a cancel. Raises Rejected, Unavailable."""


class OverBroker:
    """Submits and cancels by messages; completions arrive as events."""

    def __init__(
        self, amqp_url: str, api: Api, *, timeout_seconds: float, parameters_bytes_max: int, name: str
    ) -> None:
        self._timeout_seconds = timeout_seconds
        queues = f"client.{uuid4()}"
        self._publisher = Publisher(
            amqp_url,
            name=f"{name}-publisher",
            declare=_check_exchange,
            # Short: the request sender repeats, and must see its own deadlines.
            timeouts=BrokerTimeouts(wait_seconds=0.5),
        )
        self._consumer = ConsumerConnection(amqp_url, name=f"{name}-consumer")
        self._sender = RequestSender(self._publisher)
        self._replies = Replies(self._consumer, self._sender, queue=f"{queues}.answers")
        self.completions = Completions(self._consumer, api, queue=f"{queues}.ends")
        self._submissions = Submissions(
            self._replies, timeout_seconds=timeout_seconds, parameters_bytes_max=parameters_bytes_max
        )

    async def run(self) -> None:
        """Keep the connections until cancelled."""
        _in_client.set(True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run(), name="publisher")
            tasks.create_task(self._consumer.run(), name="consumer")
            tasks.create_task(self._sender.run(), name="sender")
            tasks.create_task(self._replies.run(), name="replies")
            tasks.create_task(self.completions.run(), name="completions")

    async def submit_all(self, requests: Iterable[Request]) -> list[Submitted | Rejected]:
        """Return an answer for each, in order; raises Unavailable if one is missing in time."""
        return await self._submissions.submit_all(requests)

    async def cancel(self, execution_id: int | None, idempotency_key: str | None, reason: str | None) -> None:
        """Return once the broker has the request. Raises Rejected, Unavailable."""
        message = cancel_request_message(execution_id, idempotency_key, reason)
        give_up_at = asyncio.get_running_loop().time() + self._timeout_seconds
        await self._sender.send([message], give_up_at=give_up_at)


class OverHttp:
    """Submits, cancels and waits by the API alone."""

    def __init__(self, api: Api, *, timeout_seconds: float, parameters_bytes_max: int) -> None:
        self._api = api
        self._submissions = HttpSubmissions(
            api, timeout_seconds=timeout_seconds, parameters_bytes_max=parameters_bytes_max
        )
        self.completions = Completions(None, api, queue="")

    async def run(self) -> NoReturn:
        """Send until cancelled."""
        await self._submissions.run()

    async def submit_all(self, requests: Iterable[Request]) -> list[Submitted | Rejected]:
        """Return an answer for each, in order; raises Unavailable if one is missing in time."""
        return await self._submissions.submit_all(requests)

    async def cancel(self, execution_id: int | None, idempotency_key: str | None, reason: str | None) -> None:
        """Return once it was cancelled, or its worker requested to stop it. Raises Rejected, Unavailable."""
        cancel_request_message(execution_id, idempotency_key, reason)  # refuses what a message cannot carry
        if execution_id is None:
            found = (await self._api.executions({"idempotency_key": idempotency_key})).items
            if not found:
                raise Rejected(Code.NOT_FOUND, f"no execution has the idempotency key {idempotency_key!r}")
            execution_id = found[0].id
        await self._api.cancel(execution_id, reason)


async def _check_exchange(channel: AbstractChannel) -> None:
    # Not declared: an account that may submit need not be allowed to declare.
    await channel.get_exchange(EXECUTIONS)
