"""A cancel by message ends what waits at once, and what runs within its grace (P3, P6).

Whole services: the grace is kept by the worker. Cancels over HTTP, in every state, are in `test_completions`.
"""

from datetime import datetime

import pytest

from tests.support.environment import Environment
from tests.support.traffic import cancel_request, publishing, request

pytestmark = pytest.mark.asyncio(loop_scope="module")
GRACE_SECONDS = 1.0
OPTIONS = {"settings": {"TURNSTILE_STOP_GRACE": f"{GRACE_SECONDS}s"}}


async def cancel(env: Environment, execution_id: int) -> float:
    """Cancel by message, and wait for the end; return after how many seconds it was."""
    since: datetime = await env.history.value("SELECT clock_timestamp()")
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([cancel_request({"execution_id": execution_id, "reason": "enough"})])
    assert await env.ended(execution_id) == ["cancelled"]
    seconds: float = await env.history.value(
        "SELECT extract(epoch FROM completed_at - $2)::float8 FROM ledger.execution WHERE id = $1",
        execution_id,
        since,
    )
    return seconds


async def test_a_waiting_execution_is_cancelled_within_a_second_and_never_starts(env: Environment) -> None:
    head, waiting = [
        await env.submit("retried", concurrency_key="k", parameters={"steps": ["HANG"]}) for _ in "ab"
    ]
    await env.until_status(head, "running")
    assert await cancel(env, waiting) < 2
    shown = await env.get(waiting)
    assert shown["error"] == {"type": "Cancelled", "message": "enough"}
    assert (shown["attempt"], shown["attempts"]) == (0, [])
    assert await env.announced(waiting, 2) == ["queued", "cancelled"]
    # What runs: within the grace, and not retried.
    assert await cancel(env, head) < 2 * (GRACE_SECONDS + 1)
    assert await env.attempts(head) == [(1, "cancelled")]


async def test_a_cancel_of_an_id_out_of_range_is_refused_and_stops_no_other_request(env: Environment) -> None:
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([cancel_request({"execution_id": 2**63})])
        await publisher.publish([request({"action_ref": "noop", "idempotency_key": "behind"})])
        (letter,) = await env.history.dead_letters(1)
    assert letter["code"] == "invalid_message"
    query = "SELECT completed_at IS NOT NULL FROM ledger.execution WHERE idempotency_key = 'behind'"
    await env.history.until(query)
