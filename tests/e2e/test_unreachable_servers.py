"""A cancel without a broker: it is accepted, and the worker hears of it though its message was lost (P7).

Whole services: an executor is killed between the request and its message.
"""

from tests.support.environment import (
    StartEnvironment,
)
from tests.support.proxy import CLEAR, LinkState, Proxy


async def test_a_cancel_is_accepted_without_a_broker_and_reaches_the_worker_though_its_message_was_lost(
    start_env: StartEnvironment, amqp_url: str
) -> None:
    settings = {"TURNSTILE_WATCHDOG_INTERVAL": "250ms", "TURNSTILE_LEASE_DURATION": "30s"}
    async with Proxy(amqp_url).listening() as broker:
        own = {"TURNSTILE_AMQP_URL": broker.url}
        async with start_env(settings=settings | own) as env:
            running_id, waiting_id = [await env.submit("hold") for _ in "ab"]
            await env.until_status(running_id, "running")
            broker.state = LinkState(refuses=True)
            await env.cancel(running_id, waiting_id)
            assert [await env.status(i) for i in (running_id, waiting_id)] == ["running", "cancelled"]
            # Only the database has the request.
            await env.executor.kill()
            broker.state = CLEAR
            await env.system.start_executor()
            assert await env.ended(running_id, waiting_id) == ["cancelled"] * 2
            # By the worker itself, which was not lost.
            assert await env.attempts(running_id) == [(1, "cancelled")]
            assert await env.attempts(waiting_id) == []
            assert (
                await env.history.value("SELECT count(*) FROM ledger.worker WHERE gone_at IS NOT NULL") == 0
            )
