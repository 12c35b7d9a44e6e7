"""Submits the job like any client does: `execution.requested`, published in order and confirmed.

In: tasks. Out: their requests in the request queue, in the order of the list: one publisher's order is the
arrival order (P2). Next: the executor service takes them in.
"""

import asyncio
from collections.abc import Sequence

from turnstile.common.broker.connection import BrokerUnavailable
from turnstile.common.broker.delivery import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTIONS
from turnstile.common.domain.errors import TurnstileError
from turnstile.common.envelopes import envelope
from turnstile.common.messages import REQUESTED
from turnstile.executor.demo.job import Task


class NotSubmitted(TurnstileError):
    """The broker did not take every request."""


async def submit(amqp_url: str, tasks: Sequence[Task]) -> None:
    """Publish the requests of all tasks; return when the broker has confirmed each. Raises NotSubmitted."""
    publisher = Publisher(amqp_url, name="demo publisher")
    messages = [
        envelope(
            task.request(),
            message_type=REQUESTED,
            exchange=EXECUTIONS,
            routing_key=REQUESTED,
            app_id="client",
        )
        for task in tasks
    ]
    outcomes: Sequence[Publication] = ()
    reason = "not confirmed"
    async with asyncio.TaskGroup() as group:
        connection = group.create_task(publisher.run(), name="demo publisher")
        try:
            outcomes = await publisher.publish(messages)
        except BrokerUnavailable as error:
            reason = str(error)
        connection.cancel()
    taken = outcomes.count(Publication.CONFIRMED)
    if taken < len(tasks):
        raise NotSubmitted(f"the broker took {taken} of {len(tasks)} requests: {reason}")
