import asyncio

from turnstile.client import AsyncClient


async def test_a_client_can_be_closed_at_any_moment_of_connecting(amqp_url: str) -> None:
    for moment in range(100):
        async with asyncio.timeout(10), AsyncClient(amqp_url=amqp_url):
            await asyncio.sleep(moment * 0.0005)
