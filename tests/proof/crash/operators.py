"""What operators do over HTTP, and what is done over HTTP for them.

They stop an execution, let a paused action go on, send dead letters again, and are called back.

In: a ground with an armed executor. Out: requests that it may not survive. Whatever it did not do is made up
for afterwards: the keys are cancelled once more, a pause ends in any case, and letters that are left are sent
by the executor that stays.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import httpx

from tests.proof.crash.ground import Ground

_LONG: Final = timedelta(days=1)


async def cancel_something(ground: Ground, url: str) -> None:
    """Submit what is not due for long, and cancel it."""
    run_at = (datetime.now(UTC) + _LONG).isoformat()
    execution_id = await ground.client.post_to_cancel(url, {"action_ref": "crash.free", "run_at": run_at})
    if execution_id is not None:
        with suppress(httpx.HTTPError):
            await ground.client.http.post(f"{url}/api/v1/executions/{execution_id}/cancel")


async def call_back_something(ground: Ground) -> None:
    """Have the end of an execution told to a URL where nobody is."""
    await ground.client.publish({"action_ref": "crash.free", "callback_url": "http://127.0.0.1:1/hook"})


async def resume_something(ground: Ground, url: str) -> None:
    """Let somebody wait for a paused action, and resume it."""
    await ground.pause(paused=True)
    try:
        await ground.client.publish({"action_ref": "crash.one"})
        await ground.while_armed(ground.has_taken_all)
        with suppress(httpx.HTTPError):
            await ground.client.http.post(f"{url}/api/v1/actions/crash.one/resume")
    finally:
        await ground.pause(paused=False)


async def replay_something(ground: Ground, url: str) -> None:
    """Leave a request among the dead letters, and have it sent again."""
    await ground.client.bury({"action_ref": "crash.one"})
    with suppress(httpx.HTTPError):
        await ground.client.replay_dead_letters(url)
