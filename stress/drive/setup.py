"""Checks before a run that the installation is ready, and prepares the actions of a scenario."""

import asyncio

from aio_pika import connect
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, ChannelClosed

from turnstile.common.broker.topology import EXECUTIONS, EXECUTOR_REQUESTS
from turnstile.common.urls import shown_url
from turnstile.stress.installation import Api, Installation, Unreachable, action_path, resource_path
from turnstile.stress.scenario import Scenario
from turnstile.stress.trace import ACTIONS_VARIABLE, POOL, action_ref

_PATIENCE_SECONDS = 10.0
_RECLAIMS_MAX = 1000
"""The maximum: an execution must complete however often its worker is killed."""


async def check_ready(installation: Installation, actions: int) -> None:
    """Return if executors, broker and workers are ready for so many actions; raises Unreachable."""
    await _check_broker(installation.amqp_url.get_secret_value())
    async with Api(installation, patience_seconds=_PATIENCE_SECONDS) as api:
        workers = [worker for worker in await api.live_workers() if POOL in worker["pools"]]
        command = f"{ACTIONS_VARIABLE}={actions} worker serve --actions turnstile.stress.actions"
        if not workers:
            raise Unreachable(f"no live worker serves the pool {POOL!r}; start one: {command}")
        last = action_ref(actions - 1)
        if await api.action(last) is None:
            raise Unreachable(
                f"no worker has declared the action {last!r}; start the workers with: {command}"
            )


async def store_actions(api: Api, scenario: Scenario) -> None:
    """Store the definitions of all actions of a scenario, paused where every execution waits first."""
    gates, fields = scenario.gates, plain_fields(scenario)
    # Resources before the actions that use them, and keys after their actions.
    for name, resource in ({} if gates is None else gates.resources).items():
        await api.put(resource_path(name), resource)
    async with asyncio.TaskGroup() as tasks:
        for number in range(scenario.load.actions):
            ref = action_ref(number)
            own = fields if gates is None else {**fields, **gates.actions[number]}
            tasks.create_task(api.put(action_path(ref), own), name=f"put-{ref}")
    for each in () if gates is None else gates.keys:
        await api.put(each.path, each.fields)


def plain_fields(scenario: Scenario) -> dict[str, object]:
    """Return the definition of an action of a scenario, without gates after its queue."""
    fields: dict[str, object] = {
        "max_concurrent": scenario.limit,
        "pool": POOL,
        "max_reclaims": _RECLAIMS_MAX,
        "paused": scenario.all_wait_first,
    }
    if scenario.load.keys:
        fields["submitter_keys"] = True
    return fields


async def resume_actions(api: Api, scenario: Scenario) -> None:
    """Resume the paused actions of a scenario."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(scenario.load.actions):
            ref = action_ref(number)
            tasks.create_task(api.resume(ref), name=f"resume-{ref}")


async def check_exchange(channel: AbstractChannel) -> None:
    """Check that the exchange exists; submitters may lack the permission to declare it."""
    await channel.get_exchange(EXECUTIONS)


async def _check_broker(amqp_url: str) -> None:
    shown = shown_url(amqp_url)
    try:
        connection = await connect(amqp_url, timeout=_PATIENCE_SECONDS)
    except (TimeoutError, *CONNECTION_EXCEPTIONS) as error:
        reason = str(error) or type(error).__name__
        raise Unreachable(
            f"{shown}: no connection to the broker ({reason}); check host, vhost and user"
        ) from None
    async with connection:
        try:
            channel = await connection.channel()
            await check_exchange(channel)
            await channel.declare_queue(EXECUTOR_REQUESTS, passive=True)
        except ChannelClosed as error:
            raise Unreachable(
                f"{shown}: {error}; no executor has served this vhost yet: "
                "start `executor serve`, or check the URL"
            ) from None
