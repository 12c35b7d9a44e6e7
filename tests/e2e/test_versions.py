"""A newer version beside an older one: new fields are ignored, a new protocol costs nothing but time."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import httpx
from pydantic_core import from_json, to_json

from tests.support.history import history_of
from tests.support.processes import running
from tests.support.protocol import connected
from tests.support.steady import steady
from tests.support.traffic import drain_queue, publishing, until
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.topology import pool_queue
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import cancel_message, completed_message, scheduled_message
from turnstile.common.messages import ExecutionCancel, ExecutionCompleted, ExecutionScheduled
from turnstile.common.statements import installation_text

ON_MESSAGES_ALONE = {
    "TURNSTILE_DISPATCH_TIMEOUT": "1h",
    "TURNSTILE_SETTLE_TIMEOUT": "1h",
    "TURNSTILE_WATCHDOG_INTERVAL": "1h",
}
"""Nothing is told again: what has an effect is the one message that the test sends."""
_RUNS = "SELECT status = 'running' FROM execution WHERE id = $1"


async def test_a_protocol_installed_anew_or_grown_under_load_costs_nothing_but_time(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with running(database_url, amqp_url, executors=2, workers=2):
        async with steady(amqp_url, tmp_path) as client:
            await client.goes_on("the start")
            for text in (installation_text(), _grown(installation_text())) * 3:
                await client.hurries(24)
                await _install(database_url, text)
            await client.goes_on("all the others")
        async with history_of(database_url) as history:
            await client.all_ran_once_in_order(history)
            assert await history.value("SELECT count(*) FROM worker WHERE lost_at IS NULL") == 2


async def test_what_a_newer_service_sends_has_its_effect_whatever_fields_it_adds(
    database_url: str, amqp_url: str
) -> None:
    """The test is the newer worker of one execution and the newer executor of two."""
    async with (
        running(database_url, amqp_url, workers=0, settings=ON_MESSAGES_ALONE) as system,
        history_of(database_url) as history,
        publishing(amqp_url) as publisher,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        for ref in ("noop", "hold"):
            assert (await http.put(f"/actions/{ref}", json={})).status_code in (200, 201)

        async def submitted(ref: str) -> int:
            return int((await http.post("/executions", json={"action_ref": ref})).json()["id"])

        done, offered, stopped = [await submitted(ref) for ref in ("noop", "noop", "hold")]
        await drain_queue(amqp_url, pool_queue("default"), 3)

        async with connected(database_url) as newer_worker:
            await newer_worker.register("newer")
            await newer_worker.run(done, worker="newer")
        await publisher.publish([_newer(_completed(done))])
        await history.ended(1)

        await system.start_worker("tests.e2e.actions")
        await publisher.publish([_newer(_scheduled(offered, "noop")), _newer(_scheduled(stopped, "hold"))])
        await history.ended(2)

        async def runs() -> bool:
            return bool(await history.value(_RUNS, stopped))

        await until(runs, "it runs")
        worker_id = await history.value("SELECT worker_id FROM execution WHERE id = $1", stopped)
        cancel = ExecutionCancel(execution_id=stopped, attempt=1)
        await publisher.publish([_newer(cancel_message(cancel, worker_id=worker_id))])
        await history.ended(3)


def _newer(message: Outgoing) -> Outgoing:
    """Return the message as a later version might send it."""
    return replace(message, body=to_json({**from_json(message.body), "priority": 7, "added": {"later": []}}))


def _completed(execution_id: int) -> Outgoing:
    completed = ExecutionCompleted(
        execution_id=execution_id,
        action_id=1,
        action_ref="noop",
        status=Status.COMPLETED,
        attempt=1,
        completed_at=datetime.now(UTC),
    )
    return completed_message(completed, app_id="worker")


def _scheduled(execution_id: int, ref: str) -> Outgoing:
    scheduled = ExecutionScheduled(execution_id=execution_id, attempt=1, action_ref=ref)
    return scheduled_message(scheduled, pool="default", traceparent=None)


def _grown(text: str) -> str:
    """Return a later protocol: a row with a field more, a function with a parameter more."""
    for old, new in (
        (
            "is offered again.\n    waited_seconds double precision\n",
            "is offered again.\n    waited_seconds double precision,\n    priority integer\n",
        ),
        ("m.waited_seconds)::turnstile.granted", "m.waited_seconds, 7)::turnstile.granted"),
        ("e.traceparent, NULL::double precision\n", "e.traceparent, NULL::double precision, 7\n"),
        (
            "extract(epoch FROM o.granted_at - e.queued_at)::double precision END\n",
            "extract(epoch FROM o.granted_at - e.queued_at)::double precision END, 7\n",
        ),
        (
            "in_lease_seconds double precision, OUT",
            "in_lease_seconds double precision, in_x int DEFAULT 7, OUT",
        ),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


async def _install(database_url: str, text: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute(text)
    await connection.close()
