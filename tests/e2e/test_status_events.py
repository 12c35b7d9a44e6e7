"""Status events of a running system, for a listener that binds while executions run, and after a rest."""

import asyncio

from tests.support.environment import StartEnvironment
from tests.support.listener import Listener, listening
from turnstile.common.broker.topology import EXECUTION_COMPLETED, EXECUTION_STATUS_CHANGED
from turnstile.common.status_events import PROBE_SECONDS

STATUSES = ["queued", "scheduled", "running", "completed"]


def statuses_of(listener: Listener, execution_id: int) -> list[str]:
    """Return the published statuses of an execution, in the order of its life."""
    found = {str(m.body["status"]) for m in listener.about(EXECUTION_STATUS_CHANGED, execution_id)}
    return sorted(found, key=STATUSES.index)


async def test_a_listener_receives_every_event_from_100_ms_after_its_binding(
    start_env: StartEnvironment,
) -> None:
    body = {"action_ref": "noop", "parameters": {"number": 1}}
    async with start_env(listened=[EXECUTION_COMPLETED]) as env:

        async def run_some() -> None:
            while True:
                await env.submit_many([body] * 5)

        running = asyncio.create_task(run_some())
        await env.history.until("SELECT count(*) > 100 FROM execution WHERE status = 'completed'")
        async with listening(env.amqp_url, EXECUTION_STATUS_CHANGED) as listener:
            await asyncio.sleep(PROBE_SECONDS)
            ids = await env.submit_many([body] * 100)
            await listener.until(
                lambda: all(statuses_of(listener, each) == STATUSES for each in ids), "all events"
            )
        running.cancel()
        await asyncio.wait({running})
        await env.history.until("SELECT count(*) = 0 FROM execution WHERE completed_at IS NULL")
        await asyncio.sleep(2 * PROBE_SECONDS)
        # At rest: the first events reach a listener that has just bound its queue.
        async with listening(env.amqp_url, EXECUTION_STATUS_CHANGED) as listener:
            execution_id = await env.submit("noop", parameters={"number": 2})
            await listener.until(lambda: statuses_of(listener, execution_id) == STATUSES, "all events")
        await env.ended(execution_id)
