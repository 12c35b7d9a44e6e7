"""The broker as the harness meets it: what to call it, and what must be there."""

from aio_pika.abc import AbstractChannel
from yarl import URL

from turnstile.common.broker.topology import EXECUTIONS, EXECUTOR_REQUESTS


def address(amqp_url: str) -> str:
    """Return the URL without the secret in it."""
    url = URL(amqp_url)
    return str(url.with_password(None)) if url.password else str(url)


async def check_exchange(channel: AbstractChannel) -> None:
    """Look for the exchange; whoever may submit need not be one who may declare."""
    await channel.get_exchange(EXECUTIONS)


async def check_requests_taken(channel: AbstractChannel) -> None:
    """Look for the queue in which requests arrive."""
    await channel.declare_queue(EXECUTOR_REQUESTS, passive=True)
