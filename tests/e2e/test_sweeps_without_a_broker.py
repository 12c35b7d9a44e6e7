"""The watchdog moves in time while nobody reaches the broker, and tells all when it is back (P7, P9)."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.proof.chaos.proxy import CLEAR, Proxy, Weather
from tests.support.brokers import ready_messages
from tests.support.history import History, history_of
from tests.support.processes import running
from tests.support.protocol import connected
from tests.support.tap import Tap, tapped
from tests.support.traffic import drain_queue, publishing, until
from turnstile.common.broker.topology import declare_own_queue, declare_pool, pool_queue, worker_queue
from turnstile.common.messages import COMPLETED

SETTINGS = {
    "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    "TURNSTILE_STOP_TIMEOUT": "500ms",
    "TURNSTILE_LEASE_DURATION": "2s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An executor, its record, and its way to the broker."""

    broker: Proxy
    http: httpx.AsyncClient
    history: History
    tap: Tap

    async def submit(self, **fields: Any) -> int:
        answer = await self.http.post("/executions", json={"action_ref": "a", **fields})
        assert answer.status_code == 202, answer.text
        return int(answer.json()["id"])

    async def are(self, ids: Sequence[int], status: str) -> None:
        query = "SELECT count(*) FROM execution WHERE id = ANY ($1) AND status::text = $2"

        async def all_have() -> bool:
            return bool(await self.history.value(query, ids, status) == len(ids))

        await until(all_have, f"{ids} are {status}", deadline_seconds=20)

    async def are_told(self, ids: Sequence[int]) -> None:
        await self.tap.until(lambda: all(self.tap.about(COMPLETED, i) for i in ids), f"the ends of {ids}")


@asynccontextmanager
async def outage(database_url: str, amqp_url: str) -> AsyncIterator[Outage]:
    async with (
        Proxy(amqp_url).standing() as broker,
        running(database_url, broker.url, workers=0, settings=SETTINGS) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=10) as http,
        tapped(amqp_url, COMPLETED) as tap,
    ):
        await http.put("/actions/a", json={})
        async with publishing(amqp_url) as publisher:
            await publisher.declare(lambda channel: declare_pool(channel, "default"))
        yield Outage(broker=broker, http=http, history=history, tap=tap)
        assert await history.faults() == []


async def test_every_time_to_live_ends_in_time_without_a_broker(database_url: str, amqp_url: str) -> None:
    async with outage(database_url, amqp_url) as it:
        it.broker.weather = Weather(refuses=True)
        # Apart by more than a tick, so that no sweep finds two of them.
        ids = [await it.submit(ttl=0.5 * (n + 1)) for n in range(5)]
        await it.are(ids, "expired")
        late = await it.history.value(
            "SELECT max(extract(epoch FROM completed_at - expires_at)) FROM execution"
        )
        assert late < 5
        assert it.tap.heard == []
        it.broker.weather = CLEAR
        await it.are_told(ids)


async def test_lost_workers_and_overdue_attempts_are_seen_to_without_a_broker(
    database_url: str, amqp_url: str
) -> None:
    async with outage(database_url, amqp_url) as it, connected(database_url) as protocol:
        workers = ["lost", "lost too", "steady"]
        ids = [await it.submit() for _ in workers]
        overdue = [await it.submit(timeout=timeout) for timeout in (1, 2)]
        for worker, execution_id in zip(workers, ids, strict=True):
            await protocol.register(worker)
            assert await protocol.claim_verdicts(execution_id, worker=worker) == ["claimed"]
        assert await protocol.claim_verdicts(*overdue, worker="steady") == ["claimed"] * 2
        it.broker.weather = Weather(refuses=True)
        await it.are(overdue, "timeout")
        for worker, execution_id in zip(workers[:2], ids[:2], strict=True):
            await protocol.lose_lease(worker)
            # Taken back, and granted anew.
            await it.are([execution_id], "scheduled")
        attempts = await protocol.column("SELECT attempt FROM execution WHERE id = ANY ($1) ORDER BY id", ids)
        assert (attempts, await protocol.status(ids[2])) == ([2, 2, 1], "running")
        assert it.tap.heard == []
        it.broker.weather = CLEAR
        await it.are_told(overdue)


async def test_after_an_outage_a_lost_worker_is_told_to_stop_before_its_work_is_offered_again(
    database_url: str, amqp_url: str
) -> None:
    async with outage(database_url, amqp_url) as it, connected(database_url) as protocol:
        await protocol.register("lost", lease_seconds=5)
        one = await it.submit()
        await drain_queue(amqp_url, pool_queue("default"), 1)
        assert await protocol.claim_verdicts(one, worker="lost") == ["claimed"]
        it.broker.weather = Weather(refuses=True)
        await it.are([one], "scheduled")
        await protocol.register("steady")
        async with publishing(amqp_url) as publisher:
            await publisher.declare(lambda channel: declare_own_queue(channel, worker_queue("lost")))
            it.broker.weather = CLEAR
            (again,) = await drain_queue(amqp_url, pool_queue("default"), 1)
        assert json.loads(again.body)["attempt"] == 2
        # Confirmed before the offer was published, so it is there by now.
        assert await ready_messages(amqp_url, worker_queue("lost")) >= 1
        assert await protocol.column("SELECT execution_id FROM untold_stop") == []
