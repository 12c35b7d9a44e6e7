"""A cancel that comes before its request is kept for a while, and acts with it."""

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from tests.support.environment import Environment
from tests.support.traffic import ask, cancel_request, publishing, request
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import EXECUTOR_REQUESTS

pytestmark = pytest.mark.asyncio(loop_scope="module")


def to_queue(message: Outgoing) -> Outgoing:
    """Return the message as a client sends it that publishes to the queue directly."""
    return replace(message, exchange="", routing_key=EXECUTOR_REQUESTS)


ADDRESSES: dict[str, Callable[[Outgoing], Outgoing]] = {
    "by the exchange": lambda message: message,
    "by the queue": to_queue,
}


async def early_cancels(env: Environment, key: str) -> int:
    """Count those that are kept of this idempotency key."""
    query = "SELECT count(*) FROM ledger.early_cancel WHERE idempotency_key = $1"
    return int(await env.history.value(query, key))


def noop_request(reply_to: str) -> Outgoing:
    """Return a request whose answer comes after all earlier messages were decided."""
    return request({"action_ref": "noop"}, reply_to=reply_to)


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_cancel_that_comes_before_its_request_acts_with_it(env: Environment, address: str) -> None:
    key = str(uuid4())
    early = cancel_request({"idempotency_key": key, "reason": "too early"})
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([ADDRESSES[address](early)])
        await ask(env.amqp_url, lambda to: [noop_request(to)])
        assert await early_cancels(env, key) == 1
        execution_id = await env.submit("hold", idempotency_key=key)
    assert await env.ended(execution_id) == ["cancelled"]
    assert (await env.get(execution_id))["error"] == {"type": "Cancelled", "message": "too early"}
    assert len(await env.completions(execution_id)) >= 1
    assert await early_cancels(env, key) == 0
