"""Finds out whether a run can begin, before it does.

In: an installation. Out: nothing, or `Unreachable` that says what is missing and what to do about it.
"""

from aio_pika import connect
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, ChannelClosed

from turnstile.stress.api import Api, Unreachable
from turnstile.stress.drive.broker import address, check_exchange, check_requests_taken
from turnstile.stress.installation import Installation
from turnstile.stress.names import ACTIONS_VARIABLE, POOL, action_ref

_PATIENCE_SECONDS = 10.0


async def check_ready(installation: Installation, actions: int) -> None:
    """Return if executors, broker and workers are there for so many actions; raises Unreachable."""
    await _check_broker(installation.amqp_url.get_secret_value())
    async with Api(installation, patience_seconds=_PATIENCE_SECONDS) as api:
        served = [worker for worker in await api.live_workers() if POOL in worker["pools"]]
        command = f"{ACTIONS_VARIABLE}={actions} worker serve --actions turnstile.stress.actions"
        if not served:
            raise Unreachable(f"no live worker serves the pool {POOL!r}; start one: {command}")
        last = action_ref(actions - 1)
        if await api.action(last) is None:
            raise Unreachable(f"no worker has declared the action {last!r}; start them with: {command}")


async def _check_broker(amqp_url: str) -> None:
    where = address(amqp_url)
    try:
        connection = await connect(amqp_url, timeout=_PATIENCE_SECONDS)
    except (TimeoutError, *CONNECTION_EXCEPTIONS) as error:
        raise Unreachable(
            f"{where}: no connection to the broker ({error}); check host, vhost and user"
        ) from None
    async with connection:
        try:
            channel = await connection.channel()
            await check_exchange(channel)
            await check_requests_taken(channel)
        except ChannelClosed as error:
            raise Unreachable(
                f"{where}: {error}; no executor has served this vhost yet: "
                "start `executor serve`, or check the URL"
            ) from None
