"""Real executors and a worker: another replica delivers after a crash behind the POST."""

import asyncio
from collections import Counter
from typing import Any

import httpx
from pydantic_core import from_json

from tests.integration.webhooks.receiver import Receiver
from tests.support.history import History, history_of
from tests.support.processes import CERTIFICATES, running
from turnstile.common.crash_points import VARIABLE, CrashPoint

SETTINGS = {
    "TURNSTILE_WEBHOOK_ALLOW_PRIVATE": "true",
    "TURNSTILE_WEBHOOK_SECRET": "sixteen or more bytes",
    "TURNSTILE_WEBHOOK_TIMEOUT": "1500ms",
    "TURNSTILE_WEBHOOK_RETRY_DELAY": "100ms",
    "TURNSTILE_WATCHDOG_INTERVAL": "100ms",
}
_DELIVERED = "SELECT count(*) = $1 FROM ledger.webhook WHERE state = 'delivered'"


async def submit(url: str, count: int, **fields: Any) -> list[int]:
    body = [{"action_ref": "noop", **fields} for _ in range(count)]
    async with httpx.AsyncClient(verify=CERTIFICATES, trust_env=False, timeout=20) as http:
        answer = await http.post(f"{url}/api/v1/executions", json=body)
    assert answer.status_code == 202, answer.text
    return [item["id"] for item in answer.json()["items"]]


async def delivered(history: History, count: int) -> None:
    await history.until(_DELIVERED, count, deadline_seconds=30)


async def test_a_crash_between_post_and_result_repeats_only_that_delivery(
    database_url: str, amqp_url: str, receiver: Receiver
) -> None:
    async with (
        running(database_url, amqp_url, executors=0, workers=0, settings=SETTINGS) as system,
        history_of(database_url) as history,
    ):
        dies = {VARIABLE: f"{CrashPoint.WEBHOOK_POSTED}:1"}
        armed = await system.start_executor(wait=True, **dies)
        await system.start_worker("tests.e2e.actions")
        (first,) = await submit(armed.http_url, 1, callback_url=receiver.url)
        await asyncio.wait_for(armed.process.wait(), 30)
        url = (await system.start_executor()).http_url
        await delivered(history, 1)
        (cancelled,) = await submit(url, 1, callback_url=receiver.url, run_at="2040-01-01T00:00:00Z")
        async with httpx.AsyncClient(verify=CERTIFICATES, trust_env=False) as http:
            await http.post(f"{url}/api/v1/executions/{cancelled}/cancel")
        rest = await submit(url, 30, callback_url=receiver.url)
        await delivered(history, 32)
        posts = Counter(from_json(got.body)["execution_id"] for got in receiver.received)
        assert posts == {first: 2, cancelled: 1, **dict.fromkeys(rest, 1)}
        copies = [got for got in receiver.received if from_json(got.body)["execution_id"] == first]
        assert copies[0].headers["webhook-id"] == copies[1].headers["webhook-id"]
        assert copies[0].body == copies[1].body
        assert await history.faults() == []
