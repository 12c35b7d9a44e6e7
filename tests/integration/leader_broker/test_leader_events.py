"""Events for listeners: who receives which, in what form, and what a listener that takes nothing costs."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.brokers import hanging
from tests.support.leader_broker import DEADLINE_SECONDS, Listener, leader_broker, listener
from turnstile.common.domain.states import Status
from turnstile.common.messages import Error, ExecutionCompleted
from turnstile.executor.leader.events import completed_event
from turnstile.executor.leader.ports import BrokerUnavailable, Publication
from turnstile.localservers.rabbitmq import RabbitServer

COMPLETED = "execution.completed"
QUORUM: Mapping[str, Any] = {"x-queue-type": "quorum"}


def ended(
    execution_id: int = 1,
    *,
    ref: str = "reports.render",
    status: str = "completed",
    result: str | None = '{"pages": [1, 2]}',
    error: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    """Return an event as the leader's turns build it."""
    return {
        "type": COMPLETED, "execution_id": execution_id, "action_ref": ref, "status": status, "attempt": 2,
        "completed_at": 1_800_000_000.25, "result": result, "error": error,
    }  # fmt: skip


def ids(heard: Listener) -> list[int]:
    return [json.loads(body)["execution_id"] for body in heard.bodies]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (ended(), {"result": {"pages": [1, 2]}}),
        (ended(status="failed", result=None, error={"type": "E", "message": "ü\n"}), {
            "error": Error(type="E", message="ü\n")
        }),
        (ended(result=json.dumps("x" * 2000)), {}),
    ],
    ids=["result", "error", "a result that is too large"],
)  # fmt: skip
def test_an_event_has_the_body_and_the_properties_of_the_reference(
    event: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    found = completed_event({**event, "action_id": 3}, result_bytes_max=1000)
    body = ExecutionCompleted(
        execution_id=1, action_id=3, action_ref="reports.render", status=Status(event["status"]),
        attempt=2, completed_at=datetime.fromtimestamp(1_800_000_000.25, UTC), **expected,
    )  # fmt: skip
    assert json.loads(found.body) == body.model_dump(mode="json")
    properties = found.exchange, found.routing_key, found.type, found.correlation_id, found.app_id
    assert properties == ("executions", COMPLETED, COMPLETED, "1", "executor")
    assert (found.persistent, found.content_type) == (True, "application/json")
    assert found.headers == {"schema_version": 1, "BCC": (f"{COMPLETED}.reports.render.{event['status']}",)}


async def test_a_listener_receives_what_its_keys_name_each_once_and_no_header_of_ours(amqp_url: str) -> None:
    bindings = {
        "all": [COMPLETED],
        "all twice": [COMPLETED, f"{COMPLETED}.#"],
        "one action": [f"{COMPLETED}.reports.render.*"],
        "failures": [f"{COMPLETED}.#.failed"],
        "failures of an area": [f"{COMPLETED}.reports.#.failed"],
    }
    events = [
        ended(1), ended(2, status="failed"), ended(3, ref="reports"), ended(4, ref="mail", status="failed"),
        ended(5, ref="reports.render.pdf"),
    ]  # fmt: skip
    async with leader_broker(amqp_url) as broker, AsyncExitStack() as exits:
        heard = {
            name: await exits.enter_async_context(listener(amqp_url, name, keys=keys))
            for name, keys in bindings.items()
        }
        await broker.publish_events(events)
        await heard["all"].until(5)
        await heard["all twice"].until(5)
        await heard["failures"].until(2)
        # A second round, behind which no copy of the first one can come.
        await broker.publish_events([ended(9, ref="reports.render", status="failed")])
        for each in heard.values():
            await each.until(1)
            while ids(each)[-1] != 9:
                await each.until(len(each.messages) + 1)
        assert {name: ids(each) for name, each in heard.items()} == {
            "all": [1, 2, 3, 4, 5, 9],
            "all twice": [1, 2, 3, 4, 5, 9],
            "one action": [1, 2, 9],
            "failures": [2, 4, 9],
            "failures of an area": [2, 9],
        }
        headers = heard["all"].messages[0].header.properties.headers
        assert headers == {"schema_version": 1}


async def test_while_one_listener_hangs_the_others_receive_every_event(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    # More than the broker takes from one connection for a queue that takes nothing.
    events = [ended(n, result=None) for n in range(1500)]
    async with (
        leader_broker(controlled_amqp_url) as broker,
        listener(controlled_amqp_url, "hangs", keys=[COMPLETED], consumes=False, arguments={}),
        listener(controlled_amqp_url, "other", keys=[COMPLETED]) as heard,
        hanging(controlled_broker, controlled_amqp_url, "hangs"),
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        for start in range(0, 1500, 500):
            # What the drain of the outbox does.
            await broker.publish([Publication(to="event", body=each) for each in events[start : start + 500]])
        await heard.until(1500)
        while set(ids(heard)) != set(range(1500)):
            await heard.until(len(heard.messages) + 1)


async def test_a_listener_without_a_majority_fails_the_call_in_time_and_it_works_when_the_queue_does(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    async with (
        leader_broker(controlled_amqp_url) as broker,
        listener(controlled_amqp_url, "no majority", keys=[COMPLETED], consumes=False, arguments=QUORUM),
        listener(controlled_amqp_url, "other", keys=[COMPLETED]) as heard,
    ):
        async with hanging(controlled_broker, controlled_amqp_url, "no majority"):
            began_at = asyncio.get_running_loop().time()
            with pytest.raises(BrokerUnavailable):
                await broker.publish_events([ended(n) for n in range(100)])
            assert asyncio.get_running_loop().time() - began_at < 5.0
        async with asyncio.timeout(DEADLINE_SECONDS):
            await broker.publish_events([ended(n) for n in range(100)])
            while set(ids(heard)) != set(range(100)):
                await heard.until(len(heard.messages) + 1)
