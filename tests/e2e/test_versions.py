"""A newer version beside an older one: new fields are ignored, a new protocol costs nothing but time."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest
from pydantic_core import from_json, to_json

from tests.support.environment import StartEnvironment
from tests.support.protocol import connected
from tests.support.steady import steady
from tests.support.traffic import drain_queue, publishing
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import pool_queue
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import cancel_message, completed_message, scheduled_message
from turnstile.common.messages import ExecutionCancel
from turnstile.common.statements import installation_text

ON_MESSAGES_ALONE = {
    "TURNSTILE_DISPATCH_TIMEOUT": "1h",
    "TURNSTILE_SETTLE_TIMEOUT": "1h",
    "TURNSTILE_WATCHDOG_INTERVAL": "1h",
}
"""Nothing is published again: only the one message that the test sends has an effect."""


@pytest.mark.whole
async def test_installing_the_same_or_a_newer_protocol_under_load_loses_nothing(
    start_env: StartEnvironment, database_url: str, tmp_path: Path
) -> None:
    async with start_env(executors=2, workers=2) as env:
        async with steady(env.amqp_url, tmp_path) as client:
            await client.continues("the start")
            for text in (installation_text(), _grown(installation_text())) * 3:
                await client.submit_fast(24)
                await _install(database_url, text)
            await client.continues("all the others")
        await client.all_ran_once_in_order(env.history)
        assert await env.history.value("SELECT count(*) FROM worker WHERE lost_at IS NULL") == 2


async def test_what_a_newer_service_sends_has_its_effect_whatever_fields_it_adds(
    start_env: StartEnvironment, database_url: str
) -> None:
    """The test is the newer worker of one execution and the newer executor of two."""
    async with (
        start_env(workers=0, settings=ON_MESSAGES_ALONE) as env,
        publishing(env.amqp_url) as publisher,
    ):
        await env.register_silent_worker("default")
        for ref in ("noop", "hold"):
            await env.put(ref)
        done, offered, stopped = [await env.submit(ref) for ref in ("noop", "noop", "hold")]
        await env.until_offers(3)
        await drain_queue(env.amqp_url, pool_queue("default"), 3)

        async with connected(database_url) as newer_worker:
            await newer_worker.register("newer")
            await newer_worker.run(done, worker="newer")
        await publisher.publish([_newer(_completed(done))])
        await env.history.ended(1)

        await env.start_worker()
        await publisher.publish([_newer(_scheduled(offered, "noop")), _newer(_scheduled(stopped, "hold"))])
        await env.history.ended(2)

        await env.until_status(stopped, "running")
        worker_id = await env.history.value(
            "SELECT worker_id FROM turnstile.current_execution WHERE id = $1", stopped
        )
        cancel = ExecutionCancel(execution_id=stopped, attempt=1)
        await publisher.publish([_newer(cancel_message(cancel, worker_id=worker_id))])
        await env.history.ended(3)


def _newer(message: Outgoing) -> Outgoing:
    """Return the message as a later version might send it."""
    return replace(message, body=to_json({**from_json(message.body), "priority": 7, "added": {"later": []}}))


def _completed(execution_id: int) -> Outgoing:
    return completed_message(
        execution_id=execution_id,
        action_id=1,
        action_ref="noop",
        status=Status.COMPLETED,
        attempt=1,
        completed_at=datetime.now(UTC),
        app_id="worker",
    )


def _scheduled(execution_id: int, ref: str) -> Outgoing:
    return scheduled_message(execution_id, 1, ref, pool="default", traceparent=None)


def _grown(text: str) -> str:
    """Return a later protocol: one more field in a row, one more parameter of a function."""
    for old, new in (
        (
            "is offered again.\n    waited_seconds double precision\n",
            "is offered again.\n    waited_seconds double precision,\n    priority integer\n",
        ),
        ("s.waited_seconds)::turnstile.granted", "s.waited_seconds, 7)::turnstile.granted"),
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
        assert old in text, old
        text = text.replace(old, new)
    return text


async def _install(database_url: str, text: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        while True:
            # A deadlock with a service changes nothing; `migrate` repeats it too.
            with suppress(asyncpg.DeadlockDetectedError):
                await connection.execute(text)
                return
    finally:
        await connection.close()
