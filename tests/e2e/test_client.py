"""The clients against real executors and workers: submit, wait, cancel, read.

Whole services: what a client waits for is the end that a worker reports.
"""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.environment import Environment
from tests.support.traffic import until
from turnstile.client import AsyncClient, AsyncHandle, ExecutionFailed, Rejected, Request, Status

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPTIONS = {"settings": {"TURNSTILE_EVENT_RESULT_MAX_BYTES": "1000"}}


def _client(env: Environment, *, amqp_url: str | None = None) -> AsyncClient:
    return AsyncClient(amqp_url=amqp_url or env.amqp_url, http_url=env.system.http_url, answer_timeout=30.0)


def _client_over(transport: str, env: Environment) -> AsyncClient:
    return _client(env) if transport == "broker" else AsyncClient(http_url=env.system.http_url)


over_each_transport = pytest.mark.parametrize("transport", ["broker", "http"])


@over_each_transport
async def test_run_returns_the_result_or_says_how_it_ended(env: Environment, transport: str) -> None:
    async with _client_over(transport, env) as client, asyncio.timeout(60):
        assert await client.run("noop", {"number": 7}) == 7
        # From the second run on, the event alone has the result.
        assert [await client.run("noop", {"number": number}) for number in range(20)] == list(range(20))
        with pytest.raises(ExecutionFailed, match="as the script says") as failed:
            await client.run("scripted", {"steps": ["PERMANENT"]})
        assert failed.value.status is Status.FAILED
        assert failed.value.error is not None
        with pytest.raises(Rejected) as rejected:
            await client.run("unknown.action")
        assert rejected.value.code == "unknown_action"
        with pytest.raises(TimeoutError):
            await client.run("blocking", {"seconds": 30}, wait_timeout="200ms", timeout="1s")


@over_each_transport
async def test_a_waiting_execution_can_be_read_and_cancelled(
    env: Environment, tmp_path: Path, transport: str
) -> None:
    parameters = {"file": str(tmp_path / "record"), "seconds": 60}
    async with _client_over(transport, env) as client, asyncio.timeout(60):
        holder = await client.submit("record", parameters)
        first = await client.submit("record", parameters, idempotency_key=transport, metadata={"who": "me"})
        second = await client.submit("record", parameters, priority=4)
        waiting = await client.get(second.execution_id)
        assert (waiting.status, waiting.position, waiting.priority) == (Status.QUEUED, 2, 4)
        assert waiting.waiting_on is not None
        assert waiting.waiting_on.reason == "limit"
        stats = await client.queue_stats("record")
        assert (stats.queue_length, stats.active_count, stats.max_concurrent) == (2, 1, 1)
        assert stats.waiting.limit == 2

        page = await client.list(action_ref="record", status=[Status.QUEUED], limit=1)
        assert [each.id for each in page.items] == [second.execution_id]
        rest = await client.list(
            action_ref="record", status=[Status.QUEUED], limit=1, cursor=page.next_cursor
        )
        assert [(each.id, each.metadata) for each in rest.items] == [(first.execution_id, {"who": "me"})]

        later = await client.list(action_ref="record", status=["queued"], priority=4)
        assert [each.id for each in later.items] == [second.execution_id]
        with pytest.raises(Rejected, match="priority: expected a whole number from 1"):
            await client.submit("record", parameters, priority=0)

        (keyed,) = (await client.list(idempotency_key=transport)).items
        assert keyed.id == first.execution_id
        await client.cancel(idempotency_key=transport, reason="no longer needed")
        if transport == "http":
            await client.cancel(first.execution_id)
            with pytest.raises(Rejected, match="not_found: no execution has the idempotency key 'unused'"):
                await client.cancel(idempotency_key="unused")
        cancelled = await client.wait(first.execution_id)
        assert (cancelled.status, cancelled.attempt) == (Status.CANCELLED, 0)
        await client.cancel(holder.execution_id)
        await client.cancel(second.execution_id)
        ends = await client.wait_many([holder.execution_id, second.execution_id])
        assert {each.status for each in ends} == {Status.CANCELLED}


async def test_executions_and_actions_are_changed_over_http(env: Environment, tmp_path: Path) -> None:
    ref, parameters = "record.seven", {"file": str(tmp_path / "record")}
    before = datetime.now(UTC)
    async with AsyncClient(http_url=env.system.http_url) as client, asyncio.timeout(60):
        assert (await client.pause(ref)).paused
        with pytest.raises(Rejected, match="max_concurent"):
            await client.change_action(ref, max_concurent=2)  # type: ignore[call-arg]
        metadata = {"trial": "http"}
        requests = [Request(action_ref=ref, parameters=parameters, metadata=metadata) for _ in range(3)]
        ids = [
            each.execution_id for each in await client.submit_many(requests) if isinstance(each, AsyncHandle)
        ]

        filters = {
            "action_ref": ref,
            "status": [Status.QUEUED],
            "created_after": before,
            "metadata": metadata,
        }
        assert [each.id for each in (await client.list(**filters)).items] == ids[::-1]  # type: ignore[arg-type]
        assert (await client.cancel_many(dry_run=True, action_ref=ref, metadata=metadata)).matched == 3
        assert (await client.cancel_many(ids[:2], reason="a trial")).changed == 2
        assert {each.status for each in await client.wait_many(ids[:2])} == {Status.CANCELLED}

        assert not (await client.resume(ref)).paused
        assert (await client.wait(ids[2])).status is Status.COMPLETED
        again = await client.retry(ids[2], idempotency_key="again")
        assert (await client.retry(ids[2], idempotency_key="again")).execution_id == again.execution_id
        assert (await client.get(again.execution_id)).retry_of == ids[2]
        retried = await client.retry_many(ids[:2])
        assert [each.id for each in retried.items] == ids[:2]
        await client.wait_many([again.execution_id, *(each.retry_id or 0 for each in retried.items)])

        async def has_whole_log() -> bool:
            # A live piece may arrive shortly after the end.
            logs = await client.logs(ids[2])
            return (logs.ended, logs.next_cursor) == (True, None)

        await until(has_whole_log, "the end of the log")
        assert (await client.action(ref)).max_concurrent == 7
        await env.put("client.keyed", concurrency_key="/customer")
        key = await client.set_key("client.keyed", "customer/7", max_concurrent=2, weight=3)
        assert (key.concurrency_key, key.max_concurrent, key.weight) == ("customer/7", 2, 3)
        await client.reset_key("client.keyed", "customer/7")
        with pytest.raises(Rejected, match="not_found"):
            await client.reset_key("client.keyed", "customer/7")
        assert (await env.http.put("/resources/licence", json={"capacity": 2})).is_success
        assert (await client.change_resource("licence", capacity=5)).capacity == 5
        resource = await client.resource("licence")
        assert (resource.capacity, resource.paused, resource.users) == (5, False, 0)
        live = await client.workers(state=["live"])
        assert [each.state for each in live.items] == ["live"]
